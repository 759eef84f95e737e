// SPDX-License-Identifier: GPL-2.0-or-later

//! Published ports: a client's packets reach the pod, and the pod's replies reach the client.

use slipway_ebpf_abi::{self as abi, Counter, Port, PortKey, PortTarget, Reason};
use slipway_tests::stride;

use crate::bed::{GENERATION, HOST_PORT, POD_PORT, Sizes, Verdict};
use crate::rig;
use crate::wire::{ACK, FIN, Ip, RST, SYN, TCP};

const CLIENT_PORT: u16 = 40000;

#[test]
fn a_tcp_handshake_is_translated_in_both_directions() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let (there, back) = (Ip::new(at.client, at.node), Ip::new(at.pod, at.client));
        let (request, reply) = ((CLIENT_PORT, HOST_PORT), (POD_PORT, CLIENT_PORT));
        for (step, flags) in [SYN, SYN | ACK, ACK, ACK | FIN].into_iter().enumerate() {
            if step == 1 {
                let seen = rig.sends(&back.tcp(reply, flags)).translated();
                assert_eq!(seen.ends(), (at.node, HOST_PORT, at.client, CLIENT_PORT));
                assert_eq!((seen.ttl, &seen.payload[..]), (63, &b"tcp payload"[..]));
            } else {
                let seen = rig.arrives(&there.tcp(request, flags)).translated();
                assert_eq!(seen.ends(), (at.client, CLIENT_PORT, at.pod, POD_PORT));
                assert_eq!((seen.ttl, &seen.payload[..]), (63, &b"tcp payload"[..]));
            }
            let elements = if step < 2 { (0, 2) } else { (2, 0) };
            assert_eq!(rig.flow_elements(v6), elements, "after step {step}");
        }
    }
    assert_eq!(rig.count(Counter::Published), 2);
    assert_eq!(rig.count(Counter::Established), 2);
    assert_eq!((rig.count(Counter::ToPodPackets), rig.count(Counter::FromPodPackets)), (6, 2));
}

#[test]
fn udp_is_translated_in_both_directions_with_and_without_a_checksum() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let (there, back) = (Ip::new(at.client, at.node), Ip::new(at.pod, at.client));
        for payload in [&b""[..], b"x", b"even", b"a longer one, of odd length."] {
            let seen = rig.arrives(&there.udp((CLIENT_PORT, HOST_PORT), payload)).translated();
            assert_eq!(seen.ends(), (at.client, CLIENT_PORT, at.pod, POD_PORT));
            assert_eq!(seen.payload, payload);
            let seen = rig.sends(&back.udp((POD_PORT, CLIENT_PORT), payload)).translated();
            assert_eq!(seen.ends(), (at.node, HOST_PORT, at.client, CLIENT_PORT));
            assert_eq!(seen.payload, payload);
        }
        let made = rig.arrives(&there.udp_without_checksum((CLIENT_PORT, HOST_PORT)));
        assert_eq!(made.translated().ends(), (at.client, CLIENT_PORT, at.pod, POD_PORT));
        assert_eq!(crate::wire::content(&made.packet)[6..8], [0, 0], "a missing checksum stays missing");
        assert_eq!(rig.flow_elements(v6), (0, 2));
    }
}

#[test]
fn a_udp_checksum_that_becomes_zero_is_sent_as_ones() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let translated = |word: u16| {
            let packet = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), &word.to_be_bytes());
            let made = rig.arrives(&packet);
            made.translated();
            let sum = &crate::wire::content(&made.packet)[6..8];
            assert_ne!(sum, [0, 0], "a packet with a checksum has one afterwards");
            u16::from_be_bytes([sum[0], sum[1]])
        };
        // The checksum is the complement of a sum: this word makes it zero.
        let zero = translated(0);
        let words: Vec<u16> = match stride() {
            1 => (0..=u16::MAX).collect(),
            _ => (0..=u16::MAX)
                .step_by(257)
                .chain([zero.wrapping_sub(1), zero, zero.wrapping_add(1)])
                .collect(),
        };
        let ones = words.into_iter().filter(|word| translated(*word) == 0xffff).count();
        assert!(ones > 0);
    }
}

#[test]
fn a_port_that_is_not_published_is_left_alone() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for packet in [
            Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT + 1), SYN),
            Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT + 1), b"?"),
            Ip::new(at.client, at.node).echo(true, 7),
            Ip::new(at.client, at.node).echo(false, 7),
        ] {
            rig.arrives(&packet).left(&packet);
        }
        assert_eq!(rig.flow_elements(v6), (0, 0));
    }
}

#[test]
fn forwarded_packets_are_left_alone() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for packet in [
            Ip::new(at.client, at.far).tcp((CLIENT_PORT, HOST_PORT), SYN),
            Ip::new(at.client, at.far).udp((CLIENT_PORT, HOST_PORT), b"?"),
        ] {
            rig.arrives(&packet).left(&packet);
        }
        assert_eq!(rig.flow_elements(v6), (0, 0));
    }
    // Also without a route: bpf_fib_lookup returns the same for that as for a local address.
    rig.node.cmd("ip route delete default");
    rig.node.cmd("ip -6 route delete default");
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let packet = Ip::new(at.client, at.far).tcp((CLIENT_PORT, HOST_PORT), SYN);
        rig.arrives(&packet).left(&packet);
    }
    assert_eq!(rig.count(Counter::Published), 0);
}

#[test]
fn only_a_syn_without_other_flags_begins_a_connection() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for flags in [ACK, SYN | ACK, SYN | RST, SYN | FIN, RST, RST | ACK, FIN, FIN | ACK, 0] {
            let packet = Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT), flags);
            rig.arrives(&packet).left(&packet);
        }
        assert_eq!(rig.flow_elements(v6), (0, 0));
    }
}

#[test]
fn a_port_published_on_one_address_wins_over_one_on_all() {
    let mut rig = rig!();
    let at = rig.addresses(false);
    let pod = rig.pod_link;
    rig.map(abi::maps::PORTS4)
        .insert(
            PortKey {
                address: abi::Addr4::from(rig_v4(at.node)),
                port: Port::new(HOST_PORT),
                protocol: TCP,
                pad: 0,
            },
            PortTarget {
                pod,
                generation: GENERATION,
                address: abi::Addr4::from(crate::bed::POD4),
                port: Port::new(81),
                flags: 0,
            },
            0,
        )
        .unwrap();
    let seen = rig.arrives(&Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT), SYN)).translated();
    assert_eq!(seen.ends(), (at.client, CLIENT_PORT, at.pod, 81));
    let seen = rig.arrives(&Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"")).translated();
    assert_eq!(seen.ends(), (at.client, CLIENT_PORT, at.pod, POD_PORT));
}

fn rig_v4(address: std::net::IpAddr) -> std::net::Ipv4Addr {
    match address {
        std::net::IpAddr::V4(v4) => v4,
        std::net::IpAddr::V6(_) => panic!("expected an IPv4 address"),
    }
}

#[test]
fn ipv4_options_and_ipv6_extension_headers_stay() {
    let rig = rig!();
    let at = rig.addresses(false);
    for words in 1..=10 {
        // The options No Operation and End of Option List (RFC 791).
        let mut ip = Ip::new(at.client, at.node);
        ip.options = vec![1; words * 4 - 1];
        ip.options.push(0);
        let made = rig.arrives(&ip.tcp((CLIENT_PORT, HOST_PORT), SYN));
        assert_eq!(made.translated().ends(), (at.client, CLIENT_PORT, at.pod, POD_PORT));
        assert_eq!(made.packet[20..20 + words * 4], ip.options);
    }
    let at = rig.addresses(true);
    let padding = |words: usize| [&[0, 0, 1, 4][..], &vec![0; 4 + words * 8]].concat();
    for kinds in [&[0][..], &[60], &[0, 60], &[0, 60, 43, 60]] {
        let mut ip = Ip::new(at.client, at.node);
        ip.extensions = kinds
            .iter()
            .enumerate()
            // A routing header without segments left is skipped (RFC 8200, section 4.4).
            .map(|(n, kind)| (*kind, if *kind == 43 { vec![0; 8] } else { padding(n) }))
            .collect();
        let made = rig.arrives(&ip.udp((CLIENT_PORT, HOST_PORT), b"extended"));
        assert_eq!(made.translated().ends(), (at.client, CLIENT_PORT, at.pod, POD_PORT));
        assert_eq!(made.translated().payload, b"extended");
    }
    let before = rig.fallbacks(Reason::Headers);
    for extensions in [vec![(0, padding(0)); 5], vec![(43, [&[0, 0, 0, 1][..], &[0; 20]].concat())]] {
        let mut ip = Ip::new(at.client, at.node);
        ip.extensions = extensions;
        let packet = ip.udp((CLIENT_PORT, HOST_PORT), b"too much");
        rig.arrives(&packet).left(&packet);
    }
    assert_eq!(rig.fallbacks(Reason::Headers), before + 2);
}

#[test]
fn a_truncated_or_invalid_packet_is_left_alone() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let whole = Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT), SYN);
        let header = if v6 { 40 } else { 20 };
        for length in header..header + 14 {
            rig.arrives(&whole[..length]).left(&whole[..length]);
        }
        let mut wrong = whole.clone();
        wrong[0] = 0x55;
        rig.arrives(&wrong).left(&wrong);
        if !v6 {
            let mut short = whole;
            short[0] = 0x44;
            rig.arrives(&short).left(&short);
        }
        let sctp = Ip::new(at.client, at.node).packet(132, &[0x9c, 0x40, 0x1f, 0x90, 0, 0, 0, 0, 0, 0, 0, 0]);
        rig.arrives(&sctp).left(&sctp);
    }
}

#[test]
fn a_packet_whose_ttl_ends_is_left_alone() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for ttl in [0, 1] {
            let packet = Ip::new(at.client, at.node).ttl(ttl).udp((CLIENT_PORT, HOST_PORT), b"");
            rig.arrives(&packet).left(&packet);
        }
        assert_eq!(rig.flow_elements(v6), (0, 0));
        rig.arrives(&Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"")).translated();
        let packet = Ip::new(at.client, at.node).ttl(1).udp((CLIENT_PORT, HOST_PORT), b"");
        rig.arrives(&packet).left(&packet);
        let packet = Ip::new(at.pod, at.client).ttl(1).udp((POD_PORT, CLIENT_PORT), b"");
        rig.sends(&packet).left(&packet);
    }
    assert_eq!(rig.fallbacks(Reason::Ttl), 4);
}

#[test]
fn a_flow_dies_with_its_pod() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let packet = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"");
        rig.arrives(&packet).translated();
        let reply = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"");
        rig.sends(&reply).translated();
        rig.remove_pod();
        rig.arrives(&packet).left(&packet);
        rig.sends(&reply).left(&reply);
        assert_eq!(rig.flow_elements(v6), (0, 0));
        assert_eq!(rig.fallbacks(Reason::PodGone), 1 + u64::from(v6));
        rig.add_pod(GENERATION);
    }
    // Another pod with the same interface index gets its own published ports, but none of the earlier pod's
    // flows.
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let packet = Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT), SYN);
        rig.arrives(&packet).translated();
        rig.add_pod(77);
        rig.publish(TCP, HOST_PORT, 99, 77);
        let more = Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT), ACK);
        rig.arrives(&more).left(&more);
        assert_eq!(rig.arrives(&packet).translated().ports, (CLIENT_PORT, 99));
        rig.add_pod(GENERATION);
        rig.publish(TCP, HOST_PORT, POD_PORT, GENERATION);
    }
}

/// The pod's link is gone, and its map elements are still there: the kernel's stack decides about the
/// packets.
#[test]
fn a_port_of_a_pod_whose_link_is_gone_is_left_to_the_kernel() {
    let mut rig = rig!();
    rig.node.cmd("ip link del pod0");
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for packet in [
            Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b""),
            Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT), SYN),
            Ip::new(at.client, at.pod).udp((CLIENT_PORT, POD_PORT), b""),
        ] {
            rig.arrives(&packet).left(&packet);
        }
        assert_eq!(rig.flow_elements(v6), (0, 0));
    }
    assert_eq!(rig.fallbacks(Reason::PodGone), 6);
}

/// Such a source is spoofed: the kernel's stack drops the packet.
#[test]
fn packets_from_outside_with_an_address_of_the_node_or_a_pod_are_left_alone() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for source in [at.node, at.pod] {
            for packet in [
                Ip::new(source, at.node).udp((CLIENT_PORT, HOST_PORT), b""),
                Ip::new(source, at.node).tcp((CLIENT_PORT, HOST_PORT), SYN),
                Ip::new(source, at.pod).udp((CLIENT_PORT, POD_PORT), b""),
            ] {
                rig.arrives(&packet).left(&packet);
            }
        }
        assert_eq!(rig.flow_elements(v6), (0, 0));
    }
}

#[test]
fn flows_to_an_address_missing_in_the_maps_are_left_to_nftables_and_recorded() {
    let mut rig = rig!();
    rig.node.cmd("ip address add 192.0.2.77/32 dev lo");
    let at = rig.addresses(false);
    let extra = "192.0.2.77".parse::<std::net::IpAddr>().unwrap();
    let packet = Ip::new(at.client, extra).udp((CLIENT_PORT, HOST_PORT), b"");
    rig.arrives(&packet).left(&packet);
    // The pod's reply passes before netfilter reverses the NAT: it is not masqueraded like a new flow of the
    // pod.
    let reply = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"");
    rig.sends(&reply).left(&reply);
    assert_eq!(rig.flow_elements(false), (0, 2));
    assert_eq!((rig.fallbacks(Reason::UnknownAddress), rig.count(Counter::Passed)), (1, 1));
}

#[test]
fn the_nodes_own_udp_socket_comes_first() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let _socket = rig.node.run(|| std::net::UdpSocket::bind((at.node, HOST_PORT)).unwrap());
        let packet = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"");
        rig.arrives(&packet).left(&packet);
        let reply = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"");
        rig.sends(&reply).left(&reply);
        assert_eq!(rig.flow_elements(v6), (0, 2));
    }
    assert_eq!(rig.fallbacks(Reason::NodeSocket), 2);
}

#[test]
fn udp_to_a_pod_with_a_smaller_mtu_is_left_to_the_kernel() {
    let mut rig = rig!();
    rig.pod_mtu(1400);
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let packet = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"");
        rig.arrives(&packet).left(&packet);
        rig.arrives(&Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT), SYN)).translated();
    }
    assert_eq!(rig.fallbacks(Reason::Mtu), 2);
}

#[test]
fn a_flow_without_packets_times_out() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let packet = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"");
        let reply = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"");
        rig.arrives(&packet).translated();
        rig.age(20);
        rig.sends(&reply).translated();
        rig.age(20);
        rig.arrives(&packet).translated();
        rig.age(110);
        rig.arrives(&packet).translated();
        rig.age(130);
        // The flow has timed out: the pod's packet begins a flow of its own, which is masqueraded.
        let ends = rig.sends(&reply).translated().ends();
        assert_ne!(ends, (at.node, HOST_PORT, at.client, CLIENT_PORT));
        assert_eq!((ends.0, ends.2, ends.3), (at.node, at.client, CLIENT_PORT));
    }
}

#[test]
fn each_direction_restores_the_other() {
    let mut rig = rig!();
    let at = rig.addresses(false);
    let packet = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"");
    let reply = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"");
    rig.arrives(&packet).translated();
    rig.sends(&reply).translated();
    rig.age(5);
    rig.arrives(&packet).translated();
    for side in [abi::SIDE_POD, abi::SIDE_UPLINK] {
        let before = rig.flows4(abi::maps::FLOWS4);
        let lost = *before.keys().find(|key| key.side == side).expect("both directions are in the map");
        rig.map::<abi::FlowKey4, abi::Flow4>(abi::maps::FLOWS4).remove(&lost).unwrap();
        rig.age(5);
        if side == abi::SIDE_POD {
            rig.arrives(&packet).translated();
        } else {
            rig.sends(&reply).translated();
        }
        let after = rig.flows4(abi::maps::FLOWS4);
        assert_eq!(after.len(), 2);
        let (found, was) = (after[&lost], before[&lost]);
        assert_eq!(
            (found.source, found.destination, found.action, found.flags),
            (was.source, was.destination, was.action, was.flags)
        );
    }
    assert_eq!(rig.count(Counter::Restored), 2);
}

#[test]
fn a_flood_of_first_packets_evicts_no_established_flow() {
    let mut rig = rig!(Sizes { flows: Some(1024), half_open: Some(1024) });
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let there = Ip::new(at.client, at.node);
        rig.arrives(&there.tcp((CLIENT_PORT, HOST_PORT), SYN)).translated();
        rig.sends(&Ip::new(at.pod, at.client).tcp((POD_PORT, CLIENT_PORT), SYN | ACK)).translated();
        rig.arrives(&there.tcp((CLIENT_PORT, HOST_PORT), ACK)).translated();
        for port in 1024..9000 {
            // A full LRU map evicts an element. If the kernel finds none to evict, the packet is left to
            // nftables.
            assert_ne!(rig.arrives(&there.tcp((port, HOST_PORT), SYN)).verdict, Verdict::Drop);
        }
        let (flows, half_open) = rig.flow_elements(v6);
        assert_eq!(flows, 2);
        assert!(half_open <= 1024 + 256, "{half_open}");
        rig.arrives(&there.tcp((CLIENT_PORT, HOST_PORT), ACK)).translated();
        rig.sends(&Ip::new(at.pod, at.client).tcp((POD_PORT, CLIENT_PORT), ACK)).translated();
    }
}

#[test]
fn every_packet_and_byte_is_counted() {
    let mut rig = rig!();
    let at = rig.addresses(false);
    let packet = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"1234");
    for _ in 0..5 {
        rig.arrives(&packet).translated();
    }
    let reply = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"12");
    for _ in 0..3 {
        rig.sends(&reply).translated();
    }
    let length = |packet: &[u8]| 14 + packet.len() as u64;
    assert_eq!((rig.count(Counter::ToPodPackets), rig.count(Counter::ToPodBytes)), (5, 5 * length(&packet)));
    assert_eq!(
        (rig.count(Counter::FromPodPackets), rig.count(Counter::FromPodBytes)),
        (3, 3 * length(&reply))
    );
    let flows = rig.flows4(abi::maps::HALF_OPEN4);
    assert_eq!(flows.len(), 2);
    for (key, flow) in flows {
        let (packets, packet) = if key.side == abi::SIDE_UPLINK { (5, &packet) } else { (3, &reply) };
        assert_eq!((flow.packets, flow.bytes), (packets, packets * length(packet)));
    }
}
