// SPDX-License-Identifier: MIT OR Apache-2.0

//! The load, from one thread to another.
//!
//! TCP_STREAM, TCP_RR and TCP_CRR in the words of netperf: bytes in one direction; one byte there and back,
//! over and over; a connection for each byte there and back; one connection at a time. And datagrams in one direction, of
//! one flow or of a thousand in turn.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::cost::{Clock, Spent};
use super::space::in_net;
use xtask_base::error::{Error, Result};

/// The port that all servers listen on.
pub(super) const PORT: u16 = 80;
/// Time limit for either side to wait for the other.
const PATIENCE: Duration = Duration::from_mins(1);
/// The size of a read or write.
const CHUNK: usize = 128 << 10;
/// Warm-up, in which the window grows and caches fill.
const WARM_UP: Duration = Duration::from_millis(100);
/// Transactions between two readings of the clock.
const TURNS: u32 = 16;
/// The client's ports, used in order. Each is free again long before it is reused.
const CLIENT_PORTS: std::ops::Range<u16> = 1_024..65_000;
/// The first byte of a connection, which is the kind of traffic.
const TAKE: u8 = b'S';
const ECHO: u8 = b'R';
/// The datagrams after which the client waits for the server's reply. They fit into the server's buffer, so that none is lost
/// to a server that is behind.
const WINDOW: u32 = 64;
/// The time after which a reply counts as lost.
const LOST: Duration = Duration::from_millis(500);
/// The flows that take turns.
const MANY_FLOWS: usize = 1_000;

/// The kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Work {
    /// TCP_STREAM: an operation is a KiB.
    #[serde(rename = "STREAM")]
    Stream,
    /// TCP_RR: an operation is one byte there and one back.
    #[serde(rename = "RR")]
    #[value(name = "rr")]
    Requests,
    /// TCP_CRR: the same, with a connection for each.
    #[serde(rename = "CRR")]
    #[value(name = "crr")]
    Connections,
    /// An operation is a datagram of 64 bytes, in one flow.
    #[serde(rename = "UDP64")]
    #[value(name = "udp64")]
    Datagrams,
    /// The same with 1,400 bytes.
    #[serde(rename = "UDP1400")]
    #[value(name = "udp1400")]
    LargeDatagrams,
    /// The same with 64 bytes, in a thousand flows that take turns.
    #[serde(rename = "UDP64 many")]
    #[value(name = "udp64x1000")]
    DatagramsOfMany,
    /// The same with 1,400 bytes.
    #[serde(rename = "UDP1400 many")]
    #[value(name = "udp1400x1000")]
    LargeDatagramsOfMany,
}

impl Work {
    /// The size of a datagram and the number of flows; none for TCP.
    fn datagrams(self) -> Option<(usize, usize)> {
        match self {
            Self::Stream | Self::Requests | Self::Connections => None,
            Self::Datagrams => Some((64, 1)),
            Self::LargeDatagrams => Some((1_400, 1)),
            Self::DatagramsOfMany => Some((64, MANY_FLOWS)),
            Self::LargeDatagramsOfMany => Some((1_400, MANY_FLOWS)),
        }
    }

    /// The protocol of its ports, as portmap names it.
    pub(crate) fn protocol(self) -> &'static str {
        if self.datagrams().is_some() { "udp" } else { "tcp" }
    }
}

/// The processors of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pin {
    /// Both ends on the first processor: no processor has to wake up, and wall clock time is processor time.
    One,
    /// The client on the first processor, the server on the second one.
    Two,
    /// The kernel's choice.
    None,
}

impl Pin {
    fn apply(self, processor: usize) -> Result<()> {
        let processor = match self {
            Self::None => return Ok(()),
            Self::One => 0,
            Self::Two => processor,
        };
        let failed = |e: Errno| Error::system(format!("stay on processor {processor}"), e);
        let mut set = CpuSet::new();
        set.set(processor).map_err(failed)?;
        sched_setaffinity(Pid::from_raw(0), &set).map_err(failed)
    }
}

/// Serves in a namespace until the process ends.
pub(super) fn serve(net: &File, pin: Pin) -> Result<()> {
    let (listener, socket) = in_net(net, || {
        let failed = |e| Error::system(format!("listen on port {PORT}"), e);
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).map_err(failed)?;
        Ok((listener, UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).map_err(failed)?))
    })?;
    let (sender, ready) = mpsc::channel();
    let of_datagrams = sender.clone();
    thread::spawn(move || {
        // If that fails, the receiver has given up.
        let _ = of_datagrams.send(pin.apply(1));
        let mut bytes = [0; 2_048];
        // The client misses a reply that cannot be sent.
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            if length > 0 && bytes[0] == ECHO {
                let _ = socket.send_to(&bytes[..1], from);
            }
        }
    });
    thread::spawn(move || {
        let _ = sender.send(pin.apply(1));
        let mut bytes = vec![0; CHUNK];
        for mut stream in listener.incoming().flatten() {
            // A client that closes early reports that itself.
            let _ = answer(&mut stream, &mut bytes);
        }
    });
    let started =
        || ready.recv().unwrap_or_else(|e| Err(Error::system("start the server", std::io::Error::other(e))));
    started().and_then(|()| started())
}

fn answer(stream: &mut TcpStream, bytes: &mut [u8]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut byte = [0];
    if stream.read(&mut byte)? == 0 {
        return Ok(());
    }
    if byte == [TAKE] {
        while stream.read(bytes)? > 0 {}
        return Ok(());
    }
    loop {
        stream.write_all(&byte)?;
        if stream.read(&mut byte)? == 0 {
            return Ok(());
        }
    }
}

/// A client with its own range of ports.
#[derive(Debug)]
pub(super) struct Client {
    next: u16,
    turn: usize,
    /// The sockets of the last flows of datagrams, and their server.
    flows: Vec<UdpSocket>,
    flows_to: Option<SocketAddrV4>,
}

/// A client's servers.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// Connections go to one after the other.
    pub(super) addresses: Vec<Ipv4Addr>,
    pub(super) port: u16,
}

impl Client {
    /// Starts with the first port.
    pub(super) const fn new() -> Self {
        Self { next: CLIENT_PORTS.start, turn: 0, flows: Vec::new(), flows_to: None }
    }

    /// Makes traffic for a time, from the calling thread's namespace.
    pub(super) fn run(&mut self, work: Work, to: &Target, time: Duration, pin: Pin) -> Result<Spent> {
        pin.apply(0)?;
        match work {
            Work::Stream => self.stream(to, time),
            Work::Requests => self.requests(to, time),
            Work::Connections => {
                self.connections(to, WARM_UP)?;
                self.connections(to, time)
            }
            Work::Datagrams | Work::LargeDatagrams | Work::DatagramsOfMany | Work::LargeDatagramsOfMany => {
                let (size, flows) = work.datagrams().unwrap_or_default();
                self.datagrams(to, time, size, flows)
            }
        }
    }

    /// Sends datagrams of flows that continue from one sample to the next, so that only the first sample has new flows.
    fn datagrams(&mut self, to: &Target, time: Duration, size: usize, flows: usize) -> Result<Spent> {
        self.keep_flows(to, flows)?;
        let to = self.flows_to.map_or_else(String::new, |to| to.to_string());
        let failed = |e| Error::system(format!("send a datagram to {to}"), e);
        let (plain, asking) = (vec![TAKE; size], vec![ECHO; size]);
        let mut reply = [0];
        let mut sockets = self.flows.iter().cycle();
        let mut send_for = |time: Duration| {
            let (begun, mut windows, mut lost) = (Instant::now(), 0_u32, 0_u32);
            while begun.elapsed() < time {
                for turn in 1..=WINDOW {
                    let Some(socket) = sockets.next() else { continue };
                    let bytes = if turn < WINDOW { &plain } else { &asking };
                    socket.send(bytes).map_err(failed)?;
                    if turn == WINDOW && socket.recv(&mut reply).is_err() {
                        lost += 1;
                    }
                }
                windows += 1;
            }
            if lost > windows / 100 {
                return Err(Error::Failed(format!("{lost} of {windows} replies of {to} were lost")));
            }
            Ok(f64::from(windows * WINDOW))
        };
        // Each flow has some packets before it is measured.
        send_for(if flows > 1 { 10 * WARM_UP } else { WARM_UP })?;
        let clock = Clock::start()?;
        let count = send_for(time)?;
        clock.stop(count)
    }

    /// Opens a socket for each flow and has the server reply to it, unless these flows exist already.
    fn keep_flows(&mut self, to: &Target, flows: usize) -> Result<()> {
        let address = to.addresses.first().copied().unwrap_or(Ipv4Addr::LOCALHOST);
        let to = SocketAddrV4::new(address, to.port);
        if self.flows_to != Some(to) {
            self.flows.clear();
            self.flows_to = Some(to);
        }
        self.flows.truncate(flows);
        let failed = |e| Error::system(format!("open a flow of datagrams to {to}"), e);
        while self.flows.len() < flows {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(failed)?;
            socket.connect(to).map_err(failed)?;
            socket.set_read_timeout(Some(LOST)).map_err(failed)?;
            let asked = socket.send(&[ECHO]).and_then(|_| socket.recv(&mut [0]));
            asked.map_err(|e| Error::system(format!("ask {to} by a datagram"), e))?;
            self.flows.push(socket);
        }
        Ok(())
    }

    fn stream(&mut self, to: &Target, time: Duration) -> Result<Spent> {
        let (mut stream, to) = self.dial(to)?;
        let failed = |e| Error::system(format!("send to {to}"), e);
        stream.write_all(&[TAKE]).map_err(failed)?;
        let bytes = vec![7; CHUNK];
        let mut send_for = |time: Duration| {
            let (begun, mut chunks) = (Instant::now(), 0_u32);
            while begun.elapsed() < time {
                stream.write_all(&bytes).map_err(failed)?;
                chunks += 1;
            }
            Ok(f64::from(chunks) * 128.0)
        };
        send_for(WARM_UP)?;
        let clock = Clock::start()?;
        let kib = send_for(time)?;
        clock.stop(kib)
    }

    fn requests(&mut self, to: &Target, time: Duration) -> Result<Spent> {
        let (mut stream, to) = self.dial(to)?;
        // Nagle's algorithm never delays the byte, because no more is sent until the reply arrives.
        let mut ask_for = |time: Duration| {
            let (begun, mut count) = (Instant::now(), 0_u32);
            while begun.elapsed() < time {
                for _ in 0..TURNS {
                    echoed(&mut stream, to)?;
                }
                count += TURNS;
            }
            Ok(f64::from(count))
        };
        ask_for(WARM_UP)?;
        let clock = Clock::start()?;
        let count = ask_for(time)?;
        clock.stop(count)
    }

    fn connections(&mut self, to: &Target, time: Duration) -> Result<Spent> {
        let (clock, begun, mut count) = (Clock::start()?, Instant::now(), 0_u32);
        while begun.elapsed() < time {
            for _ in 0..TURNS {
                let (mut stream, to) = self.dial(to)?;
                echoed(&mut stream, to)?;
            }
            count += TURNS;
        }
        clock.stop(f64::from(count))
    }

    /// Opens a connection from the next port that is free.
    fn dial(&mut self, to: &Target) -> Result<(TcpStream, SocketAddrV4)> {
        self.turn = (self.turn + 1) % to.addresses.len().max(1);
        let address = to.addresses.get(self.turn).copied().unwrap_or(Ipv4Addr::LOCALHOST);
        let to = SocketAddrV4::new(address, to.port);
        for _ in 0..100 {
            let port = self.next;
            self.next = if port + 1 < CLIENT_PORTS.end { port + 1 } else { CLIENT_PORTS.start };
            match dial_from(port, to) {
                Ok(stream) => return Ok((stream, to)),
                Err(Errno::EADDRINUSE | Errno::EADDRNOTAVAIL) => {}
                Err(e) => return Err(Error::system(format!("connect to {to} from port {port}"), e)),
            }
        }
        Err(Error::Failed(format!("connect to {to}: no port is free")))
    }
}

fn dial_from(port: u16, to: SocketAddrV4) -> Result<TcpStream, Errno> {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    let patience = TimeVal::new(60, 0);
    setsockopt(&fd, sockopt::SendTimeout, &patience)?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &patience)?;
    bind(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)))?;
    connect(fd.as_raw_fd(), &SockaddrIn::from(to))?;
    Ok(TcpStream::from(fd))
}

fn echoed(stream: &mut TcpStream, to: SocketAddrV4) -> Result<()> {
    let mut byte = [0];
    stream
        .write_all(&[ECHO])
        .and_then(|()| stream.read_exact(&mut byte))
        .map_err(|e| Error::system(format!("ask {to}"), e))
}
