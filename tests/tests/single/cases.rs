// SPDX-License-Identifier: GPL-2.0-or-later

//! The differences between the plugins that make a single link, as tables.

use serde_json::{Value, json};

/// Where a result's `dns` comes from, as with the reference plugins: the plugin, whether the configuration has a `dns`
/// beside that of IPAM, and which of them is printed.
pub(super) const DNS: &[(&str, bool, &str)] = &[
    ("dummy", true, "IPAM's"),
    ("dummy", false, "IPAM's"),
    ("ipvlan", true, "own"),
    ("ipvlan", false, "none"),
    ("macvlan", true, "own"),
    ("macvlan", false, "none"),
    ("tap", true, "own"),
    ("vlan", true, "own"),
];

/// Keys that ADD refuses, with the error's code and words of its message.
pub(super) fn refused(plugin: &str) -> Vec<(Value, u32, &'static str)> {
    let master = "\"master\" field is required. It specifies the host interface name to create the VLAN for";
    let no_ipam = "failed to execute IPAM delegate: no plugin name provided";
    let rows = [
        ("dummy", json!({"ipam": {}}), 7, "dummy interface requires an IPAM configuration"),
        ("ipvlan", json!({"mode": "l4"}), 7, "unknown ipvlan mode: \"l4\""),
        ("ipvlan", json!({"mtu": -1}), 7, "invalid MTU -1"),
        ("ipvlan", json!({"master": "a/b"}), 7, "key \"master\""),
        ("ipvlan", json!({"master": "absent"}), 999, "failed to lookup master \"absent\""),
        ("ipvlan", json!({"ipam": {}}), 7, "no plugin name provided"),
        ("macvlan", json!({"mode": "x"}), 7, "unknown macvlan mode: \"x\""),
        ("macvlan", json!({"mtu": "x"}), 7, "mtu"),
        ("macvlan", json!({"master": "a/b"}), 7, "key \"master\""),
        ("macvlan", json!({"master": "absent"}), 999, "failed to lookup master \"absent\""),
        ("macvlan", json!({"mac": "01:00:5e:00:00:01"}), 7, "01:00:5e:00:00:01"),
        ("macvlan", json!({"bcqueuelen": -1}), 7, "bcqueuelen"),
        ("macvlan", json!({"linkInContainer": 1}), 7, "linkInContainer"),
        ("tap", json!({"multiQueue": "yes"}), 7, "multiQueue"),
        ("tap", json!({"owner": -1}), 7, "owner"),
        ("tap", json!({"group": 4_294_967_296_u64}), 7, "group"),
        ("tap", json!({"mtu": 67}), 7, "invalid MTU 67"),
        ("tap", json!({"mac": "02:zz"}), 7, "invalid args 02:zz for MAC addr"),
        ("tap", json!({"bridge": "a/b"}), 7, "key \"bridge\""),
        ("vlan", json!({"master": ""}), 7, master),
        ("vlan", json!({"ipam": {}}), 7, no_ipam),
        ("vlan", json!({"mtu": "x"}), 7, "mtu"),
        ("vlan", json!({"vlanId": "x"}), 7, "vlanId"),
        ("vlan", json!({"master": "absent"}), 999, "failed to lookup master \"absent\": Link not found"),
    ];
    let of_plugin = rows.into_iter().filter(|(name, ..)| *name == plugin);
    of_plugin.map(|(_, keys, code, part)| (keys, code, part)).collect()
}
