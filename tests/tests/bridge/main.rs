//! The bridge plugin: every key, what it leaves alone, what it takes back.
//!
//! IPAM is host-local. VLANs need a kernel that filters by them; the tests about them say so where
//! it does not.

mod add;
mod check;
mod keys;
#[path = "../pair/mod.rs"]
mod pair;
mod vlan;

use serde_json::{Value, json};

/// Where the host's end is in a result.
const OUTER: usize = 1;
/// What errors of CHECK begin with.
const PREFIX: &str = "";

/// The keys that leave something on the node.
fn all() -> Value {
    json!({"isGateway": true, "ipMasq": true, "macspoofchk": true})
}

/// Those that give containers a way out.
fn leading() -> Value {
    json!({"isDefaultGateway": true})
}

/// Those of another network on the same node.
fn other_keys() -> Value {
    json!({"bridge": "br1"})
}

/// The plugin with `br0` and host-local of 10.1.2.0/24, with `keys` on top.
fn plugin(keys: &Value) -> Value {
    let plugin = json!({
        "type": "bridge", "bridge": "br0",
        "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"},
    });
    pair::with(plugin, keys.clone())
}

/// host-local of both families.
fn dual_stack() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]]})
}
