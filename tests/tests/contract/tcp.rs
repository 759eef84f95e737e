// SPDX-License-Identifier: GPL-2.0-or-later

//! TCP connections that neither end has closed, which conntrack keeps for five days.

use std::net::SocketAddr;

use nix::libc;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use slipway_tests::{BridgeNetfilter, Proto, at, patience, peer_fails};

use crate::world::{PORT, SERVED, Web, World};

/// The source port that the client uses again. The kernel does not choose this port by itself.
const CLIENT_PORT: u16 = 20_000;
/// Drops the packets that would tell the other end about the end of a connection.
const MUTE: &str = "table inet mute { chain c { type filter hook output priority -400; \
                    tcp flags & (fin | rst) != 0 drop; }; }";

/// Connects from [`CLIENT_PORT`], and forgets the connection without notifying the other end.
fn connect_and_forget(world: &World, to: SocketAddr) {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    world.client.run(|| {
        let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        let from = if to.is_ipv4() { "0.0.0.0" } else { "::" }.parse().expect("an address");
        setsockopt(&socket, sockopt::ReuseAddr, &true).expect("an option");
        bind(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            &SockaddrStorage::from(SocketAddr::new(from, CLIENT_PORT)),
        )
        .expect("bind");
        connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrStorage::from(to)).expect("connect");
        setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).expect("linger");
    });
}

/// Otherwise the client's packets would go to the first container's address, which nobody or a stranger may have by
/// then.
#[test]
fn a_clients_port_is_not_dead_after_a_container_that_vanished() {
    peer_fails("connections keep their translation", || {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        let first = Web::published(&world, &network, "first");
        let other = Web::new(&world, &network, "other", |attach| attach.port(Proto::Tcp, PORT + 1, SERVED));
        let count = world.node_ips().len();
        let dial =
            |ip| world.client.dial(Proto::Tcp, None, at(ip, PORT + 1), patience()).expect("a connection");
        let mut living: Vec<_> = world.node_ips().into_iter().map(dial).collect();
        for flow in &mut living {
            assert_eq!(flow.request().expect("an answer").who, "other");
        }
        world.client.nft(MUTE);
        for ip in world.node_ips() {
            connect_and_forget(&world, at(ip, PORT));
        }
        first.cmd("ip link set eth0 down");
        world.client.nft("delete table inet mute");
        let tracked = |port: u16| {
            let lines = world.node.cmd("conntrack -L -p tcp");
            lines
                .lines()
                .filter(|line| line.contains("ESTABLISHED") && line.contains(&format!("dport={port} ")))
                .count()
        };
        assert_eq!((tracked(PORT), tracked(PORT + 1)), (count, count));
        network.del(&first.vanish()).expect("DEL");
        assert_eq!((tracked(PORT), tracked(PORT + 1)), (0, count), "only connections with the container end");

        let _second = Web::published(&world, &network, "second");
        for ip in world.node_ips() {
            let from = if ip.is_ipv4() { "0.0.0.0" } else { "::" }.parse().expect("an address");
            let from = SocketAddr::new(from, CLIENT_PORT);
            let answer = world.client.request_from(Proto::Tcp, Some(from), at(ip, PORT), patience());
            assert_eq!(answer.expect("an answer").who, "second");
        }
        // As the control, living connections continue.
        for flow in &mut living {
            assert_eq!(flow.request().expect("an answer").who, "other");
        }
        drop(other);
    });
}
