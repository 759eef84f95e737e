// SPDX-License-Identifier: GPL-2.0-or-later

//! A node with thousands of links, on which others start and remove containers all the time.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use slipway_tests::{Attach, FLANNEL_ENV, Node, Proto, lacks, limited};

/// Lists of plugins, by the one that has a way of its own to list links.
fn listing() -> Vec<(&'static str, Value)> {
    let ipam = slipway_tests::host_local("10.88.0.0/24", "fd00:88::/64");
    let bridge = json!({"type": "bridge", "isGateway": true, "ipMasq": true, "ipam": ipam});
    let published = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let firewall = json!({"type": "firewall", "backend": "nftables", "ingressPolicy": "same-bridge"});
    let alone = |plugin: &str, key: &str, value: &str| json!([{"type": plugin, key: value, "ipam": ipam}]);
    vec![
        ("bandwidth", json!([bridge, published, limited()])),
        ("firewall", json!([bridge, published, firewall])),
        ("flannel", json!([{"type": "flannel", "delegate": {"isDefaultGateway": true}}, published])),
        ("host-device", alone("host-device", "device", "dev0")),
        ("ptp", json!([{"type": "ptp", "ipMasq": true, "ipam": ipam}, published])),
        ("macvlan", alone("macvlan", "master", "out0")),
    ]
}

/// Pairs of links on a node, whose list then takes the kernel many messages.
const MANY_PAIRS: usize = 1500;

/// While links come and go, the kernel marks each long list of links as inconsistent. Every call works nevertheless.
#[test]
fn every_call_works_on_a_node_with_many_links_that_come_and_go() {
    let lines = |line: fn(usize) -> String, times: usize| (0..times).map(line).collect::<String>();
    let node = Node::new();
    node.cmd_input(
        "ip -batch -",
        &lines(|n| format!("link add many{n} type veth peer name peer{n}\n"), MANY_PAIRS),
    );
    node.cmd("ip link add dev0 type veth peer name wire0");
    node.cmd("ip link add out0 type veth peer name wire1");
    node.write("/run/flannel/subnet.env", FLANNEL_ENV);
    let changes = lines(|n| format!("link add churn{n} group 7 type veth peer name other{n} group 7\n"), 100);
    let changes = changes + "link del group 7\n";
    let mut failed = Vec::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                node.cmd_input("ip -batch -", &changes);
            }
        });
        for (plugin, plugins) in listing().into_iter().filter(|(plugin, _)| lacks(plugin).is_none()) {
            let network = node.network(json!({"name": format!("with-{plugin}"), "plugins": plugins}));
            let pods = [8080, 8081].map(|port| (node.pod(&format!("{plugin}-{port}")), port));
            let [kept, gone] = [0, 1].map(|nth| Attach::new(&pods[nth].0).port(Proto::Tcp, pods[nth].1, 80));
            let mut call = |verb: &str, outcome: Result<(), String>| {
                failed.extend(outcome.err().map(|error| format!("{plugin} {verb}: {error}")));
            };
            let text = |error| format!("{error:?}");
            call("STATUS", network.status().map_err(text));
            call("ADD", network.add(&kept).map(drop).map_err(text));
            // There is one device to move.
            if plugin != "host-device" {
                call("second ADD", network.add(&gone).map(drop).map_err(text));
                call("DEL of the second", network.del(&gone).map_err(text));
            }
            call("CHECK", network.check(&kept).map_err(text));
            call("GC", network.gc(&[&kept]).map_err(|errors| format!("{errors:?}")));
            call("CHECK after GC", network.check(&kept).map_err(text));
            call("DEL", network.del(&kept).map_err(text));
        }
        over.store(true, Ordering::Relaxed);
        changing.join().expect("links that come and go");
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
