// SPDX-License-Identifier: GPL-2.0-or-later

//! SCTP, on kernels that support it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, socket,
};
use serde_json::json;
use slipway_tests::{Attach, BridgeNetfilter, Snapshot, at};

use crate::world::{PORT, SERVED, World};

fn published(world: &World) -> (slipway_tests::Pod, Attach, Ipv4Addr) {
    let network = world.network(1);
    let pod = world.node.pod("web");
    let attach =
        Attach::new(&pod).mapping(json!({"hostPort": PORT, "containerPort": SERVED, "protocol": "sctp"}));
    let result = network.add(&attach).expect("ADD");
    let ip = result["ips"][0]["address"].as_str().expect("an address");
    let ip = ip.split('/').next().expect("an address").parse().expect("an IPv4 address");
    (pod, attach, ip)
}

/// The ruleset contains the port; no packet is sent.
#[test]
fn the_port_is_in_the_ruleset() {
    let world = World::new(BridgeNetfilter::Off);
    let (pod, attach, ip) = published(&world);
    let network = world.network(1);
    let rules = world.node.ruleset();
    let line = rules.lines().find(|line| line.contains("sctp") && line.contains(&PORT.to_string()));
    assert!(line.is_some(), "{rules}");
    assert!(rules.contains(&format!("{ip}")), "{rules}");
    network.del(&attach).expect("DEL");
    let after = Snapshot::take(&world.node, &[&pod]);
    let left: Vec<_> =
        after.matching("nft element").into_iter().filter(|line| line.contains("sctp")).collect();
    assert!(left.is_empty(), "{left:#?}");
}

/// Opens a one-to-one style socket (RFC 6458, section 4), which behaves as a TCP socket.
fn sctp_socket() -> nix::Result<OwnedFd> {
    let protocol = nix::sys::socket::SockProtocol::Sctp;
    socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, protocol)
}

#[test]
fn another_host_reaches_the_container() {
    if sctp_socket().is_err() {
        slipway_tests::skip!("sctp sockets");
    }
    let world = World::new(BridgeNetfilter::Off);
    let (pod, _attach, ip) = published(&world);
    let listener = pod.run(|| {
        let socket = sctp_socket().expect("a socket");
        bind(socket.as_raw_fd(), &SockaddrStorage::from(at(ip, SERVED))).expect("bind");
        listen(&socket, Backlog::new(4).expect("small")).expect("listen");
        TcpListener::from(socket)
    });
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        stream.write_all(b"web").expect("write");
    });
    let mut stream = world.client.run(|| {
        let socket = sctp_socket().expect("a socket");
        connect(socket.as_raw_fd(), &SockaddrStorage::from(at(world.client.node_v4, PORT))).expect("connect");
        TcpStream::from(socket)
    });
    let mut text = [0; 3];
    stream.read_exact(&mut text).expect("read");
    assert_eq!(&text, b"web");
    server.join().expect("the server ends");
}
