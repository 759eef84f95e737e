// SPDX-License-Identifier: GPL-2.0-or-later

//! `excludeLoopback`: a published port does not affect the node's own loopback services, such as its resolver.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};
use slipway_tests::{
    BridgeNetfilter, Proto, Server, has_iptables, has_ipv6, needs_iptables, peer_fails, usable,
};

use crate::world::{PORT, SERVED, Web, World, each, gateways, in_every_topology, without_iptables};

/// Returns the loopback addresses of the node's own services, such as resolvers.
fn stub_ips() -> Vec<IpAddr> {
    usable([Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 53).into(), Ipv6Addr::LOCALHOST.into()])
}

const REASON: &str = "it has no such key, and hides what the node serves on 127.0.0.1";

fn stubs(world: &World, port: u16) -> Vec<Server> {
    each(stub_ips(), port)
        .map(|(proto, address)| world.node.serve(proto, &address.to_string(), "stub"))
        .collect()
}

/// Returns the portmap keys for each backend that the node supports.
fn backends() -> Vec<Value> {
    let names: &[&str] =
        if without_iptables() || !has_iptables() { &["nftables"] } else { &["nftables", "iptables"] };
    names.iter().map(|backend| json!({"excludeLoopback": true, "backend": backend})).collect()
}

/// Returns the interfaces on which route_localnet is set.
fn with_route_localnet(world: &World) -> Vec<String> {
    let links = world.node.list("/proc/sys/net/ipv4/conf");
    let open = |link: &String| {
        world.node.sysctl_get(&format!("net/ipv4/conf/{link}/route_localnet")).as_deref() == Some("1")
    };
    links.into_iter().filter(open).collect()
}

fn keeps_loopback_services(world: &World, keys: &Value) {
    let network = world.network_with(1, keys);
    let _stubs = stubs(world, PORT);
    let web = Web::published(world, &network, "web");
    let other = Web::new(world, &network, "other", |a| a);
    for (proto, to) in each(stub_ips(), PORT) {
        world.node.expect(proto, to, "stub");
    }
    // Nothing answers on loopback addresses where the node has no service.
    world.node.expect_none_of(each([Ipv4Addr::new(127, 1, 2, 3)], PORT));
    // Everything else works as without the key.
    for (proto, to) in each(world.node_ips(), PORT) {
        world.client.expect(proto, to, "web");
        world.node.expect(proto, to, "web");
        other.expect(proto, to, "web");
        web.expect(proto, to, "web");
    }
    for (proto, to) in each(gateways(1), PORT) {
        world.node.expect(proto, to, "web");
    }
    // No interface needs route_localnet, and ::1 needs no additional route.
    assert_eq!(with_route_localnet(world), Vec::<String>::new());
    if has_ipv6() {
        let local = world.node.cmd("ip -6 route show table local");
        assert_eq!(local.lines().filter(|line| line.starts_with("local ::1 ")).count(), 1, "{local}");
    }
    network.check(&web.attach).expect("CHECK");
    network.del(&web.attach).expect("DEL");
    for (proto, to) in each(stub_ips(), PORT) {
        world.node.expect(proto, to, "stub");
    }
    world.client.expect_none_of(each(world.node_ips(), PORT));
}

#[test]
fn the_nodes_own_services_answer_on_its_loopback() {
    peer_fails(REASON, || in_every_topology(|world| keeps_loopback_services(world, &backends()[0])));
}

#[test]
fn the_nodes_own_services_answer_on_its_loopback_with_iptables() {
    if !without_iptables() {
        needs_iptables!();
    }
    let Some(keys) = backends().pop() else { return };
    peer_fails(REASON, || keeps_loopback_services(&World::new(BridgeNetfilter::Off), &keys));
}

/// A mapping that names 127.0.0.1 is published there, beside a mapping without an address, and with conditions as well.
#[test]
fn a_mapping_that_names_the_loopback_is_published_there() {
    peer_fails(REASON, || {
        for (keys, conditions) in backends().into_iter().zip(["ip ttl 1-255", "! -s 203.0.113.0/24"]) {
            for conditions in [None, Some(conditions)] {
                let world = World::new(BridgeNetfilter::Off);
                let mut keys = keys.clone();
                if let Some(conditions) = conditions {
                    let words: Vec<&str> = match keys["backend"].as_str() {
                        Some("iptables") => conditions.split(' ').collect(),
                        _ => vec![conditions],
                    };
                    keys["conditionsV4"] = words.into();
                }
                let network = world.network_with(1, &keys);
                let _stubs = stubs(&world, PORT);
                let web = Web::new(&world, &network, "web", |a| {
                    let a = a.port(Proto::Tcp, PORT, SERVED).port(Proto::Udp, PORT, SERVED);
                    let a = a.port_on("127.0.0.1", Proto::Tcp, PORT + 1, SERVED);
                    a.port_on("127.0.0.1", Proto::Udp, PORT + 1, SERVED)
                });
                for proto in Proto::ALL {
                    world.node.expect(proto, (Ipv4Addr::LOCALHOST, PORT), "stub");
                    world.node.expect(proto, (Ipv4Addr::LOCALHOST, PORT + 1), "web");
                    world.node.expect_none(proto, (Ipv4Addr::new(127, 0, 0, 2), PORT + 1));
                    world.client.expect(proto, (world.client.node_v4, PORT), "web");
                    world.client.expect_none(proto, (world.client.node_v4, PORT + 1));
                }
                network.check(&web.attach).expect("CHECK");
                network.del(&web.attach).expect("DEL");
                assert!(!world.node.ruleset().contains("10.88.1.2"), "{}", world.node.ruleset());
            }
        }
    });
}

/// The key applies only to its own network. Other networks still publish on the loopback, even if they name 127.0.0.1
/// as the host address.
#[test]
fn other_networks_still_publish_on_the_loopback() {
    peer_fails(REASON, || {
        let world = World::new(BridgeNetfilter::Off);
        let (excluding, plain) = (world.network_with(1, &json!({"excludeLoopback": true})), world.network(2));
        let _web = Web::published(&world, &excluding, "web");
        let _named = Web::new(&world, &plain, "named", |a| a.port_on("127.0.0.1", Proto::Tcp, PORT, SERVED));
        let _wild = Web::new(&world, &plain, "wild", |a| a.port(Proto::Tcp, PORT + 1, SERVED));
        for (port, who) in [(PORT, "named"), (PORT + 1, "wild")] {
            world.node.expect(Proto::Tcp, (Ipv4Addr::LOCALHOST, port), who);
        }
        world.node.expect(Proto::Tcp, (world.client.node_v4, PORT), "web");
    });
}
