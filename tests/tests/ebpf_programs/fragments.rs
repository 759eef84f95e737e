// SPDX-License-Identifier: GPL-2.0-or-later

//! IP fragments: only the first has the ports, and all are translated alike.

use slipway_ebpf_abi::Reason;

use crate::bed::{HOST_PORT, Made, POD_PORT, Verdict};
use crate::rig;
use crate::wire::{self, Ip, UDP};

const CLIENT_PORT: u16 = 40000;

/// A datagram, and its three fragments.
fn fragments(ip: &Ip, ports: (u16, u16), id: u32) -> (Vec<u8>, Vec<Vec<u8>>) {
    let payload: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let whole = ip.datagram(ports, &payload);
    let cuts = [(0, 400), (400, 800), (800, whole.len())];
    let packets = cuts
        .iter()
        .map(|&(from, to)| {
            let mut ip = ip.clone().may_fragment();
            ip.fragment = Some((id, u16::try_from(from).unwrap(), to != whole.len()));
            ip.packet(UDP, &whole[from..to])
        })
        .collect();
    (whole, packets)
}

/// Reassembles the fragments. Returns the first packet, and the whole content.
#[track_caller]
fn reassembled(made: &[Made]) -> (Vec<u8>, Vec<u8>) {
    let mut whole = Vec::new();
    for one in made {
        assert_eq!(one.verdict, Verdict::Redirect);
        assert_eq!(wire::addresses(&one.packet), wire::addresses(&made[0].packet));
        whole.extend(wire::content(&one.packet));
    }
    (made[0].packet.clone(), whole)
}

#[test]
fn fragments_are_translated_in_both_directions() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let (sent, packets) = fragments(&Ip::new(at.client, at.node), (CLIENT_PORT, HOST_PORT), 77);
        let made: Vec<Made> = packets.iter().map(|packet| rig.arrives(packet)).collect();
        let (first, whole) = reassembled(&made);
        assert_eq!(wire::addresses(&first), (at.client, at.pod));
        wire::assert_sum(&first, &whole);
        assert_eq!(whole[..4], [CLIENT_PORT.to_be_bytes(), POD_PORT.to_be_bytes()].concat());
        assert_eq!(whole[8..], sent[8..]);

        let (sent, packets) = fragments(&Ip::new(at.pod, at.client), (POD_PORT, CLIENT_PORT), 78);
        let made: Vec<Made> = packets.iter().map(|packet| rig.sends(packet)).collect();
        let (first, whole) = reassembled(&made);
        assert_eq!(wire::addresses(&first), (at.node, at.client));
        wire::assert_sum(&first, &whole);
        assert_eq!(whole[..4], [HOST_PORT.to_be_bytes(), CLIENT_PORT.to_be_bytes()].concat());
        assert_eq!(whole[8..], sent[8..]);
    }
}

#[test]
fn fragments_of_masqueraded_flows_are_translated() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let (_, packets) = fragments(&Ip::new(at.pod, at.far), (5555, 53), 5);
        let made: Vec<Made> = packets.iter().map(|packet| rig.sends(packet)).collect();
        let (first, whole) = reassembled(&made);
        assert_eq!(wire::addresses(&first), (at.node, at.far));
        wire::assert_sum(&first, &whole);
        let port = u16::from_be_bytes([whole[0], whole[1]]);
        let (_, packets) = fragments(&Ip::new(at.far, at.node), (53, port), 6);
        let made: Vec<Made> = packets.iter().map(|packet| rig.arrives(packet)).collect();
        let (first, whole) = reassembled(&made);
        assert_eq!(wire::addresses(&first), (at.far, at.pod));
        wire::assert_sum(&first, &whole);
    }
}

#[test]
fn a_fragment_without_its_first_is_left_alone() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let (_, packets) = fragments(&Ip::new(at.client, at.node), (CLIENT_PORT, HOST_PORT), 90);
        rig.arrives(&packets[1]).left(&packets[1]);
        rig.arrives(&packets[0]).translated();
        // A fragment of another packet, and one with the same identification on another interface.
        let (_, others) = fragments(&Ip::new(at.client, at.node), (CLIENT_PORT, HOST_PORT), 91);
        rig.arrives(&others[1]).left(&others[1]);
        rig.sends(&packets[1]).left(&packets[1]);
        assert_eq!(rig.arrives(&packets[2]).verdict, Verdict::Redirect);
    }
    assert_eq!(rig.fallbacks(Reason::Fragment), 6);
}

#[test]
fn a_packet_with_an_atomic_fragment_header_is_translated() {
    let rig = rig!();
    let at = rig.addresses(true);
    let mut ip = Ip::new(at.client, at.node);
    ip.fragment = Some((7, 0, false));
    let seen = rig.arrives(&ip.udp((CLIENT_PORT, HOST_PORT), b"atomic")).translated();
    assert_eq!(
        (seen.ends(), &seen.payload[..]),
        ((at.client, CLIENT_PORT, at.pod, POD_PORT), &b"atomic"[..])
    );
}
