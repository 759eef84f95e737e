// SPDX-License-Identifier: GPL-2.0-or-later

//! The iptables backend.

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Proto, Snapshot, is_peer, newest_version, peer_fails, slipway_only};

use super::{filter, network, recorded};

/// The rules that the reference plugin makes.
const V4: &str = "*filter
:INPUT ACCEPT
:FORWARD ACCEPT
:OUTPUT ACCEPT
:CNI-ADMIN -
:CNI-FORWARD -
-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD
-A FORWARD -j THEIRS
-A CNI-FORWARD -m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN
-A CNI-FORWARD -d 10.1.1.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 10.1.1.2/32 -j ACCEPT
COMMIT
";

fn open() -> Value {
    json!({"backend": "iptables"})
}

#[test]
fn the_rules_equal_the_references() {
    slipway_tests::needs_ipv6!();
    slipway_tests::needs_iptables!();
    let (node, _pod, attach) = Node::with_attachment();
    for program in ["iptables", "ip6tables"] {
        node.cmd(&format!("{program} -N THEIRS"));
        node.cmd(&format!("{program} -A FORWARD -j THEIRS"));
    }
    let network = network(&node, 1, &open());
    let result = network.add(&attach).expect("ADD");
    assert_eq!(result["interfaces"].as_array().map(Vec::len), Some(3));
    // The rules must be identical, except for one rule after those of the reference plugin, the one for published
    // ports.
    let own = |address: &str| {
        let rule = format!("-A CNI-FORWARD -d {address} -m conntrack --ctstate DNAT -j ACCEPT\n");
        if is_peer() { String::new() } else { rule }
    };
    let with = |text: &str, address: &str| text.replace("COMMIT\n", &format!("{}COMMIT\n", own(address)));
    let sorted = |text: &str| text.replace(":THEIRS -\n", "");
    let v4 = with(V4, "10.1.1.2/32");
    assert_eq!(sorted(&filter(&node, "iptables-save")), v4);
    let v6 = with(&V4.replace("10.1.1.2/32", "fd00:1::2/128"), "fd00:1::2/128");
    assert_eq!(sorted(&filter(&node, "ip6tables-save")), v6);
    network.check(&attach).expect("CHECK");
    // A repeated ADD adds no rule.
    let _ = network.call_one(1, "ADD", &attach, &result).ok();
    assert_eq!(sorted(&filter(&node, "iptables-save")), v4);
    network.del(&attach).expect("DEL");
    let left = filter(&node, "iptables-save");
    assert!(!left.contains("10.1.1.2") && left.contains("CNI-FORWARD"), "{left}");
    network.del(&attach).expect("DEL again");
}

/// The policy of the node's FORWARD chain is DROP, as Docker and ufw set it.
#[test]
fn a_container_opens_connections_through_a_chain_that_drops() {
    slipway_tests::needs_ipv6!();
    slipway_tests::needs_iptables!();
    let node = Node::new();
    let client = node.host("client");
    let (pod, other) = (node.pod("pod"), node.pod("other"));
    for program in ["iptables", "ip6tables"] {
        node.cmd(&format!("{program} -P FORWARD DROP"));
    }
    let network = network(&node, 1, &open());
    network.add(&Attach::new(&pod)).expect("ADD");
    let _ = network.add_first(&Attach::new(&other));
    for proto in Proto::ALL {
        let _servers = [client.serve(proto, "0.0.0.0:80", "v4"), client.serve(proto, "[::]:81", "v6")];
        pod.expect(proto, (client.v4, 80), "v4");
        pod.expect(proto, (client.v6, 81), "v6");
        other.expect_none(proto, (client.v4, 80));
        // Connections from outside are still dropped.
        let _server = pod.serve(proto, "0.0.0.0:82", "pod");
        client.expect_none(proto, ([10, 1, 1, 2], 82));
    }
    network.del(&Attach::new(&pod)).expect("DEL");
}

#[test]
fn the_administrators_chain_comes_first() {
    slipway_tests::needs_iptables!();
    let node = Node::new();
    let client = node.host("client");
    let (pod, other) = (node.pod("pod"), node.pod("other"));
    for (name, keys) in
        [("CNI-ADMIN", open()), ("MINE", json!({"backend": "iptables", "iptablesAdminChainName": "MINE"}))]
    {
        node.cmd(&format!("iptables -N {name}"));
        node.cmd(&format!("iptables -A {name} -p tcp --dport 80 -j DROP"));
        let network = network(&node, 1, &keys);
        network.add(&Attach::new(&pod)).expect("ADD");
        network.add(&Attach::new(&other)).expect("ADD of a second container");
        let _server = client.serve(Proto::Tcp, "0.0.0.0:80", "dropped");
        let _other = client.serve(Proto::Tcp, "0.0.0.0:81", "passed");
        pod.expect_none(Proto::Tcp, (client.v4, 80));
        pod.expect(Proto::Tcp, (client.v4, 81), "passed");
        network.check(&Attach::new(&pod)).expect("CHECK");
        network.del(&Attach::new(&pod)).expect("DEL");
        network.del(&Attach::new(&other)).expect("DEL");
        assert!(
            filter(&node, "iptables-save").contains(&format!("-A {name} -p tcp")),
            "the administrator's rule is gone"
        );
        node.cmd("iptables -F CNI-FORWARD");
        node.cmd(&format!("iptables -F {name}"));
    }
}

#[test]
fn check_names_the_rule_that_is_missing() {
    slipway_tests::needs_iptables!();
    let (node, _pod, attach) = Node::with_attachment();
    let network = network(&node, 1, &open());
    network.add(&attach).expect("ADD");
    for (chain, rule) in [
        ("CNI-FORWARD", "-s 10.1.1.2/32 -j ACCEPT"),
        ("CNI-FORWARD", "-m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN"),
        ("FORWARD", "-m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD"),
    ] {
        node.cmd_input("iptables-restore --noflush", &format!("*filter\n-D {chain} {rule}\nCOMMIT\n"));
        let error = network.check(&attach).expect_err("CHECK").error;
        if !is_peer() {
            assert_eq!(error.msg, format!("expected {chain} rule [{rule}] not found in table ip filter"));
        }
        node.cmd_input("iptables-restore --noflush", &format!("*filter\n-I {chain} 1 {rule}\nCOMMIT\n"));
        network.check(&attach).expect("CHECK");
    }
}

#[test]
fn del_works_without_a_result() {
    slipway_tests::needs_iptables!();
    peer_fails("without the result it removes nothing", || {
        let (node, _pod, attach) = Node::with_attachment();
        let network = network(&node, 1, &open());
        assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null(), "nothing was added");
        for netns in ["", "/run/netns/gone"] {
            let previous = network.add(&attach).expect("ADD");
            assert!(recorded(&node).contains("pod"), "{}", node.ruleset());
            assert!(network.call_one(1, "DEL", &attach.clone().netns(netns), &Value::Null).ok().is_null());
            assert!(
                !filter(&node, "iptables-save").contains("10.1.1."),
                "{}",
                filter(&node, "iptables-save")
            );
            assert!(!filter(&node, "ip6tables-save").contains("fd00:1::"));
            assert!(!recorded(&node).contains("pod"));
            assert!(network.call_one(1, "DEL", &attach, &previous).ok().is_null(), "a second time");
            network.del(&attach).expect("DEL");
        }
    });
}

/// The rules were made by the reference plugin, so there is no record.
#[test]
fn rules_of_the_reference_are_checked_and_removed() {
    slipway_tests::needs_iptables!();
    let (node, _pod, attach) = Node::with_attachment();
    let network = network(&node, 1, &open());
    let previous = network.add_first(&attach);
    node.cmd_input(
        "iptables-restore",
        &V4.replace("-A FORWARD -j THEIRS\n", "").replace(" ACCEPT\n:", " ACCEPT [0:0]\n:"),
    );
    assert!(network.call_one(1, "DEL", &attach, &previous).ok().is_null());
    assert!(!filter(&node, "iptables-save").contains("10.1.1."));
}

/// A late DEL must not remove the rules of the addresses' next owner.
#[test]
fn a_late_del_keeps_the_next_holders_rules() {
    slipway_tests::needs_iptables!();
    peer_fails("rules name no owner", || {
        let node = Node::new();
        let (old, new) = (node.pod("old"), node.pod("new"));
        let network = network(&node, 1, &open());
        let previous = network.add_first(&Attach::new(&old));
        let _ = network.call_one(1, "ADD", &Attach::new(&old), &previous).ok();
        // Another attachment gets the same addresses.
        let _ = network.call_one(1, "ADD", &Attach::new(&new), &previous).ok();
        assert!(network.call_one(1, "DEL", &Attach::new(&old), &previous).ok().is_null());
        assert!(network.call_one(1, "CHECK", &Attach::new(&new), &previous).ok().is_null());
        assert!(network.call_one(1, "DEL", &Attach::new(&new), &Value::Null).ok().is_null());
        assert!(!filter(&node, "iptables-save").contains("10.1.1."));
    });
}

#[test]
fn gc_removes_rules_of_stale_attachments() {
    slipway_tests::needs_iptables!();
    peer_fails("it does nothing", || {
        let node = Node::new();
        let (one, two) = (node.pod("one"), node.pod("two"));
        let network = network(&node, 1, &open());
        for pod in [&one, &two] {
            network.add(&Attach::new(pod)).expect("ADD");
        }
        network.forget();
        network.gc_plugins(&json!([{"containerID": "two", "ifname": "eth0"}])).expect("GC");
        let left = filter(&node, "iptables-save");
        assert!(!left.contains("10.1.1.2/32") && left.contains("10.1.1.3/32"), "{left}");
        network.gc_plugins(&Value::Null).expect("GC");
        assert!(!filter(&node, "iptables-save").contains("10.1.1."));
        assert!(!recorded(&node).contains("elements"), "{}", recorded(&node));
    });
}

/// After a flush, a repeated ADD restores the rules.
#[test]
fn a_repeated_add_repairs_the_rules() {
    slipway_tests::needs_iptables!();
    let (node, _pod, attach) = Node::with_attachment();
    let network = network(&node, 1, &open());
    let result = network.add(&attach).expect("ADD");
    let before = filter(&node, "iptables-save");
    node.cmd("nft flush ruleset");
    let _ = network.call_one(1, "ADD", &attach, &result).ok();
    assert_eq!(filter(&node, "iptables-save"), before);
    network.check(&attach).expect("CHECK");
}

#[test]
fn status_looks_for_the_iptables_programs() {
    slipway_tests::needs_iptables!();
    if newest_version() == "1.0.0" {
        return;
    }
    let node = Node::new();
    network(&node, 1, &open()).status().expect("STATUS");
    let before = Snapshot::take(&node, &[]);
    network(&node, 1, &json!({"backend": "nftables"})).status().expect("STATUS");
    before.assert_same(&Snapshot::take(&node, &[]));
    slipway_only!();
    node.hide_iptables();
    for keys in [json!({"backend": "nftables"}), json!({})] {
        network(&node, 1, &keys).status().expect("STATUS");
    }
    let error = network(&node, 1, &json!({"backend": "iptables"})).status().expect_err("STATUS").error;
    let text = "program iptables not found: install iptables, or use backend \"nftables\"";
    assert_eq!((error.code, error.msg.as_str()), (50, text));
    // With firewalld, a policy does not need these rules.
    let Some(_daemon) = super::bus::Daemon::start(&node) else { return };
    let _zones = super::bus::firewalld(&node);
    for keys in
        [json!({"backend": "firewalld"}), json!({"backend": "firewalld", "ingressPolicy": "isolated"})]
    {
        network(&node, 1, &keys).status().expect("STATUS");
    }
}
