// SPDX-License-Identifier: GPL-2.0-or-later

//! Calls of a list in the order in which each runtime makes them, with the runtime's `CNI_ARGS`.

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Pod, Proto};

use crate::world::{Chain, EGRESS, INGRESS, PORT, SERVED, World, address};

/// The `CNI_ARGS` that kubelet's containers have.
const KUBERNETES: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod;\
    K8S_POD_INFRA_CONTAINER_ID=0123456789abcdef;K8S_POD_UID=6f0b1a52-7f8e-4cbb-8d3c-5b7e6a1f0c11";

fn answers(world: &World, pod: &Pod, result: &Value) {
    let _server = pod.serve(Proto::Tcp, &format!("{}:{SERVED}", address(result, 0)), "pod");
    world.client.expect(Proto::Tcp, (world.client.node_v4, PORT), "pod");
}

fn versions(network: &Network<'_>, world: &World) {
    for config in network.configs(None) {
        let name = config["type"].as_str().expect("a type");
        // podman sets variables that VERSION does not need.
        for input in ["{}", r#"{"cniVersion":"1.0.0"}"#] {
            let call = world.node.plugin(name).command("VERSION").container("dummy").netns("dummy");
            let answer = call.ifname("dummy").args("").stdin(input).run().ok();
            let known = answer["supportedVersions"].as_array().expect("versions");
            assert!(known.contains(&config["cniVersion"]), "{name}: {answer}");
            assert!(known.contains(&answer["cniVersion"]), "{name}: {answer}");
        }
    }
}

/// containerd writes keys with capital first letters, and deletes every container twice, the second time
/// without its namespace.
#[test]
fn containerd() {
    let Some(world) = World::of(Chain::Everything("nftables")) else { return };
    world.warm_up();
    let before = world.state(&[]);
    let network = world.network();
    let pod = world.node.pod("pod");
    pod.sysctl("net/ipv6/conf/default/accept_dad", "0");
    let loopback = world.node.network(json!({
        "cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}],
    }));
    let attach = Attach::new(&pod)
        .args(KUBERNETES)
        .mapping(json!({"HostPort": PORT, "ContainerPort": SERVED, "Protocol": "tcp", "HostIP": ""}))
        .mapping(json!({"HostPort": 8053, "ContainerPort": 53, "Protocol": "udp", "HostIP": ""}))
        .capability(
            "bandwidth",
            json!({
                "IngressRate": INGRESS, "IngressBurst": 600_064, "EgressRate": EGRESS, "EgressBurst": 600_064,
            }),
        )
        .capability("dns", json!({"servers": ["10.96.0.10"]}))
        .capability("cgroupPath", "/kubepods/besteffort/pod6f0b1a52".into());
    network.status().expect("STATUS");
    let result = loopback.add(&attach.clone().ifname("lo")).expect("ADD of the loopback");
    assert_eq!((&result["cniVersion"], &result["dns"]), (&json!("0.3.1"), &json!({})));
    let result = network.add(&attach).expect("ADD");
    answers(&world, &pod, &result);
    let _dns = pod.serve(Proto::Udp, &format!("{}:53", address(&result, 0)), "dns");
    world.client.expect(Proto::Udp, (world.client.node_v4, 8053), "dns");
    let queues = world.node.cmd("tc qdisc show");
    assert!(queues.contains("rate 16Mbit") && queues.contains("rate 8Mbit"), "{queues}");
    network.status().expect("STATUS");
    loopback.del(&attach.clone().ifname("lo")).expect("DEL of the loopback");
    network.del(&attach).expect("DEL");
    let path = attach.netns.clone();
    pod.remove();
    loopback.del(&attach.clone().ifname("lo").netns("")).expect("a second DEL of the loopback");
    network.del(&attach.clone().netns("")).expect("a second DEL");
    network.del(&attach.netns(path)).expect("a third DEL, with a path that does not exist");
    before.assert_same(&world.state(&[]));
}

/// podman calls VERSION of every plugin before each ADD and DEL, and names no backend.
#[test]
fn podman() {
    let Some(world) = World::of(Chain::Everything("iptables")) else { return };
    let mut list = world.chain.list();
    list["cniVersion"] = "0.4.0".into();
    list["name"] = "podman".into();
    let plugins = list["plugins"].as_array_mut().expect("plugins");
    plugins.remove(2);
    plugins[2]["backend"] = "".into();
    plugins[2].as_object_mut().expect("an object").remove("ingressPolicy");
    plugins[3] = json!({"type": "tuning"});
    let network = world.node.network(list);
    let id = "8d1c0a7f6c9b5e4d3a2f1e0d9c8b7a6f5e4d3c2b1a0f9e8d7c6b5a4f3e2d1c0b";
    let pod = world.node.pod("netns-5f0e3c1a");
    let attach = Attach::new(&pod)
        .container(id)
        .args(&format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=web;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={id}"
        ))
        .mapping(json!({"hostPort": PORT, "containerPort": SERVED, "protocol": "tcp"}));
    let cycle = || {
        versions(&network, &world);
        let result = network.add(&attach).expect("ADD");
        answers(&world, &pod, &result);
        let server = pod.serve(Proto::Tcp, &format!("0.0.0.0:{SERVED}"), "pod");
        world.node.expect(Proto::Tcp, ([127, 0, 0, 1], PORT), "pod");
        drop(server);
        versions(&network, &world);
        network.del(&attach).expect("DEL");
    };
    cycle();
    let before = world.state(&[&pod]);
    cycle();
    before.assert_same(&world.state(&[&pod]));
}

/// CRI-O calls VERSION, STATUS and GC at every start, and CHECK after each ADD and each start.
#[test]
fn cri_o() {
    let Some(world) = World::of(Chain::Everything("nftables")) else { return };
    let network = world.network();
    let start = |valid: &Value| {
        versions(&network, &world);
        network.status().expect("STATUS");
        network.gc_plugins(valid).unwrap_or_else(|failures| panic!("GC: {failures:?}"));
    };
    start(&Value::Null);
    let (pod, lost) = (world.pod("pod"), world.pod("lost"));
    // CRI-O publishes ports itself.
    let attach = |pod: &Pod| Attach::new(pod).args(KUBERNETES);
    for pod in [&pod, &lost] {
        let first = network.add_first(&attach(pod));
        assert_eq!(network.call_one(1, "ADD", &attach(pod), &first).ok(), first, "portmap has no ports");
        network.call_one(0, "DEL", &attach(pod), &first).ok();
        network.add(&attach(pod)).expect("ADD");
        network.check(&attach(pod)).expect("CHECK right after ADD");
    }
    // GC of one network keeps another network's attachments.
    let other = world.node.network(json!({"name": "other", "plugins": [
        {"type": "bridge", "bridge": "br9", "ipam": {"type": "host-local", "subnet": "10.99.1.0/24"}},
        {"type": "firewall", "backend": "nftables"},
    ]}));
    let others = world.pod("others");
    other.add(&Attach::new(&others)).expect("ADD in another network");
    // After the first restart the runtime lists all attachments, after the next one only some of them.
    start(&json!([{"containerID": "pod", "ifname": "eth0"}, {"containerID": "lost", "ifname": "eth0"}]));
    network.check(&attach(&lost)).expect("CHECK after a restart");
    start(&json!([{"containerID": "pod", "ifname": "eth0"}]));
    network.check(&attach(&pod)).expect("CHECK after a restart");
    network.check(&attach(&lost)).expect_err("CHECK after GC");
    assert_eq!(world.node.reserved("all1").len(), 2, "those of the container that runs");
    other.check(&Attach::new(&others)).expect("CHECK in the other network");
    // No container is running, so every attachment of the network is stale.
    start(&Value::Null);
    network.check(&attach(&pod)).expect_err("CHECK after GC");
    assert!(world.node.reserved("all1").is_empty() && !world.node.ruleset().contains("eth0 pod\""));
    other.check(&Attach::new(&others)).expect("CHECK in the other network");
    for pod in [&pod, &lost] {
        network.del(&attach(pod)).expect("DEL after a GC");
        assert!(!pod.has_link("eth0"));
    }
    other.del(&Attach::new(&others)).expect("DEL in the other network");
}
