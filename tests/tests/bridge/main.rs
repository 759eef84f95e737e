// SPDX-License-Identifier: GPL-2.0-or-later

//! The bridge plugin: its keys and results, CHECK, and what DEL removes.
//!
//! IPAM is host-local. Tests of VLANs are skipped on kernels without bridge VLAN filtering.

mod add;
mod check;
mod full;
mod keys;
mod neighbours;
#[path = "../pair/mod.rs"]
mod pair;
mod vlan;

use serde_json::{Value, json};
use slipway_tests::{host_local, with_keys};

/// Index of the host's end in a result.
const OUTER: usize = 1;
/// Prefix of CHECK's error messages.
const PREFIX: &str = "";

/// Links that all containers of a network share.
const NODE_LINKS: &[&str] = &["br0"];
/// The error of a second ADD.
const TAKEN: &str = "container veth name";

/// Keys that create objects on the node besides links.
fn all() -> Value {
    json!({"isGateway": true, "ipMasq": true, "macspoofchk": true})
}

/// Keys that give containers a default route.
fn leading() -> Value {
    json!({"isDefaultGateway": true})
}

/// Keys of another network on the same node.
fn other_keys() -> Value {
    json!({"bridge": "br1"})
}

/// Keys that only bridge has, or only bridge refuses.
fn refused() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"vlan": 4095}), "4095"),
        (json!({"vlanTrunk": [{"minID": 5}]}), "maxID is missing"),
        (json!({"hairpinMode": true, "promiscMode": true}), "at the same time"),
        (json!({"bridge": "a/b"}), "a/b"),
        (json!({"bridge": "a-name-that-is-too-long"}), "a-name-that-is-too-long"),
        (json!({"isGateway": 1}), "isGateway"),
        (json!({"args": {"cni": {"mac": "no"}}}), "no"),
        (json!({"disableContainerInterface": true}), "DisableContainerInterface"),
    ]
}

/// Returns the plugin with `br0` and host-local of 10.1.2.0/24, with `keys` added.
fn plugin(keys: &Value) -> Value {
    let plugin = json!({
        "type": "bridge", "bridge": "br0",
        "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"},
    });
    with_keys(plugin, keys)
}

/// A host-local configuration with a range of each family that the kernel has.
fn dual_stack() -> Value {
    let mut ipam = host_local("10.1.2.0/24", "fd00:1::/64");
    ipam.as_object_mut().expect("an object").remove("routes");
    ipam
}
