// SPDX-License-Identifier: GPL-2.0-or-later

//! Rulesets and results after ADD, compared with golden files.

use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, Node, Proto, Space, golden, golden_result, host_local, newest_version,
    slipway_only, without_seen_ports,
};

/// The version of nft whose output format the golden files have.
const NFT: &str = "v1.0.6";

fn prints_as_expected(node: &Space) -> bool {
    node.cmd("nft --version").contains(NFT)
}

fn list(portmap: &Value) -> Value {
    json!({
        "name": "net",
        "plugins": [
            {
                "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
                "ipam": host_local("10.88.0.0/24", "fd00:88::/64"),
            },
            portmap,
        ],
    })
}

/// The table with a pod of each kind, and after their DELs, when only chains and empty maps are left.
#[test]
fn the_table_of_published_ports() {
    slipway_only!();
    let node = Node::new();
    if !prints_as_expected(&node) {
        slipway_tests::skip!("nft v1.0.6, whose output is in tests/golden");
    }
    node.bridge_netfilter(BridgeNetfilter::Off);
    let plain = node.network(list(&json!({"type": "portmap", "capabilities": {"portMappings": true}})));
    let (one, two) = (node.pod("one"), node.pod("two"));
    let first = Attach::new(&one).port(Proto::Tcp, 8080, 80).port(Proto::Udp, 8080, 80);
    plain.add(&first).expect("ADD");
    golden("wildcard.nft", &table(&node));
    let second = Attach::new(&two)
        .port_on("192.0.2.1", Proto::Tcp, 8080, 80)
        .port_on("2001:db8::1", Proto::Tcp, 8080, 80)
        .mapping(json!({"hostPort": 9000, "containerPort": 9000, "protocol": "sctp"}));
    plain.add(&second).expect("ADD");
    golden("host-address.nft", &table(&node));
    plain.del(&first).expect("DEL");
    plain.del(&second).expect("DEL");
    golden("empty.nft", &table(&node));
}

fn table(node: &Node) -> String {
    without_seen_ports(&node.cmd("nft list table inet slipway"))
}

/// The list's result in every version of the specification, compared with that of the reference plugins.
#[test]
fn the_results_of_every_version_are_the_golden_ones() {
    results(&list(&json!({"type": "portmap", "capabilities": {"portMappings": true}})), "bridge");
}

#[test]
fn the_results_of_ptp_in_every_version_are_the_golden_ones() {
    let mut list = list(&json!({"type": "portmap", "capabilities": {"portMappings": true}}));
    list["plugins"][0]["type"] = "ptp".into();
    results(&list, "ptp");
}

/// Compares the results of a list in every version with the plugin's golden file.
fn results(list: &Value, plugin: &str) {
    if newest_version() == "1.0.0" {
        // The peer is an older one, which prints an empty `dns` in version 1.0.0 as well.
        return;
    }
    let node = Node::without_bridge_netfilter();
    for version in ["0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let mut list = list.clone();
        list["cniVersion"] = version.into();
        list["name"] = format!("net-{version}").into();
        let network = node.network(list);
        let pod = node.pod(&format!("pod-{version}"));
        let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
        let mut result = network.add(&attach).expect("ADD");
        // Slipway reports the MTU (specification 1.1.0), which the reference's bridge does not.
        let interfaces = result.get_mut("interfaces").and_then(Value::as_array_mut);
        for interface in interfaces.into_iter().flatten() {
            interface.as_object_mut().expect("an object").remove("mtu");
        }
        golden_result(plugin, version, &result);
        network.del(&attach).expect("DEL");
    }
}
