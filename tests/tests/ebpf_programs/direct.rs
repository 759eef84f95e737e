// SPDX-License-Identifier: GPL-2.0-or-later

//! Connections to a pod's own address, without and with concurrent ones to its published port.

use slipway_ebpf_abi::{Counter, Reason};

use crate::bed::{HOST_PORT, POD_PORT};
use crate::rig;
use crate::wire::{ACK, Ip, SYN};

const CLIENT_PORT: u16 = 40000;

#[test]
fn replies_to_packets_sent_to_the_pods_address_are_not_masqueraded() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let packet = Ip::new(at.client, at.pod).udp((CLIENT_PORT, POD_PORT), b"?");
        rig.arrives(&packet).left(&packet);
        let reply = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"!");
        rig.sends(&reply).left(&reply);
        assert_eq!(rig.flow_elements(v6), (0, 2));
        // A flow that the pod begins is masqueraded.
        let own = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT + 1), b"!");
        assert_eq!(rig.sends(&own).translated().source, at.node);
    }
    assert_eq!(rig.fallbacks(Reason::Direct), 2);
}

#[test]
fn a_direct_and_a_published_connection_from_the_same_client_port_are_kept_apart() {
    for direct_first in [true, false] {
        let rig = rig!();
        for v6 in [false, true] {
            let at = rig.addresses(v6);
            let direct = Ip::new(at.client, at.pod);
            let published = Ip::new(at.client, at.node);
            let first = direct.tcp((CLIENT_PORT, POD_PORT), SYN);
            let second = published.tcp((CLIENT_PORT, HOST_PORT), SYN);
            if direct_first {
                rig.arrives(&first).left(&first);
                let seen = rig.arrives(&second).translated();
                let (from, port, to, pod_port) = seen.ends();
                assert_eq!((from, to, pod_port), (at.client, at.pod, POD_PORT));
                assert_ne!(port, CLIENT_PORT, "the pod has another connection from this address and port");
                assert!(port >= 1024);
                // Each reply takes the path of its request.
                let reply = Ip::new(at.pod, at.client).tcp((POD_PORT, CLIENT_PORT), SYN | ACK);
                rig.sends(&reply).left(&reply);
                let reply = Ip::new(at.pod, at.client).tcp((POD_PORT, port), SYN | ACK);
                let seen = rig.sends(&reply).translated();
                assert_eq!(seen.ends(), (at.node, HOST_PORT, at.client, CLIENT_PORT));
                let more = published.tcp((CLIENT_PORT, HOST_PORT), ACK);
                assert_eq!(rig.arrives(&more).translated().ports, (port, POD_PORT));
            } else {
                let seen = rig.arrives(&second).translated();
                assert_eq!(seen.ends(), (at.client, CLIENT_PORT, at.pod, POD_PORT));
                let seen = rig.arrives(&first).translated();
                let port = seen.ports.0;
                assert_ne!(port, CLIENT_PORT, "the pod has another connection from this address and port");
                let reply = Ip::new(at.pod, at.client).tcp((POD_PORT, port), SYN | ACK);
                let seen = rig.sends(&reply).translated();
                assert_eq!(seen.ends(), (at.pod, POD_PORT, at.client, CLIENT_PORT));
                let reply = Ip::new(at.pod, at.client).tcp((POD_PORT, CLIENT_PORT), SYN | ACK);
                let seen = rig.sends(&reply).translated();
                assert_eq!(seen.ends(), (at.node, HOST_PORT, at.client, CLIENT_PORT));
            }
        }
        assert_eq!(rig.count(Counter::PortChanged), 2);
    }
}
