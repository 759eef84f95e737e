//! A plugin of the list fails: what it began is undone, and the runtime's DEL takes away the rest.

use serde_json::{Value, json};
use slipway_tests::Pod;

use crate::world::{Chain, PORT, World};

/// Which plugin fails, what makes it fail (the node, the container, its own configuration), and how the node
/// comes right again.
struct Spoilt {
    at: usize,
    by: fn(&World, &Pod, &mut Value),
    mend: fn(&World, &Pod),
}

const fn spoilt(at: usize, by: fn(&World, &Pod, &mut Value)) -> Spoilt {
    Spoilt { at, by, mend: |_, _| {} }
}

/// Somebody has a link of the name that the container is to have.
const TAKEN: Spoilt = Spoilt {
    at: 0,
    by: |world, pod, _| {
        pod.cmd(&format!("ip link add {} type veth peer name other0", world.chain.ifname()));
    },
    mend: |_, pod| drop(pod.cmd("ip link delete other0")),
};
/// A running container is published there.
const PUBLISHED: Spoilt = spoilt(1, |_, _, config| {
    let mappings = config["runtimeConfig"]["portMappings"].as_array_mut().expect("mappings");
    mappings.push(json!({"hostPort": PORT + 1, "containerPort": 80, "protocol": "tcp"}));
});
/// The last step cannot be done: the gateway is nobody's neighbour.
const NO_ROUTE: Spoilt = spoilt(0, |_, _, config| {
    let routes = config["ipam"]["routes"].as_array_mut().expect("routes");
    routes.push(json!({"dst": "172.16.0.0/12", "gw": "192.168.77.1"}));
});

fn all(chain: Chain) -> Vec<Spoilt> {
    match chain {
        Chain::Everything(_) => vec![
            TAKEN,
            NO_ROUTE,
            PUBLISHED,
            // What it makes is last, after the rate in the other direction: there are links of these names.
            Spoilt { at: 2, by: occupy_devices, mend: |world, _| devices(world, "ip link delete") },
            spoilt(3, |_, _, config| config["prevResult"]["interfaces"] = json!([])),
            spoilt(4, |_, _, config| config["sysctl"]["net.ipv4.conf.IFNAME.absent"] = "1".into()),
        ],
        Chain::Routed => vec![TAKEN, NO_ROUTE, PUBLISHED],
        Chain::Second => vec![
            TAKEN,
            NO_ROUTE,
            spoilt(1, |_, _, config| config["gateways"] = json!(["192.168.77.1"])),
            spoilt(1, |_, _, config| config["prevResult"]["ips"] = json!([])),
        ],
        Chain::Flannel => {
            vec![TAKEN, spoilt(0, |_, _, config| config["delegate"]["mtu"] = 70_000.into()), PUBLISHED]
        }
        Chain::Kubenet => vec![TAKEN, NO_ROUTE, PUBLISHED],
    }
}

/// Makes links of both the names that bandwidth's device may have, which it tells itself.
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

/// Does something about the links that are there in place of bandwidth's.
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
    network.add(&world.chain.attach(&first, PORT + 1)).expect("ADD of one that stays");
    let clean = world.state(&[&first, &pod]);
    let attach = world.chain.attach(&pod, PORT);
    for (number, Spoilt { at, by, mend }) in all(world.chain).into_iter().enumerate() {
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
        let why = format!("trouble {number}, of {}", config["type"]);
        by(world, &pod, &mut config);
        let before = world.state(&[&first, &pod]);
        let failed = network.call("ADD", &config, Some(&attach));
        assert!(failed.result().is_err(), "{why}: ADD succeeded");
        let changes = before.changes(&world.state(&[&first, &pod]));
        assert!(changes.is_empty(), "{why}: left:\n{}{}", changes.join("\n"), failed.process);
        mend(world, &pod);
        network.del(&attach).unwrap_or_else(|failure| panic!("{why}: DEL: {failure}"));
        let changes = clean.changes(&world.state(&[&first, &pod]));
        assert!(changes.is_empty(), "{why}: left after DEL:\n{}", changes.join("\n"));
    }
    // None of them is in the way of a good one.
    network.add(&attach).expect("ADD");
    if !world.chain.is_old() {
        network.check(&attach).expect("CHECK");
        network.check(&world.chain.attach(&first, PORT + 1)).expect("CHECK of the one that stayed");
    }
    network.del(&attach).expect("DEL");
    clean.assert_same(&world.state(&[&first, &pod]));
}
