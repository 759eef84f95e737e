//! Talking with servers on a container's link: each call opens its sockets in the container's namespace and
//! closes them again, so that nothing here keeps a namespace alive.

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
use super::message::{Answer, Client, Options};

/// Everybody on the link.
const EVERYBODY: Mac = Mac([0xff; 6]);
/// How long a wait is at most before it is asked whether to stop.
const SLICE: Duration = Duration::from_millis(200);
/// How long a packet may take to leave the machine.
const TO_LEAVE: Duration = Duration::from_secs(1);
/// The largest packet that is read, in bytes: of a link with large frames.
const LARGEST: usize = 9216;

/// Why there is no lease, or no longer one.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// The namespace is gone, or another one is in its place.
    #[error("{0:?} is not the container's network namespace any more")]
    Gone(PathBuf),
    /// The daemon's own links are none of a container's.
    #[error("{0:?} is the network namespace of the daemon, not of a container")]
    Own(PathBuf),
    #[error("{0:?} is no absolute path without \"..\"")]
    Path(PathBuf),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("link {0} is no Ethernet link")]
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
    #[error("no more tries: {0}")]
    NoMoreTries(Box<ExchangeError>),
}

impl ExchangeError {
    /// Whether the link can never have a lease again: it, or its namespace, is gone.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Gone(_) => true,
            Self::Netns(error) => error.is_gone(),
            Self::Route(error) => error.is_not_found(),
            _ => false,
        }
    }

    /// Whether another try would end as this one.
    pub(super) fn is_certain(&self) -> bool {
        let of_the_place =
            matches!(self, Self::Own(_) | Self::Path(_) | Self::Netns(_) | Self::NotEthernet(_));
        self.is_final() || of_the_place || matches!(self, Self::Lease(_) | Self::Stopped)
    }
}

/// A container's link.
#[derive(Debug)]
pub(super) struct Place {
    netns: Netns,
    index: u32,
    name: String,
    mac: Mac,
    /// Whether other links have the same address: packets to an IP address that this one does not have
    /// yet do not reach it then.
    shares_mac: bool,
}

/// How an exchange is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner<'a> {
    /// How long servers are waited for.
    pub(super) timeout: Duration,
    /// Set when somebody wants it to end.
    pub(super) stop: &'a AtomicBool,
}

impl Place {
    /// Finds the link. With `known`, the namespace must be that one.
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

    /// What the namespace is told apart by.
    pub(super) fn id(&self) -> (u64, u64) {
        (self.netns.id().dev, self.netns.id().ino)
    }

    /// Switches the link on: nothing is sent through it before.
    pub(super) fn switch_on(&self) -> Result<(), ExchangeError> {
        self.change(&LinkChange::new().up())
    }

    /// Switches the link off: its address is not its own any more.
    pub(super) fn switch_off(&self) -> Result<(), ExchangeError> {
        self.change(&LinkChange::new().down())
    }

    fn change(&self, change: &LinkChange) -> Result<(), ExchangeError> {
        let route = RouteSocket::open_in(&self.netns)?;
        let link = route.link_by_index(self.index)?;
        Ok(route.change_link(&link, change)?)
    }

    /// The client that asks for this link.
    pub(super) fn client(&self, id: String, options: Options, broadcast: bool) -> Client {
        Client { mac: self.mac, id, options, broadcast: broadcast || self.shares_mac }
    }

    /// Looks for a server and takes its offer.
    pub(super) fn acquire(
        &self,
        client: &Client,
        wanted: Option<Ipv4Addr>,
        manner: Manner<'_>,
    ) -> Result<Terms, ExchangeError> {
        let talk = Talk::open(self, client, manner)?;
        let none = Ipv4Addr::UNSPECIFIED;
        let passed_over = PassedOver::default();
        let offer = talk.ask(none, &client.discover(talk.xid, wanted), &|answer| {
            answer.kind == MessageType::Offer && passed_over.accept(&Terms::check_offer(answer), client)
        });
        let offer = offer.map_err(|error| passed_over.explain(error))?;
        let server = offer.server.ok_or(LeaseError::NoServer)?;
        let taken = client.select(talk.xid, offer.address, server);
        let answer = talk.ask(none, &taken, &|answer| {
            is_decision(answer, offer.address) && answer.server == Some(server)
        })?;
        terms(&answer, offer.address, server).inspect_err(|error| {
            if let ExchangeError::Lease(_) = error {
                log::warn!("{}: {error}: giving {} back", client.id, offer.address);
                drop(self.release(client, (offer.address, server)));
            }
        })
    }

    /// Asks any server for more time.
    pub(super) fn rebind(
        &self,
        client: &Client,
        held: (Ipv4Addr, Ipv4Addr),
        manner: Manner<'_>,
    ) -> Result<Terms, ExchangeError> {
        let talk = Talk::open(self, client, manner)?;
        let message = client.extend(talk.xid, held.0);
        let passed_over = PassedOver::default();
        let answer = talk.ask(held.0, &message, &|answer| passed_over.decides(client, answer, held));
        terms(&answer.map_err(|error| passed_over.explain(error))?, held.0, held.1)
    }

    /// Asks the server that gave the address for more time.
    pub(super) fn renew(
        &self,
        client: &Client,
        held: (Ipv4Addr, Ipv4Addr),
        manner: Manner<'_>,
    ) -> Result<Terms, ExchangeError> {
        let (address, server) = held;
        let socket = self.udp(address, server)?;
        let failed = |operation| move |errno| self.failed(operation, errno);
        socket.set_read_timeout(Some(SLICE)).map_err(|e| failed("set a timeout")(errno(&e)))?;
        let xid = xid();
        let message = client.extend(xid, address);
        let (end, mut pause) = (Instant::now() + manner.timeout, Duration::from_secs(1));
        let passed_over = PassedOver::default();
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
                    // Nobody listens there at the moment.
                    Err(e) if errno(&e) == Errno::ECONNREFUSED => {
                        std::thread::sleep(SLICE);
                        continue;
                    }
                    Err(e) => return Err(failed("receive from the server")(errno(&e))),
                };
                let answer = buffer.get(..length).and_then(|bytes| client.read(xid, bytes));
                if let Some(answer) = answer.filter(|answer| passed_over.decides(client, answer, held)) {
                    return terms(&answer, address, server);
                }
            }
        }
        Err(passed_over.explain(ExchangeError::Silence(self.name.clone())))
    }

    /// Gives the address back. No answer is expected.
    ///
    /// To everybody, of whom the server acts that the message names. RFC 2131, section 4.4.4, has clients send
    /// it to the server alone, but then it may wait in the kernel for the answer to an ARP request when the link
    /// is deleted, and is lost without a word. The way of a broadcast is the one that the lease came by, through
    /// a relay too; a hardware address out of an earlier answer may be that of a machine that was replaced.
    pub(super) fn release(&self, client: &Client, held: (Ipv4Addr, Ipv4Addr)) -> Result<(), ExchangeError> {
        let message = client.release(xid(), held.0, held.1);
        let socket = self.packets()?;
        let packet = to_server(held.0, Ipv4Addr::BROADCAST, &message);
        let failed = |errno| self.failed("send to everybody", errno);
        socket.send(&packet, EVERYBODY).map_err(failed)?;
        match socket.wait_until_sent(Instant::now() + TO_LEAVE).map_err(failed)? {
            true => Ok(()),
            false => Err(failed(Errno::ETIMEDOUT)),
        }
    }

    /// Tells the neighbours who has the address now (RFC 2131, section 4.4.1): some may know it as another
    /// container's.
    pub(super) fn announce(&self, address: Ipv4Addr) -> Result<(), ExchangeError> {
        let sent = self.packets()?.send_arp(&announcement(self.mac, address), EVERYBODY);
        sent.map_err(|errno| self.failed("announce the address to everybody", errno))
    }

    fn udp(&self, address: Ipv4Addr, server: Ipv4Addr) -> Result<UdpSocket, ExchangeError> {
        let socket = self.netns.run(|| {
            let socket = UdpSocket::bind(SocketAddrV4::new(address, CLIENT_PORT))?;
            socket.connect(SocketAddrV4::new(server, SERVER_PORT))?;
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
struct Talk<'a> {
    place: &'a Place,
    client: &'a Client,
    manner: Manner<'a>,
    socket: PacketSocket,
    xid: u32,
    end: Instant,
}

impl<'a> Talk<'a> {
    fn open(place: &'a Place, client: &'a Client, manner: Manner<'a>) -> Result<Self, ExchangeError> {
        let socket = place.packets()?;
        Ok(Self { place, client, manner, socket, xid: xid(), end: Instant::now() + manner.timeout })
    }

    /// Sends a message, again after one, two, four … seconds, until an answer is what is wanted.
    fn ask(
        &self,
        source: Ipv4Addr,
        message: &[u8],
        is_wanted: &dyn Fn(&Answer) -> bool,
    ) -> Result<Answer, ExchangeError> {
        let packet = to_server(source, Ipv4Addr::BROADCAST, message);
        let mut pause = Duration::from_secs(1);
        let mut buffer = [0; LARGEST];
        while Instant::now() < self.end {
            match self.socket.send(&packet, EVERYBODY) {
                // The other end of the link may come up a little later.
                Ok(()) | Err(Errno::ENETDOWN | Errno::ENOBUFS) => {}
                Err(errno) => return Err(self.place.failed("send to everybody", errno)),
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
                let answer = packet.and_then(to_client).and_then(|bytes| self.client.read(self.xid, bytes));
                if let Some(answer) = answer.filter(is_wanted) {
                    return Ok(answer);
                }
            }
        }
        Err(ExchangeError::Silence(self.place.name.clone()))
    }
}

/// Why answers that make no lease are passed over: another server may have a better one.
#[derive(Default)]
struct PassedOver(Cell<Option<LeaseError>>);

impl PassedOver {
    fn accept<T>(&self, checked: &Result<T, LeaseError>, client: &Client) -> bool {
        let Err(error) = checked else { return true };
        if self.0.replace(Some(*error)) != Some(*error) {
            log::warn!("{}: an answer is passed over: {error}", client.id);
        }
        false
    }

    /// True if a server has decided about the address, and its terms can be used.
    fn decides(&self, client: &Client, answer: &Answer, (address, server): (Ipv4Addr, Ipv4Addr)) -> bool {
        is_decision(answer, address)
            && (answer.kind == MessageType::Nak || self.accept(&Terms::of(answer, Some(server)), client))
    }

    /// The error of a wait in which nothing usable came.
    fn explain(&self, error: ExchangeError) -> ExchangeError {
        match (error, self.0.get()) {
            (ExchangeError::Silence(_), Some(reason)) => ExchangeError::Unusable(reason),
            (error, _) => error,
        }
    }
}

/// Whether a server has decided about the address.
fn is_decision(answer: &Answer, address: Ipv4Addr) -> bool {
    match answer.kind {
        MessageType::Ack => answer.address == address,
        kind => kind == MessageType::Nak,
    }
}

fn terms(answer: &Answer, address: Ipv4Addr, server: Ipv4Addr) -> Result<Terms, ExchangeError> {
    if answer.kind == MessageType::Nak {
        return Err(ExchangeError::Refused(address));
    }
    Ok(Terms::of(answer, Some(server))?)
}

/// A number that answers are told apart by. Of the system's random source, for which a hash map's keys are
/// an honest way.
pub(super) fn xid() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let hash = RandomState::new().build_hasher().finish();
    u32::try_from(hash >> 32).unwrap_or_default()
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}
