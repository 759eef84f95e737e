// SPDX-License-Identifier: GPL-2.0-or-later

//! ipMasq: packets that leave the pod's network get the node's address, while packets within it keep their own source.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};
use slipway_tests::{Proto, Server, Space, at, patience, usable};

use crate::world::{SERVED, Web, World, each, in_every_topology, with_and_without_bridge_netfilter};

const OUTSIDE: u16 = 9000;

#[test]
fn outside_sees_the_nodes_address() {
    in_every_topology(|world| {
        let client = world.client_ips();
        let _servers: Vec<_> = each(client.clone(), OUTSIDE)
            .map(|(proto, address)| world.client.serve(proto, &address.to_string(), "outside"))
            .collect();
        let network = world.network(1);
        let web = Web::new(world, &network, "web", |a| a);
        for (proto, to) in each(client.clone(), OUTSIDE) {
            let node = world.node_ips()[usize::from(to.is_ipv6())];
            assert_eq!(web.expect(proto, to, "outside").peer.ip(), node);
        }
        for to in client {
            web.ping(to).unwrap_or_else(|e| panic!("ping {to}: {e}"));
        }
        network.del(&web.attach).expect("DEL");
    });
}

#[test]
fn other_pods_in_the_subnet_see_the_pods_own_address() {
    in_every_topology(|world| {
        let network = world.network(1);
        let web = Web::new(world, &network, "web", |a| a);
        let other = Web::new(world, &network, "other", |a| a);
        for (proto, to) in each(web.ips(), SERVED) {
            let answer = other.expect(proto, to, "web");
            assert_eq!(answer.peer, answer.own);
        }
    });
}

#[test]
fn the_other_networks_pods_see_the_nodes_address() {
    in_every_topology(|world| {
        let (one, two) = (world.network(1), world.network(2));
        let web = Web::new(world, &one, "web", |a| a);
        let other = Web::new(world, &two, "other", |a| a);
        for (proto, to) in each(web.ips(), SERVED) {
            let answer = other.expect(proto, to, "web");
            assert!(crate::world::gateways(1).contains(&answer.peer.ip()), "{proto:?} {to}: {}", answer.peer);
        }
    });
}

#[test]
fn without_ip_masq_outside_sees_the_pod() {
    in_every_topology(|world| {
        let _server = world.client.serve(Proto::Tcp, &format!("0.0.0.0:{OUTSIDE}"), "outside");
        let mut plain = world.list(1, &json!({}));
        plain["plugins"][0]["ipMasq"] = false.into();
        let network = world.node.network(plain);
        let web = Web::new(world, &network, "web", |a| a);
        let answer = web.expect(Proto::Tcp, (world.client.v4, OUTSIDE), "outside");
        assert_eq!(answer.peer, answer.own);
    });
}

/// Addresses of the client that are not in any list of exempt networks.
fn elsewhere() -> Vec<IpAddr> {
    usable([Ipv4Addr::new(203, 0, 113, 7).into(), Ipv6Addr::new(0x2001, 0xdb8, 0x7, 0, 0, 0, 0, 7).into()])
}

/// Gives the client the addresses from [`elsewhere`], and listens on all of its addresses.
fn serve_everywhere(world: &World) -> Vec<Server> {
    for address in elsewhere() {
        let nodad = if address.is_ipv6() { " nodad" } else { "" };
        world.client.cmd(&format!("ip address add {address} dev lo{nodad}"));
        let via = if address.is_ipv4() { world.client.v4.to_string() } else { world.client.v6.to_string() };
        world.node.cmd(&format!("ip route add {address} via {via}"));
    }
    let all = world.client_ips().into_iter().chain(elsewhere());
    each(all, OUTSIDE).map(|(proto, to)| world.client.serve(proto, &to.to_string(), "outside")).collect()
}

/// The configuration list of network 1, which exempts the networks of the client's own addresses.
fn exempting(world: &World) -> Value {
    let mut list = world.list(1, &json!({}));
    // The networks are listed out of order, and one contains another.
    let [v4, v6] = [IpAddr::from(world.client.v4), world.client.v6.into()]
        .map(|ip| IpNet::new(ip, if ip.is_ipv4() { 24 } else { 64 }).expect("a prefix").trunc());
    list["plugins"][0]["nonMasqueradeCIDRs"] =
        json!([v6, "10.0.0.0/8", v4, format!("{}/32", world.client.v4)]);
    list
}

/// Asserts which source address of a pod the outside sees.
#[track_caller]
fn outside_sees(world: &World, web: &Web, to: Vec<IpAddr>, own: bool) {
    for (proto, to) in each(to, OUTSIDE) {
        let answer = web.expect(proto, to, "outside");
        let node = world.node_ips()[usize::from(to.is_ipv6())];
        let expected = if own { answer.own.ip() } else { node };
        assert_eq!(answer.peer.ip(), expected, "{proto:?} {to}");
    }
}

#[test]
fn networks_exempt_from_masquerade_see_the_pods_own_address() {
    in_every_topology(|world| {
        let _servers = serve_everywhere(world);
        let network = world.node.network(exempting(world));
        let web = Web::new(world, &network, "web", |a| a);
        outside_sees(world, &web, world.client_ips(), true);
        outside_sees(world, &web, elsewhere(), false);
        for to in world.client_ips().into_iter().chain(elsewhere()) {
            web.ping(to).unwrap_or_else(|e| panic!("ping {to}: {e}"));
        }
        network.check(&web.attach).expect("CHECK");
        // If a client in an exempt network begins the connection, replies come from the pod's own address.
        for (proto, to) in each(web.ips(), SERVED) {
            assert_eq!(world.client.expect(proto, to, "web").from, to);
        }
        network.del(&web.attach).expect("DEL");
    });
}

#[test]
fn a_container_keeps_the_exempt_networks_of_its_add() {
    in_every_topology(|world| {
        let _servers = serve_everywhere(world);
        let before = world.network(1);
        let old = Web::new(world, &before, "old", |a| a);
        let network = world.node.network(exempting(world));
        let new = Web::new(world, &network, "new", |a| a);
        outside_sees(world, &old, world.client_ips(), false);
        outside_sees(world, &new, world.client_ips(), true);
        before.check(&old.attach).expect("CHECK with the configuration of the ADD");
        network.remember(&old.attach, before.cached(&old.attach).expect("it was added"));
        let error = network.check(&old.attach).expect_err("CHECK with another list").to_string();
        assert!(error.contains("nonMasqueradeCIDRs") || error.contains("has no rule"), "{error}");
        network.del(&new.attach).expect("DEL");
        outside_sees(world, &old, world.client_ips(), false);
        let again = Web::new(world, &network, "again", |a| a);
        before.del(&old.attach).expect("DEL");
        outside_sees(world, &again, world.client_ips(), true);
        outside_sees(world, &again, elsewhere(), false);
        network.del(&again.attach).expect("DEL");
        network.gc(&[]).expect("GC");
        let left = world.node.ruleset();
        assert!(!left.contains("exempt") && !left.contains("10.0.0.0/8"), "{left}");
    });
}

/// Multicast packets stay on the bridge, but if bridged packets pass netfilter, they reach the hook that masquerades.
#[test]
fn multicast_keeps_its_source() {
    with_and_without_bridge_netfilter(|world| {
        let network = world.network(1);
        let listener = Web::new(world, &network, "listener", |a| a);
        let sender = Web::new(world, &network, "sender", |a| a);
        let (v4, v6) = (Ipv4Addr::new(239, 1, 2, 3), Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0x12, 0x34));
        // Each family has a different port, because a closed socket may occupy its address for a moment.
        for (port, (group, own)) in (5000..).zip(usable([v4.into(), v6.into()]).into_iter().zip(sender.ips()))
        {
            let socket = listener.run(|| {
                let socket = UdpSocket::bind(at(unspecified(group), port)).expect("bind");
                match group {
                    IpAddr::V4(group) => socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED),
                    IpAddr::V6(group) => {
                        let eth0 = nix::net::if_::if_nametoindex("eth0").expect("eth0");
                        socket.join_multicast_v6(&group, eth0)
                    }
                }
                .expect("join");
                socket
            });
            assert_eq!(source_seen(&sender, &socket, own, at(group, port)), own, "{group}");
        }
    });
}

/// Returns the wildcard address of a family.
fn unspecified(of: IpAddr) -> IpAddr {
    if of.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Sends to a group until the listener receives a datagram. Returns the source address that the listener sees.
fn source_seen(sender: &Space, listener: &UdpSocket, own: IpAddr, group: SocketAddr) -> IpAddr {
    listener.set_read_timeout(Some(Duration::from_millis(200))).expect("a time-out");
    let socket = sender.run(|| UdpSocket::bind(at(own, 0)).expect("bind"));
    for _ in 0..20 {
        socket.send_to(b"hello", group).expect("send");
        if let Ok((_, from)) = listener.recv_from(&mut [0; 16]) {
            return from.ip();
        }
    }
    panic!("no datagram for {group} arrived");
}

/// After DEL, packets from the pod's address are not masqueraded.
#[test]
fn nothing_is_masqueraded_after_del() {
    with_and_without_bridge_netfilter(|world| {
        let _server = world.client.serve(Proto::Tcp, &format!("0.0.0.0:{OUTSIDE}"), "outside");
        let network = world.network(1);
        let web = Web::new(world, &network, "web", |a| a);
        let stays = Web::new(world, &network, "stays", |a| a);
        network.del(&web.attach).expect("DEL");
        // The node takes over the pod's address.
        world.node.cmd(&format!("ip address add {}/32 dev br1", web.v4));
        world.client.cmd(&format!("ip route add {} via {}", web.v4, world.client.node_v4));
        let to = at(world.client.v4, OUTSIDE);
        let answer =
            world.node.request_from(Proto::Tcp, Some(at(web.v4, 0)), to, patience()).expect("an answer");
        assert_eq!(answer.peer.ip(), web.v4);
        let answer = stays.expect(Proto::Tcp, to, "outside");
        assert_eq!(answer.peer.ip(), world.client.node_v4);
    });
}
