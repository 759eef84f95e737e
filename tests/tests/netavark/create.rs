// SPDX-License-Identifier: GPL-2.0-or-later

//! Creates networks as `podman network create --driver slipway` does.

use serde_json::{Value, json};
use slipway_tests::{Node, Output, slipway_only, with_keys};

use crate::error;

const ID: &str = "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9";

fn create(node: &Node, keys: &Value) -> Output {
    let network = json!({
        "name": "web", "id": ID, "driver": "slipway", "created": "2026-01-02T03:04:05Z", "dns_enabled": true,
        "internal": false, "ipv6_enabled": false, "ipam_options": {},
    });
    node.plugin("slipway").without("CNI_PATH").arguments(&["create"]).config(&with_keys(network, keys)).run()
}

#[test]
fn a_subnet_that_nothing_uses_is_chosen() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    node.own_etc();
    let subnet = |keys: &Value| create(&node, keys).json()["subnets"][0]["subnet"].clone();
    assert_eq!(subnet(&json!({})), "10.89.0.0/24");
    node.cmd("ip link add one type veth peer name two");
    node.cmd("ip address add 10.89.0.7/30 dev one");
    node.cmd("ip link set one up");
    node.cmd("ip route add 10.89.1.0/24 dev one");
    assert_eq!(subnet(&json!({})), "10.89.2.0/24");
    node.write(
        "/etc/containers/networks/other.json",
        r#"{"name": "other", "network_interface": "podman1", "subnets": [{"subnet": "10.89.2.0/23", "gateway": "10.89.2.1"}]}"#,
    );
    assert_eq!(subnet(&json!({})), "10.89.4.0/24");
    // A route may lead to the subnet, but a link or another network may not have it.
    let named = |subnet: &str| create(&node, &json!({"subnets": [{"subnet": subnet}]}));
    assert_eq!(named("10.89.1.0/24").json()["subnets"][0]["subnet"], "10.89.1.0/24");
    assert_eq!(error(&named("10.89.3.0/24")), "subnet 10.89.3.0/24 is in use: 10.89.2.0/23");
    assert_eq!(error(&named("10.89.0.0/24")), "subnet 10.89.0.0/24 is in use: 10.89.0.4/30");
    let made = create(&node, &json!({"ipv6_enabled": true, "network_interface": "br-web"})).json();
    assert_eq!(
        (made["network_interface"].as_str(), made["subnets"].as_array().map(Vec::len)),
        (Some("br-web"), Some(2))
    );
    assert_eq!(
        (&made["dns_enabled"], &made["name"], &made["id"]),
        (&json!(false), &json!("web"), &json!(ID))
    );
}
