// SPDX-License-Identifier: GPL-2.0-or-later

//! The promiscuous bridge, and the guard against duplicate packets.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use cni_runtime::kubelet::HairpinMode;
use slipway_tests::{BridgeNetfilter, Proto, Space, at, patience, slipway_only};
use slipwayd::network_plugin::KubeletOptions;

use crate::Kubelet;

/// How long to wait after the last datagram.
const QUIET: Duration = Duration::from_millis(300);

/// Sends datagrams and returns how many arrive. The first one may take as long as neighbour discovery.
fn arrive(from: &Space, source: SocketAddr, to: &Space, target: SocketAddr, count: usize) -> usize {
    sent(from, source, to, target, count, patience())
}

/// Does the same as [`arrive`], for datagrams that are expected to be dropped.
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
    let receiver = to.bind(|| UdpSocket::bind(target)).expect("bind");
    receiver.set_read_timeout(Some(first)).expect("a time-out");
    let sender = from.bind(|| UdpSocket::bind(source)).expect("bind");
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
            pod_cidr: Some("10.180.1.0/24,fd00:180::/64".to_owned()),
            // The default of kubelet.
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
            // Packets from the gateway itself pass.
            assert_eq!(arrive(&kubelet.node, at(gateways[family], 0), &b, target, 5), 5);
        }
        // A routed copy has the MAC address of the bridge and the IP address of a pod.
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

/// Sends datagrams to an address that leads to the pod itself. Returns how many arrive, waiting up to `first` for the
/// first one, and how many answers come back.
fn asks_itself(
    pod: &Space,
    own: SocketAddr,
    target: SocketAddr,
    count: usize,
    first: Duration,
) -> (usize, usize) {
    let bind = |address: SocketAddr| {
        let socket = pod.bind(|| UdpSocket::bind(address)).expect("bind");
        socket.set_read_timeout(Some(first)).expect("a time-out");
        socket
    };
    let (server, client) = (bind(own), bind(at(own.ip(), 0)));
    client.connect(target).expect("connect");
    for number in 0..count {
        client.send(&number.to_ne_bytes()).expect("send");
    }
    let (mut asked, mut answered, mut buffer) = (0, 0, [0; 16]);
    while let Ok((length, peer)) = server.recv_from(&mut buffer) {
        asked += 1;
        server.send_to(&buffer[..length], peer).expect("answer");
        server.set_read_timeout(Some(QUIET)).expect("a time-out");
    }
    // All answers have arrived by now, because the server has waited for more requests.
    client.set_read_timeout(Some(QUIET)).expect("a time-out");
    while client.recv(&mut buffer).is_ok() {
        answered += 1;
    }
    (asked, answered)
}

/// Without br_netfilter, the node routes the frame back. With it, the bridge translates the frame, and sends it back to
/// its port only in hairpin mode. A promiscuous bridge also receives a copy of the frame. Linux 6.18 drops the copy if
/// conntrack has already seen the packet, so the pod gets nothing, while older kernels route it.
#[test]
fn a_pod_reaches_itself_by_its_port_and_by_its_service_once() {
    for (mode, switch) in [
        (HairpinMode::PromiscuousBridge, BridgeNetfilter::Off),
        (HairpinMode::HairpinVeth, BridgeNetfilter::Off),
        (HairpinMode::HairpinVeth, BridgeNetfilter::On),
        (HairpinMode::PromiscuousBridge, BridgeNetfilter::On),
    ] {
        let kubelet = Kubelet::new();
        let node = &kubelet.node;
        let client = node.host("client");
        let options = KubeletOptions {
            pod_cidr: Some("10.180.1.0/24,fd00:180::/64".to_owned()),
            hairpin_mode: Some(mode),
            ..kubelet.options("kubenet")
        };
        let manager = kubelet.start(&options);
        node.bridge_netfilter(switch);
        let (web, pod) = kubelet.sandbox("web", &[(8080, 7000)]);
        kubelet.udp_too("web");
        let own = kubelet.set_up(&manager, &pod);
        let may_drop = (mode, switch) == (HairpinMode::PromiscuousBridge, BridgeNetfilter::On);
        let first = if may_drop { 5 * QUIET } else { patience() };
        let services = ["10.96.0.10", "fd00:96::10"].map(|text| text.parse::<IpAddr>().expect("an address"));
        let node_addresses = [IpAddr::from(client.node_v4), IpAddr::from(client.node_v6)];
        for (own, service, node_address) in
            [(own[0], services[0], node_addresses[0]), (own[1], services[1], node_addresses[1])]
        {
            node.nft(&service_rules(service, own));
            for target in [at(node_address, 8080), at(service, 80)] {
                let times = asks_itself(&web, at(own, 7000), target, 20, first);
                let is_dropped = may_drop && times == (0, 0);
                assert!(times == (20, 20) || is_dropped, "{mode:?}, {switch:?}: {target}: {times:?}");
                if !is_dropped {
                    let _server = web.serve(Proto::Tcp, &at(own, 7000).to_string(), "web");
                    web.expect(Proto::Tcp, target, "web");
                }
            }
        }
        kubelet.tear_down(&manager, &pod);
    }
}

/// The rules that kube-proxy has for a Service: its address becomes the pod's, whose own packets are masqueraded.
fn service_rules(service: IpAddr, pod: IpAddr) -> String {
    let family = if service.is_ipv4() { "ip" } else { "ip6" };
    let target = at(pod, 7000);
    format!(
        "table {family} service {{
            chain prerouting {{
                type nat hook prerouting priority dstnat;
                {family} daddr {service} meta l4proto {{ tcp, udp }} dnat to {target};
            }}
            chain postrouting {{
                type nat hook postrouting priority srcnat;
                {family} saddr {pod} {family} daddr {pod} masquerade;
            }}
        }}"
    )
}

#[test]
fn a_second_set_up_leaves_the_guard_as_it_is() {
    let kubelet = Kubelet::new();
    let options = KubeletOptions {
        pod_cidr: Some("10.180.1.0/24,fd00:180::/64".to_owned()),
        ..kubelet.options("kubenet")
    };
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
    slipway_only!();
    let kubelet = Kubelet::new();
    let options = KubeletOptions { pod_cidr: Some("10.180.1.0/24".to_owned()), ..kubelet.options("kubenet") };
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
