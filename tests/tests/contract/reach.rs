// SPDX-License-Identifier: GPL-2.0-or-later

//! Published ports: which clients reach them, at which addresses, and which source address the container sees.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::json;
use slipway_tests::{BridgeNetfilter, Proto, at, needs_ipv6, newest_version, patience, peer_fails, usable};

use crate::world::{PORT, SERVED, Web, World, each, gateways, in_every_topology, only_nftables};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[test]
fn another_host_reaches_the_container_and_is_seen_by_it() {
    in_every_topology(|world| {
        let network = world.network(1);
        let _web = Web::published(world, &network, "web");
        for (proto, to) in each(world.node_ips(), PORT) {
            let answer = world.client.expect(proto, to, "web");
            assert_eq!(answer.peer.ip(), answer.own.ip(), "{proto:?} {to}");
            assert_eq!(answer.from, to);
        }
    });
}

#[test]
fn the_node_reaches_the_container_at_each_of_its_addresses() {
    in_every_topology(|world| {
        let network = world.network(1);
        let _web = Web::published(world, &network, "web");
        let own = world.node_ips().into_iter().chain(gateways(1));
        let loopback = [LOOPBACK, Ipv4Addr::new(127, 1, 2, 3).into()];
        for (proto, to) in each(own.chain(loopback), PORT) {
            world.node.expect(proto, to, "web");
        }
        // Does the same as Kubernetes' end-to-end test: curl --interface <node IP> http://127.0.0.1:port
        for proto in Proto::ALL {
            let from = Some(at(world.client.node_v4, 0));
            let answer =
                world.node.request_from(proto, from, at(LOOPBACK, PORT), patience()).expect("an answer");
            assert_eq!(answer.who, "web");
        }
    });
}

#[test]
fn the_node_reaches_the_container_at_the_ipv6_loopback_address() {
    needs_ipv6!();
    only_nftables("nothing is published on ::1", || {
        for world in [World::new(BridgeNetfilter::Off), World::ptp()] {
            let network = world.network(1);
            let _web = Web::published(&world, &network, "web");
            for (proto, to) in each([Ipv6Addr::LOCALHOST], PORT) {
                world.node.expect(proto, to, "web");
            }
            // A second pod uses the same settings of the bridge for ::1, and its DEL must keep them for the first pod.
            let other = Web::new(&world, &network, "other", |a| {
                a.port(Proto::Tcp, PORT + 1, SERVED).port(Proto::Udp, PORT + 1, SERVED)
            });
            for (proto, to) in each([Ipv6Addr::LOCALHOST], PORT + 1) {
                world.node.expect(proto, to, "other");
            }
            network.del(&other.attach).expect("DEL");
            for (proto, to) in each([Ipv6Addr::LOCALHOST], PORT) {
                world.node.expect(proto, to, "web");
            }
            // The node's own services on ::1 work as before.
            let _own = world.node.serve(Proto::Tcp, "[::1]:7000", "own");
            world.node.expect(Proto::Tcp, (Ipv6Addr::LOCALHOST, 7000), "own");
        }
    });
}

#[test]
fn other_pods_reach_the_container_at_the_nodes_addresses() {
    in_every_topology(|world| {
        let (one, two) = (world.network(1), world.network(2));
        let _web = Web::published(world, &one, "web");
        let same = Web::new(world, &one, "same", |a| a);
        let other = Web::new(world, &two, "other", |a| a);
        gateways(2).into_iter().for_each(|gateway| world.node.wait_local(gateway));
        for from in [&same, &other] {
            let ips = world.node_ips().into_iter().chain(gateways(1)).chain(gateways(2));
            for (proto, to) in each(ips, PORT) {
                from.expect(proto, to, "web");
            }
        }
    });
}

#[test]
fn a_pod_reaches_itself_and_sees_the_node() {
    in_every_topology(|world| {
        let network = world.network(1);
        let web = Web::published(world, &network, "web");
        let node: Vec<IpAddr> = world.node_ips().into_iter().chain(gateways(1)).collect();
        for (proto, to) in each(node.clone(), PORT) {
            let answer = web.expect(proto, to, "web");
            assert!(node.contains(&answer.peer.ip()), "{proto:?} {to}: the pod sees {}", answer.peer);
        }
    });
}

#[test]
fn forwarded_traffic_to_the_port_is_not_captured() {
    in_every_topology(|world| {
        let far = world.node.host("far");
        let network = world.network(1);
        let web = Web::published(world, &network, "web");
        let other = Web::new(world, &network, "other", |a| a);
        let _servers: Vec<_> = each(usable([far.v4.into(), far.v6.into()]), PORT)
            .map(|(proto, address)| far.serve(proto, &address.to_string(), "far"))
            .collect();
        for (proto, to) in each(usable([far.v4.into(), far.v6.into()]), PORT) {
            world.client.expect(proto, to, "far");
            other.expect(proto, to, "far");
            web.expect(proto, to, "far");
            world.node.expect(proto, to, "far");
        }
    });
}

#[test]
fn a_host_address_beats_the_wildcard() {
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let ips = world.node_ips();
    let specific = |attach: slipway_tests::Attach| {
        let mut attach = attach;
        for ip in &ips {
            for proto in Proto::ALL {
                attach = attach.port_on(&ip.to_string(), proto, PORT, SERVED);
            }
        }
        attach
    };
    let check = |wildcard: &str, specific: &str| {
        for (proto, to) in each(ips.clone(), PORT) {
            world.client.expect(proto, to, specific);
            world.node.expect(proto, to, specific);
        }
        for (proto, to) in each(gateways(1), PORT) {
            world.client.expect(proto, to, wildcard);
        }
    };
    // The order of the ADDs must not matter.
    peer_fails("the first rule wins, whatever it matches", || {
        let any = Web::published(&world, &network, "any");
        let one = Web::new(&world, &network, "one", specific);
        check("any", "one");
        network.del(&any.attach).expect("DEL");
        let _later = Web::published(&world, &network, "later");
        check("later", "one");
        // After DEL of the mapping with an address, the wildcard mapping serves that address as well.
        network.del(&one.attach).expect("DEL");
        check("later", "later");
    });
}

#[test]
fn a_wildcard_address_means_one_family() {
    needs_ipv6!();
    for (wildcard, has) in [("0.0.0.0", 0), ("::", 1)] {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        let _web = Web::new(&world, &network, "web", |a| {
            a.port_on(wildcard, Proto::Tcp, PORT, SERVED).port_on(wildcard, Proto::Udp, PORT, SERVED)
        });
        let ips = world.node_ips();
        for (proto, to) in each([ips[has]], PORT) {
            world.client.expect(proto, to, "web");
        }
        world.client.expect_none_of(each([ips[1 - has]], PORT));
    }
}

/// Does the same as Kubernetes' end-to-end test of hostPorts without conflicts.
#[test]
fn three_pods_share_a_port_number() {
    const E2E: u16 = 54323;
    in_every_topology(|world| {
        let network = world.network(1);
        let node = world.client.node_v4;
        let _one = Web::new(world, &network, "one", |a| a.port_on("127.0.0.1", Proto::Tcp, E2E, SERVED));
        let _two =
            Web::new(world, &network, "two", |a| a.port_on(&node.to_string(), Proto::Tcp, E2E, SERVED));
        let _three =
            Web::new(world, &network, "three", |a| a.port_on(&node.to_string(), Proto::Udp, E2E, SERVED));
        world.node.expect(Proto::Tcp, (LOOPBACK, E2E), "one");
        let from = Some(at(node, 0));
        let answer =
            world.node.request_from(Proto::Tcp, from, at(LOOPBACK, E2E), patience()).expect("an answer");
        assert_eq!(answer.who, "one");
        for place in [&*world.client, &world.node] {
            place.expect(Proto::Tcp, (node, E2E), "two");
            place.expect(Proto::Udp, (node, E2E), "three");
        }
        // The UDP port is published at the node's address only, so the loopback does not answer.
        world.node.expect_none(Proto::Udp, (LOOPBACK, E2E));
    });
}

#[test]
fn no_address_answers_after_del() {
    in_every_topology(|world| {
        let network = world.network(1);
        let web = Web::published(world, &network, "web");
        let stays = Web::new(world, &network, "stays", |a| a.port(Proto::Tcp, PORT + 1, SERVED));
        world.client.expect(Proto::Tcp, (world.client.node_v4, PORT), "web");
        network.del(&web.attach).expect("DEL");
        world.client.expect_none_of(each(world.node_ips(), PORT));
        world.node.expect_none(Proto::Tcp, (LOOPBACK, PORT));
        world.client.expect(Proto::Tcp, (world.client.node_v4, PORT + 1), "stays");
        network.del(&web.attach).expect("DEL again");
        network.del(&stays.attach).expect("DEL");
    });
}

#[test]
fn without_snat_the_pod_sees_itself_and_the_loopback_is_not_served() {
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network_with(1, &json!({"snat": false}));
    let _web = Web::published(&world, &network, "web");
    for (proto, to) in each(world.node_ips(), PORT) {
        let answer = world.client.expect(proto, to, "web");
        assert_eq!(answer.peer.ip(), answer.own.ip());
    }
    world.node.expect_none_of(each([LOOPBACK], PORT));
}

#[test]
fn masq_all_hides_every_client() {
    if newest_version() == "1.0.0" {
        // An older version of the reference plugins does not know the key.
        return;
    }
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network_with(1, &json!({"masqAll": true}));
    let _web = Web::published(&world, &network, "web");
    for (index, ip) in world.node_ips().into_iter().enumerate() {
        for proto in Proto::ALL {
            let answer = world.client.expect(proto, (ip, PORT), "web");
            assert_eq!(answer.peer.ip(), gateways(1)[index]);
        }
    }
}
