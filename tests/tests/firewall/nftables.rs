// SPDX-License-Identifier: GPL-2.0-or-later

//! The nftables backend.

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Proto, Snapshot, has_iptables, slipway_only};

use super::{network, recorded};

fn open() -> Value {
    json!({"backend": "nftables"})
}

fn table(node: &Node) -> String {
    node.cmd("nft list table inet slipway-firewall")
}

fn rules(node: &Node) -> usize {
    table(node)
        .lines()
        .filter(|line| ["accept", "drop", "jump"].iter().any(|word| line.contains(word)))
        .count()
}

#[test]
fn a_container_adds_set_elements_and_no_rules() {
    slipway_tests::needs_ipv6!();
    slipway_only!();
    let node = Node::new();
    let pods = ["one", "two", "three"].map(|name| node.pod(name));
    let network = network(&node, 1, &open());
    network.add(&Attach::new(&pods[0])).expect("ADD");
    let first = rules(&node);
    for pod in &pods[1..] {
        network.add(&Attach::new(pod)).expect("ADD");
    }
    assert_eq!(rules(&node), first, "the rules are the same for all");
    let text = table(&node);
    for part in ["10.1.1.2", "10.1.1.4", "fd00:1::3", "set pods4", "chain admin"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for pod in &pods {
        network.check(&Attach::new(pod)).expect("CHECK");
        network.del(&Attach::new(pod)).expect("DEL");
    }
    assert!(!table(&node).contains("elements"), "{}", table(&node));
    assert!(!node.ruleset().contains("CNI-"), "no chain of iptables");
}

/// As documented, an accept in our chain does not override a drop in another chain.
#[test]
fn an_accept_does_not_override_a_drop_of_another_chain() {
    slipway_only!();
    let node = Node::new();
    let client = node.host("client");
    let pod = node.pod("pod");
    network(&node, 1, &open()).add(&Attach::new(&pod)).expect("ADD");
    let _server = client.serve(Proto::Tcp, "0.0.0.0:80", "client");
    pod.expect(Proto::Tcp, (client.v4, 80), "client");
    node.cmd("iptables -P FORWARD DROP");
    pod.expect_none(Proto::Tcp, (client.v4, 80));
}

#[test]
fn the_administrators_chain_is_never_changed() {
    slipway_only!();
    let node = Node::new();
    let client = node.host("client");
    let (pod, other) = (node.pod("pod"), node.pod("other"));
    let network = network(&node, 1, &open());
    network.add(&Attach::new(&pod)).expect("ADD");
    node.cmd("nft add rule inet slipway-firewall admin tcp dport 80 drop");
    network.add(&Attach::new(&other)).expect("ADD of a second container");
    let _server = client.serve(Proto::Tcp, "0.0.0.0:80", "dropped");
    let _other = client.serve(Proto::Tcp, "0.0.0.0:81", "passed");
    pod.expect_none(Proto::Tcp, (client.v4, 80));
    pod.expect(Proto::Tcp, (client.v4, 81), "passed");
    network.del(&Attach::new(&other)).expect("DEL");
    assert!(table(&node).contains("tcp dport 80 drop"));
}

#[test]
fn add_repairs_a_damaged_chain() {
    slipway_only!();
    let node = Node::new();
    let (pod, other) = (node.pod("pod"), node.pod("other"));
    let network = network(&node, 1, &open());
    network.add(&Attach::new(&pod)).expect("ADD");
    let rules_before = rules(&node);
    node.cmd("nft flush chain inet slipway-firewall forward");
    let error = network.check(&Attach::new(&pod)).expect_err("CHECK").error;
    assert_eq!(error.msg, "table inet slipway-firewall is not complete");
    network.add(&Attach::new(&other)).expect("ADD of a second container");
    assert_eq!(rules(&node), rules_before);
    network.check(&Attach::new(&pod)).expect("CHECK");
    node.cmd("nft flush set inet slipway-firewall pods4");
    let error = network.check(&Attach::new(&pod)).expect_err("CHECK").error;
    assert_eq!(error.msg, "address 10.1.1.2 is missing from set pods4 of table inet slipway-firewall");
    // DEL removes the remaining elements.
    network.del(&Attach::new(&pod)).expect("DEL");
    network.del(&Attach::new(&other)).expect("DEL");
    assert!(!recorded(&node).contains("elements"), "{}", recorded(&node));
}

#[test]
fn del_works_without_a_result() {
    slipway_only!();
    let (node, _pod, attach) = Node::with_attachment();
    let network = network(&node, 1, &json!({"backend": "nftables", "ingressPolicy": "isolated"}));
    assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null(), "nothing was added");
    network.add(&attach).expect("ADD");
    network.del(&attach).expect("DEL");
    for netns in ["", "/run/netns/gone"] {
        let before = Snapshot::take(&node, &[]).without(&["last_reserved", "networks/"]);
        network.add(&attach).expect("ADD");
        for config in network.configs(Some(&attach)).iter().rev() {
            let gone = attach.clone().netns(netns);
            let _ = network.call("DEL", config, Some(&gone)).ok();
        }
        assert!(!table(&node).contains("elements"), "{}", table(&node));
        network.del(&attach).expect("DEL");
        before.assert_same(&Snapshot::take(&node, &[]).without(&["last_reserved", "networks/"]));
    }
}

/// A table with our name that another program made is not changed.
#[test]
fn a_foreign_table_is_refused() {
    slipway_only!();
    let (node, pod) = Node::with_pod();
    node.nft("table inet slipway-firewall {\n chain theirs {\n }\n}\n");
    let network = network(&node, 1, &open());
    let error = network.add(&Attach::new(&pod)).expect_err("ADD").error;
    assert!(error.msg.contains("was not made by slipway"), "{error:?}");
    assert!(table(&node).contains("chain theirs"));
    // The table contains the record of attachments, whatever the backend is.
    for keys in [open(), json!({"backend": "iptables"}), json!({})] {
        let error = super::network(&node, 1, &keys).status().expect_err("STATUS").error;
        assert!(error.code == 50 && error.msg.contains("was not made by slipway"), "{keys}: {error:?}");
    }
}

/// Each address is allowed, checked and removed.
#[test]
fn a_container_may_have_many_addresses() {
    slipway_only!();
    let (node, _pod, attach) = Node::with_attachment();
    for backend in ["nftables", "iptables"].into_iter().filter(|name| *name == "nftables" || has_iptables()) {
        let network = network(&node, 1, &json!({"backend": backend}));
        let mut previous = network.add_first(&attach);
        let ips = previous["ips"].as_array_mut().expect("a list");
        ips.extend((10..130).map(|last| json!({"address": format!("10.1.1.{last}/24")})));
        ips.extend((10..130).map(|last| json!({"address": format!("fd00:1::{last}/64")})));
        let _ = network.call_one(1, "ADD", &attach, &previous).ok();
        assert!(network.call_one(1, "CHECK", &attach, &previous).ok().is_null());
        assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null());
        assert!(!table(&node).contains("elements"), "{}", table(&node));
        assert!(!super::filter(&node, "iptables-save").contains("10.1.1."), "{backend}");
        network.del(&attach).expect("DEL");
    }
}
