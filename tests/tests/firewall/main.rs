// SPDX-License-Identifier: GPL-2.0-or-later

//! The firewall plugin after bridge, with each of its backends: iptables, nftables and firewalld.

mod bus;
mod firewalld;
mod iptables;
mod isolation;
mod nftables;
mod published;
mod races;
mod reference;
mod without;

use serde_json::{Value, json};
use slipway_tests::{Network, Node, host_local, is_peer, with_keys};

/// Returns a network with the bridge of this number and with firewall.
fn network<'a>(node: &'a Node, number: u8, keys: &Value) -> Network<'a> {
    let firewall = with_keys(json!({"type": "firewall"}), keys);
    let ipam = host_local(format!("10.1.{number}.0/24"), format!("fd00:{number}::/64"));
    let bridge = json!({"type": "bridge", "bridge": format!("br{number}"), "isGateway": true, "ipam": ipam});
    node.network(json!({"name": format!("net{number}"), "plugins": [bridge, firewall]}))
}

/// Returns a family's filter table without counters.
fn filter(node: &Node, program: &str) -> String {
    let text = node.cmd(&format!("{program} -t filter"));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| format!("{}\n", line.split(" [").next().unwrap_or_default())).collect()
}

/// Returns the map of recorded attachments, or an empty text without a table.
fn recorded(node: &Node) -> String {
    node.try_cmd("nft list map inet slipway-firewall attachments").stdout
}

#[test]
fn errors_name_the_cause() {
    let (node, pod, attach) = Node::with_attachment();
    let none = network(&node, 1, &json!({"backend": "iptables"}));
    for verb in ["ADD", "CHECK"] {
        let error = none.call_one(1, verb, &attach, &Value::Null).error();
        assert_eq!(error.msg, "missing prevResult from earlier plugin");
    }
    let previous = none.add_first(&attach);
    let unknown = network(&node, 1, &json!({"backend": "iptables", "ingressPolicy": "x"}));
    let error = unknown.call_one(1, "ADD", &attach, &previous).error();
    assert_eq!(error.msg, "unknown ingress policy: \"x\"");
    if !is_peer() {
        assert_eq!(error.code, 7);
        assert!(!filter(&node, "iptables-save").contains("CNI-"), "a refused ADD left chains");
        let policy = network(&node, 1, &json!({"backend": "nftables", "ingressPolicy": "isolated"}));
        // A result of macvlan names only the container's link. A link on the node with the same name is a different
        // one.
        let inside = json!([{"name": "eth0", "sandbox": pod.path()}]);
        for interfaces in [Value::Null, inside] {
            let mut given = json!({"cniVersion": "1.1.0", "ips": previous["ips"]});
            if !interfaces.is_null() {
                given["interfaces"] = interfaces;
            }
            let error = policy.call_one(1, "ADD", &attach, &given).error();
            assert_eq!(error.msg, "ingressPolicy: prevResult has no bridge to isolate");
            assert_eq!(error.code, 7);
            policy.call_one(1, "DEL", &attach, &given).ok();
        }
    }
}
