// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway connectivity-test` on real nodes: intact ones, damaged ones, and with tests that are killed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, Daemon, Frame, Host, Node, PROGRAMS, Proto, REFERENCE, Reference, Snapshot,
    Sniffer, SteadyFlow, at, comes, has_programs, host_local, needs, quoted, skip, slipway,
};

const CONFIG: &str = "/run/net.d/10-pods.conflist";
const LOG: &str = "/run/connectivity.log";

fn list(backend: &str) -> Value {
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {
            "type": "bridge", "bridge": "br1", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipMasqBackend": backend,
            "ipam": host_local("10.22.0.0/24", "fd00:22::/64"),
        },
        {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
    ]})
}

/// A node whose uplink leads to another host.
fn node(list: &Value) -> Node {
    node_and_client(list).0
}

fn node_and_client(list: &Value) -> (Node, Host) {
    let (node, client) = Node::with_client();
    node.cmd(&format!("ip route add default via {}", client.v4));
    node.cmd(&format!("ip -6 route add default via {}", client.v6));
    node.write(CONFIG, list.to_string());
    (node, client)
}

fn args(node: &Node) -> String {
    format!("connectivity-test --config {CONFIG} --plugin-dir {}", quoted(node.bin()))
}

/// Runs the test, and returns its exit code and document.
fn tested(node: &Node) -> (Option<i32>, Value) {
    let output = node.try_slipway(&format!("{} --output json", args(node)));
    let document = serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output}"));
    (output.code, document)
}

fn failed(document: &Value) -> Vec<&Value> {
    document["checks"].as_array().unwrap().iter().filter(|one| one["state"] == "failed").collect()
}

/// The state without what an ADD and its DEL leave: the bridge, the empty table or chains, and forwarding.
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
    // The first containers leave a bridge and the chains of the table.
    let (code, document) = tested(&node);
    assert_eq!((code, &document["ok"]), (Some(0), &json!(true)), "{document:#}");
    assert_eq!(document["backend"], backend);
    let checks = document["checks"].as_array().unwrap();
    assert!(checks.len() > 50, "{document:#}");
    // These checks are not made for every protocol and family.
    for (from, to, count) in [
        ("outside", "the node's loopback", 1),
        ("another container", "the node's loopback", 1),
        ("the node", "outside, from the published port", 4),
        ("outside", "a container that is replaced", 2),
        ("ADD", "a port of another container", 1),
    ] {
        let found = checks.iter().filter(|one| one["from"] == from && one["to"] == to);
        assert_eq!(
            found.filter(|one| one["state"] == "passed").count(),
            count,
            "{from} to {to}: {checks:#?}"
        );
    }
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

/// Neither rules nor flows of other containers change, and the other host sees no packet of the test.
#[test]
fn containers_that_run_are_left_alone() {
    let (node, client) = node_and_client(&list("nftables"));
    let network = node.network(list("nftables"));
    let pod = node.pod("web");
    network.add(&Attach::new(&pod).port(Proto::Tcp, 8080, 80).port(Proto::Udp, 8080, 80)).unwrap();
    let _server = pod.serve(Proto::Udp, "[::]:80", "web");
    let before = compared(&node);
    let to = [client.node_v4.into(), client.node_v6.into()];
    let flows = to.map(|ip: IpAddr| client.steady(at(ip, 8080), "web", Duration::from_millis(5)));
    let sniffer = Sniffer::new(&client);
    let (code, document) = tested(&node);
    assert_eq!(code, Some(0), "{document:#}");
    let lost: Vec<_> = flows.into_iter().map(SteadyFlow::stop).filter(|flow| flow.lost() > 0).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let checks = document["checks"].as_array().unwrap();
    let addresses = checks.iter().filter_map(|one| one["destination"].as_str()?.parse::<SocketAddr>().ok());
    let addresses: BTreeSet<IpAddr> = addresses.map(|to| to.ip()).filter(|ip| !to.contains(ip)).collect();
    let frames = sniffer.frames();
    let of_test =
        |frame: &&Frame| frame.addresses().is_some_and(|two| two.iter().any(|ip| addresses.contains(ip)));
    assert!(frames.len() > 100 && addresses.len() > 5, "{} frames, {addresses:?}", frames.len());
    assert_eq!(frames.iter().filter(of_test).count(), 0, "{addresses:?}");
    before.assert_same(&compared(&node));
}

/// The checks of a network whose configuration was changed, none of which may fail.
#[track_caller]
fn sound_with(change: impl FnOnce(&mut Value), netfilter: BridgeNetfilter) -> Vec<Value> {
    let mut list = list("nftables");
    change(&mut list["plugins"]);
    let node = node(&list);
    node.bridge_netfilter(netfilter);
    let (code, document) = tested(&node);
    assert_eq!((code, &document["ok"]), (Some(0), &json!(true)), "{list:#}: {:#?}", failed(&document));
    document["checks"].as_array().unwrap().clone()
}

/// Why checks between these two ends were skipped. The text is empty for a check that passed.
fn reasons<'a>(checks: &'a [Value], from: &str, to: &str) -> BTreeSet<&'a str> {
    let found = checks.iter().filter(|one| one["from"] == from && one["to"] == to);
    found.map(|one| one["why"].as_str().unwrap_or_default()).collect()
}

/// Tests both backends. `snat`, `masqAll` and `excludeLoopback` are keys of the reference plugins as well.
#[test]
fn keys_of_portmap_are_respected() {
    let loopback = |checks: &[Value]| {
        let found = reasons(checks, "the node", "the node's loopback");
        found.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    for backend in ["nftables", "iptables"] {
        let with = |keys: &[(&str, bool)]| {
            let change = |plugins: &mut Value| {
                plugins[0]["ipMasqBackend"] = json!(backend);
                plugins[1]["backend"] = json!(backend);
                keys.iter().for_each(|(key, value)| plugins[1][key] = json!(value));
            };
            sound_with(change, BridgeNetfilter::Off)
        };
        let checks = with(&[("excludeLoopback", true)]);
        assert!(loopback(&checks).iter().any(|why| why.contains("excludeLoopback")), "{checks:#?}");
        let checks = with(&[("snat", false)]);
        assert!(loopback(&checks).iter().any(|why| why.contains("snat")), "{checks:#?}");
        let itself = reasons(&checks, "the container itself", "the node's own address");
        assert!(!itself.is_empty() && itself.iter().all(|why| why.contains("snat")), "{itself:?}");
        let seen = |checks: &[Value]| {
            checks.iter().find(|one| one["from"] == "outside" && one["protocol"] == "tcp").unwrap()["saw"]
                .clone()
        };
        assert_eq!(seen(&with(&[("masqAll", true)])), "pod saw 10.22.0.1");
        // `masqAll` has no effect without `snat`.
        assert_eq!(seen(&with(&[("masqAll", true), ("snat", false)])), "pod saw 203.0.113.254");
    }
}

#[test]
fn networks_of_other_shapes_keep_their_promises() {
    let ptp = |plugins: &mut Value| {
        let bridge = plugins[0].as_object_mut().unwrap();
        bridge.retain(|key, _| matches!(key.as_str(), "ipMasq" | "ipMasqBackend" | "ipam"));
        bridge.insert("type".to_owned(), json!("ptp"));
    };
    let checks = sound_with(ptp, BridgeNetfilter::Off);
    assert!(checks.len() > 50, "{checks:#?}");
    let one_family = |plugins: &mut Value| plugins[0]["ipam"]["ranges"].as_array_mut().unwrap().truncate(1);
    let checks = sound_with(one_family, BridgeNetfilter::Off);
    let v6 = |one: &Value| one["destination"].as_str().is_some_and(|to| to.starts_with('['));
    assert!(checks.len() > 25 && !checks.iter().any(v6), "{checks:#?}");
    let routed = |plugins: &mut Value| plugins[0]["ipMasq"] = json!(false);
    let checks = sound_with(routed, BridgeNetfilter::Off);
    assert!(checks.iter().any(|one| one["to"] == "outside, not masqueraded"), "{checks:#?}");
    let no_hairpin = |plugins: &mut Value| plugins[0]["hairpinMode"] = json!(false);
    let checks = sound_with(no_hairpin, BridgeNetfilter::On);
    let itself = reasons(&checks, "the container itself", "the node's own address");
    assert!(!itself.is_empty() && itself.iter().all(|why| why.contains("hairpinMode")), "{itself:?}");
}

/// Breaks an intact node, and returns the causes and differences that the test reports.
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
    let page = include_str!("../../docs/inspecting.md");
    let cause = "It is dropped by chain FORWARD of table ip filter.";
    assert!(causes.contains(cause) && page.contains(&format!("  cause: {cause}\n")), "{causes}");
    // The node's own packets are not forwarded, so they still arrive.
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

/// Runs the test with a portmap plugin that breaks the node after its ADD.
#[track_caller]
fn broken_after_add(command: &str) -> String {
    let node = node(&list("nftables"));
    let script = format!(
        "#!/bin/sh\n{}/portmap\ncode=$?\ncase $CNI_COMMAND in ADD) {command} >&2 ;; esac\nexit $code\n",
        quoted(node.bin())
    );
    node.write("/run/breaker/portmap", script);
    node.cmd("chmod +x /run/breaker/portmap");
    let output = node.try_slipway(&format!(
        "connectivity-test --config {CONFIG} --plugin-dir /run/breaker --plugin-dir {}",
        quoted(node.bin())
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
    let text = broken_after_add("nft flush set inet slipway masqueraded4");
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
        quoted(reference.dir())
    ));
    assert_eq!(output.code, Some(3), "{output}");
    let document: Value = serde_json::from_str(&output.stdout).unwrap();
    let failed = failed(&document);
    let of = |what: &str| failed.iter().filter(|one| one["to"] == what).count();
    assert!(of("the node's loopback") >= 1, "the guard is missing: {document:#}");
    assert_eq!(of("the node's address (the test's)"), 0, "{document:#}");
    assert_eq!(of("outside, masqueraded"), 0, "{document:#}");
}

fn start(node: &Node) -> Daemon {
    let plugins = node.bin().to_str().expect("UTF-8");
    node.daemon(slipway(), &["connectivity-test", "--config", CONFIG, "--plugin-dir", plugins], LOG)
}

#[test]
fn what_a_killed_test_left_is_removed() {
    let node = node(&list("nftables"));
    assert_eq!(tested(&node).0, Some(0));
    let before = compared(&node);
    for millis in [40, 120, 300, 700, 1500] {
        let daemon = start(&node);
        sleep(Duration::from_millis(millis));
        // Dropping the daemon kills it with SIGKILL.
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
    // The next test also removes what is left.
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
