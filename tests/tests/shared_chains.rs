// SPDX-License-Identifier: GPL-2.0-or-later

//! The ways by which containers' addresses lead to the chains that they share: by an element of their network, or by
//! one of their own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use slipway_tests::{Attach, Host, Network, Node, Pod, Proto, Server, at};

const OUTSIDE: u16 = 9000;

struct World {
    node: Node,
    client: Host,
    _server: Server,
}

/// A running container that publishes a port.
struct Running<'a> {
    network: &'a Network<'a>,
    pod: Pod,
    attach: Attach,
    port: u16,
    _server: Server,
}

impl World {
    fn new() -> Self {
        let (node, client) = Node::with_client();
        let server = client.serve(Proto::Tcp, &format!("[::]:{OUTSIDE}"), "outside");
        Self { node, client, _server: server }
    }

    fn network(&self, name: &str, subnet: &str, more: Value) -> Network<'_> {
        let mut bridge = json!({
            "type": "bridge", "bridge": format!("br-{name}"), "isGateway": true, "ipMasq": true,
            "ipMasqBackend": "nftables", "hairpinMode": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]},
        });
        bridge.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        self.node.network(json!({"name": name, "plugins": [bridge, portmap]}))
    }

    fn add<'a>(&self, network: &'a Network<'a>, name: &str, port: u16) -> Running<'a> {
        let pod = self.node.pod(name);
        let attach = Attach::new(&pod).port(Proto::Tcp, port, 80);
        network.add(&attach).unwrap_or_else(|e| panic!("ADD {name}: {e}"));
        network.check(&attach).unwrap_or_else(|e| panic!("CHECK {name}: {e}"));
        let server = pod.serve(Proto::Tcp, "[::]:80", name);
        Running { network, pod, attach, port, _server: server }
    }

    /// Asserts that a container is masqueraded on its way out, and on its way to its own published port.
    #[track_caller]
    fn is_masqueraded(&self, running: &Running<'_>) {
        let answer = running.pod.expect(Proto::Tcp, (self.client.v4, OUTSIDE), "outside");
        assert_eq!(
            answer.peer.ip().to_canonical(),
            self.client.node_v4.to_string().parse::<std::net::IpAddr>().unwrap()
        );
        let name = running.pod.name();
        self.client.expect(Proto::Tcp, at(self.client.node_v4, running.port), name);
        running.pod.expect(Proto::Tcp, at(self.client.node_v4, running.port), name);
        running.network.check(&running.attach).unwrap_or_else(|e| panic!("CHECK {name}: {e}"));
    }

    /// The elements of a map, as nft prints them.
    fn elements(&self, map: &str) -> Vec<String> {
        let text = self.node.cmd(&format!("nft list map inet slipway {map}"));
        let inside = text.split_once("elements = {").map_or("", |(_, rest)| rest.split('}').next().unwrap());
        inside.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect()
    }
}

#[test]
fn the_containers_of_a_network_share_one_element() {
    let world = World::new();
    let network = world.network("net", "10.22.0.0/16", json!({}));
    let running = [world.add(&network, "one", 8001), world.add(&network, "two", 8002)];
    running.iter().for_each(|running| world.is_masqueraded(running));
    assert_eq!(world.elements("masquerade-networks4"), ["10.22.0.0/16 : goto masquerade-10.22.0.0/16"]);
    assert_eq!(world.elements("hairpin-networks4"), ["10.22.0.0/16 : goto hairpin-10.22.0.0/16-13"]);
    assert_eq!((world.elements("masquerade-own4").len(), world.elements("hairpin-own4").len()), (0, 0));
    // The garbage collection keeps the chains as long as one container needs them.
    let [one, two] = running;
    network.del(&one.attach).expect("DEL");
    network.gc(&[&two.attach]).expect("GC");
    world.is_masqueraded(&two);
    network.del(&two.attach).expect("DEL");
    network.gc(&[]).expect("GC");
    let ruleset = world.node.ruleset();
    assert!(!ruleset.contains("10.22.0.0"), "{ruleset}");
}

/// In a map of intervals, an interval can begin where another one ends, and cannot overlap with one.
#[test]
fn networks_that_touch_or_overlap_are_masqueraded() {
    let world = World::new();
    let networks = [
        world.network("middle", "10.22.1.0/24", json!({})),
        world.network("before", "10.22.0.0/24", json!({})),
        world.network("behind", "10.22.2.0/24", json!({})),
        world.network("inside", "10.22.2.128/25", json!({})),
        world.network(
            "around",
            "10.22.0.0/15",
            json!({"ipam": {
                "type": "host-local", "routes": [{"dst": "0.0.0.0/0"}],
                "ranges": [[{"subnet": "10.22.0.0/15", "rangeStart": "10.23.0.2", "gateway": "10.23.0.1"}]],
            }}),
        ),
    ];
    let running: Vec<Running<'_>> = networks
        .iter()
        .zip(["middle", "before", "behind", "inside", "around"])
        .zip(8001..)
        .map(|((network, name), port)| world.add(network, name, port))
        .collect();
    running.iter().for_each(|running| world.is_masqueraded(running));
    let mut found = world.elements("masquerade-networks4");
    found.sort();
    let wanted = [0, 1, 2].map(|third| format!("10.22.{third}.0/24 : goto masquerade-10.22.{third}.0/24"));
    assert_eq!(found, wanted);
    assert_eq!(world.elements("masquerade-own4").len(), 2, "those of the networks inside and around");
    // When the network in the middle is gone, its neighbours stay.
    networks[0].del(&running[0].attach).expect("DEL");
    networks[0].gc(&[]).expect("GC");
    running[1..].iter().for_each(|running| world.is_masqueraded(running));
    assert_eq!(world.elements("masquerade-networks4").len(), 2);
    for (network, running) in networks.iter().zip(&running).skip(1) {
        network.del(&running.attach).expect("DEL");
    }
    networks[0].gc(&[]).expect("GC");
    let ruleset = world.node.ruleset();
    assert!(!ruleset.contains("masquerade-10.") && !ruleset.contains("hairpin-10."), "{ruleset}");
}

/// A container of a network whose configuration changes has an element of its own as long as older ones have the
/// network's.
#[test]
fn a_container_with_other_settings_has_its_own_element() {
    let world = World::new();
    let before = world.network("net", "10.22.0.0/16", json!({}));
    let one = world.add(&before, "one", 8001);
    let list = json!({"nonMasqueradeCIDRs": ["198.51.100.0/24"]});
    let after = world.network("net", "10.22.0.0/16", list);
    let two = world.add(&after, "two", 8002);
    [&one, &two].into_iter().for_each(|running| world.is_masqueraded(running));
    assert_eq!(world.elements("masquerade-own4").len(), 1);
    assert_eq!(world.elements("masquerade-networks4"), ["10.22.0.0/16 : goto masquerade-10.22.0.0/16"]);
    before.del(&one.attach).expect("DEL");
    after.gc(&[&two.attach]).expect("GC");
    // The network's chain belongs to nobody now, and the next container takes its place.
    let three = world.add(&after, "three", 8003);
    [&two, &three].into_iter().for_each(|running| world.is_masqueraded(running));
    assert_eq!(world.elements("masquerade-networks4").len(), 1);
    assert_eq!(
        world.elements("masquerade-own4").len(),
        1,
        "the element of the container that was there before"
    );
    for running in [&two, &three] {
        after.del(&running.attach).expect("DEL");
    }
    after.gc(&[]).expect("GC");
    let ruleset = world.node.ruleset();
    assert!(!ruleset.contains("10.22.0.0"), "{ruleset}");
}

/// Another program adds elements to the maps of networks.
#[test]
fn elements_that_were_made_by_hand_are_left_alone() {
    let world = World::new();
    let network = world.network("net", "10.22.0.0/16", json!({}));
    let one = world.add(&network, "one", 8001);
    world.node.nft(
        "add element inet slipway masquerade-networks4 { 10.96.0.0/11 : accept }; \
        add element inet slipway masquerade-networks4 { 10.150.0.0/16 : goto masquerade-10.22.0.0/16 }",
    );
    for (name, subnet, port) in [("inside", "10.99.0.0/24", 8002), ("other", "10.150.7.0/24", 8003)] {
        let network = world.network(name, subnet, json!({}));
        let running = world.add(&network, name, port);
        world.is_masqueraded(&running);
        network.del(&running.attach).expect("DEL");
        network.gc(&[]).expect("GC");
    }
    world.is_masqueraded(&one);
    network.del(&one.attach).expect("DEL");
    network.gc(&[]).expect("GC");
    // An element for an address that a container gets later would lead it elsewhere.
    world.node.nft("add element inet slipway masquerade-own4 { 10.23.0.2 : accept }");
    let later = world.network("later", "10.23.0.0/24", json!({}));
    let error = later.add(&Attach::new(&world.node.pod("later"))).unwrap_err().to_string();
    assert!(error.contains("container address 10.23.0.2"), "{error}");
}

/// After a flush of the rules, the kernel counts fewer references to a chain than it has rules.
#[test]
fn gc_succeeds_after_a_flush_of_the_rules() {
    let world = World::new();
    let network = world.network("net", "10.22.0.0/16", json!({}));
    let one = world.add(&network, "one", 8001);
    let other = world.network("net", "10.22.0.0/16", json!({"nonMasqueradeCIDRs": ["198.51.100.0/24"]}));
    let two = world.add(&other, "two", 8002);
    world.node.nft("flush table inet slipway");
    network.gc(&[&one.attach, &two.attach]).expect("GC");
    let three = world.add(&network, "three", 8003);
    [&one, &two, &three].into_iter().for_each(|running| world.is_masqueraded(running));
}
