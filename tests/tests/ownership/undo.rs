// SPDX-License-Identifier: GPL-2.0-or-later

//! An ADD that fails undoes only what it has made itself, and nothing of an earlier ADD of the same attachment.

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Disturbance, Network, Node, PluginCall, Point, Proto, at, disturbed, error_points, slipway_only,
};

use super::{PORT, attach, backends, ipam, state};

/// The number of system calls of each plugin that are made to fail.
const POINTS: usize = 30;
/// The indexes of the plugins that are called again.
const REPEATED: [usize; 2] = [1, 2];

fn list(backend: &str) -> Value {
    let firewall = if backend == "iptables" { "iptables" } else { "nftables" };
    let bridge = json!({"type": "bridge", "isGateway": true, "ipam": ipam()});
    json!({"name": "net", "plugins": [
        bridge,
        {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
        {"type": "firewall", "backend": firewall},
    ]})
}

fn add(network: &Network<'_>, plugin: usize, attach: &Attach, previous: &Value) -> PluginCall {
    let mut config = network.configs(Some(attach)).remove(plugin);
    config["prevResult"] = previous.clone();
    network.prepare("ADD", &config, Some(attach))
}

/// The points at system calls that communicate with the kernel's tables.
fn points(node: &Node, call: PluginCall) -> Vec<Point> {
    let (_, all) = error_points(node, call);
    let speaks = |point: &Point| matches!(point.syscall.as_str(), "sendto" | "sendmsg" | "openat");
    all.into_iter().filter(speaks).collect()
}

#[test]
fn a_repeated_add_that_fails_leaves_what_the_first_one_has_made() {
    slipway_only!();
    for backend in backends() {
        let (node, client) = Node::with_client();
        let network = node.network(list(backend));
        let pod = node.pod("web");
        let attach = attach(&pod);
        let result = network.add(&attach).expect("ADD");
        let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
        let before = state(&node);
        for plugin in REPEATED {
            let again = || add(&network, plugin, &attach, &result);
            let points = points(&node, again());
            let step = points.len().div_ceil(POINTS);
            // The last calls are tried as well, because everything has been made by then.
            let tried = points.iter().rev().take(10).chain(points.iter().step_by(step));
            let failed = tried.filter(|point| {
                let output = disturbed(&node, again(), point, Disturbance::Error("EIO"));
                before.assert_same(&state(&node));
                output.result().is_err()
            });
            assert!(failed.count() > 3, "{backend}: plugin {plugin}");
        }
        client.expect(Proto::Tcp, at(client.node_v4, PORT), "web");
        // As the control, a failed ADD without an earlier one leaves nothing behind.
        for plugin in REPEATED {
            network.call_one(plugin, "DEL", &attach, &result).ok();
        }
        // The first lock file of a node is created together with the first rules.
        let state = |node: &Node| state(node).without(&["/run/slipway/firewall.lock"]);
        let nothing = state(&node);
        for plugin in REPEATED {
            let first = || add(&network, plugin, &attach, &result);
            let points = points(&node, first());
            network.call_one(plugin, "DEL", &attach, &result).ok();
            for point in points.iter().rev().take(10) {
                if disturbed(&node, first(), point, Disturbance::Error("EIO")).result().is_ok() {
                    network.call_one(plugin, "DEL", &attach, &result).ok();
                }
                nothing.assert_same(&state(&node));
            }
        }
    }
}
