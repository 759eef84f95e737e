// SPDX-License-Identifier: GPL-2.0-or-later

//! Containers whose links other plugins act on are left to nftables, since the BPF programs would bypass
//! those plugins.

use serde_json::{Value, json};
use slipway_tests::{Attach, PROGRAMS, Proto, has_programs, needs};

use crate::{PORT, Stage, address, list};

/// Returns the backends of the published ports, as `slipway ports` prints them.
fn backends(stage: &Stage) -> Vec<Value> {
    let ports: Value = serde_json::from_str(&stage.node.slipway("ports --json")).expect("JSON");
    ports["ports"].as_array().expect("a list").iter().map(|port| port["backend"].clone()).collect()
}

fn with(plugin: Value) -> Value {
    let mut list = list("ebpf");
    list["plugins"].as_array_mut().expect("a list").push(plugin);
    list
}

/// Publishes a port with this plugin in the list. Returns the backend that serves it.
fn served(plugin: Value, prepare: impl Fn(Attach) -> Attach) -> Value {
    let stage = Stage::new();
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let network = stage.node.network(with(plugin));
    let pod = stage.node.pod("web");
    let attach = prepare(Attach::new(&pod).port_on("0.0.0.0", Proto::Tcp, PORT, 80));
    let result = network.add(&attach).expect("ADD");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
    let _far = stage.client.serve(Proto::Tcp, &format!("{}:7000", stage.client.v4), "far");
    assert_eq!(pod.expect(Proto::Tcp, (stage.client.v4, 7000), "far").peer.ip(), stage.client.node_v4);
    let [backend] = &backends(&stage)[..] else { panic!("one port") };
    let status = stage.node.programs();
    let is_left = backend == "nftables";
    assert_eq!(status["containers_left_to_nftables"], json!(u8::from(is_left)), "{status}");
    let carried = ["to_container_packets", "from_container_packets"].map(|name| stage.node.counted(name) > 0);
    assert_eq!(carried, [!is_left; 2], "{status}");
    if is_left {
        assert!(status["left_to_netfilter"]["container_policy"].as_u64() >= Some(1), "{status}");
    }
    network.check(&attach).expect("CHECK");
    network.del(&attach).expect("DEL");
    assert_eq!(stage.node.programs()["containers"], 0);
    backend.clone()
}

#[test]
fn a_container_with_limits_is_left_to_nftables() {
    needs!(has_programs(), PROGRAMS);
    let bandwidth = |keys: Value| {
        let mut plugin = json!({"type": "bandwidth"});
        plugin.as_object_mut().expect("an object").extend(keys.as_object().expect("an object").clone());
        plugin
    };
    for limits in [
        json!({"ingressRate": 80_000_000, "ingressBurst": 800_000}),
        json!({"egressRate": 80_000_000, "egressBurst": 800_000}),
    ] {
        assert_eq!(served(bandwidth(limits), |a| a), "nftables");
    }
    assert_eq!(served(bandwidth(json!({})), |a| a), "ebpf");
}

#[test]
fn a_container_with_an_ingress_policy_is_left_to_nftables() {
    needs!(has_programs(), PROGRAMS);
    for (policy, backend) in [("open", "ebpf"), ("same-bridge", "nftables"), ("isolated", "nftables")] {
        let firewall = json!({"type": "firewall", "backend": "iptables", "ingressPolicy": policy});
        assert_eq!(served(firewall, |a| a), backend, "{policy}");
    }
}

/// A repeated ADD of portmap finds a limit on the container's link.
#[test]
fn a_repeated_add_finds_limits_on_the_link() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let pod = stage.node.pod("web");
    let network = stage.network();
    let attach = Attach::new(&pod).port_on("0.0.0.0", Proto::Tcp, PORT, 80);
    let result = network.add(&attach).expect("ADD");
    assert_eq!(backends(&stage), ["ebpf"]);
    let link = result["interfaces"][1]["name"].as_str().expect("the node's end").to_owned();
    stage.node.cmd(&format!("tc qdisc add dev {link} root tbf rate 80mbit burst 100k latency 25ms"));
    crate::publish(&network, &attach, &result);
    assert_eq!(backends(&stage), ["nftables"]);
}

/// Here firewall precedes portmap in the list.
#[test]
fn a_container_with_an_earlier_ingress_policy_is_left_to_nftables() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let mut list = list("ebpf");
    let firewall = json!({"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"});
    list["plugins"].as_array_mut().expect("a list").insert(1, firewall);
    let network = stage.node.network(list);
    let pod = stage.node.pod("web");
    let attach = Attach::new(&pod).port_on("0.0.0.0", Proto::Tcp, PORT, 80);
    let result = network.add(&attach).expect("ADD");
    let left = || {
        assert_eq!(
            (backends(&stage), &stage.node.programs()["containers_left_to_nftables"]),
            (vec![json!("nftables")], &json!(1))
        );
    };
    left();
    // A new program gets a new generation, which the container's entry does not have.
    let link = result["interfaces"][1]["name"].as_str().expect("the node's end").to_owned();
    stage.node.cmd(&format!("tc qdisc del dev {link} clsact"));
    crate::publish(&network, &attach, &result);
    left();
    network.del(&attach).expect("DEL");
}

/// A mapping with a host address takes precedence over one without, whichever backend serves it, also if the
/// BPF programs are loaded later.
#[test]
fn a_host_address_published_by_another_backend_takes_precedence() {
    needs!(has_programs(), PROGRAMS);
    for backend in ["nftables", "iptables"] {
        let stage = Stage::new();
        let mut first = list(backend);
        first["name"] = "first".into();
        first["plugins"][0]["bridge"] = "cni1".into();
        first["plugins"][0]["ipam"]["ranges"] = json!([[{"subnet": "10.88.2.0/24"}]]);
        let (one, two) = (stage.node.pod("one"), stage.node.pod("two"));
        let first = stage.node.network(first);
        let node = stage.client.node_v4.to_string();
        let named = Attach::new(&one).port_on(&node, Proto::Udp, PORT, 80);
        let result = first.add(&named).expect("ADD");
        let _one = one.serve(Proto::Udp, &format!("{}:80", address(&result)), "one");
        let network = stage.network();
        let result = network.add(&Attach::new(&two).port_on("0.0.0.0", Proto::Udp, PORT, 80)).expect("ADD");
        let _two = two.serve(Proto::Udp, &format!("{}:80", address(&result)), "two");
        stage.client.expect(Proto::Udp, (stage.client.node_v4, PORT), "one");
        stage.node.slipway("node setup");
        stage.client.expect(Proto::Udp, (stage.client.node_v4, PORT), "one");
        first.del(&named).expect("DEL");
    }
}
