// SPDX-License-Identifier: GPL-2.0-or-later

//! `ingressPolicy` with both backends.

use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, Node, Pod, Proto, comes, has_iptables, has_ipv6, is_peer, peer_fails,
    slipway_only,
};

use super::{filter, network};

/// The backends that the plugins under test have.
fn backends() -> &'static [&'static str] {
    match () {
        () if is_peer() => &["iptables"],
        () if !has_iptables() => &["nftables"],
        () => &["iptables", "nftables"],
    }
}

fn keys(backend: &str, policy: &str) -> Value {
    json!({"backend": backend, "ingressPolicy": policy})
}

/// Two pods on each of two bridges, with one policy per bridge, and the check which pods reach each other.
struct Stage<'a> {
    node: &'a Node,
    pods: [Pod; 4],
}

impl<'a> Stage<'a> {
    fn new(node: &'a Node, backend: &str, policies: [&str; 2]) -> Self {
        let pods = ["a1", "a2", "b1", "b2"].map(|name| node.pod(&format!("{name}-{backend}")));
        for (index, pod) in pods.iter().enumerate() {
            let number = if index < 2 { 1 } else { 2 };
            let network = network(node, number, &keys(backend, policies[index / 2]));
            network.add(&Attach::new(pod)).expect("ADD");
            network.check(&Attach::new(pod)).expect("CHECK");
        }
        Self { node, pods }
    }

    /// Tests both families with TCP and UDP.
    #[track_caller]
    fn reaches(&self, from: usize, to: usize, wanted: bool) {
        let bridge = to / 2 + 1;
        let last = to % 2 + 2;
        let of_ipv6 = has_ipv6().then(|| format!("[fd00:{bridge}::{last}]:80"));
        let addresses: Vec<String> =
            [format!("10.1.{bridge}.{last}:80")].into_iter().chain(of_ipv6).collect();
        let all =
            Proto::ALL.into_iter().flat_map(|proto| addresses.iter().map(move |address| (proto, address)));
        let _servers: Vec<_> =
            all.clone().map(|(proto, address)| self.pods[to].serve(proto, address, "it")).collect();
        let all = all.map(|(proto, address)| (proto, address.parse().expect("an address")));
        if wanted {
            all.for_each(|(proto, address): (_, std::net::SocketAddr)| {
                self.pods[from].expect(proto, address, "it");
            });
        } else {
            self.pods[from].expect_none_of(all);
        }
    }

    fn del(self, backend: &str, policies: [&str; 2]) {
        for (index, pod) in self.pods.iter().enumerate() {
            let number = if index < 2 { 1 } else { 2 };
            let network = network(self.node, number, &keys(backend, policies[index / 2]));
            for config in network.configs(Some(&Attach::new(pod))).iter().rev() {
                let _ = network.call("DEL", config, Some(&Attach::new(pod))).ok();
            }
        }
    }
}

#[test]
fn bridges_with_a_policy_are_isolated() {
    for backend in backends() {
        let (node, client) = Node::with_client();
        let policies = ["same-bridge", "same-bridge"];
        let stage = Stage::new(&node, backend, policies);
        stage.reaches(0, 1, true);
        stage.reaches(0, 2, false);
        stage.reaches(3, 1, false);
        // The policy does not affect outside hosts.
        let _server = client.serve(Proto::Tcp, "0.0.0.0:80", "client");
        stage.pods[0].expect(Proto::Tcp, (client.v4, 80), "client");
        let _server = stage.pods[0].serve(Proto::Tcp, "0.0.0.0:81", "pod");
        client.expect(Proto::Tcp, ([10, 1, 1, 2], 81), "pod");
        stage.del(backend, policies);
    }
}

#[test]
fn a_bridge_without_a_policy_is_reached() {
    for backend in backends() {
        let node = Node::without_bridge_netfilter();
        let stage = Stage::new(&node, backend, ["same-bridge", "open"]);
        stage.reaches(0, 2, true);
        stage.reaches(2, 0, true);
    }
}

#[test]
fn isolated_containers_do_not_reach_their_neighbours() {
    for backend in backends() {
        let node = Node::new();
        // Packets within a bridge pass netfilter only if bridge netfilter is on.
        if !node.bridge_netfilter(BridgeNetfilter::On) {
            slipway_tests::skip!("br_netfilter");
        }
        let stage = Stage::new(&node, backend, ["isolated", "same-bridge"]);
        stage.reaches(0, 1, false);
        stage.reaches(0, 2, false);
        stage.reaches(2, 0, false);
        stage.reaches(2, 3, true);
    }
}

/// The last container's DEL removes the rules that isolate its bridge.
#[test]
fn del_of_the_last_container_removes_the_isolation() {
    peer_fails("it never removes its chains", || {
        for backend in backends() {
            let node = Node::new();
            let policies = ["isolated", "same-bridge"];
            let before = (filter(&node, "iptables-save"), filter(&node, "ip6tables-save"));
            let stage = Stage::new(&node, backend, policies);
            stage.del(backend, policies);
            for (program, before) in [("iptables-save", &before.0), ("ip6tables-save", &before.1)] {
                let after = filter(&node, program);
                assert!(!after.contains("ISOLATION") && !after.contains("br1"), "{after}");
                assert_eq!(
                    after.matches("-A FORWARD").count(),
                    before.matches("-A FORWARD").count() + usize::from(after.contains("CNI-FORWARD"))
                );
            }
            if *backend == "nftables" {
                let table = node.cmd("nft list table inet slipway-firewall");
                assert!(!table.contains("elements"), "{table}");
            }
        }
    });
}

/// After the DEL of one of two containers, the bridge stays isolated for the other.
#[test]
fn other_containers_stay_isolated() {
    for backend in backends() {
        let node = Node::without_bridge_netfilter();
        let policies = ["same-bridge", "same-bridge"];
        let stage = Stage::new(&node, backend, policies);
        let attach = Attach::new(&stage.pods[0]);
        let network = network(&node, 1, &keys(backend, "same-bridge"));
        for config in network.configs(Some(&attach)).iter().rev() {
            let _ = network.call("DEL", config, Some(&attach)).ok();
        }
        stage.reaches(1, 2, false);
        stage.reaches(2, 1, false);
    }
}

#[test]
fn gc_removes_the_isolation_of_stale_attachments() {
    peer_fails("it does nothing", || {
        for backend in backends() {
            let node = Node::new();
            let policies = ["isolated", "same-bridge"];
            let _stage = Stage::new(&node, backend, policies);
            for number in [1, 2] {
                let network = network(&node, number, &keys(backend, policies[usize::from(number) - 1]));
                network.gc_plugins(&Value::Null).expect("GC");
            }
            let after = filter(&node, "iptables-save");
            assert!(!after.contains("ISOLATION"), "{after}");
            assert!(!node.ruleset().contains("\"br1\""), "{}", node.ruleset());
        }
    });
}

/// A container that the reference plugin attached has no record, but may need the bridge's isolation.
#[test]
fn a_bridge_with_unrecorded_containers_stays_isolated() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    let node = Node::new();
    let (one, unknown) = (node.pod("one"), node.pod("unknown"));
    let network = network(&node, 1, &keys("iptables", "same-bridge"));
    let attach = Attach::new(&one);
    network.add(&attach).expect("ADD");
    let unknown = Attach::new(&unknown);
    let _ = network.add_first(&unknown);
    network.del(&attach).expect("DEL");
    assert!(filter(&node, "iptables-save").contains("ISOLATION-STAGE-2 -o br1"));
    let config = network.configs(Some(&unknown)).swap_remove(0);
    let _ = network.call("DEL", &config, Some(&unknown)).ok();
    network.gc_plugins(&Value::Null).expect("GC");
    assert!(!filter(&node, "iptables-save").contains("ISOLATION"));
}

/// The configured policy changes while the container runs.
#[test]
fn a_repeated_add_changes_the_policy() {
    for backend in backends() {
        slipway_only!();
        let (node, _pod, attach) = Node::with_attachment();
        let strict = network(&node, 1, &keys(backend, "isolated"));
        let previous = strict.add_first(&attach);
        let _ = strict.call_one(1, "ADD", &attach, &previous).ok();
        let weaker = network(&node, 1, &keys(backend, "same-bridge"));
        let error = weaker.call_one(1, "CHECK", &attach, &previous).error();
        assert!(error.msg.contains("missing"), "{error:?}");
        let _ = weaker.call_one(1, "ADD", &attach, &previous).ok();
        assert!(weaker.call_one(1, "CHECK", &attach, &previous).ok().is_null());
        let open = network(&node, 1, &keys(backend, "open"));
        let _ = open.call_one(1, "ADD", &attach, &previous).ok();
        assert!(open.call_one(1, "CHECK", &attach, &previous).ok().is_null());
        assert!(open.call_one(1, "DEL", &attach, &previous).ok().is_null());
        assert!(!node.ruleset().contains("\"br1\" . \"br1\""), "{}", node.ruleset());
    }
}

/// Creates the rules that the reference plugin leaves for a container with `same-bridge` and this first link.
fn isolate_as_the_reference(node: &Node, link: &str) {
    let comment = |policy: &str| {
        format!("-m comment --comment \"CNI firewall plugin rules (ingressPolicy: {policy})\"")
    };
    let (one, either) = (comment("same-bridge"), comment("same-bridge|isolated"));
    let rules = format!(
        "*filter\n:CNI-ISOLATION-STAGE-1 -\n:CNI-ISOLATION-STAGE-2 -\n\
         -A FORWARD {either} -j CNI-ISOLATION-STAGE-1\n\
         -A CNI-ISOLATION-STAGE-1 -i {link} ! -o {link} {one} -j CNI-ISOLATION-STAGE-2\n\
         -A CNI-ISOLATION-STAGE-1 {either} -j RETURN\n\
         -A CNI-ISOLATION-STAGE-2 -o {link} {either} -j DROP\n\
         -A CNI-ISOLATION-STAGE-2 {either} -j RETURN\nCOMMIT\n"
    );
    node.cmd_input("iptables-restore --noflush", &rules);
}

/// With ptp, the first link is the node's end of a veth pair, which has no bridge ports.
#[test]
fn gc_keeps_the_isolation_of_a_reference_container_on_ptp() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    let node = Node::new();
    node.cmd("ip link add vethref type veth peer name eth9");
    isolate_as_the_reference(&node, "vethref");
    let network = network(&node, 1, &keys("iptables", "same-bridge"));
    network.gc_plugins(&Value::Null).expect("GC");
    assert!(filter(&node, "iptables-save").contains("-o vethref"));
    node.cmd("ip link del vethref");
    network.gc_plugins(&Value::Null).expect("GC");
    assert!(!filter(&node, "iptables-save").contains("ISOLATION"));
}

/// DEL of a container on ptp removes the container's isolation, with and without the namespace.
#[test]
fn del_of_a_container_on_ptp_removes_its_isolation() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    let (node, pod) = Node::with_pod();
    let ptp = json!({"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.1.0/24"}]]}});
    let firewall = json!({"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"});
    let network = node.network(json!({"name": "ptp", "plugins": [ptp, firewall]}));
    let attach = Attach::new(&pod);
    for netns in [attach.netns.clone(), "".into()] {
        let previous = network.add(&attach).expect("ADD");
        network.check(&attach).expect("CHECK");
        let gone = attach.clone().netns(netns);
        assert!(network.call_one(1, "DEL", &gone, &previous).ok().is_null());
        let left = filter(&node, "iptables-save");
        assert!(!left.contains("ISOLATION"), "{left}");
        network.del(&attach).expect("DEL");
    }
}

/// The record of a container that is gone without a DEL must not count for a container without a record.
#[test]
fn the_record_of_a_gone_container_counts_for_no_other() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    let node = Node::new();
    let (dead, unknown, last) = (node.pod("dead"), node.pod("unknown"), node.pod("last"));
    network(&node, 1, &keys("iptables", "open")).add(&Attach::new(&dead)).expect("ADD");
    let network = network(&node, 1, &keys("iptables", "same-bridge"));
    let _ = network.add_first(&Attach::new(&unknown));
    network.add(&Attach::new(&last)).expect("ADD");
    let link = "ip -o link show master br1";
    let ports = node.cmd(link).lines().count();
    dead.remove();
    assert!(comes(|| node.cmd(link).lines().count() < ports), "the gone container's port still exists");
    network.del(&Attach::new(&last)).expect("DEL");
    assert!(filter(&node, "iptables-save").contains("ISOLATION-STAGE-2 -o br1"));
}
