// SPDX-License-Identifier: GPL-2.0-or-later

//! The promiscuous bridge, and the guard against duplicates.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use slipway_tests::{BridgeNetfilter, Proto, Space, at, is_peer, patience};
use slipwayd::kubelet_command::KubeletOptions;

use crate::Kubelet;

/// The wait after the last datagram.
const QUIET: Duration = Duration::from_millis(300);

/// Sends datagrams and returns how many arrive. The first may take as long as the discovery of a neighbour.
fn arrive(from: &Space, source: SocketAddr, to: &Space, target: SocketAddr, count: usize) -> usize {
    sent(from, source, to, target, count, patience())
}

/// As [`arrive`], for datagrams that are dropped.
fn arrive_soon(from: &Space, source: SocketAddr, to: &Space, target: SocketAddr, count: usize) -> usize {
    sent(from, source, to, target, count, QUIET)
}

fn sent(
    from: &Space,
    source: SocketAddr,
    to: &Space,
    target: SocketAddr,
    count: usize,
    first: Duration,
) -> usize {
    let receiver = to.run(|| UdpSocket::bind(target)).expect("bind");
    receiver.set_read_timeout(Some(first)).expect("a time-out");
    let sender = from.run(|| UdpSocket::bind(source)).expect("bind");
    for number in 0..count {
        sender.send_to(&number.to_ne_bytes(), target).expect("send");
    }
    let mut buffer = [0; 16];
    let mut arrived = 0;
    while receiver.recv_from(&mut buffer).is_ok() {
        arrived += 1;
        receiver.set_read_timeout(Some(QUIET)).expect("a time-out");
    }
    arrived
}

#[test]
fn a_promiscuous_bridge_delivers_each_packet_once() {
    for switch in [BridgeNetfilter::On, BridgeNetfilter::Off] {
        let kubelet = Kubelet::new();
        let options = KubeletOptions {
            pod_cidr: "10.180.1.0/24,fd00:180::/64".to_owned(),
            // kubelet's default.
            hairpin_mode: KubeletOptions::default().hairpin_mode,
            ..kubelet.options("kubenet")
        };
        let manager = kubelet.start(&options);
        kubelet.node.bridge_netfilter(switch);
        let (a, pod_a) = kubelet.sandbox("a", &[]);
        let (b, pod_b) = kubelet.sandbox("b", &[]);
        let (from, to) = (kubelet.set_up(&manager, &pod_a), kubelet.set_up(&manager, &pod_b));
        assert!(kubelet.node.link("cbr0")["promiscuity"].as_u64().is_some_and(|count| count > 0));
        let _server = b.serve(Proto::Tcp, "0.0.0.0:80", "b");
        a.expect(Proto::Tcp, (to[0], 80), "b");
        let gateways = ["10.180.1.1", "fd00:180::1"].map(|text| text.parse::<IpAddr>().expect("an address"));
        for family in [0, 1] {
            let target = at(to[family], 7000);
            assert_eq!(arrive(&a, at(from[family], 0), &b, target, 50), 50);
            // The gateway's own packets pass.
            assert_eq!(arrive(&kubelet.node, at(gateways[family], 0), &b, target, 5), 5);
        }
        // A routed copy has the bridge's MAC address and a pod's IP address.
        kubelet.node.cmd(&format!("ip address add {}/32 dev lo", from[0]));
        assert_eq!(arrive_soon(&kubelet.node, at(from[0], 0), &b, at(to[0], 7000), 5), 0);
        kubelet.node.cmd("nft delete table bridge slipway-kubenet");
        assert_eq!(arrive(&kubelet.node, at(from[0], 0), &b, at(to[0], 7000), 5), 5);
        kubelet.node.cmd(&format!("ip address del {}/32 dev lo", from[0]));
        for pod in [&pod_a, &pod_b] {
            kubelet.tear_down(&manager, pod);
        }
    }
}

#[test]
fn a_second_set_up_leaves_the_guard_as_it_is() {
    let kubelet = Kubelet::new();
    let options =
        KubeletOptions { pod_cidr: "10.180.1.0/24,fd00:180::/64".to_owned(), ..kubelet.options("kubenet") };
    let manager = kubelet.start(&options);
    let rules = || kubelet.node.cmd("nft --handle list table bridge slipway-kubenet");
    let (_a, pod_a) = kubelet.sandbox("a", &[]);
    kubelet.set_up(&manager, &pod_a);
    let before = rules();
    assert_eq!(before.matches(" drop ").count(), 2, "{before}");
    let (_b, pod_b) = kubelet.sandbox("b", &[]);
    kubelet.set_up(&manager, &pod_b);
    assert_eq!(rules(), before);
    for pod in [&pod_a, &pod_b] {
        kubelet.tear_down(&manager, pod);
    }
}

#[test]
fn uninstall_removes_the_bridge_and_the_guard() {
    if is_peer() {
        return;
    }
    let kubelet = Kubelet::new();
    let options = KubeletOptions { pod_cidr: "10.180.1.0/24".to_owned(), ..kubelet.options("kubenet") };
    let manager = kubelet.start(&options);
    let (_space, pod) = kubelet.sandbox("a", &[]);
    kubelet.set_up(&manager, &pod);
    kubelet.tear_down(&manager, &pod);
    let printed = kubelet.node.slipway("uninstall --to /run/none");
    for line in ["remove  table bridge slipway-kubenet", "remove  link cbr0"] {
        assert!(printed.lines().any(|found| found == line), "{line:?} is not in:\n{printed}");
    }
    assert!(!kubelet.node.has_link("cbr0"));
    assert_eq!(kubelet.node.cmd("nft list tables"), "");
}
