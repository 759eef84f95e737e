// SPDX-License-Identifier: GPL-2.0-or-later

//! Flows that a pod begins with hosts outside.

use std::collections::BTreeSet;
use std::net::IpAddr;

use slipway_ebpf_abi::{self as abi, Counter, Reason};

use crate::bed::{HOST_PORT, Rig};
use crate::rig;
use crate::wire::{ACK, Ip, SYN};

const POD_PORT: u16 = 33333;

/// Sends a packet of the pod. Asserts that it was masqueraded, and returns its source port.
#[track_caller]
fn chosen(rig: &Rig, v6: bool, packet: &[u8], far: (IpAddr, u16)) -> u16 {
    let seen = rig.sends(packet).translated();
    assert_eq!((seen.source, seen.destination, seen.ports.1), (rig.addresses(v6).node, far.0, far.1));
    let (first, last) = abi::Config::DEFAULT_PORTS;
    assert!((first..=last).contains(&seen.ports.0), "{}", seen.ports.0);
    seen.ports.0
}

#[test]
fn tcp_and_udp_leave_with_the_uplinks_address_and_come_back() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let (out, back) = (Ip::new(at.pod, at.far), Ip::new(at.far, at.node));
        let port = chosen(&rig, v6, &out.tcp((POD_PORT, 443), SYN), (at.far, 443));
        assert_eq!(rig.flow_elements(v6), (0, 2));
        let seen = rig.arrives(&back.tcp((443, port), SYN | ACK)).translated();
        assert_eq!((seen.ends(), seen.ttl), ((at.far, 443, at.pod, POD_PORT), 63));
        assert_eq!(chosen(&rig, v6, &out.tcp((POD_PORT, 443), ACK), (at.far, 443)), port);
        assert_eq!(rig.flow_elements(v6), (2, 0));

        let port = chosen(&rig, v6, &out.udp((POD_PORT, 53), b"who?"), (at.far, 53));
        let seen = rig.arrives(&back.udp((53, port), b"you")).translated();
        assert_eq!((seen.ends(), &seen.payload[..]), ((at.far, 53, at.pod, POD_PORT), &b"you"[..]));
        assert_eq!(rig.flow_elements(v6), (2, 2));
    }
    assert_eq!(rig.count(Counter::Masqueraded), 4);
}

#[test]
fn an_echo_leaves_with_another_identifier_and_comes_back() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let seen = rig.sends(&Ip::new(at.pod, at.far).echo(true, 7)).translated();
        assert_eq!((seen.source, seen.destination), (at.node, at.far));
        let id = seen.ports.0;
        let seen = rig.arrives(&Ip::new(at.far, at.node).echo(false, id)).translated();
        assert_eq!((seen.source, seen.destination, seen.ports), (at.far, at.pod, (7, 7)));
        // A request with that identifier and a reply to the node's own request are not the pod's.
        for packet in [Ip::new(at.far, at.node).echo(true, id), Ip::new(at.far, at.node).echo(false, id ^ 1)]
        {
            rig.arrives(&packet).left(&packet);
        }
        assert_eq!(rig.flow_elements(v6), (0, 2));
    }
}

#[test]
fn packets_that_need_no_masquerade_are_left_alone() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let other: IpAddr = if v6 { "fd77::6".parse().unwrap() } else { "10.77.0.6".parse().unwrap() };
        let group: IpAddr = if v6 { "ff0e::1".parse().unwrap() } else { "224.1.2.3".parse().unwrap() };
        for packet in [
            // To the pod's own network; to the node; from an address that is not the pod's; to a multicast
            // group.
            Ip::new(at.pod, other).tcp((POD_PORT, 80), SYN),
            Ip::new(at.pod, at.node).tcp((POD_PORT, HOST_PORT), SYN),
            Ip::new(other, at.far).tcp((POD_PORT, 80), SYN),
            Ip::new(at.pod, group).udp((POD_PORT, 80), b""),
            // Packets that begin no flow, and one whose TTL ends here.
            Ip::new(at.pod, at.far).tcp((POD_PORT, 80), ACK),
            Ip::new(at.pod, at.far).tcp((POD_PORT, 80), SYN | ACK),
            Ip::new(at.pod, at.far).echo(false, 9),
            Ip::new(at.pod, at.far).ttl(1).udp((POD_PORT, 80), b""),
        ] {
            rig.sends(&packet).left(&packet);
        }
        assert_eq!(rig.flow_elements(v6), (0, 0));
    }
}

#[test]
fn each_flow_to_one_destination_has_a_port_of_its_own() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let mut used = BTreeSet::new();
        for source in 20000..20500 {
            let packet = Ip::new(at.pod, at.far).udp((source, 53), b"");
            assert!(used.insert(chosen(&rig, v6, &packet, (at.far, 53))), "a port was given to two flows");
        }
    }
}

#[test]
fn without_a_free_port_the_flow_is_left_to_nftables() {
    let mut rig = rig!();
    rig.config(|config| (config.masquerade_first, config.masquerade_last) = (61000, 61003));
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let mut left = 0;
        for source in 20000..20008 {
            let packet = Ip::new(at.pod, at.far).udp((source, 53), b"");
            let made = rig.sends(&packet);
            if made.verdict == crate::bed::Verdict::Pass {
                left += 1;
                made.left(&packet);
                // The flow stays with nftables even if a port becomes free.
                rig.config(|config| config.masquerade_last = 65535);
                rig.sends(&packet).left(&packet);
                rig.config(|config| config.masquerade_last = 61003);
            }
        }
        assert!(left >= 4, "{left}");
        assert_eq!(rig.flow_elements(v6).1, 2 * (8 - left) + left);
    }
    assert!(rig.fallbacks(Reason::NoPort) >= 8);
    // A port is free again when its flow has timed out.
    let at = rig.addresses(false);
    rig.age(40);
    let again = (0..16u16)
        .filter(|n| {
            let packet = Ip::new(at.pod, at.far).udp((30000 + n, 53), b"");
            rig.sends(&packet).verdict == crate::bed::Verdict::Redirect
        })
        .count();
    assert!((1..=4).contains(&again), "{again}");
}

/// Two echo flows to one host never share an identifier; flows to different hosts may.
#[test]
fn each_echo_flow_to_one_host_has_an_identifier_of_its_own() {
    let mut rig = rig!();
    rig.config(|config| (config.masquerade_first, config.masquerade_last) = (61000, 61000));
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let first = Ip::new(at.pod, at.far).echo(true, 7);
        assert_eq!(rig.sends(&first).translated().ports.0, 61000);
        let second = Ip::new(at.pod, at.far).echo(true, 8);
        rig.sends(&second).left(&second);
        // The reply belongs to the first flow, whose next request has the same identifier.
        let reply = rig.arrives(&Ip::new(at.far, at.node).echo(false, 61000)).translated();
        assert_eq!((reply.destination, reply.ports), (at.pod, (7, 7)));
        assert_eq!(rig.sends(&first).translated().ports.0, 61000);
        let elsewhere = Ip::new(at.pod, at.client).echo(true, 8);
        assert_eq!(rig.sends(&elsewhere).translated().ports.0, 61000);
    }
}

/// The map has the uplink's address from the time of the last update: before they masquerade a new flow,
/// the BPF programs ask the kernel whether the node still has it.
#[test]
fn an_address_that_the_node_has_lost_is_not_used_for_masquerade() {
    let mut rig = rig!();
    let link = rig.client.node_link.clone();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let (before, new) = if v6 {
            (format!("{}/64", at.node), "2001:db8:1::77/64")
        } else {
            (format!("{}/24", at.node), "192.0.2.77/24")
        };
        rig.node.cmd(&format!("ip address add {new} dev {link}"));
        rig.node.cmd(&format!("ip address del {before} dev {link}"));
        rig.node.cmd(&format!("ip {} route replace default dev {link}", if v6 { "-6" } else { "-4" }));
        for packet in [
            Ip::new(at.pod, at.far).udp((POD_PORT, 53), b"who?"),
            Ip::new(at.pod, at.far).tcp((POD_PORT, 443), SYN),
        ] {
            rig.sends(&packet).left(&packet);
        }
        // Recorded as half-open flows, so that both stay with nftables.
        assert_eq!(rig.flow_elements(v6), (0, 2));
    }
    assert_eq!(rig.fallbacks(Reason::NoAddress), 4);
}

/// Another pod of the network may be a router: a gateway, a VPN. Packets to its MAC address are left alone.
#[test]
fn packets_that_the_pod_sends_to_another_router_are_left_alone() {
    let mut rig = rig!();
    let (node, other) = (rig.pod_mac(), [2, 0, 0, 0, 0, 0x77]);
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let packet = |port| Ip::new(at.pod, at.far).udp((port, 53), b"");
        rig.set_router(crate::bed::GENERATION, other);
        rig.sends(&packet(1000)).left(&packet(1000));
        // The flow is recorded as left to the kernel, and stays there.
        rig.set_router(crate::bed::GENERATION, node);
        rig.sends(&packet(1000)).left(&packet(1000));
        chosen(&rig, v6, &packet(1001), (at.far, 53));
        // An established flow is translated even after the bridge's MAC address has changed.
        rig.set_router(crate::bed::GENERATION, other);
        chosen(&rig, v6, &packet(1001), (at.far, 53));
        // An entry with another generation, of a pod whose link had the same index, is ignored.
        rig.set_router(crate::bed::GENERATION + 1, other);
        chosen(&rig, v6, &packet(1002), (at.far, 53));
    }
    assert_eq!(rig.fallbacks(Reason::Router), 2);
}

#[test]
fn a_port_with_a_socket_of_the_node_is_not_chosen() {
    let mut rig = rig!();
    rig.config(|config| (config.masquerade_first, config.masquerade_last) = (61000, 61000));
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let sockets = rig.node.run(|| {
            (
                std::net::UdpSocket::bind((at.node, 61000)).unwrap(),
                std::net::TcpListener::bind((at.node, 61000)).unwrap(),
            )
        });
        for packet in [
            Ip::new(at.pod, at.far).udp((POD_PORT, 53), b""),
            Ip::new(at.pod, at.far).tcp((POD_PORT, 53), SYN),
        ] {
            rig.sends(&packet).left(&packet);
        }
        drop(sockets);
        // A process that another test has just forked may have the sockets until it executes something.
        let made = (1..=100).map(|n| rig.sends(&Ip::new(at.pod, at.far).udp((POD_PORT + n, 53), b"")));
        let mut waiting = made.inspect(|_| std::thread::sleep(std::time::Duration::from_millis(10)));
        let made =
            waiting.find(|made| made.verdict == crate::bed::Verdict::Redirect).expect("the port is free");
        assert_eq!(made.translated().ports.0, 61000);
    }
}

#[test]
fn a_packet_too_large_for_the_route_is_left_to_the_kernel_or_dropped() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let large = vec![7; 1400];
        let first = Ip::new(at.pod, at.far).udp((POD_PORT, 53), b"small");
        let port = chosen(&rig, v6, &first, (at.far, 53));
        let route = if v6 { "ip -6 route" } else { "ip route" };
        let via = rig.client.v6.to_string();
        let via = if v6 { via } else { rig.client.v4.to_string() };
        rig.node.cmd(&format!("{route} replace default via {via} mtu lock 1280"));
        // The kernel's stack reports the MTU to the pod.
        let packet = Ip::new(at.pod, at.far).udp((POD_PORT, 53), &large);
        rig.sends(&packet).left(&packet);
        if !v6 {
            // DF is not set: the packet is sent if it fits the uplink's MTU. A translated flow cannot be left
            // to the kernel's stack, which would fragment it: a packet beyond the uplink's MTU is dropped and
            // counted.
            let packet = Ip::new(at.pod, at.far).may_fragment().udp((POD_PORT, 53), &large);
            assert_eq!(chosen(&rig, v6, &packet, (at.far, 53)), port);
            // That it was sent does not count for a packet with DF of the same size.
            let packet = Ip::new(at.pod, at.far).udp((POD_PORT, 53), &large);
            rig.sends(&packet).left(&packet);
            let packet = Ip::new(at.pod, at.far).may_fragment().udp((POD_PORT, 53), &[7; 1600]);
            assert_eq!(rig.sends(&packet).verdict, crate::bed::Verdict::Drop);
            assert_eq!(rig.count(Counter::DropTooBig), 1);
            // A flow whose first packet is too large is left to the kernel's stack.
            let packet = Ip::new(at.pod, at.far).may_fragment().udp((POD_PORT + 1, 53), &large);
            rig.sends(&packet).left(&packet);
            let packet = Ip::new(at.pod, at.far).may_fragment().udp((POD_PORT + 1, 53), b"small");
            rig.sends(&packet).left(&packet);
        }
        // A GSO packet is not too large if its segments fit.
        let syn = Ip::new(at.pod, at.far).tcp((POD_PORT, 443), SYN);
        chosen(&rig, v6, &syn, (at.far, 443));
        let ip = Ip::new(at.pod, at.far);
        let long = ip.packet(6, &ip.tcp_segment((POD_PORT, 443), ACK, &[1; 2000]));
        assert_eq!(rig.sends_in_segments(&long, 1000).translated().payload.len(), 2000);
        rig.sends_in_segments(&long, 1400).left(&long);
    }
}

/// If the pod's MTU is larger than the uplink's, the kernel's stack has to fragment packets without DF. The
/// ends of a TCP connection with DF find the path's MTU themselves.
#[test]
fn packets_that_may_need_fragmentation_for_the_uplink_are_left_alone() {
    let mut rig = rig!();
    rig.pod_mtu(9000);
    let at = rig.addresses(false);
    let ip = || Ip::new(at.pod, at.far);
    let left = [ip().may_fragment().tcp((POD_PORT, 443), SYN), ip().udp((POD_PORT, 53), b"")];
    for packet in left {
        rig.sends(&packet).left(&packet);
    }
    assert_eq!(rig.fallbacks(Reason::Mtu), 2);
    chosen(&rig, false, &ip().tcp((POD_PORT + 1, 443), SYN), (at.far, 443));
}

/// Of a UDP flow that conntrack owns the BPF programs see one direction only. It may be a stream there, so
/// they leave it alone until a stream would have timed out, even if the reason for leaving it no longer
/// holds.
#[test]
fn a_udp_flow_left_to_conntrack_stays_there_until_a_streams_timeout() {
    let mut rig = rig!();
    rig.config(|config| (config.masquerade_first, config.masquerade_last) = (1, 0));
    let at = rig.addresses(false);
    let packet = Ip::new(at.pod, at.far).udp((POD_PORT, 53), b"");
    rig.sends(&packet).left(&packet);
    assert_eq!(rig.fallbacks(Reason::NoPort), 1);
    rig.config(|config| (config.masquerade_first, config.masquerade_last) = (61000, 65535));
    for idle in [100, 100] {
        rig.age(idle);
        rig.sends(&packet).left(&packet);
    }
    rig.age(140);
    chosen(&rig, false, &packet, (at.far, 53));
}

/// The result of a route lookup is cached for a second, and for packets no longer than the one looked up.
#[test]
fn a_running_flow_follows_its_route() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let (route, via, net) = if v6 {
            ("ip -6 route", rig.client.v6.to_string(), "2001:db8:ffff::/48")
        } else {
            ("ip route", rig.client.v4.to_string(), "198.18.0.0/15")
        };
        let (out, back) = (Ip::new(at.pod, at.far), Ip::new(at.far, at.node));
        let port = chosen(&rig, v6, &out.tcp((POD_PORT, 443), SYN), (at.far, 443));
        rig.arrives(&back.tcp((443, port), SYN | ACK)).translated();
        let packet = out.tcp((POD_PORT, 443), ACK);
        for _ in 0..4 {
            rig.sends(&packet).translated();
        }
        rig.node.cmd(&format!("{route} add unreachable {net}"));
        std::thread::sleep(std::time::Duration::from_millis(1300));
        rig.sends(&packet).left(&packet);
        rig.node.cmd(&format!("{route} del unreachable {net}"));
        rig.sends(&packet).translated();
        rig.node.cmd(&format!("{route} replace default via {via} mtu lock 1280"));
        let long = out.packet(6, &out.tcp_segment((POD_PORT, 443), ACK, &[7; 1350]));
        rig.sends(&long).left(&long);
    }
}
