// SPDX-License-Identifier: GPL-2.0-or-later

//! How the node and other containers find a container: without a frame to all, and also after another one had its address.

use std::net::IpAddr;

use serde_json::json;
use slipway_tests::{Attach, Node, Pod, Proto, QUICK, address_of, at, is_peer, peer_fails, within};

use super::pair::{add, network, outer};

/// The frames that a container has received.
fn received(pod: &Pod) -> u64 {
    let links: serde_json::Value =
        serde_json::from_str(&pod.cmd("ip -s -json link show dev eth0")).expect("JSON");
    links[0]["stats64"]["rx"]["packets"].as_u64().expect("a count")
}

/// A full bridge copies a frame to all of its containers a thousand times.
#[test]
fn a_new_container_is_found_without_a_frame_to_the_others() {
    let node = Node::new();
    // IPv6 reports its multicast groups to everybody, a second later and again: nobody has it here.
    node.cmd("sysctl -w net.ipv6.conf.default.disable_ipv6=1");
    let network = network(&node, &json!({"isGateway": true}));
    let pod = |name: &str| {
        let pod = node.pod(name);
        pod.cmd("sysctl -w net.ipv6.conf.default.disable_ipv6=1");
        pod
    };
    let other = pod("other");
    add(&network, &other);
    let gateway: IpAddr = "10.1.2.1".parse().expect("an address");
    let _at_gateway = node.serve(Proto::Tcp, "10.1.2.1:80", "node");
    let talk = |name: &str, args: &str| {
        let pod = pod(name);
        let before = received(&other);
        let result = network.add(&Attach::new(&pod).args(args)).expect("ADD");
        let address = address_of(&result, 0);
        let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", name);
        let (in_, out) = (
            node.request_from(Proto::Tcp, None, at(address, 80), within(QUICK)),
            pod.request_from(Proto::Tcp, None, at(gateway, 80), within(QUICK)),
        );
        assert!(in_.is_ok_and(|answer| answer.who == name), "{name}");
        assert!(out.is_ok_and(|answer| answer.who == "node"), "{name}");
        received(&other) - before
    };
    assert!(talk("announced", "MAC=02:00:00:00:00:01;IgnoreUnknown=1") > 0, "the control");
    peer_fails("it announces the address, and both ends look for the other", || {
        assert_eq!(talk("quiet", ""), 0);
    });
}

#[test]
fn node_bridge_and_container_know_each_other() {
    if is_peer() {
        return;
    }
    let (node, pod) = Node::with_pod();
    let result = add(&network(&node, &json!({"isGateway": true, "ipam": super::dual_stack()})), &pod);
    let (bridge, mac) = (node.mac("br0"), pod.mac("eth0"));
    assert_eq!(mac, "0a:58:0a:01:02:02", "made of 10.1.2.2");
    for family in ["-4", "-6"] {
        let node_knows = node.cmd(&format!("ip {family} neighbour show dev br0"));
        assert!(node_knows.contains(&format!("lladdr {mac}")), "{node_knows}");
        let pod_knows = pod.cmd(&format!("ip {family} neighbour show dev eth0"));
        assert!(pod_knows.contains(&format!("lladdr {bridge}")), "{pod_knows}");
    }
    let fdb = node.cmd(&format!("bridge fdb show brport {}", outer(&result)));
    assert!(fdb.lines().any(|line| line.starts_with(&mac) && !line.contains("permanent")), "{fdb}");
}

/// Node and neighbours still know the address at the MAC address of the container that had it before, and would use that
/// for half a minute.
#[test]
fn an_address_of_a_former_container_is_reached_at_once() {
    let node = Node::new();
    let of = |v4: &str, v6: &str| {
        let addresses = json!([{"address": format!("{v4}/24")}, {"address": format!("{v6}/64")}]);
        network(&node, &json!({"isGateway": true, "ipam": {"type": "static", "addresses": addresses}}))
    };
    let near = node.pod("near");
    add(&of("10.1.2.8", "fd00:1::8"), &near);
    // With the MAC address, if it is configured, and the last parts of both addresses.
    let again = |name: &str, mac: Option<&str>, v4: u8, v6: u8| {
        let addresses: [IpAddr; 2] = [
            format!("10.1.2.{v4}").parse().expect("an address"),
            format!("fd00:1::{v6}").parse().expect("an address"),
        ];
        let pod = node.pod(name);
        let network = of(&addresses[0].to_string(), &addresses[1].to_string());
        let args = mac.map(|mac| format!("MAC={mac};IgnoreUnknown=1"));
        let attach = Attach::new(&pod).args(args.as_deref().unwrap_or_default());
        network.add(&attach).expect("ADD");
        let server = pod.serve(Proto::Tcp, "[::]:80", name);
        let reached = addresses.iter().all(|ip| {
            [&*node, &*near].iter().all(|from| {
                let answer = from.request_from(Proto::Tcp, None, at(*ip, 80), within(QUICK));
                answer.is_ok_and(|answer| answer.who == name)
            })
        });
        drop(server);
        network.del(&Attach::new(&pod)).expect("DEL");
        pod.remove();
        reached
    };
    let (one, three) = (Some("02:00:00:00:00:01"), Some("02:00:00:00:00:03"));
    assert!(again("first", one, 7, 7));
    assert!(again("second", one, 7, 7), "the control: the same MAC address");
    peer_fails("it announces the address before the bridge's port forwards packets", || {
        for (name, mac, v4, v6) in [
            ("another", three, 7, 7),
            ("made", None, 7, 7),
            ("same", None, 7, 7),
            ("configured", one, 7, 7),
            ("made-again", None, 7, 7),
            ("other-v6", None, 7, 9),
            ("moved-v6", None, 9, 9),
            ("back", None, 9, 7),
        ] {
            assert!(again(name, mac, v4, v6), "{name}");
        }
    });
}
