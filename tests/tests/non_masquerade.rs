// SPDX-License-Identifier: GPL-2.0-or-later

//! `nonMasqueradeCIDRs` of plugins and of the node: damage, a flush, changes of the list, invalid networks, and the
//! operator's commands. The suite `contract` tests the effect on packets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Host, Network, Node, Pod, Proto, Server, at, has_programs, host_local, patience,
};

const OUTSIDE: u16 = 9000;
/// An address of the client that no list contains.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// The client's networks.
const LIST: [&str; 2] = ["192.0.2.0/24", "2001:db8::/64"];

struct World {
    node: Node,
    client: Host,
    _servers: Vec<Server>,
}

impl World {
    fn new() -> Self {
        let node = Node::without_bridge_netfilter();
        node.own_etc();
        let client = node.host("client");
        let servers = Proto::ALL.map(|proto| client.serve(proto, &format!("[::]:{OUTSIDE}"), "outside"));
        client.cmd(&format!("ip address add {ELSEWHERE} dev lo"));
        node.cmd(&format!("ip route add default via {}", client.v4));
        node.cmd(&format!("ip route add default via {}", client.v6));
        Self { node, client, _servers: servers.into() }
    }

    fn network(&self, interface: &str, backend: &str, list: &Value) -> Network<'_> {
        self.node.network(json!({"name": "pods", "plugins": [{
            "type": interface, "bridge": "br1", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend,
            "nonMasqueradeCIDRs": list,
            "ipam": host_local("10.22.0.0/24", "fd00:22::/64"),
        }]}))
    }

    fn settings(&self, list: &Value) {
        self.node.write("/etc/cni/slipway.json", json!({"nonMasqueradeCIDRs": list}).to_string());
    }

    fn add(&self, network: &Network<'_>, name: &str) -> (Pod, Attach) {
        let pod = self.node.pod(name);
        let attach = Attach::new(&pod);
        network.add(&attach).unwrap_or_else(|e| panic!("ADD {name}: {e}"));
        network.write_cache(&attach);
        (pod, attach)
    }

    /// Asserts that the client sees the pod's own addresses, or the node's.
    #[track_caller]
    fn client_sees(&self, pod: &Pod, own: bool) {
        for proto in Proto::ALL {
            let answer = pod.expect(proto, (self.client.v4, OUTSIDE), "outside");
            let seen = answer.peer.ip().to_canonical();
            assert_eq!(seen == answer.own.ip().to_canonical(), own, "{proto:?}: the client sees {seen}");
            let answer = pod.expect(proto, (self.client.v6, OUTSIDE), "outside");
            assert_eq!(answer.peer.ip() == answer.own.ip(), own, "{proto:?}: {}", answer.peer);
        }
    }
}

fn sets(world: &World) -> Vec<String> {
    let ruleset = world.node.ruleset();
    let names = ruleset.lines().filter_map(|line| line.trim().strip_prefix("set exempt"));
    names.map(|rest| format!("exempt{}", rest.trim_end_matches(" {"))).collect()
}

#[test]
fn a_damaged_set_fails_check_and_is_repaired_by_the_next_add() {
    let world = World::new();
    let network = world.network("bridge", "nftables", &json!(LIST));
    let (one, first) = world.add(&network, "one");
    network.check(&first).expect("CHECK");
    assert_eq!(sets(&world).len(), 2, "{}", world.node.ruleset());
    for set in sets(&world) {
        world.node.nft(&format!("flush set inet slipway {set}"));
    }
    world.client_sees(&one, false);
    let error = network.check(&first).expect_err("the set is empty").to_string();
    let text = "packets to 192.0.2.0/24 are masqueraded, but nonMasqueradeCIDRs has 192.0.2.0/24";
    assert!(error.contains(text), "{error}");
    let (two, second) = world.add(&network, "two");
    network.check(&first).expect("CHECK of the first container");
    network.check(&second).expect("CHECK of the second container");
    world.client_sees(&one, true);
    world.client_sees(&two, true);
}

#[test]
fn lists_survive_a_flush_of_the_rules() {
    for interface in ["bridge", "ptp"] {
        let world = World::new();
        let network = world.network(interface, "nftables", &json!(LIST));
        let (pod, attach) = world.add(&network, "web");
        world.node.nft("flush table inet slipway");
        world.node.slipway("restore");
        world.client_sees(&pod, true);
        network.check(&attach).expect("CHECK");
        world.node.nft("flush ruleset");
        world.node.slipway("restore");
        world.client_sees(&pod, true);
        network.check(&attach).expect("CHECK");
    }
}

#[test]
fn the_nodes_list_is_added_and_restore_applies_a_change() {
    for backend in ["nftables", "iptables", "ebpf"] {
        let world = World::new();
        world.settings(&json!(["192.0.2.0/24"]));
        let network = world.network("bridge", backend, &json!(["2001:db8::/64", "10.0.0.0/8"]));
        let (pod, attach) = world.add(&network, "web");
        world.client_sees(&pod, true);
        network.check(&attach).expect("CHECK");
        let mut connection =
            pod.dial(Proto::Tcp, None, at(ELSEWHERE, OUTSIDE), patience()).expect("a connection");
        let peer = connection.request().expect("an answer").peer;
        assert_eq!(peer.ip().to_canonical(), world.client.node_v4, "{backend}");
        world.settings(&json!(["192.0.2.0/24", "198.51.100.0/24"]));
        let error = network.check(&attach).expect_err("a network is missing").to_string();
        assert!(error.contains("198.51.100.0/24"), "{backend}: {error}");
        world.client_sees(&pod, true);
        let other_list = "containers with another list: 1";
        // `check-node` does not read the chains of iptables.
        let is_noted = world.node.try_slipway("check-node").stdout.contains(other_list);
        assert_eq!(is_noted, backend != "iptables", "{backend}");
        let text = world.node.slipway("restore");
        assert!(text.contains("restored") && text.contains("198.51.100.0/24"), "{backend}: {text}");
        network.check(&attach).expect("CHECK after the change");
        assert_eq!(connection.request().expect("an answer after the change").peer, peer, "{backend}");
        world.client_sees(&pod, true);
        assert!(!world.node.try_slipway("check-node").stdout.contains(other_list), "{backend}");
        let again = world.node.slipway("restore");
        assert!(again.contains("0 restored"), "{backend}: {again}");
        network.del(&attach).expect("DEL");
        network.gc(&[]).expect("GC");
        assert_eq!(sets(&world), Vec::<String>::new());
        assert!(!world.node.ruleset().contains("192.0.2.0/24"), "{backend}: {}", world.node.ruleset());
    }
}

/// The list comes from the node or from the network. A restore or another ADD removes networks that are no longer in
/// the list.
#[test]
fn a_network_that_was_removed_from_the_list_fails_check_until_it_is_repaired() {
    for backend in ["nftables", "iptables", "ebpf"] {
        for gone in LIST {
            let rest: Vec<&str> = LIST.into_iter().filter(|network| *network != gone).collect();
            let world = World::new();
            world.settings(&json!(LIST));
            let network = world.network("bridge", backend, &json!([]));
            let (pod, attach) = world.add(&network, "web");
            world.client_sees(&pod, true);
            network.check(&attach).expect("CHECK");
            world.settings(&json!(rest));
            let error = network.check(&attach).expect_err("a network more").to_string();
            let text =
                format!("packets to {gone} are not masqueraded, but nonMasqueradeCIDRs does not have {gone}");
            assert!(error.contains(&text), "{backend}: {error}");
            let printed = world.node.slipway("restore");
            assert!(printed.contains("1 restored"), "{backend}: {printed}");
            network.check(&attach).unwrap_or_else(|error| panic!("{backend}: CHECK after restore: {error}"));
            world.settings(&json!([]));
            network.check(&attach).expect_err("the other network more");
            network.del(&attach).expect("DEL");
            network.add(&attach).expect("another ADD");
            network.check(&attach).unwrap_or_else(|error| panic!("{backend}: CHECK after ADD: {error}"));
            world.client_sees(&pod, false);
        }
    }
}

#[test]
fn gc_removes_sets_that_no_chain_uses() {
    let world = World::new();
    let network = world.network("bridge", "nftables", &json!(LIST));
    let (_pod, attach) = world.add(&network, "web");
    let used = sets(&world);
    // A version that crashed may have left such a set, or an administrator may have made it.
    let lone = "exempt4-0123456789abcdef";
    world.node.nft(&format!("add set inet slipway {lone} {{ type ipv4_addr; flags interval; }}"));
    network.gc(&[&attach]).expect("GC");
    assert_eq!(sets(&world), used);
    network.check(&attach).expect("CHECK");
}

#[test]
fn a_value_that_is_no_network_is_refused_by_name() {
    let world = World::new();
    let pod = world.node.pod("web");
    let attach = Attach::new(&pod);
    for (list, text) in [
        (
            json!(["192.0.2.0/24", "192.0.2.1/24"]),
            "192.0.2.1/24 has host bits set: the network is 192.0.2.0/24",
        ),
        (json!(["10.0.0.0"]), "\"10.0.0.0\" is not a network"),
        (json!(["::ffff:10.0.0.0/104"]), "::ffff:10.0.0.0/104 is an IPv4-mapped IPv6 network"),
    ] {
        for interface in ["bridge", "ptp"] {
            let network = world.network(interface, "nftables", &list);
            let failure = network.add(&attach).expect_err("ADD with a bad network");
            assert_eq!(failure.error.code, 7, "{failure}");
            assert!(failure.to_string().contains("nonMasqueradeCIDRs") && failure.to_string().contains(text));
            network.del(&attach).expect("DEL needs nothing of the key");
        }
        world.settings(&list);
        let network = world.network("bridge", "nftables", &json!([]));
        let failure = network.add(&attach).expect_err("ADD with a bad network in the node's settings");
        assert_eq!(failure.error.code, 7, "{failure}");
        assert!(failure.to_string().contains("/etc/cni/slipway.json") && failure.to_string().contains(text));
        network.del(&attach).expect("DEL does not read the node's settings");
        world.settings(&json!([]));
    }
}

#[test]
fn explain_names_the_network() {
    let world = World::new();
    let network = world.network("bridge", "nftables", &json!(LIST));
    let (_pod, _attach) = world.add(&network, "web");
    let exempt = world.node.slipway("explain tcp 192.0.2.2:80 --from 10.22.0.2");
    assert!(
        exempt.contains("not masqueraded: 192.0.2.2 is in nonMasqueradeCIDRs (192.0.2.0/24)"),
        "{exempt}"
    );
    let other = world.node.slipway("explain tcp 198.51.100.7:80 --from 10.22.0.2");
    assert!(other.contains("the source is masqueraded"), "{other}");
}

#[test]
fn migrate_keeps_the_list() {
    let mut places = vec!["iptables", "nftables"];
    if has_programs() {
        places.extend(["ebpf", "nftables", "ebpf", "iptables", "ebpf"]);
    }
    let world = World::new();
    let network = world.network("bridge", "nftables", &json!(LIST));
    let (pod, attach) = world.add(&network, "web");
    for place in places {
        let text = world.node.slipway(&format!("migrate --to {place}"));
        assert!(text.contains("moved"), "{place}: {text}");
        world.client_sees(&pod, true);
        network.check(&attach).unwrap_or_else(|error| panic!("CHECK in {place}: {error}"));
    }
}
