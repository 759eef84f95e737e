// SPDX-License-Identifier: GPL-2.0-or-later

//! The node's address or the uplink changes under a masqueraded flow.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;
use slipway_tests::{Attach, Host, PROGRAMS, Proto, at, has_programs, needs, patience};

use crate::Stage;

const FAR: u16 = 7000;

/// The programs look up a flow's route again after this time at the latest.
const REMEMBERED: Duration = Duration::from_millis(1200);

/// A UDP flow from one socket, such as a tunnel's, is masqueraded with the node's current address: by the BPF
/// programs after a set-up has recorded it, by nftables before that.
#[test]
fn a_flow_continues_with_the_nodes_new_address() {
    needs!(has_programs(), PROGRAMS);
    for set_up in [true, false] {
        let stage = Stage::new();
        let (node, client) = (&stage.node, &stage.client);
        let pod = node.pod("web");
        stage.network().add(&Attach::new(&pod)).expect("ADD");
        let fresh: [IpAddr; 2] = ["192.0.2.77".parse().expect("v4"), "2001:db8::77".parse().expect("v6")];
        let far = [IpAddr::from(client.v4), IpAddr::from(client.v6)];
        let old = [IpAddr::from(client.node_v4), IpAddr::from(client.node_v6)];
        let _servers = far.map(|far| client.serve(Proto::Udp, &at(far, FAR).to_string(), "far"));
        let mut flows =
            far.map(|far| pod.dial(Proto::Udp, None, at(far, FAR), patience()).expect("a socket"));
        for (flow, old) in flows.iter_mut().zip(old) {
            assert_eq!(flow.request().expect("an answer").peer.ip(), old);
        }
        for ((old, fresh), length) in old.iter().zip(fresh).zip([24, 64]) {
            node.cmd(&format!("ip address del {old}/{length} dev {}", client.node_link));
            node.cmd(&format!("ip address add {fresh}/{length} dev {} nodad", client.node_link));
        }
        if set_up {
            node.slipway("node setup");
        }
        std::thread::sleep(REMEMBERED);
        for (flow, fresh) in flows.iter_mut().zip(fresh) {
            let answer = flow.request().unwrap_or_else(|e| panic!("set up: {set_up}: {fresh}: {e}"));
            assert_eq!(answer.peer.ip(), fresh, "set up: {set_up}");
        }
        let masqueraded = &node.programs()["counters"]["masqueraded_flows"];
        assert_eq!(*masqueraded, Value::from(if set_up { 4 } else { 2 }), "set up: {set_up}");
    }
}

/// The route now leads to another uplink: the flow is masqueraded with that uplink's address, to which
/// replies come back.
#[test]
fn a_flow_continues_through_another_uplink() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let (node, one) = (&stage.node, &stage.client);
    let other = node.host("other");
    let far: IpAddr = "10.99.0.1".parse().expect("an address");
    for host in [one, &other] {
        host.cmd(&format!("ip address add {far}/32 dev lo"));
    }
    let by = |host: &Host| node.cmd(&format!("ip route replace {far}/32 via {}", host.v4));
    by(one);
    let pod = node.pod("web");
    stage.network().add(&Attach::new(&pod)).expect("ADD");
    let _servers = [one, &other].map(|host| host.serve(Proto::Udp, &at(far, FAR).to_string(), host.name()));
    let mut flow = pod.dial(Proto::Udp, None, at(far, FAR), patience()).expect("a socket");
    assert_eq!(flow.request().expect("an answer").peer.ip(), IpAddr::from(one.node_v4));
    // The node keeps both addresses.
    by(&other);
    std::thread::sleep(REMEMBERED);
    let answer = flow.request().expect("an answer through the other uplink");
    assert_eq!(answer.peer.ip(), IpAddr::from(other.node_v4));
    assert_eq!(node.programs()["counters"]["masqueraded_flows"], 2);
    // A second address on the same uplink does not change the flow.
    node.cmd(&format!("ip address add 203.0.113.200/24 dev {}", other.node_link));
    node.slipway("node setup");
    std::thread::sleep(REMEMBERED);
    assert_eq!(flow.request().expect("an answer").peer, answer.peer);
}
