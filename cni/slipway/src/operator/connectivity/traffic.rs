// SPDX-License-Identifier: GPL-2.0-or-later

//! Requests and replies over TCP and UDP. A reply names its server and the source that the server saw.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use cni_dataplane::Protocol;
use cni_kernel::netns::Netns;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// The time limit for a connection and its reply, long enough for the kernel to repeat the first packet once.
const TCP: Duration = Duration::from_millis(1300);
/// The time to wait for the reply to a UDP request, and the number of times that the request is sent.
const UDP: Duration = Duration::from_millis(500);
const ATTEMPTS: usize = 2;
/// The time limit for a request that is made only so that a trace sees its packets.
const KNOCK: Duration = Duration::from_millis(200);
/// The interval at which a server checks if it is to end.
const LOOK: Duration = Duration::from_millis(20);
/// The most requests that a server remembers.
const MOST: usize = 256;

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    /// The server's name.
    pub(super) server: String,
    /// The client's address as the server saw it.
    pub(super) source: SocketAddr,
}

/// A server on both protocols at one port of a namespace, on all addresses. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    end: Arc<AtomicBool>,
    /// Texts of the requests over UDP.
    got: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub(super) fn start(netns: &Netns, port: u16, name: &'static str) -> io::Result<Self> {
        let (tcp, udp) = inside(netns, || bind_both(port))??;
        tcp.set_nonblocking(true)?;
        udp.set_read_timeout(Some(LOOK))?;
        let (end, got) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (end_tcp, end_udp, got_udp) = (Arc::clone(&end), Arc::clone(&end), Arc::clone(&got));
        // Dropping it ends the thread that has started, if the other one cannot be.
        let mut server = Self { end, got, threads: Vec::new() };
        let threads = &mut server.threads;
        threads.push(Builder::new().spawn(move || serve_tcp(&tcp, name, &end_tcp))?);
        threads.push(Builder::new().spawn(move || serve_udp(&udp, name, &end_udp, &got_udp))?);
        Ok(server)
    }

    /// True if a request with this text came over UDP.
    pub(super) fn got(&self, text: &str) -> bool {
        self.got.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|one| one == text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// Runs in a namespace, with its failure as an ordinary error.
fn inside<T: Send>(netns: &Netns, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    netns.run(work).map_err(io::Error::other)
}

/// Binds both protocols for both families, or for IPv4 alone if the kernel has no IPv6.
pub(super) fn bind_both(port: u16) -> io::Result<(TcpListener, UdpSocket)> {
    let bind = |address: IpAddr| -> io::Result<(TcpListener, UdpSocket)> {
        let at = SocketAddr::new(address, port);
        Ok((TcpListener::bind(at)?, UdpSocket::bind(at)?))
    };
    match bind(Ipv6Addr::UNSPECIFIED.into()) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => bind(Ipv4Addr::UNSPECIFIED.into()),
        other => other,
    }
}

fn seen(name: &str, peer: SocketAddr) -> String {
    format!("{name} {}", SocketAddr::new(peer.ip().to_canonical(), peer.port()))
}

fn serve_tcp(listener: &TcpListener, name: &str, end: &AtomicBool) {
    while !end.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((mut stream, peer)) => {
                // The client may be gone, which does not matter.
                drop(stream.set_write_timeout(Some(TCP)));
                drop(stream.write_all(seen(name, peer).as_bytes()));
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

fn serve_udp(socket: &UdpSocket, name: &str, end: &AtomicBool, got: &Mutex<Vec<String>>) {
    let mut buffer = [0; 128];
    while !end.load(Ordering::Relaxed) {
        let Ok((length, peer)) = socket.recv_from(&mut buffer) else { continue };
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned();
        let mut got = got.lock().unwrap_or_else(PoisonError::into_inner);
        if got.len() < MOST {
            got.push(text);
        }
        drop(got);
        drop(socket.send_to(seen(name, peer).as_bytes(), peer));
    }
}

fn reply(text: &str) -> io::Result<Reply> {
    let parsed = text
        .split_once(' ')
        .and_then(|(server, source)| Some(Reply { server: server.to_owned(), source: source.parse().ok()? }));
    parsed.ok_or_else(|| io::Error::other(format!("an unexpected reply: {text:?}")))
}

/// Makes one request from a namespace (none: the calling thread's) and from a port there, 0 for any.
///
/// # Errors
/// There was no reply.
pub(super) fn request(
    netns: Option<&Netns>,
    protocol: Protocol,
    to: SocketAddr,
    port: u16,
) -> io::Result<Reply> {
    let work = move || match protocol {
        Protocol::Udp => Client::new(to, port)?.request(),
        _ => over_tcp(to, port),
    };
    match netns {
        Some(netns) => inside(netns, work)?,
        None => work(),
    }
}

/// Makes a request whose packets a trace is to see, and does not wait for its reply.
pub(super) fn knock(netns: Option<&Netns>, protocol: Protocol, to: SocketAddr, port: u16) {
    let work = move || match protocol {
        Protocol::Udp => drop(Client::new(to, port).and_then(|client| client.0.send(b"request"))),
        _ => drop(connect(to, port, KNOCK)),
    };
    match netns {
        Some(netns) => drop(inside(netns, work)),
        None => work(),
    }
}

/// An unspecified address of the same family.
fn any(to: SocketAddr) -> IpAddr {
    if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn connect(to: SocketAddr, port: u16, limit: Duration) -> io::Result<TcpStream> {
    if port == 0 {
        return TcpStream::connect_timeout(&to, limit);
    }
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // A connection from this port may have ended a moment ago.
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    // connect(2) gives up after this time, see socket(7).
    let limit = TimeVal::milliseconds(i64::try_from(limit.as_millis()).unwrap_or(i64::MAX));
    setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    let own = SockaddrStorage::from(SocketAddr::new(any(to), port));
    socket::bind(socket.as_raw_fd(), &own)?;
    socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(TcpStream::from(socket))
}

fn over_tcp(to: SocketAddr, port: u16) -> io::Result<Reply> {
    let mut stream = connect(to, port, TCP)?;
    stream.set_read_timeout(Some(TCP))?;
    let mut text = String::new();
    Read::by_ref(&mut stream).take(128).read_to_string(&mut text)?;
    reply(&text)
}

/// A client of one UDP flow.
#[derive(Debug)]
pub(super) struct Client(UdpSocket);

impl Client {
    /// Binds a port of the calling thread's namespace, 0 for any, and connects.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn new(to: SocketAddr, port: u16) -> io::Result<Self> {
        let socket = UdpSocket::bind(SocketAddr::new(any(to), port))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(UDP))?;
        Ok(Self(socket))
    }

    /// Binds a port of a namespace.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn inside(netns: &Netns, to: SocketAddr) -> io::Result<Self> {
        inside(netns, || Self::new(to, 0))?
    }

    /// The client's own address.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn local(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Makes a request, and repeats it if the request or its reply is lost.
    ///
    /// # Errors
    /// There was no reply.
    pub(super) fn request(&self) -> io::Result<Reply> {
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        for _ in 0..ATTEMPTS {
            match self.once() {
                Ok(reply) => return Ok(reply),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Makes a request once.
    ///
    /// # Errors
    /// There was no reply.
    pub(super) fn once(&self) -> io::Result<Reply> {
        self.0.send(b"request")?;
        let mut buffer = [0; 128];
        let length = self.0.recv(&mut buffer)?;
        reply(&String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()))
    }
}

/// A UDP datagram with its IPv4 header (RFC 791, section 3.1; RFC 768), without a UDP checksum.
pub(super) fn datagram(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), text: &str) -> Vec<u8> {
    let udp = u16::try_from(8 + text.len()).unwrap_or(u16::MAX);
    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, Protocol::Udp.number(), 0, 0]);
    packet.extend(from.0.octets());
    packet.extend(to.0.octets());
    let sum: u32 =
        packet.chunks(2).map(|pair| pair.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0);
    if let Some(field) = packet.get_mut(10..12) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
    for number in [from.1, to.1, udp, 0] {
        packet.extend(number.to_be_bytes());
    }
    packet.extend(text.bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_header_is_right() {
        let packet = datagram(([192, 0, 2, 9].into(), 4000), ([127, 0, 0, 1].into(), 53), "text");
        assert_eq!((packet.len(), packet[2..4].to_vec()), (32, vec![0, 32]));
        let sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "RFC 1071: the sum with the checksum is all ones");
    }

    #[test]
    fn replies_are_read() {
        let one = reply("web 192.0.2.9:4000").unwrap();
        assert_eq!((one.server.as_str(), one.source.port()), ("web", 4000));
        assert!(reply("web").is_err() && reply("web nonsense").is_err());
    }
}
