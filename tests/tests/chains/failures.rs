// SPDX-License-Identifier: GPL-2.0-or-later

//! One plugin of the list fails. Its ADD undoes its own changes, and the runtime's DEL removes those of the plugins
//! before it.

use serde_json::{Value, json};
use slipway_tests::Pod;

use crate::world::{Chain, PORT, World};

/// A failure: the index of the failing plugin, its cause (a change of the node, the container or the plugin's
/// configuration), and how the test removes the cause.
struct Fault {
    at: usize,
    cause: fn(&World, &Pod, &mut Value),
    repair: fn(&World, &Pod),
}

const fn fault(at: usize, cause: fn(&World, &Pod, &mut Value)) -> Fault {
    Fault { at, cause, repair: |_, _| {} }
}

/// A link with the container's interface name already exists.
const TAKEN: Fault = Fault {
    at: 0,
    cause: |world, pod, _| {
        pod.cmd(&format!("ip link add {} type veth peer name other0", world.chain.ifname()));
    },
    repair: |_, pod| drop(pod.cmd("ip link delete other0")),
};
/// A running container has published the same port.
const PUBLISHED: Fault = fault(1, |_, _, config| {
    let mappings = config["runtimeConfig"]["portMappings"].as_array_mut().expect("mappings");
    mappings.push(json!({"hostPort": PORT + 1, "containerPort": 80, "protocol": "tcp"}));
});
/// The gateway is not reachable, so the last step of ADD fails.
const NO_ROUTE: Fault = fault(0, |_, _, config| {
    let routes = config["ipam"]["routes"].as_array_mut().expect("routes");
    routes.push(json!({"dst": "172.16.0.0/12", "gw": "192.168.77.1"}));
});

fn all(chain: Chain) -> Vec<Fault> {
    match chain {
        Chain::Everything(_) => vec![
            TAKEN,
            NO_ROUTE,
            PUBLISHED,
            // bandwidth creates its device last, after it has limited the other direction. Links of both
            // possible names exist.
            Fault { at: 2, cause: occupy_devices, repair: |world, _| devices(world, "ip link delete") },
            fault(3, |_, _, config| config["prevResult"]["interfaces"] = json!([])),
            fault(4, |_, _, config| config["sysctl"]["net.ipv4.conf.IFNAME.absent"] = "1".into()),
        ],
        Chain::Routed => vec![TAKEN, NO_ROUTE, PUBLISHED],
        Chain::Second => vec![
            TAKEN,
            NO_ROUTE,
            fault(1, |_, _, config| config["gateways"] = json!(["192.168.77.1"])),
            fault(1, |_, _, config| config["prevResult"]["ips"] = json!([])),
        ],
        Chain::Flannel => {
            vec![TAKEN, fault(0, |_, _, config| config["delegate"]["mtu"] = 70_000.into()), PUBLISHED]
        }
        Chain::Kubenet => vec![TAKEN, NO_ROUTE, PUBLISHED],
    }
}

/// Creates links of both names that bandwidth's device may have. The names come from bandwidth's result.
fn occupy_devices(world: &World, pod: &Pod, config: &mut Value) {
    let call =
        |verb: &str| world.node.plugin("bandwidth").command(verb).for_pod(pod).config(config).run().ok();
    for _ in 0..2 {
        let result = call("ADD");
        let _ = call("DEL");
        let interfaces = result["interfaces"].as_array().expect("interfaces");
        let name = interfaces.last().expect("an interface")["name"].as_str().expect("a name");
        world.node.cmd(&format!("ip link add {name} type bridge"));
    }
}

/// Runs a command on each link created by `occupy_devices`.
fn devices(world: &World, what: &str) {
    for line in world.node.cmd("ip -o link show type bridge").lines() {
        let name = line.split(": ").nth(1).expect("a name");
        if name.starts_with("bwp") {
            world.node.cmd(&format!("{what} {name}"));
        }
    }
}

pub(crate) fn a_plugin_that_fails_leaves_nothing(world: &World) {
    let network = world.network();
    let (first, pod) = (world.pod("first"), world.pod("pod"));
    network.add(&world.chain.attach(&first, PORT + 1)).expect("ADD of the first container");
    let clean = world.state(&[&first, &pod]);
    let attach = world.chain.attach(&pod, PORT);
    for (number, Fault { at, cause, repair }) in all(world.chain).into_iter().enumerate() {
        let (mut config, mut result) = (Value::Null, Value::Null);
        for (number, mut next) in network.configs(Some(&attach)).into_iter().enumerate() {
            if !result.is_null() {
                next["prevResult"] = result.take();
            }
            if number == at {
                config = next;
                break;
            }
            result = network.call("ADD", &next, Some(&attach)).ok();
        }
        let why = format!("failure {number}, of {}", config["type"]);
        cause(world, &pod, &mut config);
        let before = world.state(&[&first, &pod]);
        let failed = network.call("ADD", &config, Some(&attach));
        assert!(failed.result().is_err(), "{why}: ADD succeeded");
        let changes = before.changes(&world.state(&[&first, &pod]));
        assert!(changes.is_empty(), "{why}: left:\n{}{}", changes.join("\n"), failed.process);
        repair(world, &pod);
        network.del(&attach).unwrap_or_else(|failure| panic!("{why}: DEL: {failure}"));
        let changes = clean.changes(&world.state(&[&first, &pod]));
        assert!(changes.is_empty(), "{why}: left after DEL:\n{}", changes.join("\n"));
    }
    // After the failed attempts, an ADD succeeds.
    network.add(&attach).expect("ADD");
    if !world.chain.is_old() {
        network.check(&attach).expect("CHECK");
        network.check(&world.chain.attach(&first, PORT + 1)).expect("CHECK of the first container");
    }
    network.del(&attach).expect("DEL");
    clean.assert_same(&world.state(&[&first, &pod]));
}
