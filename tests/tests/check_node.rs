// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway check-node`: what it reports about other programs' rules.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Proto};

/// Returns the report, and true if the command succeeded.
fn check(node: &Node) -> (Value, bool) {
    let output = node.try_slipway("check-node --output json");
    let report = serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"));
    (report, output.code == Some(0))
}

fn finding<'a>(report: &'a Value, what: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["subject"] == what);
    found.unwrap_or_else(|| panic!("nothing about {what}: {report:#}"))
}

#[test]
fn a_fresh_node_lacks_nothing() {
    let node = Node::new();
    let (report, success) = check(&node);
    assert!(success, "{report:#}");
    assert_eq!(report["ok"], true);
    for what in ["nf_tables, inet family", "nf_tables, fib expression", "veth links", "conntrack netlink"] {
        assert_eq!(finding(&report, what)["state"], "ok", "{what}");
    }
    assert_eq!(finding(&report, "table inet slipway")["found"], "does not exist yet");
    assert_eq!(finding(&report, "chains of other programs at the forward hook")["found"], "none");
    // trying things out left nothing on the node
    assert_eq!(node.cmd("nft list ruleset"), "");
    assert!(!node.cmd("ip -o link").contains("probe"));
}

/// The state of our table while a container runs, before and after a change of the ruleset.
#[track_caller]
fn after(change: &str, found: &str) {
    let node = Node::new();
    let network = node.network(json!({"name": "pods", "plugins": [
        {
            "type": "bridge", "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]]},
        },
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]}));
    let pod = node.pod("web1");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    network.add(&attach).expect("ADD");
    network.write_cache(&attach);
    let state = |node: &Node| finding(&check(node).0, "table inet slipway").clone();
    assert_eq!(state(&node)["state"], "ok");
    node.nft(change);
    let (report, success) = check(&node);
    assert!(success, "a warning is not a failure: {report:#}");
    let table = finding(&report, "table inet slipway");
    assert_eq!((&table["state"], &table["found"]), (&"warning".into(), &found.into()), "{table:#}");
    assert!(table["fix"].as_str().unwrap().contains("`slipway restore`"), "{table:#}");
    node.slipway("restore");
    assert_eq!(state(&node)["state"], "ok");
    node.nft(change);
    pod.remove();
    assert_eq!(state(&node)["state"], "ok", "its container does not run any more");
}

#[test]
fn a_missing_table_is_a_warning_while_containers_need_it() {
    after(
        "flush ruleset",
        "missing: the guard of the node's loopback; the rules of network pods, container web1, interface eth0",
    );
}

#[test]
fn a_table_without_the_elements_of_a_running_container_is_a_warning() {
    after(
        "flush map inet slipway hostports4",
        "lacks the rules of network pods, container web1, interface eth0",
    );
}

#[test]
fn a_forward_chain_that_drops_is_named() {
    let node = Node::new();
    node.nft(
        "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; counter; }; }
         table inet wall { chain out { type filter hook output priority 0; policy drop; }; }
         table inet calm { chain pass { type filter hook forward priority 0; policy accept; }; }",
    );
    let (report, success) = check(&node);
    assert!(success, "a warning is not a failure: {report:#}");
    let chain = finding(&report, "chain ip filter FORWARD");
    assert_eq!(chain["state"], "warning");
    assert_eq!(chain["found"], "policy drop at the forward hook, 1 rules");
    assert!(chain["fix"].as_str().unwrap().contains("DOCKER-USER"));
    let text = report.to_string();
    assert!(!text.contains("inet wall") && !text.contains("inet calm"), "{text}");
}

#[test]
fn a_dropping_policy_of_legacy_iptables_is_named() {
    let node = Node::new();
    if node.try_cmd("iptables-legacy -P FORWARD DROP").code != Some(0) {
        slipway_tests::skip!("legacy iptables");
    }
    let (report, success) = check(&node);
    assert!(success, "{report:#}");
    assert_eq!(finding(&report, "tables of iptables-legacy")["found"], "filter");
    let chain = finding(&report, "iptables-legacy FORWARD");
    assert_eq!((&chain["state"], &chain["found"]), (&"warning".into(), &"policy DROP".into()));
    assert_eq!(finding(&report, "tables of ip6tables-legacy")["found"], "none");
}

#[test]
fn a_foreign_table_of_our_name_is_a_failure() {
    let node = Node::new();
    node.nft("table inet slipway { map ports { type inet_service : ipv4_addr; }; }");
    let (report, success) = check(&node);
    assert!(!success);
    assert_eq!(report["ok"], false);
    let table = finding(&report, "table inet slipway");
    assert_eq!(table["state"], "missing");
    assert!(table["found"].as_str().unwrap().contains("was not made by slipway"), "{table}");
    node.nft("delete table inet slipway; table inet slipway { chain schema-9999 { }; }");
    let (report, success) = check(&node);
    assert!(!success);
    let table = finding(&report, "table inet slipway");
    assert!(table["found"].as_str().unwrap().contains("schema 9999"), "{table}");
}

#[test]
fn the_text_contains_reason_and_advice() {
    let node = Node::new();
    node.nft("table inet wall { chain passing { type filter hook forward priority 0; policy drop; }; }");
    let text = node.slipway("check-node");
    assert!(text.contains("warning  chain inet wall passing"), "{text}");
    assert!(text.contains("reason: traffic to and from containers passes only if"), "{text}");
    assert!(text.contains("fix: add rules to it that accept"), "{text}");
    assert!(text.contains("\n0 missing, "), "{text}");
    assert_eq!(node.try_slipway("check-node --output xml").code, Some(2));
}

#[test]
fn firewalld_with_strict_forward_ports_is_named() {
    let node = Node::new();
    node.own_etc();
    let (report, _) = check(&node);
    assert!(!report.to_string().contains("StrictForwardPorts"), "{report:#}");
    node.write("/etc/firewalld/firewalld.conf", "# a comment\nStrictForwardPorts=yes\n");
    let (report, success) = check(&node);
    assert!(success);
    assert_eq!(finding(&report, "firewalld, StrictForwardPorts")["state"], "note");
    node.nft("table inet firewalld { }");
    let (report, _) = check(&node);
    assert_eq!(finding(&report, "firewalld, StrictForwardPorts")["state"], "warning");
}
