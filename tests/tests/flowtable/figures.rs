// SPDX-License-Identifier: GPL-2.0-or-later

//! Measurements of the flowtable's effect.
//!
//! `cargo xtask vm-test --measure --kernel 6.12 --suite flowtable` runs them on a kernel with a flowtable.
//! They compare three paths from a host to a container, in alternating order: routed to the container's
//! address, through its published port, and through the published port of a node with a flowtable. The node
//! and both ends share the VM's only processor, so a difference between paths is a difference of the node's
//! work.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use slipway_tests::{Attach, BridgeNetfilter, FLOWTABLE, Proto, has_flowtable, needs};

use crate::world::World;

/// Measurements per path.
const ROUNDS: usize = 7;
/// The container's sink port, and its echo port.
const SINK: u16 = 90;
const ECHO: u16 = 91;
/// Amounts per measurement.
const STREAM: usize = 64 << 20;
const REQUESTS: u32 = 4000;
const CONNECTIONS: u32 = 500;

/// A workload on one path.
type Workload = fn(&Stage, usize);

/// A node, a host, and a container with both ports published.
struct Stage {
    world: World,
    sink: [SocketAddr; 2],
    echo: [SocketAddr; 2],
}

impl Stage {
    fn new(flowtable: &str) -> Self {
        let world = World::new(BridgeNetfilter::Off);
        world.node.write("/etc/cni/slipway.json", format!("{{\"flowtable\": {flowtable}}}"));
        let pod = world.node.pod("pod");
        let attach =
            Attach::new(&pod).port(Proto::Tcp, 9000 + SINK, SINK).port(Proto::Tcp, 9000 + ECHO, ECHO);
        let result = world.network(1).add(&attach).expect("ADD");
        let address = result["ips"][0]["address"].as_str().expect("an address");
        let own = address.split('/').next().and_then(|ip| ip.parse().ok()).expect("an IPv4 address");
        pod.run(|| {
            serve(SINK, |stream, bytes| stream.read(bytes).is_ok_and(|length| length > 0));
            serve(ECHO, |stream, bytes| {
                stream.read_exact(&mut bytes[..1]).and_then(|()| stream.write_all(&bytes[..1])).is_ok()
            });
        });
        let of = |port: u16| {
            [SocketAddr::new(own, port), SocketAddr::new(world.client.node_v4.into(), 9000 + port)]
        };
        Self { sink: of(SINK), echo: of(ECHO), world }
    }

    fn dial(&self, to: SocketAddr) -> TcpStream {
        let stream = self.world.client.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(10)));
        let stream = stream.unwrap_or_else(|e| panic!("connect to {to}: {e}"));
        stream.set_nodelay(true).expect("no delay");
        stream
    }
}

fn serve(port: u16, respond: fn(&mut TcpStream, &mut [u8]) -> bool) {
    let listener = TcpListener::bind(("0.0.0.0", port)).expect("listen");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = vec![0; 256 << 10];
                while respond(&mut stream, &mut bytes) {}
            });
        }
    });
}

/// Returns the processor time that the VM has used, in seconds.
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let ticks: Vec<f64> =
        text.lines().next().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
    // All fields but the fourth and the fifth, idle and iowait.
    let all: f64 = ticks.iter().take(8).sum();
    (all - ticks[3] - ticks[4]) / 100.0
}

fn echoed(stream: &mut TcpStream) {
    stream.write_all(b"x").expect("write");
    stream.read_exact(&mut [0]).expect("an answer");
}

/// Sends a stream and waits for the connection's end.
fn stream(stage: &Stage, way: usize) {
    let mut stream = stage.dial(stage.sink[way]);
    let bytes = vec![7; 128 << 10];
    for _ in 0..STREAM / bytes.len() {
        stream.write_all(&bytes).expect("write");
    }
    stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    let _ = stream.read(&mut [0]);
}

/// Sends requests of one byte over one connection.
fn requests(stage: &Stage, way: usize) {
    let mut stream = stage.dial(stage.echo[way]);
    (0..REQUESTS).for_each(|_| echoed(&mut stream));
}

/// Opens a connection for each request of one byte.
fn connections(stage: &Stage, way: usize) {
    (0..CONNECTIONS).for_each(|_| echoed(&mut stage.dial(stage.echo[way])));
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn a_stream_and_requests() {
    needs!(has_flowtable(), FLOWTABLE);
    let (plain, offloading) = (Stage::new("false"), Stage::new("true"));
    let ways = [("routed", &plain, 0), ("published", &plain, 1), ("flowtable", &offloading, 1)];
    let works: [(&str, f64, Workload); 3] = [
        ("STREAM, per MB", (STREAM >> 20) as f64, stream),
        ("RR, per transaction", f64::from(REQUESTS), requests),
        ("CRR, per connection", f64::from(CONNECTIONS), connections),
    ];
    for (what, count, work) in works {
        let mut spent = vec![(Vec::new(), Vec::new()); ways.len()];
        for round in 0..=ROUNDS {
            for offset in 0..ways.len() {
                let at = (round + offset) % ways.len();
                let (_, stage, way) = ways[at];
                let (before, begun) = (busy(), Instant::now());
                work(stage, way);
                let (wall, cpu) = (begun.elapsed().as_secs_f64(), busy() - before);
                // The first round warms caches up, and lets flows be offloaded.
                if round > 0 {
                    spent[at].0.push(wall / count * 1e6);
                    spent[at].1.push(cpu / count * 1e6);
                }
            }
        }
        for ((name, ..), (wall, cpu)) in ways.iter().zip(spent) {
            let (wall, cpu) = (median(wall), median(cpu));
            println!("figure: {what}, {name}: {wall:.0} us, processor {cpu:.0} us");
        }
    }
}
