// SPDX-License-Identifier: GPL-2.0-or-later

//! DEL under the new name of a network, by plugins whose links show no owner, and the cost of a DEL that finds nothing.

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Proto, slipway_only};

use super::{PORT, attach, ipam, state};

fn flannel(name: &str) -> Value {
    json!({"name": name, "plugins": [
        {"type": "flannel", "delegate": {"isDefaultGateway": true}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall", "backend": "nftables"},
    ]})
}

#[test]
fn del_of_a_renamed_flannel_network_removes_what_the_chained_plugins_have_made() {
    slipway_only!();
    let node = Node::new();
    node.write(
        "/run/flannel/subnet.env",
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
    );
    let (old, new) = (node.network(flannel("old")), node.network(flannel("new")));
    for network in [&old, &new] {
        let first = node.pod("first");
        network.add(&attach(&first)).expect("the first ADD");
        network.del(&attach(&first)).expect("its DEL");
        first.remove();
    }
    let before = state(&node);
    for network in [&old, &new] {
        let pod = node.pod("web");
        old.add(&attach(&pod)).expect("ADD");
        network.del(&attach(&pod)).expect("DEL");
        pod.remove();
        before.assert_same(&state(&node));
        assert!(node.reserved("old").is_empty());
    }
}

/// As for the other interface plugins, a runtime calls DEL after an ADD that was refused because the interface belongs to
/// another network.
#[test]
fn del_of_a_flannel_network_beside_another_one_leaves_that_alone() {
    slipway_only!();
    let node = Node::new();
    node.own_etc();
    node.write(
        "/run/flannel/subnet.env",
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
    );
    let mut file = flannel("first");
    file["cniVersion"] = "1.0.0".into();
    node.write("/etc/cni/net.d/10-first.conflist", file.to_string());
    let (first, second) = (node.network(flannel("first")), node.network(flannel("second")));
    let pod = node.pod("web");
    first.add(&attach(&pod)).expect("ADD");
    let before = state(&node);
    assert!(second.add(&attach(&pod)).is_err());
    second.del(&attach(&pod)).expect("DEL");
    before.assert_same(&state(&node));
    first.del(&attach(&pod)).expect("DEL");
    assert!(!pod.has_link("eth0") && node.reserved("first").is_empty());
}

#[test]
fn del_of_a_renamed_host_device_network_frees_the_address() {
    slipway_only!();
    let node = Node::new();
    node.cmd("ip link add up0 up type veth peer name up1");
    let of = |name: &str| {
        node.network(
            json!({"name": name, "plugins": [{"type": "host-device", "device": "up0", "ipam": ipam()}]}),
        )
    };
    let (old, new) = (of("old"), of("new"));
    let (pod, other) = (node.pod("web"), node.pod("other"));
    for network in [&old, &new] {
        old.add(&Attach::new(&pod)).expect("ADD");
        assert_eq!(node.reserved("old").len(), 2);
        // Another container with the same ID is left alone.
        new.del(&Attach::new(&pod).netns(other.path())).expect("DEL");
        assert_eq!(node.reserved("old").len(), 2);
        network.del(&Attach::new(&pod)).expect("DEL");
        assert!(node.has_link("up0") && node.reserved("old").is_empty());
    }
}

/// A runtime calls DEL several times for each sandbox, and only the first call finds something.
#[test]
fn a_repeated_del_costs_the_same_whatever_the_number_of_pods() {
    slipway_only!();
    let node = Node::new();
    let network = node.network(super::list("net", "bridge", "nftables", true));
    let gone = node.pod("gone");
    network.add(&attach(&gone)).expect("ADD");
    network.del(&attach(&gone)).expect("DEL");
    // The first repetition ends the wait of the process that closes sockets.
    let few = received(&node, &network, &attach(&gone));
    let pods: Vec<_> = (0..20).map(|number| node.pod(&format!("web{number}"))).collect();
    for (number, pod) in (0..).zip(&pods) {
        network.add(&Attach::new(pod).port(Proto::Tcp, PORT + 1 + number, 80)).expect("ADD");
    }
    let many = received(&node, &network, &attach(&gone));
    assert!(many <= few + 200, "{few} bytes with none, {many} with twenty");
}

/// The number of bytes that DEL of the interface plugin reads from kernel sockets.
fn received(node: &Node, network: &Network<'_>, attach: &Attach) -> usize {
    let config = network.configs(Some(attach)).remove(0);
    let trace = "/run/trace";
    let strace = ["strace", "-f", "-o", trace, "-e", "trace=recvfrom,recvmsg"];
    let output = network.prepare("DEL", &config, Some(attach)).through(&strace).run();
    assert!(output.result().is_ok(), "{output:?}");
    let text = node.read(trace).expect("a trace");
    let bytes =
        |line: &str| line.rsplit_once(" = ").and_then(|(_, count)| count.trim().parse::<usize>().ok());
    text.lines().filter(|line| !line.contains("MSG_PEEK")).filter_map(bytes).sum()
}
