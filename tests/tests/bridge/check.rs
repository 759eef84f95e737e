//! CHECK finds what has changed since.

use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Pod, peer_fails};

use super::{add, dual_stack, network, port};

/// A pod on a dual-stack gateway that CHECK is content with.
fn attached<'a>(node: &'a Node, pod: &Pod, keys: Value) -> (Network<'a>, Value) {
    let mut all = json!({"isDefaultGateway": true, "ipam": dual_stack()});
    all.as_object_mut().expect("an object").extend(keys.as_object().expect("an object").clone());
    let network = network(node, &all);
    let result = add(&network, pod);
    network.check(&Attach::new(pod)).expect("CHECK of what was just made");
    (network, result)
}

#[track_caller]
fn differs(network: &Network<'_>, pod: &Pod, text: &str) {
    let failure = network.check(&Attach::new(pod)).expect_err("CHECK should notice");
    assert!(failure.error.msg.contains(text), "{text:?} is not in: {failure}");
}

#[test]
fn the_containers_link() {
    let node = Node::new();
    let pod = node.pod("pod");
    let (network, result) = attached(&node, &pod, json!({}));
    let mac = result["interfaces"][2]["mac"].as_str().expect("a MAC");
    pod.cmd("ip link set eth0 address 02:00:00:00:00:77");
    differs(
        &network,
        &pod,
        &format!("Interface eth0 Mac {mac} doesn't match container Mac: 02:00:00:00:00:77"),
    );
    pod.cmd(&format!("ip link set eth0 address {mac}"));
    network.check(&Attach::new(&pod)).expect("CHECK");
    pod.cmd("ip link delete eth0");
    differs(&network, &pod, "eth0");
}

#[test]
fn the_containers_addresses_and_routes() {
    let node = Node::new();
    let pod = node.pod("pod");
    let (network, _) = attached(&node, &pod, json!({}));
    pod.cmd("ip route delete default");
    differs(&network, &pod, "Expected Route");
    pod.cmd("ip route add default via 10.1.2.1");
    network.check(&Attach::new(&pod)).expect("CHECK");
    pod.cmd("ip address delete fd00:1::2/64 dev eth0");
    differs(&network, &pod, "Failed to match addr");
}

#[test]
fn the_bridge_and_the_port() {
    peer_fails("does not look at some of it", || {
        let node = Node::new();
        let pod = node.pod("pod");
        let (network, result) = attached(&node, &pod, json!({"hairpinMode": true}));
        let port = port(&result);
        node.cmd(&format!("bridge link set dev {port} hairpin off"));
        differs(&network, &pod, &format!("Interface {port}: port is set to"));
        node.cmd(&format!("bridge link set dev {port} hairpin on"));
        network.check(&Attach::new(&pod)).expect("CHECK");
        node.cmd(&format!("ip link set {port} nomaster"));
        differs(&network, &pod, "CNI veth created for bridge br0 was not found");
        node.cmd(&format!("ip link set {port} master br0"));
        let mac = node.mac("br0");
        node.cmd("ip link set br0 address 02:00:00:00:00:77");
        differs(&network, &pod, &format!("Bridge interface br0 Mac doesn't match: {mac}"));
        node.cmd("ip link delete br0");
        differs(&network, &pod, "Interface br0 not found");
    });
}

#[test]
fn a_previous_result_is_required() {
    let node = Node::new();
    let pod = node.pod("pod");
    let (network, _) = attached(&node, &pod, json!({}));
    network.forget();
    differs(&network, &pod, "Required prevResult missing");
}

#[test]
fn the_sandbox_is_compared_as_a_namespace() {
    peer_fails("compares paths", || {
        let node = Node::new();
        let (pod, other) = (node.pod("pod"), node.pod("other"));
        let (network, result) = attached(&node, &pod, json!({}));
        let elsewhere = "/run/elsewhere/pod";
        node.write(elsewhere, "");
        node.run(|| mount(Some(pod.path()), elsewhere, None::<&str>, MsFlags::MS_BIND, None::<&str>))
            .expect("a bind mount");
        network.check(&Attach::new(&pod).netns(elsewhere)).expect("the same namespace");
        let failure = network.check(&Attach::new(&pod).netns(other.path())).expect_err("another namespace");
        let sandbox = result["interfaces"][2]["sandbox"].as_str().expect("a path");
        let text = format!(
            "Sandbox in prevResult {sandbox} doesn't match configured netns: {}",
            other.path().display()
        );
        assert_eq!(failure.error.msg, text);
    });
}

#[test]
fn masquerade_is_compared() {
    peer_fails("does not look at it", || {
        let node = Node::new();
        let pod = node.pod("pod");
        let (network, _) = attached(&node, &pod, json!({"ipMasq": true}));
        node.nft("flush map inet slipway masquerade4");
        network.check(&Attach::new(&pod)).expect_err("CHECK should notice");
    });
}

#[test]
fn the_guard_against_spoofing_is_compared() {
    peer_fails("does not look at it", || {
        let node = Node::new();
        let pod = node.pod("pod");
        let (network, _) = attached(&node, &pod, json!({"macspoofchk": true}));
        node.nft("flush set bridge slipway guarded");
        differs(&network, &pod, "spoofing");
    });
}
