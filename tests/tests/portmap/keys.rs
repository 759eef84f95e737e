// SPDX-License-Identifier: GPL-2.0-or-later

//! portmap's own keys. Those that affect packets are tested with packets.

use serde_json::{Value, json};
use slipway_tests::{Attach, Host, Network, Node, Proto, address_of, host_local, with_keys};

use crate::{Call, elements_of, listed, map, map_on, run_of};

/// A network whose portmap configuration has these keys.
fn network<'a>(node: &'a Node, keys: &Value) -> Network<'a> {
    let portmap = with_keys(json!({"type": "portmap", "capabilities": {"portMappings": true}}), keys);
    let ipam = host_local("10.88.0.0/24", "fd00:88::/64");
    let bridge = json!({"type": "bridge", "isGateway": true, "hairpinMode": true, "ipam": ipam});
    node.network(json!({"name": "net", "plugins": [bridge, portmap]}))
}

fn outside(node: &Node) -> [Host; 2] {
    [node.host("red"), node.host("blue")]
}

/// The pod's IPv6 address and port, taken from a result.
fn v6(result: &Value) -> String {
    format!("[{}]:80", address_of(result, 1))
}

/// Each container has its own conditions. Those of the last ADD must not apply to all containers.
#[test]
fn conditions_hold_for_their_container_alone() {
    slipway_tests::needs_ipv6!();
    let node = Node::new();
    let [red, blue] = outside(&node);
    let not_red = format!("ip saddr != {}", red.v4);
    let only_red = ["iifname", "out0", "ip", "saddr", "{", "192.0.2.0-192.0.2.9", "}"];
    let (one, two) = (node.pod("one"), node.pod("two"));
    let first = network(&node, &json!({"conditionsV4": [not_red]}));
    let second = network(&node, &json!({"conditionsV4": only_red, "conditionsV6": ["tcp sport > 1"]}));
    let attach = |pod, port| Attach::new(pod).port(Proto::Tcp, port, 80);
    let result = first.add(&attach(&one, 8080)).expect("ADD");
    let error = second.add(&attach(&two, 8081)).expect_err("a condition outside of the grammar");
    assert!(error.error.code == 7 && error.error.msg.starts_with("conditionsV6: "), "{error}");
    second.del(&attach(&two, 8081)).expect("DEL");
    let second = network(&node, &json!({"conditionsV4": only_red}));
    second.add(&attach(&two, 8081)).expect("ADD");
    let _servers = [
        one.serve(Proto::Tcp, "0.0.0.0:80", "one"),
        one.serve(Proto::Tcp, &v6(&result), "one"),
        two.serve(Proto::Tcp, "0.0.0.0:80", "two"),
    ];
    blue.expect(Proto::Tcp, (blue.node_v4, 8080), "one");
    red.expect_none(Proto::Tcp, (red.node_v4, 8080));
    red.expect(Proto::Tcp, (red.node_v4, 8081), "two");
    blue.expect_none(Proto::Tcp, (blue.node_v4, 8081));
    // There are no conditions for IPv6, and thus no restriction.
    red.expect(Proto::Tcp, (red.node_v6, 8080), "one");
    first.check(&attach(&one, 8080)).expect("CHECK");
    first.del(&attach(&one, 8080)).expect("DEL");
    second.del(&attach(&two, 8081)).expect("DEL");
    assert!(!node.ruleset().contains("chain container-"), "{}", node.ruleset());
}

/// A container with a range of ports, conditions and its own mark bit can still reach itself.
#[test]
fn mark_masq_bit_is_the_containers_own() {
    let node = Node::new();
    let [red, _] = outside(&node);
    let pod = node.pod("pod");
    let net = network(&node, &json!({"markMasqBit": 5}));
    let mut attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80).port(Proto::Udp, 8080, 80);
    for port in 9000..9020 {
        attach = attach.port(Proto::Tcp, port, port);
    }
    net.add(&attach).expect("ADD");
    let _servers = [
        pod.serve(Proto::Tcp, "0.0.0.0:80", "pod"),
        pod.serve(Proto::Udp, "0.0.0.0:80", "pod"),
        pod.serve(Proto::Tcp, "0.0.0.0:9007", "pod"),
    ];
    for port in [8080, 9007] {
        assert_eq!(red.expect(Proto::Tcp, (red.node_v4, port), "pod").peer.ip(), red.v4);
        let hairpin = pod.expect(Proto::Tcp, (red.node_v4, port), "pod");
        assert_eq!(hairpin.peer.ip().to_string(), "10.88.0.1");
        node.expect(Proto::Tcp, ([127, 0, 0, 1], port), "pod");
    }
    pod.expect(Proto::Udp, (red.node_v4, 8080), "pod");
    let ruleset = node.ruleset();
    assert!(ruleset.contains("chain hairpin-10.88.0.0/24-5"), "{ruleset}");
    net.check(&attach).expect("CHECK");
}

#[test]
fn masq_all_and_snat_false_choose_the_source_address() {
    slipway_tests::needs_ipv6!();
    let node = Node::new();
    let [red, _] = outside(&node);
    let (one, two) = (node.pod("one"), node.pod("two"));
    let all = network(&node, &json!({"masqAll": true}));
    let none = network(&node, &json!({"snat": false}));
    let result = all.add(&Attach::new(&one).port(Proto::Tcp, 8080, 80)).expect("ADD");
    none.add(&Attach::new(&two).port(Proto::Tcp, 8081, 80)).expect("ADD");
    let _servers = [
        one.serve(Proto::Tcp, "0.0.0.0:80", "one"),
        one.serve(Proto::Tcp, &v6(&result), "one"),
        two.serve(Proto::Tcp, "0.0.0.0:80", "two"),
    ];
    assert_eq!(red.expect(Proto::Tcp, (red.node_v4, 8080), "one").peer.ip().to_string(), "10.88.0.1");
    assert_eq!(red.expect(Proto::Tcp, (red.node_v6, 8080), "one").peer.ip().to_string(), "fd00:88::1");
    assert_eq!(red.expect(Proto::Tcp, (red.node_v4, 8081), "two").peer.ip(), red.v4);
    node.expect(Proto::Tcp, ([127, 0, 0, 1], 8080), "one");
    node.expect_none(Proto::Tcp, ([127, 0, 0, 1], 8081));
}

#[test]
fn the_loopback_is_opened_only_for_ports_on_it() {
    slipway_tests::needs_ipv6!();
    let node = Node::new();
    let [red, _] = outside(&node);
    let pod = node.pod("pod");
    let net = network(&node, &json!({}));
    let localnet = || node.sysctl_get("net/ipv4/conf/cni0/route_localnet");
    let v6_route = || node.cmd("ip -6 route show table local").contains("local ::1 dev cni0");
    let attach = Attach::new(&pod).port_on(&red.node_v4.to_string(), Proto::Tcp, 8080, 80);
    net.add(&attach).expect("ADD");
    assert_eq!((localnet().as_deref(), v6_route()), (Some("0"), false));
    net.del(&attach).expect("DEL");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    net.add(&attach).expect("ADD");
    assert_eq!((localnet().as_deref(), v6_route()), (Some("1"), true));
}

#[test]
fn host_ip_rules() {
    let (node, pod) = Node::with_pod();
    let ports = [
        map_on("", "tcp", 1, 80),
        map_on("0.0.0.0", "tcp", 2, 80),
        map_on("::", "tcp", 3, 80),
        map_on("::ffff:192.0.2.1", "udp", 4, 80),
        map_on("2001:db8::1", "sctp", 5, 80),
    ];
    let call = Call::new(&node, &pod, 2, &ports);
    call.add();
    let wanted = [
        "tcp 0.0.0.0 1-1 pod",
        "tcp 0.0.0.0 2-2 pod",
        "tcp :: 1-1 pod",
        "tcp :: 3-3 pod",
        "udp 192.0.2.1 4-4 pod",
        "sctp 2001:db8::1 5-5 pod",
    ];
    assert_eq!(listed(&node), wanted);
    call.check();
    call.del();
    assert_eq!((listed(&node).len(), elements_of(&node, "pod")), (0, 0));
}

#[test]
fn a_thousand_ports_are_one_element_of_each_family() {
    let (node, pod) = Node::with_pod();
    let call = Call::new(&node, &pod, 2, &run_of(20000, 1000));
    call.add();
    call.check();
    // The elements are the ports and the hairpin elements of both families, and the owner's entry.
    assert_eq!(elements_of(&node, "pod"), 5);
    call.del();
    assert_eq!(elements_of(&node, "pod"), 0);
    // In a range whose container ports differ from the host ports, each port is a separate element.
    let shifted: Vec<_> = (0..40).map(|i| map("tcp", 5000 + i, 6000 + i)).collect();
    let call = call.ports(&shifted);
    call.add();
    assert_eq!(elements_of(&node, "pod"), 83);
    call.forgetful().del();
    assert_eq!(elements_of(&node, "pod"), 0);
}

#[test]
fn errors_name_invalid_values_and_change_nothing() {
    let (node, pod) = Node::with_pod();
    let good = Call::new(&node, &pod, 2, &[map("tcp", 80, 80)]);
    let cases = [
        (good.clone().ports(&[map("tcp", 0, 80)]), "Invalid host port number: 0"),
        (good.clone().ports(&[map("tcp", 80, 0)]), "Invalid container port number: 0"),
        (good.clone().ports(&[map("icmp", 80, 80)]), "\"icmp\""),
        (good.clone().ports(&[map_on("nowhere", "tcp", 80, 80)]), "\"nowhere\""),
        (good.clone().ports(&[map("tcp", 80, 80), map("tcp", 80, 81)]), "for the same container"),
        (good.clone().key("markMasqBit", json!(32)), "MasqMarkBit must be between 0 and 31"),
        (good.clone().key("backend", json!("nftables")).key("externalSetMarkChain", json!("X")), "[external"),
        (good.clone().key("backend", json!("magic")), "unrecognized backend \"magic\""),
        (good.clone().key("conditionsV4", json!(["ip saddr 10.0.0.1; flush ruleset"])), "conditionsV4"),
        (good.clone().key("conditionsV4", json!(["-d", "10.0.0.1", "-j", "X"])), "conditionsV4"),
        (good.clone().key("externalSetMarkChain", json!("a b")), "externalSetMarkChain"),
        (
            good.clone().key("backend", json!("iptables")).ports(&[map("tcp", 80, 80), map("tcp", 80, 81)]),
            "for the same container",
        ),
    ];
    for (call, text) in cases {
        let error = call.call("ADD").run().error();
        assert!(error.code == 7 && error.msg.contains(text), "{text}: {error:?}");
        call.del();
    }
    assert_eq!(node.ruleset(), "");
    let mut unchained = good.clone();
    unchained.config.as_object_mut().expect("an object").remove("prevResult");
    assert_eq!(unchained.call("ADD").run().error().msg, "must be called as chained plugin");
    assert_eq!(unchained.call("CHECK").run().error().msg, "Required prevResult missing");
    unchained.del();
}

#[test]
fn gc_and_status() {
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let (first, second) =
        (Call::new(&node, &one, 2, &run_of(9000, 20)), Call::new(&node, &two, 3, &[map("udp", 53, 53)]));
    first.clone().key("conditionsV4", json!(["ip ttl 64"])).add();
    second.add();
    let gc = |valid: Value| second.clone().key("cni.dev/valid-attachments", valid).call("GC").run().ok();
    gc(json!([{"containerID": "two", "ifname": "eth0"}]));
    assert_eq!((elements_of(&node, "one"), elements_of(&node, "two")), (0, 5), "{}", node.ruleset());
    second.call("GC").run().ok();
    assert_eq!(elements_of(&node, "two"), 5);
    // Null means that no attachment is valid. GC also removes unused chains.
    gc(Value::Null);
    let ruleset = node.ruleset();
    assert!(
        !ruleset.contains("slipway1")
            && !ruleset.contains("chain hairpin-")
            && !ruleset.contains("chain container-")
    );
    second.call("STATUS").run().ok();
    let error = second.clone().key("backend", json!("magic")).call("STATUS").run().error();
    assert_eq!(error.code, 7, "{error:?}");
}

#[test]
fn ports_prints_a_table() {
    let node = Node::new();
    assert_eq!(node.slipway("ports").lines().count(), 1);
    let pod = node.pod("pod");
    Call::new(&node, &pod, 2, &[map_on("127.0.0.1", "tcp", 80, 8080)]).add();
    let table = node.slipway("ports --network net");
    let line: Vec<&str> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    let wanted = ["net", "pod", "eth0", "tcp", "127.0.0.1:80", "10.77.0.2:8080", "nftables", "0", "-", "-"];
    assert_eq!(line, wanted, "{table}");
    let none: Value =
        serde_json::from_str(&node.slipway("ports --container other --output json")).expect("JSON");
    assert_eq!(none, json!({"schema": 2, "attachments": [], "ports": []}));
    let wrong = node.try_slipway("ports --format json");
    assert_eq!(wrong.code, Some(2), "{wrong}");
}
