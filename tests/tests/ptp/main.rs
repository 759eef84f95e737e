// SPDX-License-Identifier: GPL-2.0-or-later

//! The ptp plugin: every key, and DEL. IPAM is host-local, except for results that only other plugins return.

mod add;
mod check;
mod keys;
#[path = "../pair/mod.rs"]
mod pair;
mod remove;

use serde_json::{Value, json};
use slipway_tests::{host_local, with_keys};

/// The index of the node's end in a result.
const OUTER: usize = 0;
/// The beginning of CHECK's errors.
const PREFIX: &str = "ptp: ";

/// Links that all containers of a network share.
const NODE_LINKS: &[&str] = &[];
/// The error of a second ADD.
const TAKEN: &str = "already exists";

/// The keys that leave objects on the node.
fn all() -> Value {
    json!({"ipMasq": true})
}

/// The keys that give containers a route to other hosts.
fn leading() -> Value {
    json!({})
}

/// The keys of another network on the same node.
fn other_keys() -> Value {
    all()
}

/// The plugin with host-local for 10.1.2.0/24 and the additional keys `keys`.
fn plugin(keys: &Value) -> Value {
    let plugin = json!({"type": "ptp", "ipam": ipv4()});
    with_keys(plugin, keys)
}

/// Keys that only ptp refuses.
fn refused() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"ipMasq": 1}), "ipMasq"),
        (json!({"dns": []}), "dns"),
        (json!({"ipam": "host-local"}), "ipam"),
    ]
}

fn ipv4() -> Value {
    json!({"type": "host-local", "subnet": "10.1.2.0/24", "routes": [{"dst": "0.0.0.0/0"}]})
}

/// A host-local configuration with both families.
fn dual_stack() -> Value {
    host_local("10.1.2.0/24", "fd00:1::/64")
}
