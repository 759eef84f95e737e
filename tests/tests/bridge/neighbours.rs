// SPDX-License-Identifier: GPL-2.0-or-later

//! How the node and other containers find a container: without flooding, and even if another container had its address
//! before.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use slipway_tests::{
    AT_ONCE, Attach, Node, Pod, Proto, address_of, at, has_ipv6, is_peer, peer_fails, within,
};

use super::pair::{add, network, outer};

/// The number of frames that a container has received.
pub(crate) fn received(pod: &Pod) -> u64 {
    let links: serde_json::Value =
        serde_json::from_str(&pod.cmd("ip -s -json link show dev eth0")).expect("JSON");
    links[0]["stats64"]["rx"]["packets"].as_u64().expect("a count")
}

/// On a full bridge, each flooded frame is copied a thousand times, once for each container.
#[test]
fn a_new_container_is_found_without_a_frame_to_the_others() {
    let node = Node::new();
    // IPv6 is off, because the kernel sends multicast group reports to everybody, a second after a link is up and again
    // later.
    node.sysctl("net/ipv6/conf/default/disable_ipv6", "1");
    let network = network(&node, &json!({"isGateway": true}));
    let pod = |name: &str| {
        let pod = node.pod(name);
        pod.sysctl("net/ipv6/conf/default/disable_ipv6", "1");
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
            node.request_from(Proto::Tcp, None, at(address, 80), within(AT_ONCE)),
            pod.request_from(Proto::Tcp, None, at(gateway, 80), within(AT_ONCE)),
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
    for family in ["-4", "-6"].into_iter().filter(|family| *family == "-4" || has_ipv6()) {
        let node_knows = node.cmd(&format!("ip {family} neighbour show dev br0"));
        assert!(node_knows.contains(&format!("lladdr {mac}")), "{node_knows}");
        let pod_knows = pod.cmd(&format!("ip {family} neighbour show dev eth0"));
        assert!(pod_knows.contains(&format!("lladdr {bridge}")), "{pod_knows}");
    }
    let fdb = node.cmd(&format!("bridge fdb show brport {}", outer(&result)));
    assert!(fdb.lines().any(|line| line.starts_with(&mac) && !line.contains("permanent")), "{fdb}");
}

/// The node and neighbours have cached the MAC address of the container that had the address before, and would use it
/// for half a minute.
#[test]
fn an_address_of_a_former_container_is_reached_at_once() {
    slipway_tests::needs_ipv6!();
    let node = Node::new();
    let of = |v4: &str, v6: &str| {
        let addresses = json!([{"address": format!("{v4}/24")}, {"address": format!("{v6}/64")}]);
        network(&node, &json!({"isGateway": true, "ipam": {"type": "static", "addresses": addresses}}))
    };
    let near = node.pod("near");
    add(&of("10.1.2.8", "fd00:1::8"), &near);
    // Adds a container with the MAC address, if one is given, and with these last parts of its two addresses, and
    // deletes it again.
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
                let answer = from.request_from(Proto::Tcp, None, at(*ip, 80), within(AT_ONCE));
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

/// The MAC address is derived from the container's first address. The previous container with this second address had
/// another first address, and therefore another MAC address.
#[test]
fn an_address_of_a_second_range_is_announced() {
    let node = Node::new();
    let add = |name: &str, places: [u8; 2]| {
        let [first, second] = places;
        let addresses =
            json!([{"address": format!("10.1.2.{first}/24")}, {"address": format!("10.1.3.{second}/24")}]);
        let ipam = json!({"type": "static", "addresses": addresses});
        let pod = node.pod(name);
        network(&node, &json!({"ipam": ipam})).add(&Attach::new(&pod)).expect("ADD");
        pod
    };
    let near = add("near", [8, 8]);
    for (name, first) in [("former", 5), ("next", 7)] {
        let pod = add(name, [first, 7]);
        let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", name);
        let to = at(Ipv4Addr::new(10, 1, 3, 7), 80);
        let answer = near.request_from(Proto::Tcp, None, to, within(AT_ONCE));
        assert!(answer.is_ok_and(|answer| answer.who == name), "{name}");
        network(&node, &json!({})).del(&Attach::new(&pod)).expect("DEL");
        pod.remove();
        // The node's own entry for the previous container is removed, so that only the pod's is left.
        node.cmd("ip neighbour flush dev br0");
    }
}

#[test]
fn a_permanent_neighbour_of_an_administrator_stays() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    let network = network(&node, &json!({"isGateway": true}));
    let known = |address: &str| node.cmd(&format!("ip neighbour show {address} dev br0"));
    let first = node.pod("first");
    add(&network, &first);
    let set = "ip neighbour replace 10.1.2.3 lladdr 02:00:00:00:00:99 dev br0 nud permanent";
    node.cmd(set);
    // As the control, an entry that the node has learned is replaced.
    node.cmd("ip neighbour replace 10.1.2.4 lladdr 02:00:00:00:00:99 dev br0 nud stale");
    let (second, third) = (node.pod("second"), node.pod("third"));
    assert_eq!(address_of(&add(&network, &second), 0).to_string(), "10.1.2.3");
    assert_eq!(address_of(&add(&network, &third), 0).to_string(), "10.1.2.4");
    let permanent = known("10.1.2.3");
    assert!(permanent.contains("02:00:00:00:00:99") && permanent.contains("PERMANENT"), "{permanent}");
    assert!(known("10.1.2.4").contains(&third.mac("eth0")), "{}", known("10.1.2.4"));
}

/// Rules on the node match the bridge's name, so packets that a running container sends through a new interface must
/// never come in with only the port as their interface.
#[test]
fn a_running_container_sends_nothing_past_the_bridge() {
    let (node, pod) = Node::with_pod();
    let network = network(&node, &json!({"isGateway": true}));
    pod.cmd("ip link add other up type veth peer name far");
    node.cmd("nft add table inet watch");
    node.cmd("nft add chain inet watch in { type filter hook prerouting priority raw ; }");
    node.cmd("nft add counter inet watch past");
    node.cmd("nft add counter inet watch through");
    node.cmd("nft add rule inet watch in iifname veth* ip saddr 10.1.2.0/24 counter name past");
    node.cmd("nft add rule inet watch in iifname br0 ip saddr 10.1.2.0/24 counter name through");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pod.run(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                while !is_over.load(Ordering::Relaxed) {
                    // Sending fails as long as there is no route.
                    let _sent = socket.send_to(b"early", "10.1.2.1:9");
                }
            });
        });
        for _ in 0..10 {
            network.add(&Attach::new(&pod)).expect("ADD");
            network.del(&Attach::new(&pod)).expect("DEL");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let count = |name: &str| node.cmd(&format!("nft list counter inet watch {name}"));
    assert!(count("past").contains("packets 0 "), "{}", count("past"));
    assert!(!count("through").contains("packets 0 "), "the control: {}", count("through"));
}
