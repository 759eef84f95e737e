// SPDX-License-Identifier: GPL-2.0-or-later

//! The timeouts of UDP flows and echoes, and the conditions for an established flow.

use std::time::Duration;

use slipway_ebpf_abi::{self as abi, Counter, State};

use crate::bed::{HOST_PORT, POD_PORT, Rig, Sizes};
use crate::rig;
use crate::wire::Ip;

const CLIENT_PORT: u16 = 40000;

/// The states of all map elements.
fn states(rig: &mut Rig) -> Vec<Option<State>> {
    let mut all = rig.flows4(abi::maps::FLOWS4);
    all.extend(rig.flows4(abi::maps::HALF_OPEN4));
    all.into_values().map(|flow| State::from_number(flow.state)).collect()
}

/// As in conntrack: a UDP flow is a stream after two seconds with packets in both directions.
#[test]
fn a_request_and_its_reply_are_no_stream() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let request = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"?");
        let reply = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"!");
        for _ in 0..3 {
            rig.arrives(&request).translated();
            rig.sends(&reply).translated();
        }
        assert_eq!(rig.flow_elements(v6), (0, 2));
        std::thread::sleep(Duration::from_millis(3300));
        // A packet in the reply direction alone does not make it a stream.
        rig.sends(&reply).translated();
        assert_eq!(rig.flow_elements(v6), (0, 2));
        rig.arrives(&request).translated();
        assert_eq!(rig.flow_elements(v6), (2, 0));
        rig.age(100);
        rig.arrives(&request).translated();
        assert_eq!(rig.count(Counter::Established), 1 + u64::from(v6));
    }
    rig.forget_flows();
    // The flow times out 30 seconds after the reply, and so does a flow without one.
    let at = rig.addresses(false);
    let request = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"?");
    let reply = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"!");
    rig.arrives(&request).translated();
    assert_eq!(states(&mut rig), [Some(State::Unreplied); 2]);
    rig.sends(&reply).translated();
    rig.age(32);
    assert_eq!(rig.sends(&reply).translated().source, at.node);
    assert_eq!(rig.count(Counter::Masqueraded), 1);
}

/// A flood of requests that all get replies takes no space in the map of established flows.
#[test]
fn requests_and_replies_evict_no_established_flow() {
    let mut rig = rig!(Sizes { flows: Some(1024), half_open: Some(1024) });
    let at = rig.addresses(false);
    for port in 1024..4000 {
        rig.arrives(&Ip::new(at.client, at.node).udp((port, HOST_PORT), b"?")).translated();
        rig.sends(&Ip::new(at.pod, at.client).udp((POD_PORT, port), b"!")).translated();
        let id = rig.sends(&Ip::new(at.pod, at.far).echo(true, port)).translated().ports.0;
        rig.arrives(&Ip::new(at.far, at.node).echo(false, id)).translated();
    }
    assert_eq!(rig.flow_elements(false).0, 0);
}
