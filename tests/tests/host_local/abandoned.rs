// SPDX-License-Identifier: GPL-2.0-or-later

//! If a range is full, addresses whose containers are provably gone are assigned again, and no others.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Output, Pod, Proto, REFERENCE, at, peer_fails, skip, until};

use super::{addresses, config, four, node_call, reserved, theirs};

/// A range of five addresses, .2 to .6.
fn small() -> Value {
    config(json!({"subnet": "10.1.2.0/29"}))
}

/// A range of two addresses in each family.
fn tiny() -> Value {
    let range = |subnet: &str, start: &str, end: &str| json!([{"subnet": subnet, "rangeStart": start, "rangeEnd": end}]);
    config(json!({"ranges": [
        range("10.1.2.0/24", "10.1.2.8", "10.1.2.9"),
        range("fd00:1::/64", "fd00:1::8", "fd00:1::9"),
    ]}))
}

fn add(pod: &Pod, node: &Node, config: &Value) -> Output {
    node.plugin("host-local").command("ADD").for_pod(pod).config(config).env("SLIPWAY_LOG", "warn").run()
}

fn pods(node: &Node, count: usize) -> Vec<Pod> {
    (0..count).map(|at| node.pod(&format!("pod{at}"))).collect()
}

/// Adds as many pods as there are addresses.
fn fill(node: &Node, count: usize, config: &Value) -> Vec<Pod> {
    let pods = pods(node, count);
    for pod in &pods {
        add(pod, node, config).ok();
    }
    pods
}

#[test]
fn addresses_of_containers_without_a_namespace_are_freed_oldest_first() {
    peer_fails("they stay reserved for ever", || {
        let node = Node::new();
        let all = fill(&node, 5, &small());
        let late = node.pod("late");
        let full = add(&late, &node, &small()).error();
        assert!(full.msg.contains("no IP addresses available in range set"), "{full:?}");
        let status = node_call(&node, "STATUS", &small()).error();
        assert_eq!(status.code, 50, "all of them live: {status:?}");

        let mut all = all.into_iter();
        let living = all.next_back().expect("the fifth");
        all.for_each(Pod::remove);
        assert_eq!(node_call(&node, "STATUS", &small()).process.code, Some(0), "the next ADD succeeds");
        assert_eq!(reserved(&node).len(), 5, "STATUS frees nothing");
        let output = add(&late, &node, &small());
        assert_eq!(addresses(&output.ok()), ["10.1.2.2/29"]);
        let log = output.process.stderr;
        let freed: Vec<&str> = log.lines().filter_map(|line| line.split("address ").nth(1)).collect();
        let wanted = [0, 1, 2, 3].map(|at| {
            format!(
                "10.1.2.{} of network net, container pod{at}, interface eth0 is freed: the container's namespace is \
                 gone, and it had no DEL",
                at + 2
            )
        });
        assert_eq!(freed, wanted, "{log}");
        assert_eq!(reserved(&node).into_iter().collect::<Vec<_>>(), ["10.1.2.2", "10.1.2.6"]);
        let check = node.plugin("host-local").command("CHECK").for_pod(&living).config(&small()).run();
        assert_eq!(check.process.code, Some(0), "{}", check.process);
    });
}

#[test]
fn a_requested_address_of_a_container_that_is_gone_is_free() {
    peer_fails("they stay reserved for ever", || {
        let node = Node::new();
        let wants = |address: &str| {
            config(json!({"subnet": "10.1.2.0/24"}))
                .as_object()
                .map(|config| {
                    let mut config = config.clone();
                    config.insert("runtimeConfig".to_owned(), json!({"ips": [address]}));
                    Value::Object(config)
                })
                .expect("an object")
        };
        let mut pods = pods(&node, 3).into_iter();
        let (one, two, three) = (pods.next().unwrap(), pods.next().unwrap(), pods.next().unwrap());
        add(&one, &node, &wants("10.1.2.77")).ok();
        add(&two, &node, &four()).ok();
        let taken = add(&three, &node, &wants("10.1.2.77")).error();
        assert!(taken.msg.contains("10.1.2.77 is not available"), "{taken:?}");
        one.remove();
        two.remove();
        assert_eq!(addresses(&add(&three, &node, &wants("10.1.2.77")).ok()), ["10.1.2.77/24"]);
        assert_eq!(reserved(&node).len(), 2, "nothing else is freed: {:?}", reserved(&node));
    });
}

/// Each of these containers may be alive, whatever its path shows here.
#[test]
fn what_may_live_is_not_freed() {
    let node = Node::new();
    let late = node.pod("late");
    let full = || add(&late, &node, &tiny()).error().msg;
    let call = |pod: &Pod| node.plugin("host-local").command("ADD").for_pod(pod).config(&tiny());
    // The runtime of this container is in another mount namespace, as a runtime in a container is.
    let foreign = node.pod("foreign");
    call(&foreign).through(&["unshare", "--mount"]).run().ok();
    // This container had no namespace at the time of the ADD.
    node.plugin("host-local")
        .command("ADD")
        .container("none")
        .ifname("eth0")
        .netns("/run/netns/none")
        .config(&tiny())
        .run()
        .ok();
    foreign.remove();
    assert!(full().contains("no IP addresses available"));
    assert_eq!(reserved(&node).len(), 4);
}

/// A reservation made by the reference plugin has no record.
#[test]
fn what_the_reference_has_reserved_is_not_freed() {
    let Some(program) = theirs() else { skip!(REFERENCE) };
    let node = Node::new();
    let all = pods(&node, 5);
    for pod in &all {
        let call = node.plugin("host-local").command("ADD").for_pod(pod).config(&small());
        call.instead(&program).run().ok();
    }
    all.into_iter().for_each(Pod::remove);
    let late = node.pod("late");
    assert!(add(&late, &node, &small()).error().msg.contains("no IP addresses available"));
    assert_eq!(reserved(&node).len(), 5);
}

/// The next container that gets an address must not get the packets for the previous container's ports.
#[test]
fn ports_of_the_last_container_do_not_lead_to_the_next() {
    peer_fails("addresses stay reserved for ever", || {
        let (node, client) = Node::with_client();
        let bridge = json!({
            "type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "subnet": "10.1.2.0/30"},
        });
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let network = node.network(json!({"name": "net", "plugins": [bridge, portmap]}));
        let first = node.pod("first");
        network.add(&Attach::new(&first).port(Proto::Tcp, 8080, 80)).expect("ADD");
        let server = first.serve(Proto::Tcp, "0.0.0.0:80", "first");
        client.expect(Proto::Tcp, at(client.node_v4, 8080), "first");
        drop(server);
        first.remove();
        // The kernel removes the links of a namespace some time after its name. As long as the node's end exists, the
        // container may be alive.
        let has_end = || !node.cmd("ip -oneline link show master br0").trim().is_empty();
        until(Duration::from_secs(5), "the link is gone", || !has_end());
        let second = node.pod("second");
        network.add(&Attach::new(&second)).expect("ADD with the only address");
        let _server = second.serve(Proto::Tcp, "0.0.0.0:80", "second");
        node.expect(Proto::Tcp, at([10, 1, 2, 2], 80), "second");
        client.expect_none(Proto::Tcp, at(client.node_v4, 8080));
        assert!(!node.ruleset().contains("first"), "{}", node.ruleset());
    });
}
