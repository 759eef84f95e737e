// SPDX-License-Identifier: GPL-2.0-or-later

//! Exchanges with DHCP servers on a container's link. Each one opens its sockets in the container's namespace
//! and closes them again, so that no socket keeps a namespace alive.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cni_kernel::mac::Mac;
use cni_kernel::netns::{Netns, NetnsError};
use cni_kernel::packet::PacketSocket;
use cni_kernel::route::{LinkChange, LinkKind, RouteError, RouteSocket};
use nix::errno::Errno;
use smoltcp::wire::{
    DHCP_CLIENT_PORT as CLIENT_PORT, DHCP_SERVER_PORT as SERVER_PORT, DhcpMessageType as MessageType,
};

use super::frame::{announcement, to_client, to_server};
use super::lease::{LeaseError, Terms};
use super::message::{Client, Options, Reply};

/// The broadcast address of the link.
const BROADCAST: Mac = Mac([0xff; 6]);
/// The interval at which the stop flag is checked.
const SLICE: Duration = Duration::from_millis(200);
/// The time limit for a packet to be sent.
const SEND_LIMIT: Duration = Duration::from_secs(1);
/// The largest packet that is read, in bytes: enough for jumbo frames.
const LARGEST: usize = 9216;

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("{0:?} is no longer the container's network namespace")]
    Gone(PathBuf),
    #[error("{0:?} is the network namespace of the daemon, not of a container")]
    Own(PathBuf),
    #[error("{0:?} is not an absolute path without \"..\"")]
    Path(PathBuf),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("link {0} is not an Ethernet link")]
    NotEthernet(String),
    #[error("{operation} on {link}: {errno}")]
    Socket { operation: &'static str, link: String, errno: Errno },
    #[error("no DHCP server answered on {0}")]
    Silence(String),
    #[error("no DHCP server offers a usable lease: {0}")]
    Unusable(LeaseError),
    #[error("the DHCP server refused {0}")]
    Refused(Ipv4Addr),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error("stopped")]
    Stopped,
    /// The text is the reference's. The log has the reason of each failed attempt.
    #[error("no more tries")]
    NoMoreTries,
}

impl ExchangeError {
    /// True if the link or its namespace is gone.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Gone(_) => true,
            Self::Netns(error) => error.is_gone(),
            Self::Route(error) => error.is_not_found(),
            _ => false,
        }
    }

    /// True if another try would fail too.
    pub(super) fn is_permanent(&self) -> bool {
        let of_the_link =
            matches!(self, Self::Own(_) | Self::Path(_) | Self::Netns(_) | Self::NotEthernet(_));
        self.is_final() || of_the_link || matches!(self, Self::Lease(_) | Self::Stopped)
    }
}

/// A container's link.
#[derive(Debug)]
pub(super) struct Place {
    netns: Netns,
    index: u32,
    name: String,
    mac: Mac,
    /// True if other links have the same MAC address. A packet to an IP address that this link does not have
    /// yet does not reach it then.
    shares_mac: bool,
}

/// The limits of an exchange.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner<'a> {
    /// The time limit for servers.
    pub(super) timeout: Duration,
    /// Set to end the exchange.
    pub(super) stop: &'a AtomicBool,
}

/// A leased address and its server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) address: Ipv4Addr,
    pub(super) server: Ipv4Addr,
}

impl Place {
    /// Finds the link. With `known`, the namespace must have this ID.
    pub(super) fn open(path: &Path, ifname: &str, known: Option<(u64, u64)>) -> Result<Self, ExchangeError> {
        if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
            return Err(ExchangeError::Path(path.to_path_buf()));
        }
        let netns = Netns::open(path)?;
        if netns.id() == Netns::current()?.id() {
            return Err(ExchangeError::Own(path.to_path_buf()));
        }
        if known.is_some_and(|known| known != (netns.id().dev, netns.id().ino)) {
            return Err(ExchangeError::Gone(path.to_path_buf()));
        }
        let route = RouteSocket::open_in(&netns)?;
        let link = route.link(ifname)?;
        let mac = link.mac.ok_or_else(|| ExchangeError::NotEthernet(ifname.to_owned()))?;
        let shares_mac = matches!(link.kind, LinkKind::Ipvlan(_));
        Ok(Self { netns, index: link.index, name: ifname.to_owned(), mac, shares_mac })
    }

    /// Device and inode number of the namespace.
    pub(super) fn id(&self) -> (u64, u64) {
        (self.netns.id().dev, self.netns.id().ino)
    }

    /// Sets the link up, to send through it.
    pub(super) fn set_up(&self) -> Result<(), ExchangeError> {
        self.change(&LinkChange::new().up())
    }

    /// Sets the link down, so that the container stops using the address.
    pub(super) fn set_down(&self) -> Result<(), ExchangeError> {
        self.change(&LinkChange::new().down())
    }

    fn change(&self, change: &LinkChange) -> Result<(), ExchangeError> {
        let route = RouteSocket::open_in(&self.netns)?;
        let link = route.link_by_index(self.index)?;
        Ok(route.change_link(&link, change)?)
    }

    /// The client of this link.
    pub(super) fn client(&self, id: String, options: Options, broadcast: bool) -> Client {
        Client { mac: self.mac, id, options, broadcast: broadcast || self.shares_mac }
    }

    /// Requests a lease: DISCOVER, then REQUEST to the first server with a usable offer.
    pub(super) fn acquire(
        &self,
        client: &Client,
        wanted: Option<Ipv4Addr>,
        manner: Manner<'_>,
    ) -> Result<Terms, ExchangeError> {
        let exchange = Exchange::open(self, client, manner)?;
        let none = Ipv4Addr::UNSPECIFIED;
        let ignored = Ignored::default();
        let offer = exchange.request(none, &client.discover(exchange.xid, wanted), &|reply| {
            reply.kind == MessageType::Offer && ignored.accept(&Terms::check_offer(reply), client)
        });
        let offer = offer.map_err(|error| ignored.explain(error))?;
        let held = Held { address: offer.address, server: offer.server.ok_or(LeaseError::NoServer)? };
        let selection = client.select(exchange.xid, held.address, held.server);
        let reply = exchange.request(none, &selection, &|reply| {
            is_decision(reply, held.address) && reply.server == Some(held.server)
        })?;
        terms(&reply, held).inspect_err(|error| {
            if let ExchangeError::Lease(_) = error {
                log::warn!("{}: {error}: releasing {}", client.id, held.address);
                drop(self.release(client, held));
            }
        })
    }

    /// Asks any server to extend a lease.
    pub(super) fn rebind(
        &self,
        client: &Client,
        held: Held,
        manner: Manner<'_>,
    ) -> Result<Terms, ExchangeError> {
        let exchange = Exchange::open(self, client, manner)?;
        let message = client.extend(exchange.xid, held.address);
        let ignored = Ignored::default();
        let reply = exchange.request(held.address, &message, &|reply| ignored.decides(client, reply, held));
        terms(&reply.map_err(|error| ignored.explain(error))?, held)
    }

    /// Asks the lease's server to extend it.
    pub(super) fn renew(
        &self,
        client: &Client,
        held: Held,
        manner: Manner<'_>,
    ) -> Result<Terms, ExchangeError> {
        let socket = self.udp(held)?;
        let failed = |operation| move |errno| self.failed(operation, errno);
        socket.set_read_timeout(Some(SLICE)).map_err(|e| failed("set a timeout")(errno(&e)))?;
        let xid = xid();
        let message = client.extend(xid, held.address);
        let (end, mut pause) = (Instant::now() + manner.timeout, Duration::from_secs(1));
        let ignored = Ignored::default();
        let mut buffer = [0; LARGEST];
        while Instant::now() < end {
            socket.send(&message).map_err(|e| failed("send to the server")(errno(&e)))?;
            let again = end.min(Instant::now() + pause);
            pause *= 2;
            while Instant::now() < again {
                if manner.stop.load(Ordering::Relaxed) {
                    return Err(ExchangeError::Stopped);
                }
                let length = match socket.recv(&mut buffer) {
                    Ok(length) => length,
                    Err(e) if matches!(errno(&e), Errno::EAGAIN | Errno::EINTR) => continue,
                    // No server listens at the moment.
                    Err(e) if errno(&e) == Errno::ECONNREFUSED => {
                        std::thread::sleep(SLICE);
                        continue;
                    }
                    Err(e) => return Err(failed("receive from the server")(errno(&e))),
                };
                let reply = buffer.get(..length).and_then(|bytes| client.read(xid, bytes));
                if let Some(reply) = reply.filter(|reply| ignored.decides(client, reply, held)) {
                    return terms(&reply, held);
                }
            }
        }
        Err(ignored.explain(ExchangeError::Silence(self.name.clone())))
    }

    /// Releases the address. Servers do not reply to that.
    ///
    /// The message is broadcast, and the server that it names acts on it. According to RFC 2131, section 4.4.4, clients
    /// send it to the server only. However, the message may then wait in the kernel for an ARP reply while the link is
    /// deleted, and be lost silently. A broadcast takes the same path as the request did, also through a relay. The MAC
    /// address of an earlier reply would not do either, because it may belong to a machine that was replaced.
    pub(super) fn release(&self, client: &Client, held: Held) -> Result<(), ExchangeError> {
        let message = client.release(xid(), held.address, held.server);
        let socket = self.packets()?;
        let packet = to_server(held.address, Ipv4Addr::BROADCAST, &message);
        let failed = |errno| self.failed("send a broadcast", errno);
        socket.send(&packet, BROADCAST).map_err(failed)?;
        match socket.wait_until_sent(Instant::now() + SEND_LIMIT).map_err(failed)? {
            true => Ok(()),
            false => Err(failed(Errno::ETIMEDOUT)),
        }
    }

    /// Announces the address to the neighbours (RFC 2131, section 4.4.1), whose ARP caches may have another
    /// container's MAC address for it.
    pub(super) fn announce(&self, address: Ipv4Addr) -> Result<(), ExchangeError> {
        let sent = self.packets()?.send_arp(&announcement(self.mac, address), BROADCAST);
        sent.map_err(|errno| self.failed("announce the address", errno))
    }

    fn udp(&self, held: Held) -> Result<UdpSocket, ExchangeError> {
        let socket = self.netns.run(|| {
            let socket = UdpSocket::bind(SocketAddrV4::new(held.address, CLIENT_PORT))?;
            socket.connect(SocketAddrV4::new(held.server, SERVER_PORT))?;
            Ok::<_, std::io::Error>(socket)
        })?;
        socket.map_err(|e| self.failed("open a socket to the server", errno(&e)))
    }

    fn packets(&self) -> Result<PacketSocket, ExchangeError> {
        let socket = self.netns.run(|| PacketSocket::open(self.index, CLIENT_PORT))?;
        socket.map_err(|errno| self.failed("open a packet socket", errno))
    }

    fn failed(&self, operation: &'static str, errno: Errno) -> ExchangeError {
        ExchangeError::Socket { operation, link: self.name.clone(), errno }
    }
}

/// An exchange by broadcast.
struct Exchange<'a> {
    place: &'a Place,
    client: &'a Client,
    manner: Manner<'a>,
    socket: PacketSocket,
    xid: u32,
    end: Instant,
}

impl<'a> Exchange<'a> {
    fn open(place: &'a Place, client: &'a Client, manner: Manner<'a>) -> Result<Self, ExchangeError> {
        let socket = place.packets()?;
        Ok(Self { place, client, manner, socket, xid: xid(), end: Instant::now() + manner.timeout })
    }

    /// Sends a message, and repeats it after one, two, four … seconds, until a reply is wanted.
    fn request(
        &self,
        source: Ipv4Addr,
        message: &[u8],
        is_wanted: &dyn Fn(&Reply) -> bool,
    ) -> Result<Reply, ExchangeError> {
        let packet = to_server(source, Ipv4Addr::BROADCAST, message);
        let mut pause = Duration::from_secs(1);
        let mut buffer = [0; LARGEST];
        while Instant::now() < self.end {
            match self.socket.send(&packet, BROADCAST) {
                // The other end of the link may come up later.
                Ok(()) | Err(Errno::ENETDOWN | Errno::ENOBUFS) => {}
                Err(errno) => return Err(self.place.failed("send a broadcast", errno)),
            }
            let again = self.end.min(Instant::now() + pause);
            pause *= 2;
            while Instant::now() < again {
                if self.manner.stop.load(Ordering::Relaxed) {
                    return Err(ExchangeError::Stopped);
                }
                let slice = again.min(Instant::now() + SLICE);
                let packet = match self.socket.receive(&mut buffer, slice) {
                    Ok(packet) => packet,
                    Err(Errno::ENETDOWN) => None,
                    Err(errno) => return Err(self.place.failed("receive", errno)),
                };
                let reply = packet.and_then(to_client).and_then(|bytes| self.client.read(self.xid, bytes));
                if let Some(reply) = reply.filter(is_wanted) {
                    return Ok(reply);
                }
            }
        }
        Err(ExchangeError::Silence(self.place.name.clone()))
    }
}

/// The reason why unusable replies were ignored: another server may send a usable one.
#[derive(Default)]
struct Ignored(Cell<Option<LeaseError>>);

impl Ignored {
    fn accept<T>(&self, checked: &Result<T, LeaseError>, client: &Client) -> bool {
        let Err(error) = checked else { return true };
        if self.0.replace(Some(*error)) != Some(*error) {
            log::warn!("{}: reply ignored: {error}", client.id);
        }
        false
    }

    /// True if a server has decided about the address, and its terms can be used.
    fn decides(&self, client: &Client, reply: &Reply, held: Held) -> bool {
        is_decision(reply, held.address)
            && (reply.kind == MessageType::Nak || self.accept(&Terms::of(reply, Some(held.server)), client))
    }

    /// Replaces a time-out by the reason why a reply was ignored, if one was.
    fn explain(&self, error: ExchangeError) -> ExchangeError {
        match (error, self.0.get()) {
            (ExchangeError::Silence(_), Some(reason)) => ExchangeError::Unusable(reason),
            (error, _) => error,
        }
    }
}

/// True if a server has decided about the address.
fn is_decision(reply: &Reply, address: Ipv4Addr) -> bool {
    match reply.kind {
        MessageType::Ack => reply.address == address,
        kind => kind == MessageType::Nak,
    }
}

fn terms(reply: &Reply, held: Held) -> Result<Terms, ExchangeError> {
    if reply.kind == MessageType::Nak {
        return Err(ExchangeError::Refused(held.address));
    }
    Ok(Terms::of(reply, Some(held.server))?)
}

/// A random transaction ID. The standard library seeds the keys of its hash maps from the kernel's random
/// source.
pub(super) fn xid() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let hash = RandomState::new().build_hasher().finish();
    u32::try_from(hash >> 32).unwrap_or_default()
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}
