//! What a flowtable saves: measurements, and no tests.
//!
//! `cargo xtask vm-test --measure --kernel 6.12 --suite flowtable` runs them where there is a flowtable. Three
//! ways from one host to a container, taken in turns: routed to its own address, through its published port,
//! and through the port of a node whose established flows a flowtable carries. All of them share the machine's
//! one processor with both ends of the conversation: what one way costs more is what the node does more.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use slipway_tests::{Attach, BridgeNetfilter, FLOWTABLE, Proto, has_flowtable, needs};

use crate::world::World;

/// How often each way is taken.
const ROUNDS: usize = 7;
/// The container's port that takes bytes, and the one that gives a byte for a byte.
const SINK: u16 = 90;
const ECHO: u16 = 91;
/// One measurement's worth of work.
const STREAM: usize = 64 << 20;
const REQUESTS: u32 = 4000;
const CONNECTIONS: u32 = 500;

/// What is done over and over, by one of the ways.
type Work = fn(&Stage, usize);

/// A node, a host and a container with both ports published.
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

/// Serves each connection with a thread, until the process ends.
fn serve(port: u16, turn: fn(&mut TcpStream, &mut [u8]) -> bool) {
    let listener = TcpListener::bind(("0.0.0.0", port)).expect("listen");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = vec![0; 256 << 10];
                while turn(&mut stream, &mut bytes) {}
            });
        }
    });
}

/// What the machine has done so far, in seconds of its processor.
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let ticks: Vec<f64> =
        text.lines().next().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
    // All but the fourth and the fifth, which are idle.
    let all: f64 = ticks.iter().take(8).sum();
    (all - ticks[3] - ticks[4]) / 100.0
}

fn echoed(stream: &mut TcpStream) {
    stream.write_all(b"x").expect("write");
    stream.read_exact(&mut [0]).expect("an answer");
}

/// Sends bytes; the end of the connection is waited for.
fn stream(stage: &Stage, way: usize) {
    let mut stream = stage.dial(stage.sink[way]);
    let bytes = vec![7; 128 << 10];
    for _ in 0..STREAM / bytes.len() {
        stream.write_all(&bytes).expect("write");
    }
    stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    let _ = stream.read(&mut [0]);
}

/// One byte there and back, on one connection.
fn requests(stage: &Stage, way: usize) {
    let mut stream = stage.dial(stage.echo[way]);
    (0..REQUESTS).for_each(|_| echoed(&mut stream));
}

/// A connection for each byte.
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
    let works: [(&str, f64, Work); 3] = [
        ("STREAM, per MB", (STREAM >> 20) as f64, stream),
        ("RR, per transaction", f64::from(REQUESTS), requests),
        ("CRR, per connection", f64::from(CONNECTIONS), connections),
    ];
    for (what, count, work) in works {
        let mut spent = vec![(Vec::new(), Vec::new()); ways.len()];
        for round in 0..=ROUNDS {
            for turn in 0..ways.len() {
                let at = (round + turn) % ways.len();
                let (_, stage, way) = ways[at];
                let (before, begun) = (busy(), Instant::now());
                work(stage, way);
                let (wall, cpu) = (begun.elapsed().as_secs_f64(), busy() - before);
                // The first round is for caches, and for flows to be offloaded at all.
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
