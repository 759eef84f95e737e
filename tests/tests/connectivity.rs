// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway connectivity-test` on real nodes: sound ones, broken ones, and killed tests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, Daemon, Node, PROGRAMS, Proto, REFERENCE, Reference, Snapshot, has_programs,
    needs, patience, skip, slipway,
};

const CONFIG: &str = "/run/net.d/10-pods.conflist";
const LOG: &str = "/run/connectivity.log";

fn list(backend: &str) -> Value {
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {
            "type": "bridge", "bridge": "br1", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipMasqBackend": backend,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd00:22::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
            },
        },
        {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
    ]})
}

/// A node with an uplink that leads to another host.
fn node(list: &Value) -> Node {
    let node = Node::new();
    node.bridge_netfilter(BridgeNetfilter::Off);
    let client = node.host("client");
    node.cmd(&format!("ip route add default via {}", client.v4));
    node.cmd(&format!("ip -6 route add default via {}", client.v6));
    node.write(CONFIG, list.to_string());
    node
}

fn args(node: &Node) -> String {
    format!("connectivity-test --config {CONFIG} --plugin-dir {}", node.bin().display())
}

/// Runs the test. Returns the exit code and the document.
fn tested(node: &Node) -> (Option<i32>, Value) {
    let output = node.try_slipway(&format!("{} --output json", args(node)));
    let document = serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output}"));
    (output.code, document)
}

fn failed(document: &Value) -> Vec<&Value> {
    document["checks"].as_array().unwrap().iter().filter(|one| one["state"] == "failed").collect()
}

/// The state after an ADD and its DEL: the bridge, the empty table or chains, forwarding.
fn compared(node: &Node) -> Snapshot {
    Snapshot::take(node, &[]).without(&[
        "/run/slipway/",
        "/run/connectivity.log",
        "/run/ebpf",
        "/var/lib/cni",
        "br1",
    ])
}

#[track_caller]
fn is_sound(backend: &str) {
    let node = node(&list(backend));
    // The first containers leave a bridge and the table's chains.
    let (code, document) = tested(&node);
    assert_eq!((code, &document["ok"]), (Some(0), &json!(true)), "{document:#}");
    assert_eq!(document["backend"], backend);
    assert!(document["checks"].as_array().unwrap().len() > 50, "{document:#}");
    let before = compared(&node);
    let (code, document) = tested(&node);
    assert_eq!(code, Some(0), "{document:#}");
    before.assert_same(&compared(&node));
}

#[test]
fn a_network_of_nftables_keeps_its_promises() {
    is_sound("nftables");
}

#[test]
fn a_network_of_iptables_keeps_its_promises() {
    is_sound("iptables");
}

#[test]
fn a_network_with_bpf_programs_keeps_its_promises() {
    needs!(has_programs(), PROGRAMS);
    is_sound("ebpf");
}

#[test]
fn containers_that_run_are_left_alone() {
    let node = node(&list("nftables"));
    let network = node.network(list("nftables"));
    let pod = node.pod("web");
    network.add(&Attach::new(&pod).port(Proto::Tcp, 8080, 80)).unwrap();
    let before = compared(&node);
    let (code, document) = tested(&node);
    assert_eq!(code, Some(0), "{document:#}");
    before.assert_same(&compared(&node));
}

/// Breaks a sound node. Returns the causes and differences that the test names.
fn broken(breaking: impl FnOnce(&Node)) -> String {
    let node = node(&list("nftables"));
    assert_eq!(tested(&node).0, Some(0));
    breaking(&node);
    let before = compared(&node);
    let (code, document) = tested(&node);
    assert_eq!((code, &document["ok"]), (Some(3), &json!(false)), "{document:#}");
    before.assert_same(&compared(&node));
    let failed = failed(&document);
    failed
        .iter()
        .map(|one| format!("{} to {}: {} {}\n", one["from"], one["to"], one["why"], one["cause"]))
        .collect()
}

#[test]
fn a_forward_policy_that_drops_is_named() {
    let causes = broken(|node| {
        node.nft("table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }");
    });
    let page = include_str!("../../docs/operating.md");
    let cause = "It is dropped by chain FORWARD of table ip filter.";
    assert!(causes.contains(cause) && page.contains(&format!("  cause: {cause}\n")), "{causes}");
    // The node's own packets are not forwarded.
    assert!(!causes.contains("\"the node\" to"), "{causes}");
}

#[test]
fn a_rule_of_another_program_is_named() {
    let causes = broken(|node| {
        node.nft(
            "table inet office { chain walk { type filter hook forward priority 0; policy accept; \
             meta l4proto udp th dport 8080 drop comment \"no games\"; }; }",
        );
    });
    assert!(causes.contains("It is dropped by chain walk of table inet office."), "{causes}");
}

/// Runs the test with a portmap that breaks the node after its ADD.
#[track_caller]
fn broken_after_add(command: &str) -> String {
    let node = node(&list("nftables"));
    let script = format!(
        "#!/bin/sh\n{}/portmap\ncode=$?\ncase $CNI_COMMAND in ADD) {command} >&2 ;; esac\nexit $code\n",
        node.bin().display()
    );
    node.write("/run/breaker/portmap", script);
    node.cmd("chmod +x /run/breaker/portmap");
    let output = node.try_slipway(&format!(
        "connectivity-test --config {CONFIG} --plugin-dir /run/breaker --plugin-dir {}",
        node.bin().display()
    ));
    assert_eq!(output.code, Some(3), "{output}");
    output.stdout
}

#[test]
fn forwarding_that_is_off_is_named() {
    let text = broken_after_add("sysctl -q net.ipv4.ip_forward=0");
    assert!(text.contains("the node does not forward"), "{text}");
}

#[test]
fn a_missing_masquerade_is_named() {
    let text = broken_after_add("nft flush map inet slipway masquerade4");
    assert!(text.contains("Slipway does not masquerade the source"), "{text}");
}

#[test]
fn a_flushed_ruleset_is_named() {
    let text = broken_after_add("nft flush ruleset");
    assert!(
        text.contains("no container has tcp port") || text.contains("there is no table inet slipway"),
        "{text}"
    );
}

#[test]
fn the_reference_plugins_fail_where_they_are_known_to() {
    let Some(reference) = Reference::any() else {
        skip!(REFERENCE);
    };
    let mut list = list("iptables");
    for plugin in list["plugins"].as_array_mut().unwrap() {
        for key in ["backend", "ipMasqBackend"] {
            plugin.as_object_mut().unwrap().remove(key);
        }
    }
    let node = node(&list);
    let output = node.try_slipway(&format!(
        "connectivity-test --config {CONFIG} --plugin-dir {} --output json",
        reference.dir().display()
    ));
    assert_eq!(output.code, Some(3), "{output}");
    let document: Value = serde_json::from_str(&output.stdout).unwrap();
    let failed = failed(&document);
    let of = |what: &str| failed.iter().filter(|one| one["to"] == what).count();
    assert!(of("the node's loopback") >= 1, "the guard is missing: {document:#}");
    assert_eq!(of("the node's address (the test's)"), 0, "{document:#}");
    assert_eq!(of("outside, masqueraded"), 0, "{document:#}");
}

fn comes(condition: impl Fn() -> bool) -> bool {
    let end = Instant::now() + patience();
    while Instant::now() < end {
        if condition() {
            return true;
        }
        sleep(Duration::from_millis(20));
    }
    condition()
}

fn start(node: &Node) -> Daemon {
    let line = args(node);
    let words: Vec<&str> = line.split_whitespace().collect();
    node.daemon(slipway(), &words, LOG)
}

#[test]
fn what_a_killed_test_left_is_removed() {
    let node = node(&list("nftables"));
    assert_eq!(tested(&node).0, Some(0));
    let before = compared(&node);
    for millis in [40, 120, 300, 700, 1500] {
        let daemon = start(&node);
        sleep(Duration::from_millis(millis));
        // SIGKILL.
        drop(daemon);
        node.slipway("connectivity-test --clean");
        before.assert_same(&compared(&node));
    }
    let daemon = start(&node);
    assert!(comes(|| node.read(LOG).is_some_and(|log| log.contains("passed"))), "{:?}", node.read(LOG));
    let second = node.try_slipway(&args(&node));
    assert_eq!(second.code, Some(1), "{second}");
    assert!(second.stderr.contains("another connectivity-test runs"), "{second}");
    drop(daemon);
    // The next test removes it, too.
    let output = node.try_slipway(&args(&node));
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.stderr.contains("removed what an earlier test left: containers"), "{output}");
    before.assert_same(&compared(&node));
}

#[test]
fn a_signal_ends_a_test_and_removes_everything() {
    let node = node(&list("nftables"));
    assert_eq!(tested(&node).0, Some(0));
    let before = compared(&node);
    let daemon = start(&node);
    assert!(comes(|| node.read(LOG).is_some_and(|log| log.contains("passed"))), "{:?}", node.read(LOG));
    daemon.terminate();
    assert!(comes(|| !daemon.runs()), "{:?}", node.read(LOG));
    assert!(node.read(LOG).unwrap().contains("interrupted"), "{:?}", node.read(LOG));
    before.assert_same(&compared(&node));
}

#[test]
fn a_network_without_published_ports_is_refused() {
    let mut list = list("nftables");
    list["plugins"].as_array_mut().unwrap().truncate(1);
    let node = node(&list);
    let output = node.try_slipway(&args(&node));
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stderr.contains("network pods publishes no ports"), "{output}");
}
