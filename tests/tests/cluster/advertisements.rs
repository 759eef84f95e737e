// SPDX-License-Identifier: GPL-2.0-or-later

//! A node whose default route comes from a router advertisement.

use std::time::Duration;

use slipway_tests::{Advertisement, until};
use slipwayd::cluster::desired::TunnelMode;

use crate::Lab;

/// The node has no pod, so it is the agent itself that switches forwarding on.
#[test]
fn the_agent_keeps_the_nodes_route() {
    let lab = Lab::new(1, TunnelMode::Never);
    let node = lab.node(1);
    node.sysctl("net/ipv6/conf/all/forwarding", "0");
    let router = node.host("router");
    // A neighbour whose advertisement lacks the router flag does not count as a router any more (RFC 4861, section
    // 7.2.5), so the router has to forward.
    router.sysctl("net/ipv6/conf/all/forwarding", "1");
    let has_route = || node.cmd("ip -6 route show default dev out0 proto ra").contains("default");
    until(Duration::from_secs(10), "the node learns the route", || {
        Advertisement::of_router(1800).send(&router, "eth0");
        has_route()
    });
    assert_eq!(node.sysctl_get("net/ipv6/conf/all/forwarding").as_deref(), Some("0"));
    let report = lab.compare(1, true);
    assert!(report.is_ready, "{:?}", report.troubles().collect::<Vec<_>>());
    let change = "set accept_ra of out0 to 2, so that it keeps its routes from advertisements";
    assert!(report.changes.iter().any(|done| done == change), "{:?}", report.changes);
    assert_eq!(node.sysctl_get("net/ipv6/conf/all/forwarding").as_deref(), Some("1"));
    assert_eq!(node.sysctl_get("net/ipv6/conf/out0/accept_ra").as_deref(), Some("2"));
    assert!(has_route(), "the default route is gone");
}
