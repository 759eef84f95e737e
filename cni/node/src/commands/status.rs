// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd status`: asks the running agent for its state, and prints it.

use std::io::Write;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use slipway_cli::{Failure, Output};

use super::agent_client::AgentOptions;
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
    let document = block_on(async { options.agent.ask("/status").await.map_err(Failure::failed) })?;
    print(document, options.output.json(), out)?;
    Ok(0)
}

/// The fields of the document that are printed as text.
#[derive(Deserialize)]
struct Status {
    node: String,
    version: String,
    since: String,
    node_list_complete: bool,
    reason: Option<String>,
    subnets: Vec<String>,
    mtu: Option<u32>,
    nodes: u64,
    routes: u64,
    tunnel: Option<Tunnel>,
    wireguard: Option<WireGuard>,
    refused: Vec<String>,
    troubles: Vec<String>,
    trouble_count: usize,
    addresses: Vec<Range>,
    former_addresses: Vec<FormerAddress>,
    former_address_count: usize,
    garbage: Option<Garbage>,
    last_comparison: Option<Comparison>,
}

#[derive(Deserialize)]
struct Tunnel {
    device: String,
    vni: u32,
    port: u16,
    local: String,
    peers: u64,
}

#[derive(Deserialize)]
struct WireGuard {
    device: String,
    port: u16,
    public_key: Option<String>,
    peers: u64,
}

#[derive(Deserialize)]
struct Range {
    range: String,
    used: u64,
    free: u64,
}

/// An address of a pod from a former pod CIDR.
#[derive(Deserialize)]
struct FormerAddress {
    address: String,
    container: Option<String>,
    interface: Option<String>,
}

#[derive(Deserialize)]
struct Garbage {
    suspected: u64,
    deleted: u64,
    failed: u64,
    troubles: Vec<String>,
}

#[derive(Deserialize)]
struct Comparison {
    time: String,
    seconds: f64,
    changes: u64,
}

/// Prints the document, as text or JSON.
///
/// # Errors
/// `out` cannot be written, or the agent is of another version, whose document has other fields.
fn print(document: Value, is_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    if is_json {
        return Ok(slipway_cli::json::print(document, out)?);
    }
    let other =
        |error| Failure::failed(format!("the agent is of another version: {error}; use --output json"));
    let status: Status = serde_json::from_value(document).map_err(other)?;
    for (name, value) in rows(&status) {
        writeln!(out, "{name:<14}{value}")?;
    }
    Ok(())
}

fn rows(status: &Status) -> Vec<(&'static str, String)> {
    let unknown = || "-".to_owned();
    let joined = |texts: &[String]| if texts.is_empty() { unknown() } else { texts.join(", ") };
    let mut rows = vec![
        ("node", status.node.clone()),
        ("version", status.version.clone()),
        ("since", status.since.clone()),
        ("list of Nodes", if status.node_list_complete { "complete" } else { "not complete" }.to_owned()),
        ("ready", status.reason.as_ref().map_or("yes".to_owned(), |reason| format!("no: {reason}"))),
        ("subnets", joined(&status.subnets)),
        ("MTU", status.mtu.map_or_else(unknown, |mtu| mtu.to_string())),
        ("nodes", status.nodes.to_string()),
        ("routes", status.routes.to_string()),
    ];
    let tunnel = status.tunnel.as_ref().map(|tunnel| {
        let Tunnel { device, vni, port, local, peers } = tunnel;
        format!("{device}, VNI {vni}, UDP port {port}, from {local}, {peers} peers")
    });
    rows.push(("tunnel", tunnel.unwrap_or_else(unknown)));
    if let Some(WireGuard { device, port, public_key, peers }) = &status.wireguard {
        let key = public_key.as_deref().unwrap_or("-");
        rows.push(("WireGuard", format!("{device}, UDP port {port}, key {key}, {peers} peers")));
    }
    if !status.refused.is_empty() {
        rows.push(("refused", status.refused.join(", ")));
    }
    let compared = status.last_comparison.as_ref().map(|last| {
        let Comparison { time, seconds, changes } = last;
        format!("{time}, {:.1} ms, {changes} changes", seconds * 1e3)
    });
    rows.push(("compared", compared.unwrap_or_else(unknown)));
    for Range { range, used, free } in &status.addresses {
        rows.push(("addresses", format!("{range}: {used} used, {free} free")));
    }
    for FormerAddress { address, container, interface } in &status.former_addresses {
        let owner = [container, interface].map(|part| part.clone().unwrap_or_else(unknown)).join(" ");
        rows.push(("former", format!("{address} of {owner}, until it ends")));
    }
    let left_out = status.former_address_count.saturating_sub(status.former_addresses.len());
    if left_out > 0 {
        rows.push(("former", format!("and {left_out} more")));
    }
    if let Some(Garbage { suspected, deleted, failed, troubles }) = &status.garbage {
        rows.push(("garbage", format!("{suspected} suspected, {deleted} deleted, {failed} failed")));
        rows.extend(troubles.iter().map(|trouble| ("trouble", trouble.clone())));
    }
    rows.extend(status.troubles.iter().map(|trouble| ("trouble", trouble.clone())));
    let left_out = status.trouble_count.saturating_sub(status.troubles.len());
    if left_out > 0 {
        rows.push(("trouble", format!("and {left_out} more")));
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(document: &Value) -> String {
        let mut text = Vec::new();
        print(document.clone(), false, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_document_is_printed_as_text() {
        let mut document = json!({
            "node": "node-1", "version": "0.1.0", "since": "2026-11-23T11:50:15Z", "node_list_complete": true,
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
        assert_eq!(printed(&document), expected);
        document["reason"] = json!("this node has no pod CIDR");
        for key in ["mtu", "tunnel", "wireguard", "last_comparison", "garbage"] {
            document[key] = Value::Null;
        }
        document["refused"] = json!([]);
        document["subnets"] = json!([]);
        let text = printed(&document);
        for line in ["ready         no: this node has no pod CIDR", "subnets       -", "MTU           -"] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
        assert!(!text.contains("WireGuard") && !text.contains("refused"), "{text}");
    }
}
