// SPDX-License-Identifier: GPL-2.0-or-later

//! Many simultaneous flows, and many new ones per second.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use slipway_ebpf_abi::Counter;
use slipway_tests::{Attach, Pod, Proto, Space, address_of, measure};

use crate::{Connection, Engine, PORT, Stage};

/// The number of flows that are carried before the measurement begins.
const MANY: usize = 100_000;
/// The number of new flows per second during the measurement.
const EACH_SECOND: usize = 1000;
/// The number of datagrams of a flow in each direction, the last of which are carried.
const DATAGRAMS: usize = 6;
/// The number of published ports, so that the client has enough source ports.
const PORTS: u16 = 4;
const FIRST: u16 = 2000;
const EACH_PORT: usize = 60_000;

/// A node with the connection that is measured and a server that returns datagrams.
struct Node {
    stage: Stage,
    connection: Connection,
    servers: Vec<UdpSocket>,
    _pod: Pod,
}

impl Node {
    fn new() -> Self {
        let stage = Stage::new(Engine::Carried);
        let size = serde_json::json!({"maps": {"flows": 4 * MANY}});
        stage.node.write("/etc/cni/slipway.json", size.to_string());
        let pod = stage.node.pod("web");
        let ports = (PORT..PORT + PORTS)
            .fold(Attach::new(&pod).port(Proto::Tcp, PORT, 80), |all, port| all.port(Proto::Udp, port, port));
        let result = stage.network().add(&ports).expect("ADD");
        let own = [0, 1].map(|index| address_of(&result, index));
        let connection = stage.connect(&pod, own);
        let servers = (PORT..PORT + PORTS).map(|port| {
            let server = pod.bind(|| UdpSocket::bind((own[0], port))).expect("bind");
            server.set_read_timeout(Some(Duration::from_secs(1))).expect("a limit");
            server
        });
        let servers = servers.collect();
        Self { stage, connection, servers, _pod: pod }
    }

    /// Creates flows one after the other, and returns the number of datagrams that did not arrive.
    fn make_flows(
        servers: &[UdpSocket],
        client: &Space,
        ends: [IpAddr; 2],
        flows: Range<usize>,
        pause: Duration,
        is_over: &AtomicBool,
    ) -> usize {
        client.run(|| {
            let (mut lost, mut bytes, begun) = (0, [0; 64], Instant::now());
            for (number, flow) in flows.enumerate() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let (server, port) = (&servers[flow / EACH_PORT], FIRST + (flow % EACH_PORT) as u16);
                let sender = UdpSocket::bind((ends[0], port)).expect("bind");
                sender.set_read_timeout(Some(Duration::from_secs(1))).expect("a limit");
                let to = SocketAddr::new(ends[1], PORT + (flow / EACH_PORT) as u16);
                sender.connect(to).expect("connect");
                for _ in 0..DATAGRAMS {
                    sender.send(&[1; 64]).expect("send");
                    let Ok((length, peer)) = server.recv_from(&mut bytes) else {
                        lost += 1;
                        continue;
                    };
                    server.send_to(&bytes[..length], peer).expect("send");
                    lost += usize::from(sender.recv(&mut bytes).is_err());
                }
                let due = pause * number as u32;
                thread::sleep(due.saturating_sub(begun.elapsed()));
            }
            lost
        })
    }

    fn ends(&self) -> [IpAddr; 2] {
        [self.stage.client_ips()[0], self.stage.node_ips()[0]]
    }
}

/// Measures requests over a connection with and without 100,000 other carried flows, and with and without 1,000 new
/// ones per second: `cargo test -p slipway-tests --test carried -- --ignored --nocapture time_beside_many_flows`.
#[test]
#[ignore = "a measurement"]
fn time_beside_many_flows() {
    const ROUNDS: usize = 60;
    const REQUESTS: usize = 2000;
    measure::on_one_processor();
    let mut nodes = [Node::new(), Node::new()];
    let never = AtomicBool::new(false);
    {
        let full = &nodes[1];
        let (ends, pause) = (full.ends(), Duration::ZERO);
        let lost = Node::make_flows(&full.servers, &full.stage.client, ends, 0..MANY, pause, &never);
        let carried = full.stage.count(Counter::Carried);
        println!(
            "{MANY} flows: {} entries, {carried} packets carried, {lost} lost",
            full.stage.carried_now()
        );
    }
    let mut next = [MANY; 2];
    for is_growing in [false, true] {
        let mut taken = [Vec::new(), Vec::new()];
        let mut lost = [0; 2];
        for round in 0..ROUNDS {
            for turn in 0..2 {
                let index = (round + turn) % 2;
                let node = &mut nodes[index];
                node.connection.requests(50).expect("replies");
                let (servers, client, ends) = (&node.servers, &node.stage.client, node.ends());
                let (from, is_over) = (next[index], AtomicBool::new(!is_growing));
                let each = Duration::from_secs(1) / EACH_SECOND as u32;
                let (connection, is_over) = (&mut node.connection, &is_over);
                let (time, missing) = thread::scope(|scope| {
                    let flows = from..from + 10 * EACH_SECOND;
                    let new =
                        scope.spawn(move || Node::make_flows(servers, client, ends, flows, each, is_over));
                    let begun = Instant::now();
                    connection.requests(REQUESTS).expect("replies");
                    let time = begun.elapsed();
                    is_over.store(true, Ordering::Relaxed);
                    (time, new.join().expect("flows"))
                });
                if is_growing {
                    next[index] += (time.as_secs_f64() * EACH_SECOND as f64) as usize + 1;
                }
                taken[index].push(time.as_secs_f64() * 1e6 / REQUESTS as f64);
                lost[index] += missing;
            }
        }
        let mut ratios: Vec<f64> = taken[1].iter().zip(&taken[0]).map(|(many, few)| many / few).collect();
        ratios.sort_by(f64::total_cmp);
        let median = |values: &[f64]| {
            let mut values = values.to_vec();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!(
            "{}: a request takes {:.1} us beside few flows, {:.1} us beside {MANY}, ratio {:.3}; lost: {lost:?}",
            if is_growing { "1,000 new flows per second" } else { "no new flows" },
            median(&taken[0]),
            median(&taken[1]),
            ratios[ratios.len() / 2],
        );
    }
    println!("entries at the end: {:?}", nodes.each_ref().map(|node| node.stage.carried_now()));
}
