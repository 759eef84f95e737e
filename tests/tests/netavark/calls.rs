// SPDX-License-Identifier: GPL-2.0-or-later

//! Set-ups and teardowns: results, repetitions, failures and records.

use serde_json::{Value, json};
use slipway_tests::{Node, Proto, SHARED_IN_NFTABLES, at, slipway_only};

use crate::{Call, GATEWAYS, Net, error, state};

#[test]
fn a_set_up_container_has_its_addresses_and_reaches_the_outside() {
    slipway_only!();
    let (node, client) = Node::with_client();
    let (first, pod) = (node.pod("first"), node.pod("web"));
    let unshared = || state(&node, &[&pod]).without(SHARED_IN_NFTABLES).without(&["ip_forward"]);
    let before = unshared();
    let net = Net::new();
    let call = Call::new(&node, &net, &pod, 5).option("static_mac", json!("02:00:00:00:89:05"));
    let status = call.setup();
    let expected = json!({
        "dns_search_domains": [], "dns_server_ips": [],
        "interfaces": {"eth0": {"mac_address": "02:00:00:00:89:05", "subnets": [
            {"gateway": "10.89.0.1", "ipnet": "10.89.0.5/24"}, {"gateway": "fd00:89::1", "ipnet": "fd00:89::5/64"},
        ]}},
    });
    assert_eq!(status, expected);
    assert_eq!(pod.mac("eth0"), "02:00:00:00:89:05");
    let routes = pod.cmd("ip -json route show default");
    let routes: Value = serde_json::from_str(&routes).expect("JSON");
    assert_eq!((&routes[0]["gateway"], &routes[0]["metric"]), (&json!(GATEWAYS[0]), &json!(100)));
    // Packets are masqueraded in both families, and another container on the bridge is reached.
    let _server = client.serve(Proto::Tcp, "[::]:7", "outside");
    assert_eq!(pod.expect(Proto::Tcp, (client.v4, 7), "outside").peer.ip().to_canonical(), client.node_v4);
    assert_eq!(pod.expect(Proto::Tcp, (client.v6, 7), "outside").peer.ip(), client.node_v6);
    let other = Call::new(&node, &net, &first, 9);
    other.setup();
    let _web = pod.serve(Proto::Tcp, "[::]:80", "web");
    first.expect(Proto::Tcp, at(call.address(0), 80), "web");
    first.expect(Proto::Tcp, at(call.address(1), 80), "web");
    other.teardown();
    assert!(node.has_link("sw0"), "a container is on the bridge");
    pod.expect(Proto::Tcp, (client.v4, 7), "outside");
    call.teardown();
    assert!(!node.has_link("sw0"), "the bridge goes with the last container");
    before.assert_same(&unshared());
}

#[test]
fn teardown_works_twice_and_without_a_setup_and_without_the_namespace() {
    slipway_only!();
    let (node, client) = Node::with_client();
    let pod = node.pod("web");
    let net = Net::new();
    let call = Call::new(&node, &net, &pod, 5).publish("", "tcp", 8080, 80, 1);
    call.teardown();
    call.setup();
    call.teardown();
    let before = state(&node, &[&pod]);
    call.setup();
    call.teardown();
    call.teardown();
    before.assert_same(&state(&node, &[&pod]));
    // By the time of the teardown, the network's options are invalid, and its record is lost.
    call.setup();
    node.cmd("rm -r /run/slipway/netavark/results");
    let mut changed = call.clone();
    changed.exec["network"]["options"] = json!({"no_such": "1"});
    changed.exec["port_mappings"] = json!([]);
    changed.teardown();
    before.assert_same(&state(&node, &[&pod]));
    // The namespace is gone before the teardown.
    call.setup();
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
    pod.remove();
    call.teardown();
    let left = state(&node, &[]);
    assert!(left.matching("8080").is_empty() && !node.has_link("sw0"), "{left:?}");
}

/// The namespace of a container on two networks is gone. The ports of the first network must not move to the second.
#[test]
fn networks_of_a_container_that_is_gone_are_torn_down() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    let pod = node.pod("web");
    let green = Net::with_subnets("green", "sw1", "10.90.0", "fd00:90:");
    let both = [(Net::new(), "eth0"), (green, "eth1")].map(|(net, ifname)| {
        Call::new(&node, &net, &pod, 5)
            .publish("", "tcp", 8080, 80, 1)
            .option("interface_name", json!(ifname))
    });
    both.iter().for_each(|call| drop(call.setup()));
    pod.remove();
    both.iter().for_each(Call::teardown);
    assert!(!node.ruleset().contains("8080"), "{}", node.ruleset());
    assert!(!node.has_link("sw0") && !node.has_link("sw1"));
}

#[test]
fn a_failed_setup_leaves_nothing() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    let (first, second) = (node.pod("first"), node.pod("second"));
    let net = Net::new();
    let owner = Call::new(&node, &net, &first, 5).publish("", "tcp", 8080, 80, 1);
    owner.setup();
    let before = state(&node, &[&second]);
    let other = Call::new(&node, &net, &second, 6).publish("", "tcp", 8080, 80, 1);
    let error = other.refused();
    assert_eq!(
        error,
        "plugin type=\"portmap\" failed (add): host port tcp/0.0.0.0:8080 is taken by network blue, container first, \
         interface eth0; if that container is gone, `slipway detach blue first eth0` removes what it has left"
    );
    before.assert_same(&state(&node, &[&second]));
    // If a network's first container fails, its bridge is removed again.
    let alone = Call::new(&node, &Net::with_subnets("green", "sw1", "10.90.0", "fd00:90:"), &second, 6);
    alone.publish("", "tcp", 8080, 80, 1).refused();
    assert!(!node.has_link("sw1"));
    // The chain of the network's subnet may stay.
    let before = state(&node, &[&second]);
    for (broken, text) in [
        (other.clone().option("static_ips", json!(["10.89.0.7"])), "no address in subnet fd00:89::/64"),
        (other.clone().option("static_mac", json!("x")), "runtimeConfig.mac: address x: invalid MAC address"),
        (
            other.clone().option("options", json!({"host_interface_name": "web0"})),
            "option \"host_interface_name\" of a container in a network is not supported",
        ),
        (Call { netns: "/run/netns/none".to_owned(), ..other.clone() }, "no such file or directory"),
    ] {
        let error = broken.refused();
        assert!(error.contains(text), "{error}");
        before.assert_same(&state(&node, &[&second]));
    }
}

/// podman 5 reloads a container's network with a teardown and a set-up, and a set-up may come twice.
#[test]
fn a_second_setup_begins_again() {
    slipway_only!();
    let (node, client) = Node::with_client();
    let pod = node.pod("web");
    let net = Net::new();
    let call = Call::new(&node, &net, &pod, 5).publish("", "tcp", 8080, 80, 1);
    call.setup();
    let once = state(&node, &[&pod]).without(&["veth", "sw0", "eth0"]);
    call.setup();
    once.assert_same(&state(&node, &[&pod]).without(&["veth", "sw0", "eth0"]));
    let _web = pod.serve(Proto::Tcp, "[::]:80", "web");
    client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
    // The next set-up has another port.
    let mut moved = Call::new(&node, &net, &pod, 6).publish("", "tcp", 8081, 80, 1);
    moved.setup();
    client.expect(Proto::Tcp, (client.node_v4, 8081), "web");
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
    // The teardown removes the port although podman has changed the network since.
    moved.exec["port_mappings"] = json!([]);
    moved.teardown();
    client.expect_none(Proto::Tcp, (client.node_v4, 8081));
}

#[test]
fn the_operators_commands_know_the_container() {
    slipway_only!();
    let (node, client) = Node::with_client();
    let pod = node.pod("web");
    let net = Net::new();
    let call = Call::new(&node, &net, &pod, 5).publish("", "tcp", 8080, 80, 1);
    call.setup();
    let _web = pod.serve(Proto::Tcp, "[::]:80", "web");
    let ports = node.slipway("ports");
    assert!(ports.contains("8080") && ports.contains("blue") && ports.contains("web"), "{ports}");
    let explained = node.slipway(&format!("explain tcp {}:8080 --from {}", client.node_v4, client.v4));
    assert!(explained.contains("web"), "{explained}");
    node.cmd("nft flush ruleset");
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
    let restored = node.slipway("restore");
    assert!(restored.contains("restored"), "{restored}");
    assert_eq!(client.expect(Proto::Tcp, (client.node_v4, 8080), "web").peer.ip().to_canonical(), client.v4);
    // `detach` works without a plugin directory.
    node.slipway("detach blue web eth0");
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
    assert!(!pod.has_link("eth0"));
    call.teardown();
}

#[test]
fn other_calls_are_refused_in_netavarks_form() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    let run = |words: &[&str], input: &str| node.plugin("slipway").arguments(words).stdin(input).run();
    assert_eq!(
        error(&run(&["setup"], "{}")),
        "setup: invalid arguments: see netavark's interface for drivers"
    );
    assert!(error(&run(&["create"], "[")).starts_with("decode the request: "));
    let info = run(&["info"], "");
    assert_eq!((info.process.code, &info.json()["api_version"]), (Some(0), &json!("1.0.0")));
    let name = Call::new(&node, &Net::new().key("name", json!("a/b")), &node.pod("web"), 5);
    assert!(name.refused().contains("a/b"));
}

/// When podman starts a container again, the container gets its previous address with another MAC address. The node and
/// other containers know the old MAC address, and must learn the new one at once.
#[test]
fn a_container_that_comes_back_is_reached_at_once() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    let (near, pod) = (node.pod("near"), node.pod("web"));
    let net = Net::new();
    Call::new(&node, &net, &near, 4).setup();
    let call = Call::new(&node, &net, &pod, 5);
    for _ in 0..3 {
        call.setup();
        let _web = pod.serve(Proto::Tcp, "[::]:80", "web");
        for address in [call.address(0), call.address(1)] {
            node.expect(Proto::Tcp, at(address, 80), "web");
            near.expect(Proto::Tcp, at(address, 80), "web");
        }
        call.teardown();
    }
}
