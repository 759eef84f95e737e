// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets for 127/8 and ::1 that arrive on an interface must be dropped, with any port published:
//! route_localnet, which lets the node's own 127.0.0.1 reach a pod, also lets neighbours reach the node's
//! loopback services (CVE-2020-8558).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use slipway_tests::{BridgeNetfilter, Proto, Space, peer_fails};

use crate::world::{PORT, Web, World, each, gateways, in_every_topology};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SERVICE: u16 = 7000;

/// Makes a neighbour send packets for 127/8 and ::1 to the node: it removes the addresses from its own
/// loopback and routes them to the node.
fn attack(space: &Space, dev: &str, via: [IpAddr; 2]) {
    space.cmd("ip link set lo up");
    space.sysctl("net/ipv4/conf/all/route_localnet", "1");
    space.cmd("ip address del 127.0.0.1/8 dev lo");
    space.cmd(&format!("ip route add 127.0.0.0/8 via {} dev {dev}", via[0]));
    space.cmd("ip -6 address del ::1/128 dev lo");
    space.cmd(&format!("ip -6 route add ::1/128 via {} dev {dev}", via[1]));
}

/// Starts TCP and UDP services on the node's loopback, in both families.
fn services(world: &World) -> Vec<slipway_tests::Server> {
    each([LOOPBACK, Ipv6Addr::LOCALHOST.into()], SERVICE)
        .map(|(proto, address)| world.node.serve(proto, &address.to_string(), "service"))
        .collect()
}

/// The control: without a guard the attack succeeds where route_localnet is on.
#[test]
fn the_attack_works_without_a_guard() {
    let world = World::new(BridgeNetfilter::Off);
    let _services = services(&world);
    attack(&world.client, "eth0", world.node_ips());
    world.client.expect_none(Proto::Tcp, (LOOPBACK, SERVICE));
    world.node.sysctl("net/ipv4/conf/all/route_localnet", "1");
    for proto in Proto::ALL {
        world.client.expect(proto, (LOOPBACK, SERVICE), "service");
    }
}

#[test]
fn another_host_cannot_reach_the_nodes_loopback() {
    peer_fails("nothing guards the loopback", || {
        in_every_topology(|world| {
            let _services = services(world);
            // Other programs, such as kube-proxy, may have set route_localnet on all interfaces.
            world.node.sysctl("net/ipv4/conf/all/route_localnet", "1");
            let network = world.network(1);
            let _web = Web::published(world, &network, "web");
            attack(&world.client, "eth0", world.node_ips());
            cannot_reach_loopback(&world.client);
            node_reaches_loopback(world);
        });
    });
}

#[test]
fn a_pod_cannot_reach_the_nodes_loopback() {
    peer_fails("nothing guards the loopback", || {
        in_every_topology(|world| {
            let _services = services(world);
            let network = world.network(1);
            let web = Web::published(world, &network, "web");
            let other = Web::new(world, &network, "other", |a| a);
            for pod in [&web, &other] {
                attack(pod, "eth0", gateways(1));
                cannot_reach_loopback(pod);
            }
            node_reaches_loopback(world);
        });
    });
}

#[track_caller]
fn cannot_reach_loopback(space: &Space) {
    let ips = [LOOPBACK, Ipv4Addr::new(127, 1, 2, 3).into(), Ipv6Addr::LOCALHOST.into()];
    space.expect_none_of([PORT, SERVICE].into_iter().flat_map(|port| each(ips, port)));
}

/// The node still reaches its own loopback services, and the published port there.
#[track_caller]
fn node_reaches_loopback(world: &World) {
    for (proto, to) in each([LOOPBACK, Ipv6Addr::LOCALHOST.into()], SERVICE) {
        world.node.expect(proto, to, "service");
    }
    for (proto, to) in each([LOOPBACK], PORT) {
        world.node.expect(proto, to, "web");
    }
}
