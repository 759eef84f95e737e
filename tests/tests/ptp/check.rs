//! CHECK finds what has changed since.

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Pod, peer_fails};

use super::{add, dual_stack, network, outer};

/// A dual-stack pod that CHECK is content with.
fn attached<'a>(node: &'a Node, pod: &Pod, keys: Value) -> (Network<'a>, Value) {
    let mut all = json!({"ipam": dual_stack()});
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
    let mac = result["interfaces"][1]["mac"].as_str().expect("a MAC");
    pod.cmd("ip link set eth0 address 02:00:00:00:00:77");
    differs(
        &network,
        &pod,
        &format!("ptp: Interface eth0 Mac {mac} doesn't match container Mac: 02:00:00:00:00:77"),
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
fn what_leads_to_the_container_and_back() {
    peer_fails("looks at the container's end only", || {
        let node = Node::new();
        let pod = node.pod("pod");
        let (network, result) = attached(&node, &pod, json!({}));
        let outer = outer(&result);
        let fine = || network.check(&Attach::new(&pod)).expect("CHECK");
        pod.cmd("ip route delete 10.1.2.0/24");
        differs(&network, &pod, "Expected Route 10.1.2.0/24 via 10.1.2.1 not found in routing table");
        pod.cmd("ip route add 10.1.2.0/24 via 10.1.2.1 src 10.1.2.2");
        fine();
        node.cmd("ip route delete 10.1.2.2");
        differs(&network, &pod, "Expected Route 10.1.2.2/32 not found in routing table");
        node.cmd(&format!("ip route add 10.1.2.2 dev {outer} scope host"));
        fine();
        node.cmd("ip -6 route delete fd00:1::2");
        differs(&network, &pod, "Expected Route fd00:1::2/128 not found in routing table");
        node.cmd(&format!("ip route add fd00:1::2 dev {outer}"));
        fine();
        node.cmd(&format!("ip address delete 10.1.2.1/32 dev {outer}"));
        differs(&network, &pod, &format!("Failed to match addr 10.1.2.1/32 on interface {outer}"));
        node.cmd(&format!("ip address add 10.1.2.1/32 dev {outer}"));
        // With the last address of a link the kernel takes all of its routes away.
        node.cmd(&format!("ip route add 10.1.2.2 dev {outer} scope host"));
        fine();
        node.cmd(&format!("ip link set {outer} down"));
        differs(&network, &pod, &format!("Interface {outer} is down"));
        // Older kernels rename no link that is up.
        node.cmd(&format!("ip link set {outer} name other"));
        differs(&network, &pod, "ptp: host end of container interface eth0 was not found");
    });
}

#[test]
fn a_previous_result_is_required() {
    let node = Node::new();
    let pod = node.pod("pod");
    let (network, _) = attached(&node, &pod, json!({}));
    network.forget();
    differs(&network, &pod, "ptp: Required prevResult missing");
}

#[test]
fn masquerade_is_compared() {
    peer_fails("does not look at it", || {
        let node = Node::new();
        let pod = node.pod("pod");
        let (network, _) = attached(&node, &pod, json!({"ipMasq": true}));
        // Whatever the table's layout is: all that a container has in it.
        node.nft("delete table inet slipway");
        network.check(&Attach::new(&pod)).expect_err("CHECK should notice");
    });
}
