// SPDX-License-Identifier: GPL-2.0-or-later

//! Measurements of paths between namespaces, for `cargo xtask vm-test --measure`.
//!
//! All paths of a run alternate on the same machine, and its processors also run both ends, so a difference between
//! paths is a difference in the work between the ends. The measure is the processor time of the whole machine.

use std::fmt;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Instant;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::socket::{setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::{Space, at, patience};

/// The port of the server that reads a stream and discards it.
pub const SINK: u16 = 90;
/// The port of the server that returns each byte.
pub const ECHO: u16 = 91;
/// The UDP port of the server that acknowledges a batch of datagrams.
pub const BATCHES: u16 = 92;
/// The UDP port of the same server with a socket that receives several datagrams at once (`UDP_GRO`).
pub const TOGETHER: u16 = 93;

/// How often each path is measured.
const ROUNDS: usize = 7;
/// The amount of work in each measurement.
const STREAM: usize = 64 << 20;
const REQUESTS: u32 = 4000;
const CONNECTIONS: u32 = 500;
const DATAGRAMS: u32 = 64 * 400;
/// The number of datagrams after which the receiver acknowledges. A socket's default buffer holds them.
const BATCH: u32 = 64;
const PAYLOAD: usize = 1400;
/// The number of datagrams that one call sends.
const TRAIN: usize = 32;

/// A client and the addresses under which it reaches the server on one path.
#[derive(Debug, Clone)]
pub struct Path {
    /// The path's name in the figures.
    pub name: &'static str,
    /// The namespace of the client.
    pub client: Space,
    /// The addresses of [`SINK`], [`ECHO`] and [`BATCHES`].
    pub sink: SocketAddr,
    /// See [`Path::sink`].
    pub echo: SocketAddr,
    /// See [`Path::sink`].
    pub batches: SocketAddr,
    /// The address of [`TOGETHER`].
    pub together: SocketAddr,
}

#[derive(Debug, Clone, Copy)]
pub enum Work {
    /// One connection that sends 64 MiB.
    Stream,
    /// Requests of one byte over a single connection.
    Requests,
    /// A new connection for each request of one byte.
    Connections,
    /// Datagrams of 1,400 bytes, acknowledged by the receiver after every 64.
    Datagrams,
    /// The same datagrams, sent 32 in a call, which the kernel splits (`UDP_SEGMENT`).
    Trains,
    /// Trains that are sent to a socket with `UDP_GRO`.
    Together,
    /// Requests of one datagram, each of which is acknowledged.
    Pings,
}

impl Path {
    /// The path straight to a server's own ports.
    pub fn to(name: &'static str, client: &Space, server: IpAddr) -> Self {
        Self::published(name, client, server, 0)
    }

    /// The path to published ports, each of which is the server's own port plus `offset`.
    pub fn published(name: &'static str, client: &Space, node: IpAddr, offset: u16) -> Self {
        let [sink, echo, batches, together] =
            [SINK, ECHO, BATCHES, TOGETHER].map(|port| at(node, offset + port));
        Self { name, client: client.clone(), sink, echo, batches, together }
    }

    fn dial(&self, to: SocketAddr) -> TcpStream {
        let stream = self.client.run(|| TcpStream::connect_timeout(&to, patience()));
        let stream = stream.unwrap_or_else(|error| panic!("{}: connect to {to}: {error}", self.name));
        stream.set_nodelay(true).expect("no delay");
        stream
    }

    fn stream(&self) {
        let mut stream = self.dial(self.sink);
        let bytes = vec![7; 128 << 10];
        for _ in 0..STREAM / bytes.len() {
            stream.write_all(&bytes).expect("write");
        }
        stream.shutdown(Shutdown::Write).expect("shut down");
        let _ = stream.read(&mut [0]);
    }

    /// Sends datagrams to a port, `train` in each call.
    fn datagrams(&self, to: SocketAddr, train: usize) {
        let socket = self.socket(to);
        if train > 1 {
            setsockopt(&socket, sockopt::UdpGsoSegment, &(PAYLOAD as i32)).expect("UDP_SEGMENT");
        }
        let payload = vec![7; PAYLOAD * train];
        for _ in 0..DATAGRAMS / BATCH {
            for _ in 0..BATCH as usize / train {
                socket.send(&payload).expect("send");
            }
            socket.recv(&mut [0]).unwrap_or_else(|error| panic!("{}: an acknowledgment: {error}", self.name));
        }
    }

    fn pings(&self) {
        let socket = self.socket(self.batches);
        for _ in 0..REQUESTS {
            socket.send(&[7]).expect("send");
            socket.recv(&mut [0]).unwrap_or_else(|error| panic!("{}: an acknowledgment: {error}", self.name));
        }
    }

    fn socket(&self, to: SocketAddr) -> UdpSocket {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = self.client.bind(|| UdpSocket::bind(any)).expect("a socket");
        socket.connect(to).expect("connect");
        socket.set_read_timeout(Some(patience())).expect("a time limit");
        socket
    }
}

impl Work {
    /// The workload's name with its unit, and the number of units in a measurement.
    fn unit(self) -> (&'static str, f64) {
        match self {
            Self::Stream => ("STREAM, per MB", (STREAM >> 20) as f64),
            Self::Requests => ("RR, per transaction", f64::from(REQUESTS)),
            Self::Connections => ("CRR, per connection", f64::from(CONNECTIONS)),
            Self::Datagrams => ("UDP, per datagram", f64::from(DATAGRAMS)),
            Self::Trains => ("UDP in trains, per datagram", f64::from(DATAGRAMS)),
            Self::Together => ("UDP in trains to UDP_GRO, per datagram", f64::from(DATAGRAMS)),
            Self::Pings => ("UDP RR, per transaction", f64::from(REQUESTS)),
        }
    }

    fn run(self, path: &Path) {
        match self {
            Self::Stream => path.stream(),
            Self::Requests => {
                let mut stream = path.dial(path.echo);
                (0..REQUESTS).for_each(|_| echoed(&mut stream));
            }
            Self::Connections => (0..CONNECTIONS).for_each(|_| echoed(&mut path.dial(path.echo))),
            Self::Datagrams => path.datagrams(path.batches, 1),
            Self::Trains => path.datagrams(path.batches, TRAIN),
            Self::Together => path.datagrams(path.together, TRAIN),
            Self::Pings => path.pings(),
        }
    }
}

fn echoed(stream: &mut TcpStream) {
    stream.write_all(b"x").expect("write");
    stream.read_exact(&mut [0]).expect("an answer");
}

/// Serves all four ports on an address of a space until the process ends.
pub fn serve(space: &Space, address: IpAddr) {
    let listen = |port, respond: fn(&mut TcpStream, &mut [u8]) -> bool| {
        let listener = TcpListener::bind(at(address, port)).expect("listen");
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
        let [batches, together] =
            [BATCHES, TOGETHER].map(|port| UdpSocket::bind(at(address, port)).expect("a socket"));
        setsockopt(&together, sockopt::UdpGroSegment, &true).expect("UDP_GRO");
        for socket in [batches, together] {
            thread::spawn(move || acknowledge(&socket));
        }
    });
}

/// Acknowledges each batch of full-sized datagrams, and each smaller datagram at once.
fn acknowledge(socket: &UdpSocket) {
    let mut number = 0;
    let mut bytes = vec![0; 64 << 10];
    while let Ok((length, from)) = socket.recv_from(&mut bytes) {
        number += length.div_ceil(PAYLOAD);
        if length < PAYLOAD || number >= BATCH as usize {
            number = 0;
            let _ = socket.send_to(&[0], from);
        }
    }
}

/// Returns the processor time that the machine has used, in seconds.
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let ticks: Vec<f64> =
        text.lines().next().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
    // The sum has all fields except the fourth and the fifth, which are idle and iowait.
    let all: f64 = ticks.iter().take(8).sum();
    (all - ticks[3] - ticks[4]) / 100.0
}

/// Keeps the calling thread, and the threads that it starts from now on, on the first processor that it may use,
/// because waking up another processor costs more than a packet.
pub fn on_one_processor() {
    let all = sched_getaffinity(Pid::from_raw(0)).expect("the processors");
    let first = (0..CpuSet::count()).find(|&one| all.is_set(one) == Ok(true)).expect("a processor");
    let mut set = CpuSet::new();
    set.set(first).expect("a processor");
    sched_setaffinity(Pid::from_raw(0), &set).expect("one processor");
}

/// Returns the processor time, in seconds, of this process and of the kernel's network threads. Work of other processes
/// on the machine does not count.
pub fn own() -> f64 {
    let used = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("a clock");
    let threads = std::fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| {
        let path = entry.path();
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        if !name.starts_with("ksoftirqd/") && !name.starts_with("napi/") {
            return None;
        }
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    used.tv_sec() as f64 + (used.tv_nsec() as f64 + threads.sum::<f64>()) / 1e9
}

/// The medians of one workload on one path.
#[derive(Debug, Clone)]
pub struct Figure {
    what: &'static str,
    path: &'static str,
    /// Elapsed time and the machine's processor time for one unit, in microseconds.
    wall: f64,
    cpu: f64,
    /// Processor time relative to that of the first path, as the median of the rounds' ratios.
    ratio: f64,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, path, wall, cpu, ratio } = self;
        write!(f, "figure: {what}, {path}: {wall:.1} us, processor {cpu:.1} us ({ratio:.2})")
    }
}

/// Measures each workload on each path. `prepare` is called before each measurement with the index of its path.
pub fn compare(paths: &[Path], works: &[Work], prepare: impl FnMut(usize)) -> Vec<Figure> {
    compare_by(busy, paths, works, prepare)
}

/// Does the same as [`compare`], with another measure of the processor time in seconds.
pub fn compare_by(
    spent_so_far: fn() -> f64,
    paths: &[Path],
    works: &[Work],
    mut prepare: impl FnMut(usize),
) -> Vec<Figure> {
    let mut figures = Vec::new();
    for work in works {
        let (what, units) = work.unit();
        let mut spent = vec![(Vec::new(), Vec::new()); paths.len()];
        for round in 0..=ROUNDS {
            for offset in 0..paths.len() {
                let at = (round + offset) % paths.len();
                prepare(at);
                // A first request beforehand, because the first packet may wait for a neighbour or a handshake.
                drop(paths[at].dial(paths[at].echo));
                let (before, begun) = (spent_so_far(), Instant::now());
                work.run(&paths[at]);
                let (wall, cpu) = (begun.elapsed().as_secs_f64(), spent_so_far() - before);
                // The first round is not counted: it warms caches up and lets flows be offloaded.
                if round > 0 {
                    spent[at].0.push(wall / units * 1e6);
                    spent[at].1.push(cpu / units * 1e6);
                }
            }
        }
        let first = spent[0].1.clone();
        figures.extend(paths.iter().zip(spent).map(|(path, (wall, cpu))| Figure {
            what,
            path: path.name,
            ratio: median(cpu.iter().zip(&first).map(|(own, first)| own / first).collect()),
            wall: median(wall),
            cpu: median(cpu),
        }));
    }
    figures
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
