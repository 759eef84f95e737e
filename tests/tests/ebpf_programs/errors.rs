// SPDX-License-Identifier: GPL-2.0-or-later

//! ICMP errors about translated packets.

use std::net::IpAddr;

use slipway_ebpf_abi::{Counter, Reason};

use crate::bed::{HOST_PORT, POD_PORT};
use crate::rig;
use crate::wire::{Ip, SYN};

const CLIENT_PORT: u16 = 40000;

/// The address of a router between the node and the other host.
fn router(v6: bool) -> IpAddr {
    if v6 { "2001:db8:eeee::1".parse().unwrap() } else { "198.18.77.1".parse().unwrap() }
}

/// Types and codes of ICMP errors; the first is that of path MTU discovery.
fn kinds(v6: bool) -> &'static [(u8, u8)] {
    if v6 { &[(2, 0), (1, 4), (3, 0), (4, 0)] } else { &[(3, 4), (3, 3), (11, 0), (12, 0)] }
}

#[test]
fn errors_about_replies_from_a_published_port_reach_the_pod() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for tcp in [true, false] {
            let there = Ip::new(at.client, at.node);
            let back = Ip::new(at.pod, at.client);
            let (requests, replies) = ((CLIENT_PORT, HOST_PORT), (POD_PORT, CLIENT_PORT));
            let (packet, reply) = if tcp {
                (there.tcp(requests, SYN), back.tcp(replies, 0x12))
            } else {
                (there.udp(requests, b"?"), back.udp(replies, b"a reply"))
            };
            rig.arrives(&packet).translated();
            let sent = rig.sends(&reply);
            sent.translated();
            for &(kind, code) in kinds(v6) {
                // RFC 792 quotes 8 bytes after the IP header; some hosts quote more, or the whole packet.
                let header = if v6 { 40 } else { 20 };
                for length in [header + 8, header + 12, sent.packet.len()] {
                    let error = Ip::new(router(v6), at.node).error(kind, code, 1280, &sent.packet[..length]);
                    let made = rig.arrives(&error);
                    let seen = made.translated();
                    assert_eq!((seen.source, seen.destination, seen.ttl), (router(v6), at.pod, 63));
                    let inner = seen.inner.clone().expect("an ICMP error");
                    assert_eq!(inner.ends(), (at.pod, POD_PORT, at.client, CLIENT_PORT));
                    assert_eq!(made.packet[header + 4..header + 8], 1280u32.to_be_bytes(), "the MTU");
                    // The quoted packet is as the pod sent it, but for the TTL.
                    let inside = &made.packet[header + 8..];
                    assert_eq!(inside[header..], reply[header..length]);
                }
            }
        }
    }
    assert_eq!(rig.count(Counter::Errors), 2 * 2 * 4 * 3);
}

#[test]
fn errors_about_masqueraded_packets_reach_the_pod() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let out = Ip::new(at.pod, at.far);
        for packet in [out.tcp((5555, 443), SYN), out.udp((5555, 53), b"who?"), out.echo(true, 5555)] {
            let sent = rig.sends(&packet);
            let port = sent.translated().ports.0;
            assert_ne!(port, 5555);
            for &(kind, code) in kinds(v6) {
                let error = Ip::new(router(v6), at.node).error(kind, code, 0, &sent.packet);
                let made = rig.arrives(&error);
                let seen = made.translated();
                assert_eq!((seen.source, seen.destination), (router(v6), at.pod));
                let header = if v6 { 40 } else { 20 };
                assert_eq!(made.packet[header + 8 + header..], packet[header..], "as the pod sent it");
                let inner = seen.inner.expect("an ICMP error");
                assert_eq!((inner.source, inner.destination, inner.ports.0), (at.pod, at.far, 5555));
            }
        }
    }
}

#[test]
fn errors_of_the_pod_reach_the_client() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let asked = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"is it open?");
        let got = rig.arrives(&asked);
        got.translated();
        let (kind, code) = if v6 { (1, 4) } else { (3, 3) };
        let error = Ip::new(at.pod, at.client).error(kind, code, 0, &got.packet);
        let made = rig.sends(&error);
        let seen = made.translated();
        assert_eq!((seen.source, seen.destination), (at.node, at.client));
        let inner = seen.inner.expect("an ICMP error");
        assert_eq!(inner.ends(), (at.client, CLIENT_PORT, at.node, HOST_PORT));
        let header = if v6 { 40 } else { 20 };
        assert_eq!(made.packet[header + 8 + header..], asked[header..], "as the client sent it");
    }
}

#[test]
fn a_zero_udp_checksum_in_a_quoted_packet_stays_zero() {
    let rig = rig!();
    let at = rig.addresses(false);
    rig.arrives(&Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"?")).translated();
    let sent = rig.sends(&Ip::new(at.pod, at.client).udp_without_checksum((POD_PORT, CLIENT_PORT)));
    sent.translated();
    let made = rig.arrives(&Ip::new(router(false), at.node).error(3, 4, 1280, &sent.packet));
    made.translated();
    assert_eq!(made.packet[20 + 8 + 20 + 6..][..2], [0, 0]);
}

#[test]
fn errors_about_other_packets_are_left_alone() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        rig.arrives(&Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"?")).translated();
        let known = Ip::new(at.node, at.client).udp((HOST_PORT, CLIENT_PORT), b"!");
        let (kind, code) = kinds(v6)[0];
        let sctp = Ip::new(at.node, at.client).packet(132, &[0x1f, 0x90, 0x9c, 0x40, 0, 0, 0, 0]);
        let nested = Ip::new(at.node, at.client).error(kind, code, 0, &known);
        for packet in [
            // A flow of the node's own; a protocol that is not translated; an error about an error; an error
            // to another address than the quoted packet's source; an error that quotes too few bytes.
            Ip::new(router(v6), at.node).error(
                kind,
                code,
                0,
                &Ip::new(at.node, at.client).udp((HOST_PORT, CLIENT_PORT + 1), b"!"),
            ),
            Ip::new(router(v6), at.node).error(kind, code, 0, &sctp),
            Ip::new(router(v6), at.node).error(kind, code, 0, &nested),
            Ip::new(router(v6), at.far).error(kind, code, 0, &known),
            Ip::new(router(v6), at.node).error(kind, code, 0, &known[..if v6 { 44 } else { 24 }]),
        ] {
            rig.arrives(&packet).left(&packet);
        }
        let last = Ip::new(router(v6), at.node).ttl(1).error(kind, code, 0, &known);
        rig.arrives(&last).left(&last);
        let good = Ip::new(router(v6), at.node).error(kind, code, 0, &known);
        rig.arrives(&good).translated();
    }
    assert_eq!((rig.count(Counter::Errors), rig.fallbacks(Reason::Ttl)), (2, 2));
}
