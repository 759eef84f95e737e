// SPDX-License-Identifier: GPL-2.0-or-later

//! The options of networks, tested by what becomes of packets.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::json;
use slipway_tests::{Node, PROGRAMS, Proto, at, has_programs, needs, slipway_only};

use crate::{Call, Net, state};

fn numbered(name: &str, number: u8) -> Net {
    let (v4, v6) = (format!("10.8{number}.0"), format!("fd00:8{number}:"));
    Net::with_subnets(name, &format!("sw{number}"), &v4, &v6)
}

/// As with podman's own driver, two isolated networks do not reach each other, and strict ones reach no other network.
/// Published ports are open to all.
#[test]
fn networks_are_kept_apart_as_their_options_say() {
    slipway_only!();
    let (node, client) = Node::with_client();
    type Kind = (&'static str, fn(Net) -> Net);
    let kinds: [Kind; 8] = [
        ("strict", |net| net.option("isolate", "strict")),
        // netavark 2 isolates a network without the option, but netavark 1 does not.
        ("newer", |net| net),
        ("isolated", |net| net.option("isolate", "true")),
        ("number", |net| net.option("isolate", "1").of_netavark_1()),
        ("open", |net| net.option("isolate", "false")),
        ("older", Net::of_netavark_1),
        ("firewalled", |net| net.option("isolate", "false").option("firewall", "iptables")),
        ("chains", |net| net.option("isolate", "true").option("firewall", "iptables")),
    ];
    let nets: Vec<Net> =
        (1..).zip(&kinds).map(|(number, (name, with))| with(numbered(name, number))).collect();
    let pods: Vec<_> = kinds.iter().map(|(name, _)| node.pod(name)).collect();
    let near = node.pod("near");
    let calls: Vec<Call<'_>> = (5..)
        .zip(nets.iter().zip(&pods))
        .map(|(number, (net, pod))| {
            Call::new(&node, net, pod, number).publish("", "tcp", 8000 + u16::from(number), 80, 1)
        })
        .collect();
    let beside = Call::new(&node, &nets[0], &near, 100);
    calls.iter().chain([&beside]).for_each(|call| drop(call.setup()));
    let _servers: Vec<_> = pods.iter().map(|pod| pod.serve(Proto::Tcp, "[::]:80", pod.name())).collect();
    // 2 is strict, 1 is isolated, 0 is open.
    let kind = |at: usize| match kinds[at].0 {
        "strict" | "newer" => 2,
        "isolated" | "number" | "chains" => 1,
        _ => 0,
    };
    for (from, to) in
        (0..pods.len()).flat_map(|from| (0..pods.len()).map(move |to| (from, to))).filter(|(a, b)| a != b)
    {
        let apart = kind(from) == 2 || kind(to) == 2 || (kind(from) == 1 && kind(to) == 1);
        for family in [0, 1] {
            let address = at(calls[to].address(family), 80);
            if apart {
                pods[from].expect_none(Proto::Tcp, address);
            } else {
                pods[from].expect(Proto::Tcp, address, pods[to].name());
            }
        }
        // The published port is reached through the gateway of the pod's own network and through the node's other
        // address.
        let port = 8000 + 5 + u16::try_from(to).expect("a small number");
        for address in [
            IpAddr::from(client.node_v4),
            client.node_v6.into(),
            gateway(&nets[from], 0),
            gateway(&nets[from], 1),
        ] {
            pods[from].expect(Proto::Tcp, (address, port), pods[to].name());
        }
    }
    for family in [0, 1] {
        near.expect(Proto::Tcp, at(calls[0].address(family), 80), "strict");
        node.expect(Proto::Tcp, at(calls[0].address(family), 80), "strict");
    }
    for (port, pod) in (8005..).zip(&pods) {
        client.expect(Proto::Tcp, (client.node_v4, port), pod.name());
        client.expect(Proto::Tcp, (client.node_v6, port), pod.name());
    }
    let _outside = client.serve(Proto::Tcp, "[::]:7", "outside");
    pods[0].expect(Proto::Tcp, (client.v4, 7), "outside");
    calls.iter().chain([&beside]).for_each(Call::teardown);
    for set in ["isolating", "same", "strict", "listed", "attachments"] {
        let listed = node
            .cmd(&format!(
                "nft list {} inet slipway-firewall {set}",
                if set == "attachments" { "map" } else { "set" }
            ))
            .replace("elements", "");
        assert!(!listed.contains("sw"), "{set}: {listed}");
    }
}

fn gateway(net: &Net, at: usize) -> IpAddr {
    net.0["subnets"][at]["gateway"].as_str().and_then(|ip| ip.parse().ok()).expect("a gateway")
}

/// A network that an earlier version created has the bridge that `create` chose, and no option. It stays open.
#[test]
fn a_network_of_an_earlier_version_stays_open() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    let pods = ["earlier", "open", "changed"].map(|name| node.pod(name));
    let earlier = numbered("earlier", 1).key("network_interface", json!("sw2f259bab"));
    let nets = [earlier, numbered("open", 2).option("isolate", "false"), numbered("changed", 3)];
    let calls: Vec<_> = (5..)
        .zip(nets.iter().zip(&pods))
        .map(|(number, (net, pod))| Call::new(&node, net, pod, number))
        .collect();
    calls.iter().for_each(|call| drop(call.setup()));
    let _servers: Vec<_> = pods.iter().map(|pod| pod.serve(Proto::Tcp, "[::]:80", pod.name())).collect();
    pods[1].expect(Proto::Tcp, at(calls[0].address(0), 80), "earlier");
    pods[0].expect(Proto::Tcp, at(calls[1].address(1), 80), "open");
    pods[1].expect_none(Proto::Tcp, at(calls[2].address(0), 80));
    calls.iter().for_each(Call::teardown);
}

#[test]
fn an_internal_network_leads_nowhere() {
    slipway_only!();
    let (node, client) = Node::with_client();
    node.forward();
    let pods = ["one", "two", "named"].map(|name| node.pod(name));
    let internal = |name: &str, number: u8, gateway: bool| {
        let subnet = |net: String, first: String| json!({"subnet": net, "gateway": if gateway { json!(first) } else { json!(null) }});
        let (v4, v6) = (format!("10.8{number}.0"), format!("fd00:8{number}:"));
        let subnets =
            [subnet(format!("{v4}.0/24"), format!("{v4}.1")), subnet(format!("{v6}:/64"), format!("{v6}:1"))];
        Net::with_subnets(name, &format!("sw{number}"), &v4, &v6)
            .key("internal", json!(true))
            .key("subnets", json!(subnets))
    };
    let (hidden, named) = (internal("hidden", 1, false), internal("named", 2, true));
    let calls = [
        Call::new(&node, &hidden, &pods[0], 5).publish("", "tcp", 8080, 80, 1),
        Call::new(&node, &hidden, &pods[1], 6),
        Call::new(&node, &named, &pods[2], 7),
    ];
    let status = calls[0].setup();
    assert_eq!(status["interfaces"]["eth0"]["subnets"][0], json!({"ipnet": "10.81.0.5/24"}));
    calls[1..].iter().for_each(|call| drop(call.setup()));
    let _servers: Vec<_> = pods.iter().map(|pod| pod.serve(Proto::Tcp, "[::]:80", pod.name())).collect();
    pods[1].expect(Proto::Tcp, at(calls[0].address(0), 80), "one");
    pods[1].expect(Proto::Tcp, at(calls[0].address(1), 80), "one");
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
    let _outside = client.serve(Proto::Tcp, "[::]:7", "outside");
    for pod in &pods {
        assert_eq!(pod.cmd("ip route show default").trim(), "");
        pod.expect_none(Proto::Tcp, (client.v4, 7));
    }
    // The node reaches a container through the address of the requested gateway, but forwards nothing from there.
    node.expect(Proto::Tcp, at(calls[2].address(0), 80), "named");
    pods[2].cmd("ip route add default via 10.82.0.1");
    client.cmd("ip route add 10.82.0.0/24 via 192.0.2.1");
    pods[2].expect_none(Proto::Tcp, (client.v4, 7));
    calls.iter().for_each(Call::teardown);
}

#[test]
fn mtu_routes_metric_and_masquerade() {
    slipway_only!();
    let (node, client) = Node::with_client();
    let pod = node.pod("web");
    let net = Net::new()
        .option("mtu", "1400")
        .option("metric", "7")
        .option("ipMasq", "false")
        .key("routes", json!([{"destination": "198.18.0.0/15", "gateway": "10.89.0.99", "metric": 3}]));
    let call = Call::new(&node, &net, &pod, 5);
    call.setup();
    assert_eq!((&pod.link("eth0")["mtu"], &node.link("sw0")["mtu"]), (&json!(1400), &json!(1400)));
    let routes = pod.cmd("ip route");
    assert!(routes.contains("default via 10.89.0.1 dev eth0 metric 7"), "{routes}");
    assert!(routes.contains("198.18.0.0/15 via 10.89.0.99 dev eth0 metric 3"), "{routes}");
    let server = client.serve(Proto::Tcp, "[::]:7", "outside");
    assert_eq!(pod.expect(Proto::Tcp, (client.v4, 7), "outside").peer.ip().to_canonical(), call.address(0));
    drop(server);
    call.teardown();
    let without = Net::new().option("no_default_route", "true");
    let call = Call::new(&node, &without, &pod, 5);
    call.setup();
    assert_eq!(pod.cmd("ip route show default").trim(), "");
    call.teardown();
}

/// The bridge belongs to another program, and its router is elsewhere on it.
#[test]
fn an_unmanaged_bridge_is_joined_and_stays() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    let (pod, router) = (node.pod("web"), node.pod("router"));
    let net = Net::new().option("mode", "unmanaged");
    let call = Call::new(&node, &net, &pod, 5).publish("", "tcp", 8080, 80, 1);
    assert_eq!(call.refused(), "\"sw0\" is no bridge of the node, and mode=unmanaged makes none");
    let isolated = Call::new(&node, &net.clone().option("isolate", "true"), &pod, 5);
    let error = isolated.refused();
    assert!(error.starts_with("option \"isolate\" is not supported with mode=unmanaged: "), "{error}");
    node.cmd("ip link add sw0 type bridge");
    node.cmd("ip link set sw0 up");
    node.cmd("ip link add port type veth peer name eth0 netns router");
    node.cmd("ip link set port master sw0 up");
    for address in ["10.89.0.1/24", "fd00:89::1/64 nodad"] {
        router.cmd(&format!("ip address add {address} dev eth0"));
    }
    router.cmd("ip address add 198.51.100.1/32 dev lo");
    router.cmd("ip link set eth0 up");
    node.wait_up("port");
    let before = state(&node, &[&pod]).without(&["forwarding"]);
    call.setup();
    let _server = router.serve(Proto::Tcp, "[::]:7", "router");
    assert_eq!(
        pod.expect(Proto::Tcp, (Ipv4Addr::new(198, 51, 100, 1), 7), "router").peer.ip().to_canonical(),
        call.address(0)
    );
    assert_eq!(node.cmd("ip -4 address show dev sw0").trim(), "");
    assert!(!node.ruleset().contains("8080"), "{}", node.ruleset());
    call.teardown();
    before.assert_same(&state(&node, &[&pod]).without(&["forwarding"]));
}

#[test]
fn a_network_without_ipam_is_only_a_link() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    let pod = node.pod("web");
    let net = Net::new();
    let call = Call::new(&node, &net, &pod, 5).option("static_ips", json!(null));
    let mut call = call;
    call.exec["network"]["subnets"] = json!(null);
    call.exec["network"]["ipam_options"] = json!({"driver": "none"});
    // The firewall's table stays, so the comparison begins after a first cycle.
    call.setup();
    call.teardown();
    let before = state(&node, &[&pod]);
    let status = call.setup();
    assert_eq!(status["interfaces"]["eth0"]["subnets"], json!([]));
    assert!(node.has_link("sw0") && pod.has_link("eth0"));
    call.teardown();
    before.assert_same(&state(&node, &[&pod]));
}

#[test]
fn ports_with_the_iptables_backend() {
    with_backend("iptables");
}

#[test]
fn ports_answer_with_the_ebpf_backend() {
    needs!(has_programs(), PROGRAMS);
    with_backend("ebpf");
}

fn with_backend(backend: &str) {
    slipway_only!();
    let (node, client) = Node::with_client();
    let pod = node.pod("web");
    let net = Net::new().option("backend", backend);
    let call = Call::new(&node, &net, &pod, 5).publish("", "tcp", 8080, 80, 1);
    call.setup();
    let _web = pod.serve(Proto::Tcp, "[::]:80", "web");
    assert_eq!(client.expect(Proto::Tcp, (client.node_v4, 8080), "web").peer.ip().to_canonical(), client.v4);
    assert_eq!(node.ruleset().contains("CNI-DN-"), backend == "iptables", "{}", node.ruleset());
    node.expect(Proto::Tcp, (Ipv4Addr::LOCALHOST, 8080), "web");
    call.teardown();
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
}

/// True if bridges filter by VLAN. Kernels without VLAN filtering refuse the setting or ignore it.
fn has_filtering(node: &Node) -> bool {
    if node.try_cmd("ip link add probe type bridge vlan_filtering 1").code != Some(0) {
        return false;
    }
    let filters = node.link("probe")["linkinfo"]["info_data"]["vlan_filtering"] == 1;
    node.cmd("ip link delete probe");
    filters
}

#[test]
fn two_vlans_on_one_bridge() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    needs!(has_filtering(&node), "bridge vlan filtering");
    let client = node.host("client");
    let pods = ["one", "two"].map(|name| node.pod(name));
    let net = |name: &str, number: u8, vlan: &str| {
        Net::with_subnets(name, "sw0", &format!("10.8{number}.0"), &format!("fd00:8{number}:"))
            .option("vlan", vlan)
    };
    let calls = [
        Call::new(&node, &net("a", 1, "10"), &pods[0], 5),
        Call::new(&node, &net("b", 2, "20"), &pods[1], 6),
    ];
    calls.iter().for_each(|call| drop(call.setup()));
    let _outside = client.serve(Proto::Tcp, "[::]:7", "outside");
    for pod in &pods {
        pod.expect(Proto::Tcp, (client.v4, 7), "outside");
    }
    calls[0].teardown();
    assert!(node.has_link("sw0.20"));
    calls[1].teardown();
    for link in ["sw0", "sw0.10", "sw0.20"] {
        assert!(!node.has_link(link), "{link} is left");
    }
}
