// SPDX-License-Identifier: GPL-2.0-or-later

//! Each interface plugin followed by firewall, with each of firewall's backends.

use serde_json::{Value, json};
use slipway_tests::{Attach, lacks};

use crate::world::{Chain, World};

fn add_check_and_del(backend: &str) {
    let Some(world) = World::of(Chain::Routed) else { return };
    for interface in ["bridge", "dummy", "host-device", "ipvlan", "macvlan", "ptp", "tap", "vlan"] {
        if lacks(interface).is_some() {
            // The plugins' own suites record the skip.
            eprintln!("without {interface}");
            continue;
        }
        let ipam = json!({
            "type": "host-local", "ranges": [[{"subnet": "10.95.1.0/24"}], [{"subnet": "fd00:95:1::/64"}]],
        });
        let plugin = json!({
            "type": interface, "master": "out0", "vlanId": 7, "device": "dev0", "bridge": "br7", "ipam": ipam,
        });
        let network = world.node.network(json!({
            "name": "pairs", "plugins": [without_bridge(plugin, interface), {"type": "firewall", "backend": backend}],
        }));
        world.node.cmd("ip link add dev0 type veth peer name wire0");
        let pod = world.pod("pod");
        let attach = Attach::new(&pod);
        let why = format!("{interface} with {backend}");
        let cycle = || {
            network.add(&attach).unwrap_or_else(|failure| panic!("{why}: ADD: {failure}"));
            network.check(&attach).unwrap_or_else(|failure| panic!("{why}: CHECK: {failure}"));
            network.del(&attach).unwrap_or_else(|failure| panic!("{why}: DEL: {failure}"));
        };
        cycle();
        let before = world.state(&[&pod]);
        cycle();
        let changes = before.changes(&world.state(&[&pod]));
        assert!(changes.is_empty(), "{why}: left:\n{}", changes.join("\n"));
        world.end(pod);
        world.node.cmd("ip link delete dev0");
    }
}

/// Removes the key `bridge`, unless it names the bridge plugin's bridge. In a tap configuration, the key would name a
/// bridge in the container.
fn without_bridge(mut plugin: Value, interface: &str) -> Value {
    if interface != "bridge" {
        plugin.as_object_mut().expect("an object").remove("bridge");
    }
    plugin
}

#[test]
fn every_interface_plugin_with_the_nftables_firewall() {
    add_check_and_del("nftables");
}

#[test]
fn every_interface_plugin_with_the_iptables_firewall() {
    add_check_and_del("iptables");
}
