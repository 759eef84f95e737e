// SPDX-License-Identifier: GPL-2.0-or-later

//! A container in two networks. Clients of the second network, which are not masqueraded, use a port that is published
//! on the first one. The container's reply would leave through the second network and bypass the node that has
//! translated the request.

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Proto, peer_fails};

use crate::world::{PORT, SERVED, Web, World, each, gateways, in_every_topology};

/// A configuration of the second network, either without masquerade or with one that exempts the networks of all
/// containers. Without a default route in it, the container answers other hosts through its first network.
fn second(world: &World, is_exempt: bool, has_default_route: bool) -> Network<'_> {
    let mut list = world.list(2, &json!({}));
    if is_exempt {
        list["plugins"][0]["nonMasqueradeCIDRs"] = json!(["10.88.0.0/16", "fd00:88::/32"]);
    } else {
        list["plugins"][0]["ipMasq"] = json!(false);
    }
    if !has_default_route {
        list["plugins"][0]["ipam"].as_object_mut().expect("an object").remove("routes");
    }
    world.node.network(list)
}

/// Requests the ports that the tests publish.
fn published(attach: Attach) -> Attach {
    attach.port(Proto::Tcp, PORT, SERVED).port(Proto::Udp, PORT, SERVED)
}

/// A container in both networks, published on the first one. Strict `rp_filter` is set before the first ADD.
struct Both {
    web: Web,
    second: Attach,
}

fn both(world: &World, (one, two): (&Network<'_>, &Network<'_>), second_first: bool) -> Both {
    let pod = world.node.pod("web");
    pod.sysctl("net/ipv4/conf/all/rp_filter", "1");
    pod.sysctl("net/ipv4/conf/default/rp_filter", "1");
    let first = published(Attach::new(&pod));
    let second = Attach::new(&pod).ifname("eth1");
    let join = || two.add(&second).expect("ADD of the second network");
    if second_first {
        join();
    }
    let result: Value = one.add(&first).expect("ADD of the first network");
    if !second_first {
        join();
    }
    Both { web: Web::serve(pod, first, &result), second }
}

/// The node's addresses at which the tests try the ports.
fn addresses(world: &World) -> impl Iterator<Item = IpAddr> {
    world.node_ips().into_iter().chain(gateways(1)).chain(gateways(2))
}

/// Other clients are still seen with their own addresses.
fn others_are_seen(world: &World, third: &Web) {
    for (proto, to) in each(world.node_ips(), PORT) {
        for from in [&*world.client, &**third] {
            let answer = from.expect(proto, to, "web");
            assert_eq!(answer.peer.ip(), answer.own.ip(), "{proto:?} {to}");
        }
    }
}

/// A client in a network without masquerade to which the container does not belong.
fn stranger(world: &World) -> Web {
    let mut list = world.list(3, &json!({}));
    list["plugins"][0]["ipMasq"] = json!(false);
    let network = world.node.network(list);
    let third = Web::new(world, &network, "third", |a| a);
    gateways(3).into_iter().for_each(|gateway| world.node.wait_local(gateway));
    third
}

fn a_client_of_the_second_network(second_first: bool, is_exempt: bool) {
    peer_fails("the reply leaves by the second network", || {
        in_every_topology(|world| {
            let (one, two) = (world.network(1), second(world, is_exempt, false));
            let clients = second(world, is_exempt, true);
            let client = Web::new(world, &clients, "neighbour", |a| a);
            let Both { web, second } = both(world, (&one, &two), second_first);
            let third = stranger(world);
            gateways(2).into_iter().for_each(|gateway| world.node.wait_local(gateway));
            for (proto, to) in each(addresses(world), PORT) {
                let answer = client.expect(proto, to, "web");
                assert!(!client.ips().contains(&answer.peer.ip()), "{proto:?} {to}: {}", answer.peer);
            }
            others_are_seen(world, &third);
            one.check(&web.attach).expect("CHECK of the first network");
            two.check(&second).expect("CHECK of the second network");
            // Leaving the second network undoes only that.
            two.del(&second).expect("DEL of the second network");
            one.check(&web.attach).expect("CHECK after the DEL");
            for (proto, to) in each(world.node_ips(), PORT) {
                let answer = client.expect(proto, to, "web");
                assert_eq!(answer.peer.ip(), answer.own.ip(), "{proto:?} {to}");
            }
            // The container joins the second network again, and then leaves the first one.
            two.add(&second).expect("ADD again");
            for (proto, to) in each(world.node_ips(), PORT) {
                client.expect(proto, to, "web");
            }
            one.del(&web.attach).expect("DEL of the first network");
            client.expect_none_of(each(world.node_ips(), PORT));
            two.check(&second).expect("CHECK of the second network alone");
            two.del(&second).expect("DEL of the second network");
            let left = world.node.ruleset();
            assert!(!web.ips().iter().any(|ip| left.contains(&format!("{ip} :"))), "{left}");
        });
    });
}

#[test]
fn a_client_of_a_network_joined_later_reaches_the_port() {
    a_client_of_the_second_network(false, false);
}

#[test]
fn a_client_of_a_network_joined_before_reaches_the_port() {
    a_client_of_the_second_network(true, false);
}

#[test]
fn a_client_that_is_exempt_from_masquerade_reaches_the_port() {
    a_client_of_the_second_network(false, true);
}
