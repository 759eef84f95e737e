// SPDX-License-Identifier: GPL-2.0-or-later

//! Datagrams that the uplink merges reach the pod as they were sent, with every backend and in both families.
#![allow(unsafe_code, reason = "nix has no SO_NO_CHECK")]

use std::io::{ErrorKind, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use serde_json::json;
use slipway_tests::{
    BridgeNetfilter, PROGRAMS, Proto, UDP_GRO, at, has_programs, has_udp_gro, needs, patience,
};

use crate::world::{PORT, Web, World};

/// The kinds of trains: the size of datagrams, their number in a train, and the size of a shorter one at its end, or 0.
const TRAINS: [(usize, usize, usize); 5] =
    [(1, 60, 0), (100, 40, 37), (1400, 33, 900), (1452, 40, 0), (700, 1, 3)];
/// The number of trains of each kind.
const EACH: usize = 8;

/// The port on which the container receives.
const RECEIVED: u16 = 81;

/// Adds a pod with a published UDP port.
fn publish(world: &World, number: u8, backend: &str) -> Web {
    let mut list = world.list(number, &json!({"backend": backend}));
    list["plugins"][0]["ipMasqBackend"] = backend.into();
    let network = world.node.network(list);
    Web::new(world, &network, backend, |attach| attach.port(Proto::Udp, PORT + u16::from(number), RECEIVED))
}

fn receiver(web: &Web, family: usize, together: bool) -> UdpSocket {
    let begin = Instant::now();
    let socket = loop {
        match web.run(|| UdpSocket::bind(at(web.ips()[family], RECEIVED))) {
            // A program that another test starts has a copy of the previous socket until it calls execve(2).
            Err(error) if error.kind() == ErrorKind::AddrInUse && begin.elapsed() < patience() => {
                sleep(Duration::from_millis(10));
            }
            bound => break bound.expect("bind"),
        }
    };
    socket.set_read_timeout(Some(patience())).expect("a time limit");
    setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20)).expect("a buffer");
    setsockopt(&socket, sockopt::UdpGroSegment, &together).expect("UDP_GRO");
    socket
}

/// A datagram whose content depends on its number.
fn datagram(number: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| (number * 7 + at * 13) as u8).collect()
}

/// Receives `count` datagrams. Also returns the number of messages in which they came.
fn receive(socket: &UdpSocket, count: usize) -> (Vec<Vec<u8>>, usize) {
    let (mut found, mut messages) = (Vec::new(), 0);
    while found.len() < count {
        let mut bytes = vec![0; 64 << 10];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut space = nix::cmsg_space!(i32);
        let message =
            recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty())
                .unwrap_or_else(|error| panic!("after {} of {count} datagrams: {error}", found.len()));
        let size = message.cmsgs().expect("control messages").find_map(|one| match one {
            ControlMessageOwned::UdpGroSegments(size) => usize::try_from(size).ok(),
            _ => None,
        });
        let length = message.bytes;
        found.extend(bytes[..length].chunks(size.unwrap_or(length)).map(<[u8]>::to_vec));
        messages += 1;
    }
    (found, messages)
}

/// Sends trains of a kind and compares what arrives. Returns the number of datagrams and the number of messages.
fn trains(client: &UdpSocket, receiver: &UdpSocket, kind: (usize, usize, usize)) -> (usize, usize) {
    let (size, count, last) = kind;
    let mut sent = Vec::new();
    for train in 0..EACH {
        let mut datagrams: Vec<_> = (0..count).map(|at| datagram(train * 100 + at, size)).collect();
        datagrams.extend((last > 0).then(|| datagram(train * 100 + count, last)));
        setsockopt(client, sockopt::UdpGsoSegment, &(size as i32)).expect("UDP_SEGMENT");
        client.send(&datagrams.concat()).expect("send");
        sent.extend(datagrams);
    }
    let (found, messages) = receive(receiver, sent.len());
    assert!(found == sent, "{kind:?}: {:?}", found.iter().map(Vec::len).collect::<Vec<_>>());
    (found.len(), messages)
}

/// True if veth pairs merge packets (Linux 5.13). Earlier, only those with an XDP program did.
fn veth_merges() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let numbers = release.split(|c: char| !c.is_ascii_digit()).take(2);
    numbers.map(|number| number.parse::<u32>().expect("a number")).ge([5, 13])
}

#[test]
fn merged_datagrams_arrive_as_they_were_sent() {
    needs!(has_programs(), PROGRAMS);
    needs!(has_udp_gro(), UDP_GRO);
    let merges = veth_merges();
    let world = World::new(BridgeNetfilter::Off);
    for (number, backend) in [(1, "nftables"), (2, "ebpf")] {
        let web = publish(&world, number, backend);
        for (family, node) in world.node_ips().into_iter().enumerate() {
            for together in [false, true] {
                let receiver = receiver(&web, family, together);
                let any = if node.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let client = world.client.bind(|| UdpSocket::bind(any)).expect("bind");
                client.connect(at(node, PORT + u16::from(number))).expect("connect");
                let counts = TRAINS.map(|kind| trains(&client, &receiver, kind));
                println!("{backend}, {node}, UDP_GRO {together}: {counts:?}");
                if together && merges {
                    // The uplink has merged the datagrams, and nothing on the way has split them again.
                    assert!(counts[..4].iter().all(|(count, messages)| messages * 4 < *count), "{counts:?}");
                } else {
                    assert!(counts.iter().all(|(count, messages)| messages == count), "{counts:?}");
                }
            }
        }
    }
    assert!(world.node.counted("carried_packets") > 0, "{}", world.node.programs());
}

#[test]
fn datagrams_without_a_checksum_arrive() {
    needs!(has_programs(), PROGRAMS);
    needs!(has_udp_gro(), UDP_GRO);
    let world = World::new(BridgeNetfilter::Off);
    for (number, backend) in [(1, "nftables"), (2, "ebpf")] {
        let web = publish(&world, number, backend);
        let receiver = receiver(&web, 0, true);
        let client = world.client.bind(|| UdpSocket::bind("0.0.0.0:0")).expect("bind");
        client.connect((world.client.node_v4, PORT + u16::from(number))).expect("connect");
        let on: libc::c_int = 1;
        // SAFETY: the kernel reads one integer, which outlives the call.
        let result = unsafe {
            libc::setsockopt(
                client.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NO_CHECK,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
        let sent: Vec<_> = (0..50).map(|at| datagram(at, 1 + at * 20)).collect();
        sent.iter().for_each(|datagram| assert_eq!(client.send(datagram).expect("send"), datagram.len()));
        assert!(receive(&receiver, sent.len()).0 == sent, "{backend}");
    }
}
