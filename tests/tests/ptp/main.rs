//! The ptp plugin: every key, what it leaves alone, what it takes back.
//!
//! IPAM is host-local, but for what only another one can answer.

mod add;
mod check;
mod keys;
mod remove;

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Pod};

/// A network of the ptp plugin alone, with host-local of 10.1.2.0/24, with `keys` on top.
fn network<'a>(node: &'a Node, keys: &Value) -> Network<'a> {
    node.network(json!({"name": "net", "plugins": [plugin(keys)]}))
}

fn plugin(keys: &Value) -> Value {
    let mut plugin = json!({"type": "ptp", "ipam": ipv4()});
    plugin.as_object_mut().expect("an object").extend(keys.as_object().expect("an object").clone());
    plugin
}

fn ipv4() -> Value {
    json!({"type": "host-local", "subnet": "10.1.2.0/24", "routes": [{"dst": "0.0.0.0/0"}]})
}

/// host-local of both families.
fn dual_stack() -> Value {
    json!({
        "type": "host-local",
        "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    })
}

/// Attaches the pod and returns the result.
#[track_caller]
fn add(network: &Network<'_>, pod: &Pod) -> Value {
    network.add(&Attach::new(pod)).expect("ADD")
}

/// Name of the host's end in a result.
fn outer(result: &Value) -> String {
    result["interfaces"][0]["name"].as_str().expect("a name").to_owned()
}

/// The address of the pod in a result, without its prefix.
fn address(result: &Value, index: usize) -> std::net::IpAddr {
    let net = result["ips"][index]["address"].as_str().expect("an address");
    net.split('/').next().expect("an address").parse().expect("an IP address")
}
