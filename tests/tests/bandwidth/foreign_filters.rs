// SPDX-License-Identifier: GPL-2.0-or-later

//! Filters of other programs at the hook where the container's packets are redirected. As with the reference plugin, no
//! filter that is added after the ADD takes packets away from the limit.

use std::net::Ipv4Addr;

use serde_json::json;
use slipway_tests::{Attach, Fate, Node, fate_of_burst};

use super::{network, outer};

/// The limit in bits per second.
const RATE: u32 = 400_000;

#[test]
fn a_filter_of_another_program_does_not_lift_the_limit() {
    let node = Node::new();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let network = network(&node, &json!({"egressRate": RATE, "egressBurst": 24_224}));
    let result = network.add(&attach).expect("ADD");
    let veth = outer(&result);
    node.cmd("ip link add monitor type ifb");
    node.cmd("ip link set monitor up");
    let gateway = Ipv4Addr::new(10, 1, 2, 1);
    let fate = || fate_of_burst(&pod, &node, gateway.into(), RATE);
    assert_eq!(fate(), Fate::Limited);
    let mut refused = 0;
    for order in ["", "pref 1", "pref 2", "pref 49151"] {
        for protocol in ["ip", "all"] {
            // The usual action after mirroring a packet is `pipe`, after which the kernel runs no other filter.
            let filter = "u32 match u32 0 0 action mirred egress mirror dev monitor";
            let added = node
                .try_cmd(&format!("tc filter add dev {veth} ingress {order} protocol {protocol} {filter}"));
            refused += usize::from(added.code != Some(0));
            assert_eq!(fate(), Fate::Limited, "{order} {protocol}");
            network.check(&attach).expect("CHECK");
        }
    }
    // The kernel refuses a filter whose preference is used with another protocol.
    assert!(refused <= 3, "{refused} filters were refused");
    network.del(&attach).expect("DEL");
}

/// A filter with the first preference that existed before the ADD keeps its place, and CHECK reports it.
#[test]
fn a_filter_from_before_the_add_is_named() {
    slipway_tests::slipway_only!();
    let node = Node::new();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let network = network(&node, &json!({"egressRate": RATE, "egressBurst": 24_224}));
    let previous = network.add_first(&attach);
    let veth = outer(&previous);
    node.cmd("ip link add monitor type ifb");
    node.cmd("ip link set monitor up");
    node.cmd(&format!("tc qdisc add dev {veth} clsact"));
    let gateway = Ipv4Addr::new(10, 1, 2, 1);
    let fate = || fate_of_burst(&pod, &node, gateway.into(), RATE);
    for (protocol, matches, verdict, expected) in [
        ("ip", "0 0", "", Fate::Free),
        ("all", "0 0", "", Fate::Free),
        ("ip", "0 0", "continue", Fate::Limited),
        ("all", "0 0", "continue", Fate::Limited),
    ] {
        node.cmd(&format!(
            "tc filter add dev {veth} ingress pref 1 protocol {protocol} u32 match u32 {matches} action mirred \
             egress mirror dev monitor {verdict}"
        ));
        let result = network.call_one(1, "ADD", &attach, &previous).ok();
        assert_eq!(fate(), expected, "{protocol} {verdict}");
        let checked = network.call_one(1, "CHECK", &attach, &result);
        if expected == Fate::Free {
            let error = checked.error();
            assert!(error.msg.contains("decides before packets are redirected"), "{error:?}");
            // The command in the message repairs it.
            node.cmd(error.msg.split('`').nth(1).expect("a command"));
            assert_eq!(fate(), Fate::Limited, "{protocol} {verdict}");
            assert!(network.call_one(1, "CHECK", &attach, &result).ok().is_null());
        } else {
            assert!(checked.ok().is_null());
        }
        assert!(network.call_one(1, "DEL", &attach, &result).ok().is_null());
        node.cmd(&format!("tc filter del dev {veth} ingress"));
    }
    network.del(&attach).expect("DEL");
}
