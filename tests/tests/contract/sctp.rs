// SPDX-License-Identifier: GPL-2.0-or-later

//! SCTP, on kernels that support it.

use std::net::IpAddr;

use serde_json::json;
use slipway_tests::{Attach, BridgeNetfilter, SCTP, Snapshot, address_of, at, expect_sctp, has_sctp, needs};

use crate::world::{PORT, SERVED, World};

fn published(world: &World) -> (slipway_tests::Pod, Attach, IpAddr) {
    let network = world.network(1);
    let pod = world.node.pod("web");
    let attach =
        Attach::new(&pod).mapping(json!({"hostPort": PORT, "containerPort": SERVED, "protocol": "sctp"}));
    let result = network.add(&attach).expect("ADD");
    (pod, attach, address_of(&result, 0))
}

/// The ruleset contains the port; no packet is sent.
#[test]
fn the_port_is_in_the_ruleset() {
    let world = World::new(BridgeNetfilter::Off);
    let (pod, attach, ip) = published(&world);
    let network = world.network(1);
    let rules = world.node.ruleset();
    let line = rules.lines().find(|line| line.contains("sctp") && line.contains(&PORT.to_string()));
    assert!(line.is_some(), "{rules}");
    assert!(rules.contains(&format!("{ip}")), "{rules}");
    network.del(&attach).expect("DEL");
    let after = Snapshot::take(&world.node, &[&pod]);
    let left: Vec<_> =
        after.matching("nft element").into_iter().filter(|line| line.contains("sctp")).collect();
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn another_host_reaches_the_container() {
    needs!(has_sctp(), SCTP);
    let world = World::new(BridgeNetfilter::Off);
    let (pod, _attach, ip) = published(&world);
    expect_sctp(&world.client, at(world.client.node_v4, PORT), &pod, at(ip, SERVED));
}
