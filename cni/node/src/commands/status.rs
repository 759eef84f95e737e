// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd status`: asks the running agent for its state, and prints it.

use std::io::{self, Write};

use clap::Args;
use cni_state::documents::{
    AddressRange, AgentStatus, Comparison, FormerAddress, Garbage, NodeNetwork, VxlanDevice, WireGuardDevice,
};
use ipnet::IpNet;
use slipway_cli::{Failure, Output};
use slipwayd::agent_client::AgentOptions;

use super::block_on;

const EXAMPLES: &str = "\
Examples:
  slipwayd status
  slipwayd status --socket /run/pods/slipwayd.sock --output json";

/// Print the state of the agent that runs on this node
///
/// Prints whether the node's network is ready, else the reason; its subnets with used and free addresses, its routes and
/// tunnel, and the troubles of the last comparison.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(flatten)]
    agent: AgentOptions,
    #[command(flatten)]
    output: Output,
}

/// Prints the state of the running agent.
pub(super) fn execute(options: &Options, out: &mut dyn Write) -> Result<u8, Failure> {
    let status = block_on(async { options.agent.ask("/status").await.map_err(Failure::failed) })?;
    if options.output.json() {
        slipway_cli::json::print::<AgentStatus>(status, out)?;
    } else {
        print(&status, out)?;
    }
    Ok(0)
}

fn print(status: &AgentStatus, out: &mut dyn Write) -> io::Result<()> {
    for (name, value) in rows(status) {
        writeln!(out, "{name:<14}{value}")?;
    }
    Ok(())
}

fn rows(status: &AgentStatus) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("node", status.node.clone()),
        ("version", status.version.clone()),
        ("since", status.since.clone()),
        ("list of Nodes", if status.node_list_complete { "complete" } else { "not complete" }.to_owned()),
        ("ready", status.reason.as_ref().map_or("yes".to_owned(), |reason| format!("no: {reason}"))),
    ];
    rows.extend(network_rows(status));
    for AddressRange { range, used, free } in &status.addresses {
        rows.push(("addresses", format!("{range}: {used} used, {free} free")));
    }
    for FormerAddress { address, container, interface } in &status.former_addresses {
        let owner = [container, interface].map(|part| part.clone().unwrap_or_else(unknown)).join(" ");
        rows.push(("former", format!("{address} of {owner}, until it ends")));
    }
    rows.extend(left_out("former", status.former_address_count, status.former_addresses.len()));
    if let Some(Garbage { suspected, deleted, failed, troubles }) = &status.garbage {
        rows.push(("garbage", format!("{suspected} suspected, {deleted} deleted, {failed} failed")));
        rows.extend(troubles.iter().map(|trouble| ("trouble", trouble.clone())));
    }
    let NodeNetwork { troubles, trouble_count, .. } = &status.network;
    rows.extend(troubles.iter().map(|trouble| ("trouble", trouble.clone())));
    rows.extend(left_out("trouble", *trouble_count, troubles.len()));
    rows
}

fn network_rows(status: &AgentStatus) -> Vec<(&'static str, String)> {
    let network = &status.network;
    let mut rows = vec![
        ("subnets", joined(&network.subnets)),
        ("MTU", network.mtu.map_or_else(unknown, |mtu| mtu.to_string())),
        ("nodes", status.nodes.to_string()),
        ("routes", network.routes.to_string()),
    ];
    let tunnel = network.tunnel.as_ref().map(|tunnel| {
        let VxlanDevice { device, vni, port, local, peers } = tunnel;
        format!("{device}, VNI {vni}, UDP port {port}, from {local}, {peers} peers")
    });
    rows.push(("tunnel", tunnel.unwrap_or_else(unknown)));
    if let Some(WireGuardDevice { device, port, public_key, peers }) = &network.wireguard {
        let key = public_key.as_deref().unwrap_or("-");
        rows.push(("WireGuard", format!("{device}, UDP port {port}, key {key}, {peers} peers")));
    }
    if !network.refused.is_empty() {
        rows.push(("refused", joined(&network.refused)));
    }
    let compared = network.last_comparison.as_ref().map(|last| {
        let Comparison { time, seconds, changes } = last;
        format!("{time}, {:.1} ms, {changes} changes", seconds * 1e3)
    });
    rows.push(("compared", compared.unwrap_or_else(unknown)));
    rows
}

fn unknown() -> String {
    "-".to_owned()
}

fn joined(nets: &[IpNet]) -> String {
    if nets.is_empty() {
        return unknown();
    }
    nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A row with the number of entries that the document counts but leaves out.
fn left_out(name: &'static str, all: usize, shown: usize) -> Option<(&'static str, String)> {
    let more = all.saturating_sub(shown);
    (more > 0).then(|| (name, format!("and {more} more")))
}

#[cfg(test)]
mod tests {
    use cni_state::documents;
    use serde_json::json;

    use super::*;

    fn printed(status: &AgentStatus) -> String {
        let mut text = Vec::new();
        print(status, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_document_is_printed_as_text() {
        let document = json!({
            "schema": 1, "node": "node-1", "version": "0.1.0", "since": "2026-11-23T11:50:15Z", "node_list_complete": true,
            "ready": true, "reason": null, "subnets": ["10.244.1.0/24", "fd44:0:0:1::/64"], "mtu": 1450,
            "nodes": 3, "routes": 4,
            "tunnel": {"device": "slipway-vxlan", "vni": 1, "port": 4789, "local": "192.168.50.11", "peers": 2},
            "wireguard": {"device": "slipway-wg", "port": 51820, "public_key": "AbC=", "peers": 3},
            "refused": ["10.244.0.0/16", "10.244.9.0/24"],
            "troubles": ["node a: no pod CIDR"], "trouble_count": 3,
            "addresses": [{"range": "10.244.1.0/24", "used": 2, "free": 251}],
            "former_addresses": [
                {"address": "10.9.0.2", "container": "8f3a", "interface": "eth0"},
                {"address": "10.9.0.3", "container": null, "interface": null},
            ],
            "former_address_count": 5,
            "garbage": {"suspected": 2, "deleted": 1, "failed": 0, "troubles": ["garbage: 8f3b is not deleted"]},
            "last_comparison": {"time": "2026-11-23T11:50:45Z", "seconds": 0.00314, "changes": 0},
        });
        let expected = "node          node-1\nversion       0.1.0\nsince         2026-11-23T11:50:15Z\n\
                        list of Nodes complete\nready         yes\nsubnets       10.244.1.0/24, fd44:0:0:1::/64\n\
                        MTU           1450\nnodes         3\nroutes        4\n\
                        tunnel        slipway-vxlan, VNI 1, UDP port 4789, from 192.168.50.11, 2 peers\n\
                        WireGuard     slipway-wg, UDP port 51820, key AbC=, 3 peers\n\
                        refused       10.244.0.0/16, 10.244.9.0/24\n\
                        compared      2026-11-23T11:50:45Z, 3.1 ms, 0 changes\n\
                        addresses     10.244.1.0/24: 2 used, 251 free\n\
                        former        10.9.0.2 of 8f3a eth0, until it ends\nformer        10.9.0.3 of - -, until it ends\n\
                        former        and 3 more\ngarbage       2 suspected, 1 deleted, 0 failed\n\
                        trouble       garbage: 8f3b is not deleted\ntrouble       node a: no pod CIDR\n\
                        trouble       and 2 more\n";
        let mut status: AgentStatus = documents::parse(document.to_string().as_bytes()).unwrap();
        assert_eq!(printed(&status), expected);
        status.reason = Some("this node has no pod CIDR".to_owned());
        status.garbage = None;
        status.network = NodeNetwork::default();
        let text = printed(&status);
        for line in ["ready         no: this node has no pod CIDR", "subnets       -", "MTU           -"] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
        assert!(!text.contains("WireGuard") && !text.contains("refused"), "{text}");
    }
}
