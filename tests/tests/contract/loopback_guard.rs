// SPDX-License-Identifier: GPL-2.0-or-later

//! With any port published, packets for 127/8 and ::1 that arrive on an interface must be dropped. route_localnet is
//! needed so that the node's own 127.0.0.1 reaches a pod, but it also lets neighbours reach the node's loopback
//! services (CVE-2020-8558).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use slipway_tests::{BridgeNetfilter, Proto, Space, peer_fails, usable};

use crate::world::{PORT, Web, World, each, gateways, in_every_topology};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SERVICE: u16 = 7000;

/// Makes a neighbour send packets for 127/8 and ::1 to the node. The neighbour removes the addresses from its own
/// loopback and routes them to the node.
fn attack(space: &Space, dev: &str, via: Vec<IpAddr>) {
    space.cmd("ip link set lo up");
    space.sysctl("net/ipv4/conf/all/route_localnet", "1");
    for via in via {
        let (own, all) = if via.is_ipv4() { ("127.0.0.1/8", "127.0.0.0/8") } else { ("::1/128", "::1/128") };
        space.cmd(&format!("ip address del {own} dev lo"));
        space.cmd(&format!("ip route add {all} via {via} dev {dev}"));
    }
}

/// Starts TCP and UDP services on the node's loopback, in each family that the kernel has.
fn services(world: &World) -> Vec<slipway_tests::Server> {
    each(usable([LOOPBACK, Ipv6Addr::LOCALHOST.into()]), SERVICE)
        .map(|(proto, address)| world.node.serve(proto, &address.to_string(), "service"))
        .collect()
}

/// As the control, the attack succeeds without a guard where route_localnet is on.
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

/// Packets that conntrack does not track pass no chain of type nat.
#[test]
fn untracked_packets_cannot_reach_the_nodes_loopback() {
    peer_fails("nothing guards the loopback", || {
        let world = World::new(BridgeNetfilter::Off);
        let _services = services(&world);
        let network = world.network(1);
        let web = Web::published(&world, &network, "web");
        world.node.nft(
            "add table ip untracked; \
             add chain ip untracked raw { type filter hook prerouting priority raw; }; \
             add rule ip untracked raw iifname != lo ip daddr 127.0.0.0/8 notrack",
        );
        attack(&web, "eth0", gateways(1));
        cannot_reach_loopback(&web);
        node_reaches_loopback(&world);
    });
}

/// A neighbour that knows the addresses and ports of a flow on the node's loopback sends packets that seem to belong to
/// it.
#[test]
fn packets_cannot_join_a_flow_of_the_nodes_loopback() {
    peer_fails("nothing guards the loopback", || {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        let web = Web::published(&world, &network, "web");
        let other = Web::new(&world, &network, "other", |a| a);
        let bound = |space: &Space, address: &str| {
            space.run(|| {
                let socket = UdpSocket::bind(address)?;
                socket.set_read_timeout(Some(Duration::from_millis(300)))?;
                std::io::Result::Ok(socket)
            })
        };
        let server = bound(&world.node, &format!("127.0.0.1:{SERVICE}")).unwrap();
        let received = || {
            let mut buffer = [0; 64];
            server
                .recv(&mut buffer)
                .ok()
                .map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned())
        };
        attack(&other, "eth0", gateways(1));
        for source in ["127.0.0.1:5555", "127.0.0.2:5555"] {
            let own = bound(&world.node, source).unwrap();
            own.send_to(b"own", ("127.0.0.1", SERVICE)).unwrap();
            assert_eq!(received().as_deref(), Some("own"));
            // The reply makes the flow an established one.
            server.send_to(b"reply", source).unwrap();
            let address = source.split(':').next().unwrap();
            other.cmd(&format!("ip address add {address}/32 dev eth0"));
            let forged = bound(&other, source).unwrap();
            forged.send_to(b"forged", ("127.0.0.1", SERVICE)).unwrap();
            assert_eq!(received(), None, "from {source}");
            // Then the neighbour pretends to be the server and sends to the client.
            let forged = other.run(|| UdpSocket::bind(("127.0.0.1", SERVICE)));
            if let Ok(forged) = forged {
                forged.send_to(b"forged", source).unwrap();
                let mut buffer = [0; 64];
                let reply = own.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..reply], b"reply");
                assert!(own.recv(&mut buffer).is_err(), "a reply to {source}");
            }
        }
        // The same is tried with a flow to a published port, whose packets would reach the container.
        let own = bound(&world.node, "127.0.0.1:5556").unwrap();
        let before = web.counter("Udp", "InDatagrams");
        own.send_to(b"own", ("127.0.0.1", PORT)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let with_own = web.counter("Udp", "InDatagrams");
        assert_ne!(before, with_own, "control: the node's own packet arrives");
        let forged = bound(&other, "127.0.0.1:5556").unwrap();
        forged.send_to(b"forged", ("127.0.0.1", PORT)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let with_forged = web.counter("Udp", "InDatagrams");
        assert_eq!(with_own, with_forged);
    });
}

#[track_caller]
fn cannot_reach_loopback(space: &Space) {
    let ips = usable([LOOPBACK, Ipv4Addr::new(127, 1, 2, 3).into(), Ipv6Addr::LOCALHOST.into()]);
    space.expect_none_of([PORT, SERVICE].into_iter().flat_map(|port| each(ips.clone(), port)));
}

/// The node still reaches its own loopback services, and the published port on the loopback.
#[track_caller]
fn node_reaches_loopback(world: &World) {
    for (proto, to) in each(usable([LOOPBACK, Ipv6Addr::LOCALHOST.into()]), SERVICE) {
        world.node.expect(proto, to, "service");
    }
    for (proto, to) in each([LOOPBACK], PORT) {
        world.node.expect(proto, to, "web");
    }
}
