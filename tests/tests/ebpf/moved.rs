// SPDX-License-Identifier: GPL-2.0-or-later

//! The uplink of a carried flow changes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use slipway_tests::{Attach, Host, PROGRAMS, Proto, QUICK, at, has_programs, needs, within};

use crate::{FAR, Stage};

/// A changed route applies to a carried flow at the latest after this time.
const REMEMBERED: Duration = Duration::from_secs(3);

/// The route now leads to another uplink. As with nftables, conntrack forgets the flow, and the next packet gets the
/// address of the new uplink, to which replies return.
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
    let mut flow = pod.dial(Proto::Udp, None, at(far, FAR), QUICK).expect("a socket");
    for _ in 0..20 {
        let answer = flow.request().expect("a reply");
        assert_eq!(answer.peer.ip(), IpAddr::from(one.node_v4));
    }
    let carried = stage.carried();
    assert!(carried > 20, "{}", node.programs());
    // The node keeps both addresses.
    by(&other);
    let begun = Instant::now();
    loop {
        match flow.request() {
            Ok(answer) if answer.who == other.name() => {
                assert_eq!(answer.peer.ip(), IpAddr::from(other.node_v4));
                break;
            }
            _ => assert!(begun.elapsed() < within(REMEMBERED), "the flow stays at the former uplink"),
        }
    }
    for _ in 0..20 {
        assert_eq!(flow.request().expect("a reply").peer.ip(), IpAddr::from(other.node_v4));
    }
    assert!(stage.carried() > carried + 20, "{}", node.programs());
}
