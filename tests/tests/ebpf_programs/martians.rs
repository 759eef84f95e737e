// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets with an invalid source address: left to the kernel's stack unchanged, which drops them.

use std::net::IpAddr;

use slipway_ebpf_abi::{Counter, Reason};

use crate::bed::{HOST_PORT, POD_PORT};
use crate::rig;
use crate::wire::{Ip, SYN};

const CLIENT_PORT: u16 = 40000;

fn martians(v6: bool) -> Vec<IpAddr> {
    let all: &[&str] = if v6 {
        &["::", "::1", "::ffff:192.0.2.9", "fe80::9", "ff02::1", "ff0e::9"]
    } else {
        &["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "239.255.255.255", "255.255.255.255"]
    };
    all.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn no_martian_from_outside_begins_a_flow() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for source in martians(v6) {
            for (destination, port) in [(at.node, HOST_PORT), (at.pod, POD_PORT)] {
                let ip = Ip::new(source, destination);
                for packet in [ip.udp((CLIENT_PORT, port), b"?"), ip.tcp((CLIENT_PORT, port), SYN)] {
                    rig.arrives(&packet).left(&packet);
                }
            }
        }
        assert_eq!(rig.flow_elements(v6), (0, 0));
    }
    assert_eq!(rig.count(Counter::ToPodPackets), 0);
    assert!(rig.fallbacks(Reason::Route) > 0);
}

#[test]
fn no_martian_of_a_pod_begins_a_flow() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        for source in martians(v6) {
            let ip = Ip::new(source, at.far);
            for packet in [ip.udp((5555, 53), b"?"), ip.tcp((5555, 443), SYN), ip.echo(true, 5555)] {
                rig.sends(&packet).left(&packet);
            }
        }
        assert_eq!(rig.flow_elements(v6), (0, 0));
    }
    assert_eq!(rig.count(Counter::FromPodPackets), 0);
}

/// The quoted packet belongs to a flow; the error's own source is invalid.
#[test]
fn an_icmp_error_from_a_martian_is_left_alone() {
    let rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let asked = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"?");
        let asked = rig.arrives(&asked);
        asked.translated();
        let sent = rig.sends(&Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"an answer"));
        sent.translated();
        let (kind, code) = if v6 { (1, 4) } else { (3, 3) };
        for source in martians(v6) {
            let error = Ip::new(source, at.node).error(kind, code, 0, &sent.packet);
            rig.arrives(&error).left(&error);
            let error = Ip::new(source, at.client).error(kind, code, 0, &asked.packet);
            rig.sends(&error).left(&error);
        }
    }
    assert_eq!(rig.count(Counter::Errors), 0);
}
