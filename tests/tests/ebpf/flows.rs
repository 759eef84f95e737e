// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway flows` and `slipway ports` list the BPF programs' flows.

use serde_json::{Value, json};
use slipway_tests::{Attach, Host, PROGRAMS, Proto, at, has_programs, needs, patience};

use crate::{PORT, Stage, address, attach, list};

fn flows(stage: &Stage, args: &str) -> Vec<Value> {
    let text = stage.node.slipway(&format!("flows --output json {args}"));
    let document: Value = serde_json::from_str(&text).expect("slipway flows prints JSON");
    document["flows"].as_array().expect("a list").clone()
}

/// Returns the flows of one kind.
fn of_kind(stage: &Stage, kind: &str) -> Vec<Value> {
    flows(stage, "").into_iter().filter(|flow| flow["kind"] == kind).collect()
}

/// Adds default routes, so that the host's link is an uplink.
fn add_default_routes(stage: &Stage, host: &Host) {
    stage.node.cmd(&format!("ip route add default via {}", host.v4));
    stage.node.cmd(&format!("ip route add default via {}", host.v6));
}

#[test]
fn a_flow_is_listed_with_both_directions_and_its_owner() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    assert_eq!(flows(&stage, ""), [] as [Value; 0]);
    let pod = stage.node.pod("web");
    let result = stage.network().add(&attach(&pod)).expect("ADD");
    let pod_address = address(&result);
    let _server = pod.serve(Proto::Tcp, &format!("{pod_address}:80"), "web");
    let to = at(stage.client.node_v4, PORT);
    let mut flow = stage.client.dial(Proto::Tcp, None, to, patience()).expect("a connection");
    let own = flow.request().expect("an answer").own;
    let all = flows(&stage, "");
    let [flow] = &all[..] else { panic!("{all:#?}") };
    assert_eq!(
        (&flow["network"], &flow["container"], &flow["interface"]),
        (&json!("fast"), &json!("web"), &json!("eth0"))
    );
    assert_eq!(
        (&flow["protocol"], &flow["state"], &flow["kind"]),
        (&json!("tcp"), &json!("ESTABLISHED"), &json!("published"))
    );
    let (original, reply) = (&flow["original"], &flow["reply"]);
    assert_eq!(
        (&original["source"], &original["destination"]),
        (&json!(own.to_string()), &json!(to.to_string()))
    );
    assert_eq!(original["translated_destination"], json!(format!("{pod_address}:80")));
    assert_eq!(
        (&reply["translated_source"], &reply["destination"]),
        (&json!(to.to_string()), &json!(own.to_string()))
    );
    assert!(original["packets"].as_u64() >= Some(3) && reply["packets"].as_u64() >= Some(2), "{flow}");
    // `slipway ports` counts the same packets.
    let ports: Value = serde_json::from_str(&stage.node.slipway("ports --json")).expect("JSON");
    let port = ports["ports"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|port| port["protocol"] == "tcp" && port["host_ip"] == "0.0.0.0");
    let port = port.expect("the port");
    assert_eq!((&port["backend"], &port["connections"]), (&json!("ebpf"), &json!(1)));
    let sum =
        |what: &str| original[what].as_u64().unwrap_or_default() + reply[what].as_u64().unwrap_or_default();
    assert!(port["packets"].as_u64() >= Some(sum("packets")), "{port} {flow}");
    assert!(stage.node.slipway("flows").contains("ESTABLISHED"));
    // `--network` and `--container` filter the list; flows of a deleted container are gone.
    assert_eq!(flows(&stage, "--network other"), [] as [Value; 0]);
    assert_eq!(flows(&stage, "--container we").len(), 1);
    stage.network().del(&attach(&pod)).expect("DEL");
    assert_eq!(flows(&stage, ""), [] as [Value; 0]);
}

#[test]
fn masqueraded_flows_and_flows_left_to_nftables_are_distinguished() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    add_default_routes(&stage, &stage.client);
    let pod = stage.node.pod("web");
    let result = stage.network().add(&Attach::new(&pod).port(Proto::Udp, PORT, 80)).expect("ADD");
    let pod_address = address(&result);
    let _server = stage.client.serve(Proto::Tcp, &at(stage.client.v4, 7000).to_string(), "far");
    assert_eq!(pod.expect(Proto::Tcp, (stage.client.v4, 7000), "far").peer.ip(), stage.client.node_v4);
    let masqueraded = of_kind(&stage, "masqueraded");
    let [flow] = &masqueraded[..] else { panic!("{masqueraded:#?}") };
    assert_eq!(flow["container_ip"], json!(pod_address));
    let from: std::net::SocketAddr =
        flow["original"]["translated_source"].as_str().expect("an end").parse().expect("an end");
    assert_eq!(from.ip(), stage.client.node_v4);
    assert!(from.port() >= 61000, "{from}");
    let programs = stage.node.programs();
    let maps = programs["maps"].as_array().expect("a list");
    let fill = |name: &str| {
        let map = maps.iter().find(|map| map["name"] == name).expect("the map");
        assert!(map["elements"].as_u64() <= map["max_elements"].as_u64(), "{map}");
        map["elements"].clone()
    };
    assert_eq!(["pods", "ports4", "flows4", "flows6"].map(fill), [1, 1, 2, 0], "{programs}");
    // If the container's MTU is smaller than the uplink's, its UDP flows are left to nftables: the kernel can
    // then report the MTU to senders.
    pod.cmd("ip link set dev eth0 mtu 1400");
    let link = stage.node.programs()["uplinks"][0].as_str().expect("an uplink").to_owned();
    stage.node.cmd(&format!("ip link set dev {link} mtu 1400"));
    stage.node.slipway("node setup");
    let _web = pod.serve(Proto::Udp, &format!("{pod_address}:80"), "web");
    stage.client.expect(Proto::Udp, (stage.client.node_v4, PORT), "web");
    let left = of_kind(&stage, "netfilter");
    let [flow] = &left[..] else { panic!("{left:#?}") };
    assert_eq!((&flow["reason"], &flow["protocol"]), (&json!("mtu"), &json!("udp")));
    assert!(
        stage.node.programs()["left_to_netfilter"]["mtu"].as_u64() >= Some(1),
        "{}",
        stage.node.programs()
    );
    assert!(stage.node.slipway("node status").contains("netfilter   mtu: "));
}

#[test]
fn ports_name_the_backend_that_serves_them() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let backend_of = |container: &str| -> Vec<String> {
        let text = stage.node.slipway(&format!("ports --json --container {container}"));
        let ports: Value = serde_json::from_str(&text).expect("JSON");
        let all = ports["ports"].as_array().expect("a list").iter();
        all.map(|port| port["backend"].as_str().expect("a name").to_owned()).collect()
    };
    let mut conditions = list("ebpf");
    conditions["plugins"][1]["conditionsV4"] = json!(["ip", "ttl", "1-255"]);
    for (name, list, port, backend) in [
        ("fast", list("ebpf"), PORT, "ebpf"),
        ("left", conditions, PORT + 1, "nftables"),
        ("slow", list("nftables"), PORT + 2, "nftables"),
        ("old", list("iptables"), PORT + 3, "iptables"),
    ] {
        let pod = stage.node.pod(name);
        let network = stage.node.network(list);
        network.add(&Attach::new(&pod).port_on("0.0.0.0", Proto::Tcp, port, 80)).expect("ADD");
        assert_eq!(backend_of(name), [backend], "{name}");
    }
    stage.node.slipway("node teardown");
    assert_eq!(backend_of("fast"), ["nftables"]);
}
