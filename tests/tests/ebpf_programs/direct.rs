//! A pod that is reached at its own address, alone and together with its published port.

use slipway_ebpf_abi::{Counter, Reason};

use crate::bed::{HOST_PORT, POD_PORT};
use crate::rig;
use crate::wire::{ACK, Ip, SYN};

const CLIENT_PORT: u16 = 40000;

#[test]
fn answers_to_what_reached_the_pod_directly_are_not_masqueraded() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let packet = Ip::new(at.client, at.pod).udp((CLIENT_PORT, POD_PORT), b"?");
        rig.arrives(&packet).left(&packet);
        let answer = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"!");
        rig.sends(&answer).left(&answer);
        assert_eq!(rig.halves(v6), (0, 2));
        // Another conversation of the pod's own is.
        let own = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT + 1), b"!");
        assert_eq!(rig.sends(&own).translated().source, at.node);
    }
    assert_eq!(rig.fallbacks(Reason::Direct), 2);
}

#[test]
fn both_ways_at_once_from_the_same_port_are_kept_apart() {
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
                assert_ne!(port, CLIENT_PORT, "the pod has a connection from there");
                assert!(port >= 1024);
                // Each answer goes back the way that its question came.
                let answer = Ip::new(at.pod, at.client).tcp((POD_PORT, CLIENT_PORT), SYN | ACK);
                rig.sends(&answer).left(&answer);
                let answer = Ip::new(at.pod, at.client).tcp((POD_PORT, port), SYN | ACK);
                let seen = rig.sends(&answer).translated();
                assert_eq!(seen.ends(), (at.node, HOST_PORT, at.client, CLIENT_PORT));
                let more = published.tcp((CLIENT_PORT, HOST_PORT), ACK);
                assert_eq!(rig.arrives(&more).translated().ports, (port, POD_PORT));
            } else {
                let seen = rig.arrives(&second).translated();
                assert_eq!(seen.ends(), (at.client, CLIENT_PORT, at.pod, POD_PORT));
                let seen = rig.arrives(&first).translated();
                let port = seen.ports.0;
                assert_ne!(port, CLIENT_PORT, "the pod has a connection from there");
                let answer = Ip::new(at.pod, at.client).tcp((POD_PORT, port), SYN | ACK);
                let seen = rig.sends(&answer).translated();
                assert_eq!(seen.ends(), (at.pod, POD_PORT, at.client, CLIENT_PORT));
                let answer = Ip::new(at.pod, at.client).tcp((POD_PORT, CLIENT_PORT), SYN | ACK);
                let seen = rig.sends(&answer).translated();
                assert_eq!(seen.ends(), (at.node, HOST_PORT, at.client, CLIENT_PORT));
            }
        }
        assert_eq!(rig.count(Counter::PortChanged), 2);
    }
}
