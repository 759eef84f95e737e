// SPDX-License-Identifier: GPL-2.0-or-later

//! The commands that switch UDP GRO forwarding on or off, and those that show it.

use cni_kernel::ethtool::{self, Switch, UDP_GRO_FORWARDING};
use serde_json::{Value, json};
use slipway_tests::{BridgeNetfilter, PROGRAMS, UDP_GRO, has_programs, has_udp_gro, needs};

use crate::world::World;

fn state(world: &World) -> Switch {
    let link = world.client.node_link.clone();
    world.node.run(|| ethtool::feature(&link, UDP_GRO_FORWARDING)).expect("the feature")
}

fn settings(world: &World, value: &Value) {
    world.node.write("/etc/cni/slipway.json", value.to_string());
}

fn finding(world: &World) -> Option<Value> {
    let output = world
        .node
        .try_cmd(&format!("{} check-node --output json", slipway_tests::quoted(slipway_tests::slipway())));
    let report: Value = serde_json::from_str(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("findings");
    findings.iter().find(|one| one["subject"] == "UDP GRO forwarding").cloned()
}

#[test]
fn the_setting_is_applied_shown_and_undone() {
    needs!(has_programs(), PROGRAMS);
    needs!(has_udp_gro(), UDP_GRO);
    let world = World::new(BridgeNetfilter::Off);
    let link = world.client.node_link.clone();
    let shown = |state: &str| json!([{"interface": &link, "state": state, "reason": ""}]);
    assert_eq!((state(&world), &world.node.programs()["udp_gro_forwarding"]), (Switch::On, &shown("on")));
    assert_eq!(finding(&world).expect("a finding")["state"], "ok");

    let text = world.node.slipway("node teardown");
    assert!(text.contains(&format!("udp gro     {link}: off")), "{text}");
    assert_eq!((state(&world), &world.node.programs()["udp_gro_forwarding"]), (Switch::Off, &shown("off")));
    assert_eq!(finding(&world).expect("a finding")["state"], "warning");

    // Without the key, the feature is left to the administrator.
    settings(&world, &json!({}));
    world.node.slipway("node setup");
    assert_eq!((state(&world), finding(&world)), (Switch::Off, None));
    world.node.set_feature(&link, UDP_GRO_FORWARDING, Switch::On);
    world.node.slipway("node teardown");
    world.node.slipway("node setup");
    assert_eq!(state(&world), Switch::On);

    settings(&world, &json!({"udpGroForwarding": false}));
    world.node.slipway("node setup");
    assert_eq!(state(&world), Switch::Off);
}

#[test]
fn uninstall_switches_it_off() {
    const DIR: &str = "/run/cni-bin";
    needs!(has_programs(), PROGRAMS);
    needs!(has_udp_gro(), UDP_GRO);
    let world = World::new(BridgeNetfilter::Off);
    world.node.slipway(&format!("install --to {DIR}"));
    let planned = world.node.slipway(&format!("uninstall --to {DIR} --dry-run"));
    assert!(planned.contains("reset   UDP GRO forwarding at the uplinks"), "{planned}");
    assert_eq!(state(&world), Switch::On);
    world.node.slipway(&format!("uninstall --to {DIR}"));
    assert_eq!(state(&world), Switch::Off);
}
