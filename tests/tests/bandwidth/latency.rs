// SPDX-License-Identifier: GPL-2.0-or-later

//! The latency of a small flow while other flows fill the limit.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use slipway_tests::{Attach, Node, Space, is_peer, within};

use super::{EGRESS, INGRESS, SPAN, ifbs, network, outer};

/// Connections that fill the limit. A single one might be limited by its receiver's window before the queue
/// grows.
const CONNECTIONS: usize = 4;

/// Returns the median round trip of single datagrams while connections in the same direction fill the limit.
fn round_trip(from: &Space, to: &Space, address: Ipv4Addr) -> Duration {
    let listener = to.bind(|| TcpListener::bind((address, 0))).expect("bind");
    let sink = listener.local_addr().expect("an address");
    let connect = || TcpStream::connect_timeout(&sink, within(Duration::from_secs(8)));
    let pair = |_| (from.run(connect).expect("connect"), listener.accept().expect("accept").0);
    let pairs: Vec<(TcpStream, TcpStream)> = (0..CONNECTIONS).map(pair).collect();
    let echo = to.bind(|| UdpSocket::bind((address, 0))).expect("bind");
    let ping = from.bind(|| UdpSocket::bind("0.0.0.0:0")).expect("bind");
    ping.connect(echo.local_addr().expect("an address")).expect("connect");
    for socket in [&echo, &ping] {
        socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a time-out");
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for (sender, receiver) in &pairs {
            scope.spawn(move || while (&*sender).write_all(&[0; 16_384]).is_ok() {});
            scope.spawn(move || while (&*receiver).read(&mut [0; 65_536]).is_ok_and(|bytes| bytes > 0) {});
        }
        scope.spawn(|| {
            let mut buffer = [0; 8];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((bytes, peer)) = echo.recv_from(&mut buffer) {
                    let _ = echo.send_to(&buffer[..bytes], peer);
                }
            }
        });
        // Waits until the burst is used up.
        thread::sleep(Duration::from_millis(1500));
        let (begin, mut seen, mut number) = (Instant::now(), Vec::new(), 0_u64);
        while begin.elapsed() < SPAN {
            number += 1;
            let (sent, mut buffer) = (Instant::now(), [0; 8]);
            let answered = ping.send(&number.to_be_bytes()).is_ok()
                && std::iter::from_fn(|| ping.recv(&mut buffer).ok().map(|_| u64::from_be_bytes(buffer)))
                    .any(|reply| reply == number);
            // A lost datagram counts as the longest wait.
            seen.push(if answered { sent.elapsed() } else { Duration::from_millis(500) });
            thread::sleep(Duration::from_millis(7));
        }
        stop.store(true, Ordering::Relaxed);
        for end in pairs.iter().flat_map(|(sender, receiver)| [sender, receiver]) {
            // The shutdown fails if the connection has already ended.
            let _ = end.shutdown(Shutdown::Both);
        }
        seen.sort();
        seen[seen.len() / 2]
    })
}

/// The control is the reference plugin's queue on the same link, a single one for all flows, with room for the burst
/// and 25 ms.
#[test]
fn a_small_flow_does_not_wait_behind_flows_that_fill_the_limit() {
    let node = Node::new();
    let client = node.host("client");
    let pod = node.pod("pod");
    // 0.25 s of traffic into the container, 0.5 s out of it. Runtimes configure far larger bursts.
    const BURST: u64 = 4_000_000;
    let limits =
        json!({"ingressRate": INGRESS, "ingressBurst": BURST, "egressRate": EGRESS, "egressBurst": BURST});
    let network = network(&node, &limits);
    let result = network.add(&Attach::new(&pod)).expect("ADD");
    node.forward();
    let address = Ipv4Addr::new(10, 1, 2, 2);
    let into = || round_trip(&client, &pod, address);
    let out_of = || round_trip(&pod, &client, client.v4);
    let (ours_in, ours_out) = (into(), out_of());
    let devices = [(outer(&result), INGRESS), (ifbs(&node).swap_remove(0), EGRESS)];
    for (link, rate) in devices {
        let (burst, limit) = (BURST / 8, rate / 8 / 40 + BURST / 8);
        node.cmd(&format!("tc qdisc del dev {link} root"));
        node.cmd(&format!(
            "tc qdisc add dev {link} root handle 1: tbf rate {rate} burst {burst} limit {limit}"
        ));
    }
    let (plain_in, plain_out) = (into(), out_of());
    eprintln!(
        "in: {ours_in:?}, one long queue: {plain_in:?}; out: {ours_out:?}, one long queue: {plain_out:?}"
    );
    network.check(&Attach::new(&pod)).expect("CHECK takes the reference's queue");
    if !is_peer() {
        assert!(
            (ours_in + ours_out) * 2 < plain_in + plain_out,
            "fair queuing is not twice as fast as one queue"
        );
    }
}
