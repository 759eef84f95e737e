// SPDX-License-Identifier: GPL-2.0-or-later

//! Real packets: servers that reply with their names, and clients with a time limit.

use std::io::{self, BufRead, BufReader, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::family::has_ipv6;
use crate::pace::patience;
use crate::space::Space;

/// The time limit of a client that should get no reply. It allows three UDP attempts, or a TCP handshake, which takes
/// about a millisecond if a server does reply.
pub const QUICK: Duration = Duration::from_millis(700);

/// The time limit of a client that gets its reply at once, unless its first packets are lost because other tests fill
/// the processor's queue: the kernel repeats a SYN after one second and after three. A node that uses an outdated
/// neighbour needs at least eight seconds to notice it.
pub const AT_ONCE: Duration = Duration::from_millis(3500);

/// The interval after which a datagram is sent again.
const RESEND: Duration = Duration::from_millis(250);

/// The size of a queue of datagrams in bytes, enough for ten seconds of several steady flows. The default fills in less
/// than a second, and a server may have to wait that long for an emulated processor.
pub(crate) const QUEUE: usize = 8 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proto {
    Tcp,
    Udp,
}

impl Proto {
    /// Both protocols, for loops over the contract.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// The protocol's name in `portMappings`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The name that the server was given.
    pub who: String,
    /// The client's address as the server saw it.
    pub peer: SocketAddr,
    /// The client's own address according to getsockname(2).
    pub own: SocketAddr,
    /// The address that the answer came from, as the client saw it.
    pub from: SocketAddr,
}

/// A server that runs until it is dropped. Its sockets keep their namespace alive.
///
/// The server replies to every line (TCP) or datagram (UDP) with its name, the client's address, and the line.
#[derive(Debug)]
pub struct Server {
    running: Option<PipeWriter>,
    thread: Option<thread::JoinHandle<()>>,
    /// The server's address, with the port that the kernel chose if 0 was asked for.
    pub address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Tells the threads of a server to end, by closing the writing side of the pipe. Until then the threads sleep in the
/// kernel, because hundreds of servers that polled a flag every few milliseconds would keep an emulated processor busy.
#[derive(Debug)]
struct End(PipeReader);

impl End {
    /// Waits until a socket has something to read. Returns false if the server is to end.
    fn wait(&self, socket: &impl AsFd) -> bool {
        loop {
            let mut both = [self.0.as_fd(), socket.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut both, PollTimeout::NONE) {
                Ok(_) => return both[0].any() == Some(false),
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// A client that sends several requests over one socket.
#[derive(Debug)]
pub struct Flow {
    socket: Socket,
    limit: Duration,
    sent: u32,
}

#[derive(Debug)]
enum Socket {
    Tcp(BufReader<TcpStream>),
    Udp(UdpSocket),
}

impl Space {
    /// Starts a server in this space. If the space has several addresses, a UDP server should listen on one of them,
    /// because an answer from a wildcard socket leaves with the address that routing chooses.
    pub fn serve(&self, proto: Proto, address: &str, who: &str) -> Server {
        self.try_serve(proto, address, who)
            .unwrap_or_else(|e| panic!("{}: listen on {} {address}: {e}", self.name, proto.name()))
    }

    /// Starts a server in this space if the address can be bound. `[::]` means all addresses of both families, or all
    /// IPv4 addresses in a kernel without IPv6.
    pub fn try_serve(&self, proto: Proto, address: &str, who: &str) -> io::Result<Server> {
        let of_ipv4 =
            address.strip_prefix("[::]").filter(|_| !has_ipv6()).map(|port| format!("0.0.0.0{port}"));
        let address = of_ipv4.as_deref().unwrap_or(address);
        let (end, running) = io::pipe()?;
        let (end, who) = (End(end), who.to_owned());
        let (address, thread) = match proto {
            Proto::Tcp => {
                let listener = self.bind(|| TcpListener::bind(address))?;
                listener.set_nonblocking(true)?;
                (listener.local_addr()?, thread::spawn(move || serve_tcp(&listener, &who, &end)))
            }
            Proto::Udp => {
                let socket = self.bind(|| UdpSocket::bind(address))?;
                socket.set_read_timeout(Some(Duration::from_millis(20)))?;
                setsockopt(&socket, sockopt::RcvBufForce, &QUEUE)?;
                (socket.local_addr()?, thread::spawn(move || serve_udp(&socket, &who, &end)))
            }
        };
        Ok(Server { running: Some(running), thread: Some(thread), address })
    }

    /// Sends one request to a server, and waits for the reply as long as [`patience`] allows.
    pub fn request(&self, proto: Proto, to: impl Into<SocketAddr>) -> io::Result<Answer> {
        self.request_from(proto, None, to.into(), patience())
    }

    /// Sends one request to a server from a given local address (port 0 for any), and waits at most `limit` for the
    /// reply.
    pub fn request_from(
        &self,
        proto: Proto,
        from: Option<SocketAddr>,
        to: SocketAddr,
        limit: Duration,
    ) -> io::Result<Answer> {
        let answer = self.dial(proto, from, to, limit).and_then(|mut flow| flow.request());
        self.journal.note(format!("[{}] request {} {to} from {from:?}: {answer:?}", self.name, proto.name()));
        answer
    }

    /// Sends a request and fails unless `who` replies.
    #[track_caller]
    pub fn expect(&self, proto: Proto, to: impl Into<SocketAddr>, who: &str) -> Answer {
        let to = to.into();
        match self.request(proto, to) {
            Ok(answer) if answer.who == who => answer,
            Ok(answer) => {
                panic!("{} {} {to}: {:?} answered instead of {who:?}", self.name, proto.name(), answer.who)
            }
            Err(error) => {
                panic!("{} {} {to}: {error}; {who:?} should have answered", self.name, proto.name())
            }
        }
    }

    /// Fails if a server replies.
    #[track_caller]
    pub fn expect_none(&self, proto: Proto, to: impl Into<SocketAddr>) {
        let to = to.into();
        if let Ok(answer) = self.request_from(proto, None, to, QUICK) {
            panic!("{} {} {to}: {:?} replied, but no server should", self.name, proto.name(), answer.who);
        }
    }

    /// Fails if a server replies at one of these addresses. All are tried at the same time, so that the limits do not
    /// add up.
    #[track_caller]
    pub fn expect_none_of(&self, all: impl IntoIterator<Item = (Proto, SocketAddr)>) {
        let answers: Vec<String> = thread::scope(|scope| {
            let request = |(proto, to)| (proto, to, self.request_from(proto, None, to, QUICK));
            let tries: Vec<_> = all.into_iter().map(|one| scope.spawn(move || request(one))).collect();
            let tried = tries.into_iter().map(|one| one.join().expect("no panic"));
            tried
                .filter_map(|(proto, to, answer)| {
                    Some(format!("{} {to}: {:?}", proto.name(), answer.ok()?.who))
                })
                .collect()
        });
        assert!(answers.is_empty(), "{}: answered, but nothing should: {answers:?}", self.name);
    }

    /// Opens a socket to `to` and keeps it open. Each answer is waited for at most `limit`.
    pub fn dial(
        &self,
        proto: Proto,
        from: Option<SocketAddr>,
        to: SocketAddr,
        limit: Duration,
    ) -> io::Result<Flow> {
        let socket = self.run(|| open(proto, from, to, limit))?;
        Ok(Flow { socket, limit, sent: 0 })
    }
}

impl Flow {
    /// Sends a request and waits for its reply.
    pub fn request(&mut self) -> io::Result<Answer> {
        self.sent += 1;
        let line = format!("line {}", self.sent);
        let begin = Instant::now();
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
                let mut text = String::new();
                stream.read_line(&mut text)?;
                if text.is_empty() {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                let stream = stream.get_ref();
                parse(&text, &line, stream.local_addr()?, stream.peer_addr()?)
            }
            Socket::Udp(socket) => {
                let mut buffer = [0; 512];
                let mut last = io::Error::from(ErrorKind::TimedOut);
                while begin.elapsed() < self.limit {
                    // An ICMP error about an earlier datagram is reported here, and the next attempt may succeed.
                    if let Err(error) = socket.send(line.as_bytes()) {
                        last = error;
                        thread::sleep(RESEND / 5);
                        continue;
                    }
                    match socket.recv(&mut buffer) {
                        Ok(length) => {
                            let text = String::from_utf8_lossy(&buffer[..length]);
                            let answer = parse(&text, &line, socket.local_addr()?, socket.peer_addr()?);
                            if answer.is_ok() {
                                return answer;
                            }
                        }
                        Err(error) => {
                            if error.kind() == ErrorKind::ConnectionRefused {
                                thread::sleep(RESEND / 5);
                            }
                            // The kernel limits ICMP errors, so an earlier refusal is a better error to report than a
                            // time-out.
                            if error.kind() != ErrorKind::WouldBlock {
                                last = error;
                            }
                        }
                    }
                }
                Err(last)
            }
        }
    }

    /// Makes the flow wait for each later reply as long as [`Space::request`] does.
    pub fn be_patient(&mut self) {
        self.limit = patience();
    }

    pub fn own(&self) -> io::Result<SocketAddr> {
        match &self.socket {
            Socket::Tcp(stream) => stream.get_ref().local_addr(),
            Socket::Udp(socket) => socket.local_addr(),
        }
    }
}

fn open(proto: Proto, from: Option<SocketAddr>, to: SocketAddr, limit: Duration) -> io::Result<Socket> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let kind = match proto {
        Proto::Tcp => SockType::Stream,
        Proto::Udp => SockType::Datagram,
    };
    let socket: OwnedFd = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
    if let Some(from) = from {
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
    }
    // A blocking connect(2) gives up after the sending time-out (socket(7)).
    let limit = TimeVal::milliseconds(i64::try_from(limit.as_millis()).unwrap_or(i64::MAX));
    setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &limit)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) => {}
        Err(nix::errno::Errno::EINPROGRESS) => return Err(ErrorKind::TimedOut.into()),
        Err(error) => return Err(error.into()),
    }
    Ok(match proto {
        Proto::Tcp => Socket::Tcp(BufReader::new(TcpStream::from(socket))),
        Proto::Udp => {
            let socket = UdpSocket::from(socket);
            socket.set_read_timeout(Some(RESEND))?;
            Socket::Udp(socket)
        }
    })
}

fn serve_tcp(listener: &TcpListener, who: &str, end: &End) {
    thread::scope(|scope| {
        while end.wait(listener) {
            match listener.accept() {
                Ok((stream, peer)) => {
                    scope.spawn(move || {
                        // A failure means that the client has closed the connection.
                        let _ = reply_tcp(stream, peer, who, end);
                    });
                }
                // The client closed the connection before it was accepted, or the process has too many open files.
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        }
    });
}

fn reply_tcp(mut stream: TcpStream, peer: SocketAddr, who: &str, end: &End) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    while end.wait(&stream) {
        let length = stream.read(&mut piece)?;
        if length == 0 {
            break;
        }
        received.extend(&piece[..length]);
        while let Some(newline) = received.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = received.drain(..=newline).collect();
            stream.write_all(answer(who, peer, String::from_utf8_lossy(&line).trim_end()).as_bytes())?;
        }
    }
    Ok(())
}

fn serve_udp(socket: &UdpSocket, who: &str, end: &End) {
    let mut buffer = vec![0; 8192];
    while end.wait(socket) {
        // A datagram with a wrong checksum wakes poll(2) but is not received, so the socket needs a time-out.
        if let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
            // An unreachable client causes an error here. The other clients are still served.
            let _ = socket.send_to(answer(who, peer, &line).as_bytes(), peer);
        }
    }
}

fn answer(who: &str, peer: SocketAddr, line: &str) -> String {
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    format!("{who}|{peer}|{line}\n")
}

fn parse(text: &str, line: &str, own: SocketAddr, from: SocketAddr) -> io::Result<Answer> {
    let fields: Vec<_> = text.trim_end().split('|').collect();
    match fields[..] {
        [who, peer, echoed] if echoed == line => {
            let peer = peer.parse().map_err(io::Error::other)?;
            Ok(Answer { who: who.to_owned(), peer, own, from })
        }
        _ => Err(io::Error::new(ErrorKind::InvalidData, format!("unexpected answer {text:?} to {line:?}"))),
    }
}

impl Space {
    /// Sends an ICMP echo request and waits two seconds for the reply.
    pub fn ping(&self, to: IpAddr) -> io::Result<()> {
        // The fields are type (8 or 128), code 0, checksum, identifier and sequence number (RFC 792, RFC 4443).
        const ID: [u8; 2] = [0x51, 0x1b];
        let (family, protocol, kind, reply) = match to {
            IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, 8, 0),
            IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128, 129),
        };
        let mut request = [kind, 0, 0, 0, ID[0], ID[1], 0, 1];
        if to.is_ipv4() {
            // The kernel fills the checksum in only for ICMPv6 (RFC 3542, section 3.1).
            let sum = u32::from(kind) << 8;
            let sum = sum + u32::from(u16::from_be_bytes(ID)) + 1;
            let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("no further carry");
            request[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let answered = self.run(|| -> io::Result<bool> {
            let raw = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
            setsockopt(&raw, sockopt::ReceiveTimeout, &TimeVal::seconds(2))?;
            connect(raw.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(to, 0)))?;
            send(raw.as_raw_fd(), &request, MsgFlags::empty())?;
            let mut buffer = [0; 1500];
            let begin = Instant::now();
            while begin.elapsed() < patience() {
                let length = recv(raw.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
                // A raw IPv4 socket also delivers the IP header (raw(7)).
                let header = if to.is_ipv4() { usize::from(buffer[0] & 15) * 4 } else { 0 };
                let message = buffer.get(header..length).unwrap_or_default();
                if message.first() == Some(&reply) && message.get(4..6) == Some(&ID) {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        self.journal.note(format!("[{}] ping {to}: {answered:?}", self.name));
        if answered? { Ok(()) } else { Err(ErrorKind::TimedOut.into()) }
    }
}

/// An address and a port as one value, for loops over addresses of both families.
pub fn at(ip: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}
