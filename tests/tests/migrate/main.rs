// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway migrate`: moves published ports and masquerade to another backend while containers use them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod concurrent;
mod killed;
mod moment;
mod moves;
mod programs;
mod restored;
mod traffic;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use slipway_tests::{Attach, Host, Network, Node, Pod, Proto, Reference, Server, host_local, with_keys};

const SERVED: u16 = 80;
const PORT: u16 = 8080;

/// The plugin set and the backend that made the objects to be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Maker {
    /// `backend` and `ipMasqBackend`.
    backend: &'static str,
    /// The variant of iptables that the node uses.
    variant: &'static str,
    /// The folder of another plugin set, if that made them.
    directory: Option<PathBuf>,
}

const TABLE: Maker = Maker { backend: "nftables", variant: "nft", directory: None };
const PROGRAMS: Maker = Maker { backend: "ebpf", variant: "nft", directory: None };
const NFT: Maker = Maker { backend: "iptables", variant: "nft", directory: None };
const LEGACY: Maker = Maker { backend: "iptables", variant: "legacy", directory: None };

impl Maker {
    /// The reference plugins, with each of their backends.
    fn references() -> Vec<Self> {
        let each = |reference: Reference| {
            let directory = Some(reference.dir().to_owned());
            let maker =
                move |backend: &&'static str| Self { backend, variant: "nft", directory: directory.clone() };
            reference.backends().iter().map(maker).collect::<Vec<_>>()
        };
        Reference::all().into_iter().flat_map(each).collect()
    }
}

/// A node and an outside host.
struct World {
    node: Node,
    client: Host,
}

impl World {
    fn new(variant: &str) -> Self {
        let (node, client) = Node::with_client();
        for family in ["iptables", "ip6tables"] {
            node.cmd(&format!("{family}-{variant} -t mangle -N KUBE-IPTABLES-HINT"));
        }
        Self { node, client }
    }

    fn node_ips(&self) -> [IpAddr; 2] {
        [self.client.node_v4.into(), self.client.node_v6.into()]
    }

    fn network(&self, number: u8, interface: &str, backend: &str, extra: &Value) -> Network<'_> {
        let portmap = json!({"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}});
        let portmap = with_keys(portmap, extra);
        self.node.network(json!({
            "name": format!("net{number}"),
            "plugins": [
                {
                    "type": interface, "bridge": format!("br{number}"), "isGateway": true, "hairpinMode": true,
                    "ipMasq": true, "ipMasqBackend": backend,
                    "ipam": host_local(format!("10.88.{number}.0/24"), format!("fd00:88:{number}::/64")),
                },
                portmap,
            ],
        }))
    }

    /// The rulesets of nftables and of iptables-legacy.
    fn everything(&self) -> String {
        // Counters are left out, because a late packet does not change the ruleset.
        let mut all = self.node.cmd("nft --stateless list ruleset");
        for tool in ["iptables", "ip6tables"] {
            let saved = self.node.cmd(&format!("{tool}-legacy-save -t nat"));
            // Comments with the time of day and lines with counters are left out.
            let rules = saved.lines().filter(|line| !line.starts_with(['#', ':']));
            all.extend(rules.map(|line| format!("{line}\n")));
        }
        all
    }

    /// Runs `slipway migrate`. Returns its report and exit code.
    fn migrate(&self, args: &str) -> (Value, i32) {
        let output = self.node.try_slipway(&format!("migrate --output json {args}"));
        let report = serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"));
        (report, output.code.expect("an exit code"))
    }

    /// Migrates, and asserts that `wanted` entries are moved and none is left.
    #[track_caller]
    fn migrated(&self, to: &str, wanted: usize) {
        let (report, code) = self.migrate(&format!("--to {to}"));
        assert_eq!((code, count(&report, "moved")), (0, wanted), "{report:#}");
    }

    #[track_caller]
    fn assert_is_in(&self, place: &str) {
        let all = self.everything();
        let in_chains = all.contains("CNI-DN-") || all.contains("masquerade\" id:");
        let of_reference = all.contains("cni_hostport") || all.contains("cni_plugins_masquerade");
        let in_table = all.contains(" : 10.88.1.2 . 80");
        let programs = self.node.programs();
        let by_programs = programs["containers"].as_u64() > Some(0);
        let found = (in_table, in_chains, of_reference, by_programs);
        // The eBPF backend also needs the nftables table.
        let wanted = (
            place == "nftables" || place == "ebpf",
            place == "iptables",
            place == "reference",
            place == "ebpf",
        );
        assert_eq!(found, wanted, "{place}: {programs:#} {all}");
        if place == "ebpf" {
            assert_eq!(self.backends(), ["ebpf"], "{programs:#}");
        }
    }

    /// The backends of the published ports.
    fn backends(&self) -> Vec<String> {
        let ports: Value = serde_json::from_str(&self.node.slipway("ports --json")).expect("JSON");
        let all = ports["ports"].as_array().expect("a list").iter();
        let names: std::collections::BTreeSet<String> =
            all.map(|port| port["backend"].as_str().expect("a name").to_owned()).collect();
        names.into_iter().collect()
    }
}

/// The number of entries in this state.
fn count(report: &Value, state: &str) -> usize {
    let things = report["items"].as_array().expect("a list");
    things.iter().filter(|thing| thing["state"] == state).count()
}

/// Calls ADD of these plugins, chained as by a runtime.
fn add(maker: &Maker, network: &Network<'_>, attach: &Attach) {
    match &maker.directory {
        Some(directory) => network.add_by(directory, attach, |call| call),
        None => network.add(attach).expect("ADD"),
    };
}

/// A pod that has been added and serves TCP and UDP.
struct Web {
    pod: Pod,
    attach: Attach,
    _servers: Vec<Server>,
}

impl Web {
    fn new(world: &World, maker: &Maker, network: &Network<'_>, name: &str, port: u16) -> Self {
        let pod = world.node.pod(name);
        let node = world.client.node_v4.to_string();
        let attach = Attach::new(&pod).port(Proto::Tcp, port, SERVED).port(Proto::Udp, port, SERVED).port_on(
            &node,
            Proto::Tcp,
            port + 1000,
            SERVED,
        );
        add(maker, network, &attach);
        let servers = Proto::ALL.map(|proto| pod.serve(proto, &format!("[::]:{SERVED}"), name));
        Self { pod, attach, _servers: servers.into() }
    }
}

/// Describes a maker, with its plugin folder, for messages.
fn shown(maker: &Maker) -> String {
    let by = maker.directory.as_deref().map_or("ours".into(), Path::to_string_lossy);
    format!("{} {} by {by}", maker.backend, maker.variant)
}
