// SPDX-License-Identifier: GPL-2.0-or-later

//! GC in every backend removes what stale attachments of the network have left and nothing else, even while containers
//! of another network are added and deleted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::json;
use slipway_tests::{Attach, Network, Node, Pod, Proto, REFERENCE, Reference, host_local, needs};

/// The number of concurrent ADDs and DELs on the other network.
const ROUNDS: u16 = 4;

fn network<'a>(node: &'a Node, number: u8, interface: &str, backend: &str) -> Network<'a> {
    node.network(json!({
        "name": format!("net{number}"),
        "plugins": [
            {
                "type": interface, "bridge": format!("br{number}"), "isGateway": true, "ipMasq": true,
                "ipMasqBackend": backend,
                "ipam": host_local(format!("10.88.{number}.0/24"), format!("fd00:88:{number}::/64")),
            },
            {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
        ],
    }))
}

fn attach(pod: &Pod, port: u16) -> Attach {
    Attach::new(pod).port(Proto::Tcp, port, 80).port(Proto::Udp, port, 80).port_on(
        "192.0.2.1",
        Proto::Tcp,
        port + 1000,
        80,
    )
}

fn node(variant: &str) -> Node {
    let node = Node::without_bridge_netfilter();
    for family in ["iptables", "ip6tables"] {
        node.cmd(&format!("{family}-{variant} -t nat -N KUBE-SERVICES"));
    }
    node
}

/// The rulesets of nftables and of iptables-legacy.
fn everything(node: &Node) -> String {
    let mut all = node.ruleset();
    for tool in ["iptables", "ip6tables"] {
        all.push_str(&node.cmd(&format!("{tool}-legacy-save -t nat")));
        all.push_str(&node.cmd(&format!("{tool}-nft-save -t nat")));
    }
    all
}

/// Runs GC of network 1 with one valid attachment, while containers of network 2 are added and deleted.
fn removes_stale_attachments(
    node: &Node,
    [one, two]: [&Network<'_>; 2],
    add: &dyn Fn(&Network<'_>, &Attach),
) {
    let pods = ["dead-1", "live-1", "dead-2", "other"].map(|name| node.pod(name));
    let attaches: Vec<Attach> = pods.iter().zip((8000..).step_by(10)).map(|(p, n)| attach(p, n)).collect();
    for attach in &attaches[..3] {
        add(one, attach);
    }
    add(two, &attaches[3]);
    let valid = json!([{"containerID": "live-1", "ifname": "eth0"}]);
    let coming = node.pod("coming");
    std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            for turn in 0..ROUNDS {
                let attach = attach(&coming, 9000 + turn);
                two.add(&attach).expect("ADD on the other network");
                two.check(&attach).expect("CHECK on the other network");
                two.del(&attach).expect("DEL on the other network");
            }
        });
        one.gc_plugins(&valid).expect("GC");
        storm.join().expect("the thread of the other network");
    });
    let all = everything(node);
    for (name, stays) in [("dead-1", false), ("dead-2", false), ("live-1", true), ("other", true)] {
        assert_eq!(all.contains(name), stays, "{name}: {all}");
    }
    for dead in ["8000", "8020", "9000 "] {
        assert!(!all.contains(&format!(" {dead}")), "port {dead}: {all}");
    }
    assert!(all.contains("8010") && all.contains("8030"), "{all}");
    // A second GC finds nothing to remove.
    one.gc_plugins(&valid).expect("GC");
    assert_eq!(everything(node).matches("live-1").count(), all.matches("live-1").count());
}

fn by_ours(interface: &str, backend: &str, variant: &str) {
    let node = node(variant);
    let (one, two) = (network(&node, 1, interface, backend), network(&node, 2, "bridge", backend));
    let add = |network: &Network<'_>, attach: &Attach| drop(network.add(attach).expect("ADD"));
    removes_stale_attachments(&node, [&one, &two], &add);
}

#[test]
fn stale_attachments_in_the_table_are_removed() {
    by_ours("bridge", "nftables", "nft");
    by_ours("ptp", "nftables", "nft");
}

#[test]
fn stale_chains_of_iptables_nft_are_removed() {
    by_ours("bridge", "iptables", "nft");
    by_ours("ptp", "iptables", "nft");
}

#[test]
fn stale_chains_of_iptables_legacy_are_removed() {
    by_ours("bridge", "iptables", "legacy");
    by_ours("ptp", "iptables", "legacy");
}

#[test]
fn stale_chains_of_the_reference_are_removed() {
    let all = Reference::all();
    needs!(!all.is_empty(), REFERENCE);
    for reference in all {
        for backend in reference.backends() {
            let node = node("nft");
            let (one, two) = (network(&node, 1, "bridge", backend), network(&node, 2, "bridge", backend));
            removes_stale_attachments(&node, [&one, &two], &|network, attach| {
                network.add_by(reference.dir(), attach, |call| call);
            });
        }
    }
}
