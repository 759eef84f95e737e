//! Published ports: a client's packets reach the pod, the pod's answers the client.

use slipway_ebpf_abi::{self as abi, Counter, Port, PortKey, PortTarget, Reason};
use slipway_tests::stride;

use crate::bed::{Act, GENERATION, HOST_PORT, POD_PORT, Sizes};
use crate::rig;
use crate::wire::{ACK, FIN, Ip, RST, SYN, TCP};

const CLIENT_PORT: u16 = 40000;

#[test]
fn a_tcp_handshake_is_translated_both_ways() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let (there, back) = (Ip::new(at.client, at.node), Ip::new(at.pod, at.client));
        let (asks, answers) = ((CLIENT_PORT, HOST_PORT), (POD_PORT, CLIENT_PORT));
        for (step, flags) in [SYN, SYN | ACK, ACK, ACK | FIN].into_iter().enumerate() {
            if step == 1 {
                let seen = rig.sends(&back.tcp(answers, flags)).translated();
                assert_eq!(seen.ends(), (at.node, HOST_PORT, at.client, CLIENT_PORT));
                assert_eq!((seen.ttl, &seen.payload[..]), (63, &b"tcp payload"[..]));
            } else {
                let seen = rig.arrives(&there.tcp(asks, flags)).translated();
                assert_eq!(seen.ends(), (at.client, CLIENT_PORT, at.pod, POD_PORT));
                assert_eq!((seen.ttl, &seen.payload[..]), (63, &b"tcp payload"[..]));
            }
            let halves = if step < 2 { (0, 2) } else { (2, 0) };
            assert_eq!(rig.halves(v6), halves, "after step {step}");
        }
    }
    assert_eq!(rig.count(Counter::Published), 2);
    assert_eq!(rig.count(Counter::Established), 2);
    assert_eq!((rig.count(Counter::ToPodPackets), rig.count(Counter::FromPodPackets)), (6, 2));
}

#[test]
fn udp_is_translated_both_ways_with_and_without_a_checksum() {
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
        assert_eq!(crate::wire::content(&made.packet)[6..8], [0, 0], "no checksum stays none");
        assert_eq!(rig.halves(v6), (0, 2));
    }
}

#[test]
fn a_checksum_of_udp_that_comes_out_as_zero_is_sent_as_ones() {
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
        assert_eq!(rig.halves(v6), (0, 0));
    }
}

#[test]
fn what_is_merely_forwarded_is_not_captured() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for packet in [
            Ip::new(at.client, at.far).tcp((CLIENT_PORT, HOST_PORT), SYN),
            Ip::new(at.client, at.far).udp((CLIENT_PORT, HOST_PORT), b"?"),
        ] {
            rig.arrives(&packet).left(&packet);
        }
        assert_eq!(rig.halves(v6), (0, 0));
    }
    // Nor where the node has no route, which looks like an address of its own to bpf_fib_lookup.
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
fn only_a_lone_syn_begins_a_connection() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for flags in [ACK, SYN | ACK, SYN | RST, SYN | FIN, RST, RST | ACK, FIN, FIN | ACK, 0] {
            let packet = Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT), flags);
            rig.arrives(&packet).left(&packet);
        }
        assert_eq!(rig.halves(v6), (0, 0));
    }
}

#[test]
fn a_host_address_wins_over_all_addresses() {
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
        std::net::IpAddr::V6(_) => panic!("IPv4 is meant"),
    }
}

#[test]
fn ipv4_options_and_ipv6_extension_headers_stay() {
    let rig = rig!();
    let at = rig.addresses(false);
    for words in 1..=10 {
        // No operation, and the end of the list (RFC 791).
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
            // A routing header with no segment left is passed over (RFC 8200, section 4.4).
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
fn a_packet_that_ends_early_or_makes_no_sense_is_left_alone() {
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
fn the_last_hop_is_left_to_the_stack() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for ttl in [0, 1] {
            let packet = Ip::new(at.client, at.node).ttl(ttl).udp((CLIENT_PORT, HOST_PORT), b"");
            rig.arrives(&packet).left(&packet);
        }
        assert_eq!(rig.halves(v6), (0, 0));
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
        let answer = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"");
        rig.sends(&answer).translated();
        rig.remove_pod();
        rig.arrives(&packet).left(&packet);
        rig.sends(&answer).left(&answer);
        assert_eq!(rig.halves(v6), (0, 0));
        assert_eq!(rig.fallbacks(Reason::PodGone), 1 + u64::from(v6));
        rig.add_pod(GENERATION);
    }
    // Another pod at the same interface: flows of the one before are not its own, its ports are.
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

/// The container is dead, and nobody has told the programs; the stack finds nobody there, or whose the port is now.
#[test]
fn a_port_of_a_pod_whose_link_is_gone_is_left_to_the_stack() {
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
        assert_eq!(rig.halves(v6), (0, 0));
    }
    assert_eq!(rig.fallbacks(Reason::PodGone), 6);
}

/// Only somebody who lies sends from there: the stack drops such packets, or knows better.
#[test]
fn what_comes_from_outside_with_a_source_of_the_node_or_of_a_pod_is_left_to_the_stack() {
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
        assert_eq!(rig.halves(v6), (0, 0));
    }
}

#[test]
fn an_address_that_the_node_was_not_told_of_is_left_to_nftables_and_noted() {
    let mut rig = rig!();
    rig.node.cmd("ip address add 192.0.2.77/32 dev lo");
    let at = rig.addresses(false);
    let extra = "192.0.2.77".parse::<std::net::IpAddr>().unwrap();
    let packet = Ip::new(at.client, extra).udp((CLIENT_PORT, HOST_PORT), b"");
    rig.arrives(&packet).left(&packet);
    // The pod's answer, before netfilter has turned it back, is not masqueraded as a flow of the pod's own.
    let answer = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"");
    rig.sends(&answer).left(&answer);
    assert_eq!(rig.halves(false), (0, 2));
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
        let answer = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"");
        rig.sends(&answer).left(&answer);
        assert_eq!(rig.halves(v6), (0, 2));
    }
    assert_eq!(rig.fallbacks(Reason::NodeSocket), 2);
}

#[test]
fn udp_to_a_pod_whose_packets_are_smaller_is_left_to_the_stack() {
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
fn a_flow_that_is_silent_for_too_long_is_over() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let packet = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"");
        let answer = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"");
        rig.arrives(&packet).translated();
        rig.age(20);
        rig.sends(&answer).translated();
        rig.age(20);
        rig.arrives(&packet).translated();
        rig.age(110);
        rig.arrives(&packet).translated();
        rig.age(130);
        // Too late for an answer: it is a conversation of the pod's own now, and masqueraded.
        let ends = rig.sends(&answer).translated().ends();
        assert_ne!(ends, (at.node, HOST_PORT, at.client, CLIENT_PORT));
        assert_eq!((ends.0, ends.2, ends.3), (at.node, at.client, CLIENT_PORT));
    }
}

#[test]
fn each_half_puts_the_other_back() {
    let mut rig = rig!();
    let at = rig.addresses(false);
    let packet = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"");
    let answer = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"");
    rig.arrives(&packet).translated();
    rig.sends(&answer).translated();
    rig.age(5);
    rig.arrives(&packet).translated();
    for side in [abi::SIDE_POD, abi::SIDE_UPLINK] {
        let before = rig.flows4(abi::maps::FLOWS4);
        let lost = *before.keys().find(|key| key.side == side).expect("both halves");
        rig.map::<abi::FlowKey4, abi::Flow4>(abi::maps::FLOWS4).remove(&lost).unwrap();
        rig.age(5);
        if side == abi::SIDE_POD {
            rig.arrives(&packet).translated();
        } else {
            rig.sends(&answer).translated();
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
    let mut rig = rig!(Sizes { flows: Some(1024), embryos: Some(1024) });
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let there = Ip::new(at.client, at.node);
        rig.arrives(&there.tcp((CLIENT_PORT, HOST_PORT), SYN)).translated();
        rig.sends(&Ip::new(at.pod, at.client).tcp((POD_PORT, CLIENT_PORT), SYN | ACK)).translated();
        rig.arrives(&there.tcp((CLIENT_PORT, HOST_PORT), ACK)).translated();
        for port in 1024..9000 {
            // A full map makes room; where the kernel finds none at that moment, nftables serves.
            assert_ne!(rig.arrives(&there.tcp((port, HOST_PORT), SYN)).act, Act::Drop);
        }
        let (flows, embryos) = rig.halves(v6);
        assert_eq!(flows, 2);
        assert!(embryos <= 1024 + 256, "{embryos}");
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
    let answer = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"12");
    for _ in 0..3 {
        rig.sends(&answer).translated();
    }
    let length = |packet: &[u8]| 14 + packet.len() as u64;
    assert_eq!((rig.count(Counter::ToPodPackets), rig.count(Counter::ToPodBytes)), (5, 5 * length(&packet)));
    assert_eq!(
        (rig.count(Counter::FromPodPackets), rig.count(Counter::FromPodBytes)),
        (3, 3 * length(&answer))
    );
    let flows = rig.flows4(abi::maps::EMBRYOS4);
    assert_eq!(flows.len(), 2);
    for (key, flow) in flows {
        let (packets, packet) = if key.side == abi::SIDE_UPLINK { (5, &packet) } else { (3, &answer) };
        assert_eq!((flow.packets, flow.bytes), (packets, packets * length(packet)));
    }
}
