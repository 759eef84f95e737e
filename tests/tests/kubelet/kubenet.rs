// SPDX-License-Identifier: GPL-2.0-or-later

use std::net::{IpAddr, Ipv4Addr};

use cni_runtime::kubelet::HairpinMode;
use slipway_tests::{Host, Node, Proto, Snapshot};
use slipwayd::network_plugin::KubeletOptions;

use crate::{Kubelet, words_after};

const CIDRS: &str = "10.180.1.0/24,fd00:180::/64";

fn options(kubelet: &Kubelet) -> KubeletOptions {
    KubeletOptions {
        pod_cidr: Some(CIDRS.to_owned()),
        hairpin_mode: Some(HairpinMode::HairpinVeth),
        ..kubelet.options("kubenet")
    }
}

#[test]
fn two_pods_reach_each_other_and_the_outside_in_both_families() {
    let kubelet = Kubelet::new();
    let outside = kubelet.node.host("outside");
    kubelet.node.cmd(&format!("ip link set {} mtu 1400", outside.node_link));
    let manager = kubelet.start(&options(&kubelet));
    assert_eq!(kubelet.link_addresses("cbr0"), ["10.180.1.1/24", "fd00:180::1/64"]);
    assert_eq!(kubelet.node.mac("cbr0"), "0a:58:0a:b4:01:01");
    assert_eq!(kubelet.node.link("cbr0")["mtu"], 1400);
    let (a, pod_a) = kubelet.sandbox("a", &[]);
    let (b, pod_b) = kubelet.sandbox("b", &[]);
    let first = kubelet.set_up(&manager, &pod_a);
    let second = kubelet.set_up(&manager, &pod_b);
    assert_eq!(first, ["10.180.1.2", "fd00:180::2"].map(|text| text.parse::<IpAddr>().expect("an address")));
    assert_eq!(kubelet.node.mac("cbr0"), "0a:58:0a:b4:01:01");
    assert_eq!(a.link("eth0")["mtu"], 1400);
    let _four = b.serve(Proto::Tcp, "0.0.0.0:80", "four");
    let _six = b.serve(Proto::Tcp, "[fd00:180::3]:80", "six");
    a.expect(Proto::Tcp, (second[0], 80), "four");
    a.expect(Proto::Tcp, (second[1], 80), "six");
    let _out4 = outside.serve(Proto::Tcp, "0.0.0.0:99", "out");
    let _out6 = outside.serve(Proto::Tcp, &format!("[{}]:99", outside.v6), "out6");
    let seen = a.expect(Proto::Tcp, (outside.v4, 99), "out");
    assert_eq!(seen.peer.ip(), IpAddr::from(outside.node_v4), "outside sees the node");
    outside.cmd(&format!("ip route replace fd00:180::/64 via {}", outside.node_v6));
    let seen = a.expect(Proto::Tcp, (outside.v6, 99), "out6");
    assert_eq!(seen.peer.ip(), first[1], "IPv6 has no CIDR, and is not masqueraded");
    for pod in [&pod_a, &pod_b] {
        kubelet.tear_down(&manager, pod);
    }
}

/// An address in 10.0.0.0/8 that is outside the node.
fn other_node(node: &Node, outside: &Host) -> Ipv4Addr {
    let address = Ipv4Addr::new(10, 200, 0, 9);
    outside.cmd(&format!("ip address add {address}/32 dev lo"));
    outside.cmd(&format!("ip route add 10.180.1.0/24 via {}", outside.node_v4));
    node.cmd(&format!("ip route add {address} via {}", outside.v4));
    address
}

#[test]
fn other_nodes_pods_see_the_pods_own_address() {
    let kubelet = Kubelet::new();
    let outside = kubelet.node.host("outside");
    let inside = other_node(&kubelet.node, &outside);
    let _server = outside.serve(Proto::Tcp, "0.0.0.0:99", "out");
    let (a, pod) = kubelet.sandbox("a", &[]);
    let manager = kubelet.start(&options(&kubelet));
    let addresses = kubelet.set_up(&manager, &pod);
    assert_eq!(a.expect(Proto::Tcp, (inside, 99), "out").peer.ip(), addresses[0]);
    assert_eq!(a.expect(Proto::Tcp, (outside.v4, 99), "out").peer.ip(), IpAddr::from(outside.node_v4));
    kubelet.tear_down(&manager, &pod);
}

#[test]
fn a_pod_has_its_ports_and_its_rate_until_it_is_torn_down() {
    let kubelet = Kubelet::new();
    let client = kubelet.node.host("client");
    let manager = kubelet.start(&options(&kubelet));
    // The first pod creates the objects that all pods share.
    let (_space, first) = kubelet.sandbox("first", &[(8081, 80)]);
    kubelet.set_up(&manager, &first);
    kubelet.tear_down(&manager, &first);
    let (web, pod) = kubelet.sandbox("web", &[(8080, 80)]);
    let pod = pod
        .annotation("kubernetes.io/ingress-bandwidth", "20M")
        .annotation("kubernetes.io/egress-bandwidth", "10M");
    let shared = ["last_reserved_ip", "networks/.slipway/", "address \"lo\"", "link lo", " dev lo "];
    let state = || Snapshot::take(&kubelet.node, &[]).without(&shared);
    let before = state();
    kubelet.set_up(&manager, &pod);
    let _server = web.serve(Proto::Tcp, "0.0.0.0:80", "web");
    client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
    // In hairpin mode, the pod reaches its own published port.
    web.expect(Proto::Tcp, (client.node_v4, 8080), "web");
    let rates = words_after(&kubelet.node, "tc qdisc show", &["rate"]);
    assert!(rates.contains(&"20Mbit".to_owned()) && rates.contains(&"10Mbit".to_owned()), "{rates:?}");
    drop(_server);
    for _ in 0..2 {
        kubelet.tear_down(&manager, &pod);
        client.expect_none(Proto::Tcp, (client.node_v4, 8080));
        before.assert_same(&state());
    }
    // The teardown also works a second time, without the namespace.
    web.remove();
    kubelet.tear_down(&manager, &pod);
}

#[test]
fn the_bridge_gets_the_first_pod_cidr_and_loses_other_addresses() {
    let kubelet = Kubelet::new();
    let node = &kubelet.node;
    node.cmd("ip link add cbr0 type bridge");
    for address in ["10.9.9.1/24", "10.9.9.2/24", "fd00:9::1/64"] {
        node.cmd(&format!("ip address add {address} dev cbr0"));
    }
    let options = KubeletOptions { pod_cidr: Some("10.180.1.0".to_owned()), ..options(&kubelet) };
    let manager = kubelet.start(&options);
    let error = kubelet.run(|| manager.status()).expect_err("a bad CIDR");
    assert_eq!(
        error.to_string(),
        "kubenet does not have netConfig. This is most likely due to lack of PodCIDR"
    );
    assert_eq!(kubelet.link_addresses("cbr0").len(), 3);
    for cidr in [CIDRS, "10.181.0.0/24"] {
        kubelet.run(|| manager.set_pod_cidr(cidr));
        assert_eq!(kubelet.link_addresses("cbr0"), ["10.180.1.1/24", "fd00:180::1/64"]);
        assert_eq!(node.mac("cbr0"), "0a:58:0a:b4:01:01");
    }
    // The next set-up creates a removed bridge again.
    node.cmd("ip link delete cbr0");
    let (_space, pod) = kubelet.sandbox("web", &[]);
    assert_eq!(kubelet.set_up(&manager, &pod)[0].to_string(), "10.180.1.2");
    assert_eq!(kubelet.link_addresses("cbr0"), ["10.180.1.1/24", "fd00:180::1/64"]);
    kubelet.tear_down(&manager, &pod);
}

#[test]
fn a_failed_set_up_leaves_nothing() {
    let kubelet = Kubelet::new();
    let manager = kubelet.start(&options(&kubelet));
    let (_first, first) = kubelet.sandbox("first", &[(8080, 80)]);
    kubelet.set_up(&manager, &first);
    let (space, pod) = kubelet.sandbox("second", &[(8080, 80)]);
    let shared = ["last_reserved_ip", "networks/.slipway/", "address \"lo\"", "link lo", " dev lo "];
    let state = || Snapshot::take(&kubelet.node, &[&space]).without(&shared);
    let before = state();
    let error = kubelet.try_set_up(&manager, &pod).expect_err("the port is taken").to_string();
    assert!(
        error.starts_with("networkPlugin kubenet failed to set up pod \"second_shop\" network: error"),
        "{error}"
    );
    assert!(error.contains("8080"), "{error}");
    before.assert_same(&state());
    kubelet.tear_down(&manager, &first);
}

#[test]
fn the_masquerade_of_all_pods_is_restored_by_the_next_set_up_or_teardown() {
    let kubelet = Kubelet::new();
    let outside = kubelet.node.host("outside");
    let _server = outside.serve(Proto::Tcp, "0.0.0.0:99", "out");
    let manager = kubelet.start(&options(&kubelet));
    let (a, pod_a) = kubelet.sandbox("a", &[]);
    let (_b, pod_b) = kubelet.sandbox("b", &[]);
    kubelet.set_up(&manager, &pod_a);
    let masqueraded = || {
        let seen = a.expect(Proto::Tcp, (outside.v4, 99), "out");
        assert_eq!(seen.peer.ip(), IpAddr::from(outside.node_v4));
    };
    masqueraded();
    kubelet.node.cmd("nft flush ruleset");
    kubelet.set_up(&manager, &pod_b);
    masqueraded();
    kubelet.node.cmd("nft flush ruleset");
    kubelet.tear_down(&manager, &pod_b);
    masqueraded();
    kubelet.tear_down(&manager, &pod_a);
}
