// SPDX-License-Identifier: GPL-2.0-or-later

//! DEL of objects that another plugin has made.

use serde_json::json;
use slipway_tests::{Attach, Node, peer_fails};

use super::pair::network;

/// At the time of the container's ADD, the network used another plugin.
#[test]
fn del_removes_what_bridge_made() {
    peer_fails("the port's addresses are looked at as its own", || {
        let (node, pod) = Node::with_pod();
        let bridge = json!({
            "type": "bridge", "bridge": "br0", "ipMasq": true, "macspoofchk": true,
            "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"},
        });
        let port = node.network(json!({"name": "net", "plugins": [bridge]})).add(&Attach::new(&pod));
        let port = port.expect("ADD")["interfaces"][1]["name"].as_str().expect("a name").to_owned();
        network(&node, &json!({})).del(&Attach::new(&pod)).expect("DEL");
        let ruleset = node.ruleset();
        assert!(!ruleset.contains("10.1.2.2") && !ruleset.contains(&port), "{ruleset}");
        assert!(!node.has_link(&port) && !pod.has_link("eth0"));
        assert!(node.reserved("net").is_empty());
    });
}
