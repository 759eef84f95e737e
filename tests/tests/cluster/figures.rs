// SPDX-License-Identifier: GPL-2.0-or-later

//! Measurements of the paths between nodes.
//!
//! `cargo xtask vm-test --measure --kernel 6.12 --suite cluster` runs them on a kernel with WireGuard; on the host the test
//! program does, with `--ignored figures`. Pods of two nodes talk by routes on the link, by VXLAN and by WireGuard, and the
//! nodes themselves without pods, in alternating order on the same nodes. All share the machine's processors: a difference
//! between paths is a difference of work.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use slipway_tests::{Space, at, has_wireguard, patience};
use slipwayd::cluster::desired::TunnelMode;

use crate::Lab;

/// Measurements per path.
const ROUNDS: usize = 7;
const SINK: u16 = 90;
const ECHO: u16 = 91;
/// Amounts per measurement.
const STREAM: usize = 64 << 20;
const REQUESTS: u32 = 2000;

/// A path between two nodes.
struct Path<'a> {
    name: &'static str,
    tunnel: TunnelMode,
    encrypts: bool,
    client: &'a Space,
    server: IpAddr,
}

impl Path<'_> {
    fn dial(&self, port: u16) -> TcpStream {
        let to = at(self.server, port);
        let stream = self.client.run(|| TcpStream::connect_timeout(&to, patience()));
        let stream = stream.unwrap_or_else(|error| panic!("{}: connect to {to}: {error}", self.name));
        stream.set_nodelay(true).expect("no delay");
        stream
    }

    /// Sends a stream and waits for the connection's end.
    fn stream(&self) {
        let mut stream = self.dial(SINK);
        let bytes = vec![7; 128 << 10];
        for _ in 0..STREAM / bytes.len() {
            stream.write_all(&bytes).expect("write");
        }
        stream.shutdown(Shutdown::Write).expect("shut down");
        let _ = stream.read(&mut [0]);
    }

    /// Sends requests of one byte over one connection.
    fn requests(&self) {
        let mut stream = self.dial(ECHO);
        for _ in 0..REQUESTS {
            stream.write_all(b"x").expect("write");
            stream.read_exact(&mut [0]).expect("an answer");
        }
    }
}

/// Serves both ports on an address, until the process ends.
fn serve(space: &Space, address: IpAddr) {
    let listen = |port, respond: fn(&mut TcpStream, &mut [u8]) -> bool| {
        let listener = TcpListener::bind(SocketAddr::new(address, port)).expect("listen");
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut bytes = vec![0; 256 << 10];
                    while respond(&mut stream, &mut bytes) {}
                });
            }
        });
    };
    space.run(|| {
        listen(SINK, |stream, bytes| stream.read(bytes).is_ok_and(|length| length > 0));
        listen(ECHO, |stream, bytes| {
            stream.read_exact(&mut bytes[..1]).and_then(|()| stream.write_all(&bytes[..1])).is_ok()
        });
    });
}

/// Returns the processor time that the machine has used, in seconds.
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let ticks: Vec<f64> =
        text.lines().next().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
    // All fields but the fourth and the fifth, idle and iowait.
    let all: f64 = ticks.iter().take(8).sum();
    (all - ticks[3] - ticks[4]) / 100.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn streams_and_requests_between_nodes() {
    let mut lab = Lab::new(2, TunnelMode::Auto);
    let mut modes = vec![("routes", TunnelMode::Auto, false), ("VXLAN", TunnelMode::Always, false)];
    if has_wireguard() {
        modes.push(("WireGuard", TunnelMode::Auto, true));
    }
    // A pod has the MTU of the path that it was made for.
    let pods: Vec<_> = modes
        .iter()
        .map(|(name, tunnel, encrypts)| {
            (lab.tunnel, lab.encrypts) = (*tunnel, *encrypts);
            lab.settle();
            let name = name.to_lowercase();
            let (client, _) = lab.pod(1, &name);
            let (server, addresses) = lab.pod(2, &name);
            serve(&server, addresses[0]);
            (client, server, addresses[0])
        })
        .collect();
    let own = lab.node(2).addresses[0];
    serve(lab.node(2), own);
    let one: &Space = lab.node(1);
    let client = one.clone();
    let mut paths =
        vec![Path { name: "nodes", tunnel: TunnelMode::Auto, encrypts: false, client: &client, server: own }];
    paths.extend(modes.iter().zip(&pods).map(|((name, tunnel, encrypts), (client, _, server))| Path {
        name,
        tunnel: *tunnel,
        encrypts: *encrypts,
        client,
        server: *server,
    }));
    type Workload = fn(&Path<'_>);
    let works: [(&str, f64, Workload); 2] = [
        ("STREAM, per MB", (STREAM >> 20) as f64, |path| path.stream()),
        ("RR, per transaction", f64::from(REQUESTS), |path| path.requests()),
    ];
    for (what, count, work) in works {
        let mut spent = vec![(Vec::new(), Vec::new()); paths.len()];
        for round in 0..=ROUNDS {
            for offset in 0..paths.len() {
                let at = (round + offset) % paths.len();
                let path = &paths[at];
                (lab.tunnel, lab.encrypts) = (path.tunnel, path.encrypts);
                lab.settle();
                // The first packet of WireGuard waits for a handshake.
                drop(path.dial(ECHO));
                let (before, begun) = (busy(), Instant::now());
                work(path);
                let (wall, cpu) = (begun.elapsed().as_secs_f64(), busy() - before);
                // The first round warms caches up.
                if round > 0 {
                    spent[at].0.push(wall / count * 1e6);
                    spent[at].1.push(cpu / count * 1e6);
                }
            }
        }
        for (path, (wall, cpu)) in paths.iter().zip(spent) {
            let (wall, cpu) = (median(wall), median(cpu));
            println!("figure: {what}, {}: {wall:.0} us, processor {cpu:.0} us", path.name);
        }
    }
}
