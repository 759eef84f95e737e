//! Addresses of links.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::error::RouteError;
use super::link::Link;
use super::transport::Verb;
use super::{RouteSocket, wire};

/// An address of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Number of the link.
    pub link: u32,
    /// The address with the length of its prefix, not masked.
    pub net: IpNet,
    /// Duplicate address detection still runs (RFC 4862, section 5.4): the address cannot be used.
    pub tentative: bool,
    /// Somebody else on the link has the address.
    pub duplicate: bool,
    /// Another address of the same subnet came first (IPv4), or it is a temporary one (IPv6, RFC 8981).
    pub secondary: bool,
    /// No new conversation is to begin with it (RFC 4862, section 5.5.4).
    pub deprecated: bool,
    /// Whether its scope is the world, not the link (fe80::/10) or the host.
    pub global: bool,
}

/// Whether the kernel asks on the link if somebody has an IPv6 address before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DuplicateDetection {
    /// As the link's `accept_dad` says.
    AsLink,
    /// Not for this address (`IFA_F_NODAD`).
    Skip,
}

impl RouteSocket {
    /// The addresses of a link, of both families.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn addresses(&self, link: &Link) -> Result<Vec<Address>, RouteError> {
        let mut message = AddressMessage::default();
        message.header.index = link.index;
        let action = format_args!("list addresses of {}", link.name);
        let all = self.transport.list(&RouteNetlinkMessage::GetAddress(message), action, decode)?;
        Ok(all.into_iter().filter(|address| address.link == link.index).collect())
    }

    /// The addresses of all links.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn all_addresses(&self) -> Result<Vec<Address>, RouteError> {
        let message = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.transport.list(&message, format_args!("list addresses"), decode)
    }

    /// The addresses of a link's other end, which is in another namespace. Nobody need know the way there. None
    /// where the kernel does not tell (before Linux 4.20).
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn peer_addresses(&self, link: &Link) -> Result<Vec<Address>, RouteError> {
        let (Some(peer), Some(netns)) = (link.peer, link.peer_netns) else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = AddressMessage::default();
            (message.header.family, message.header.index) = (family, peer);
            message.attributes.push(AddressAttribute::TargetNetNsId(netns));
            let action = format_args!("list addresses of the other end of {}", link.name);
            let question = RouteNetlinkMessage::GetAddress(message);
            all.extend(self.transport.list(&question, action, |payload| decode_in(payload, netns))?);
        }
        Ok(all.into_iter().filter(|address: &Address| address.link == peer).collect())
    }

    /// Gives a link an address, for IPv4 with the subnet's broadcast address. The kernel makes a route
    /// to the subnet by this link.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] when the link has it.
    pub fn add_address(
        &self,
        link: &Link,
        net: IpNet,
        detection: DuplicateDetection,
    ) -> Result<(), RouteError> {
        self.add_address_with(link, net, detection, AddressFlags::empty())
    }

    /// The same without the route to the subnet (`IFA_F_NOPREFIXROUTE`).
    ///
    /// # Errors
    /// [`RouteError::already_exists`] when the link has it.
    pub fn add_address_alone(
        &self,
        link: &Link,
        net: IpNet,
        detection: DuplicateDetection,
    ) -> Result<(), RouteError> {
        self.add_address_with(link, net, detection, AddressFlags::Noprefixroute)
    }

    fn add_address_with(
        &self,
        link: &Link,
        net: IpNet,
        detection: DuplicateDetection,
        mut flags: AddressFlags,
    ) -> Result<(), RouteError> {
        let mut message = address_message(link, net);
        if detection == DuplicateDetection::Skip {
            flags |= AddressFlags::Nodad;
        }
        if !flags.is_empty() {
            // Not in the header, whose field has room for eight flags only.
            message.attributes.push(AddressAttribute::Flags(flags));
        }
        // Point-to-point prefixes have no broadcast address (RFC 3021).
        if let IpNet::V4(net) = net
            && net.prefix_len() < 31
        {
            message.attributes.push(AddressAttribute::Broadcast(net.broadcast()));
        }
        let action = format_args!("add address {net} to {}", link.name);
        self.transport.run(Verb::Create, RouteNetlinkMessage::NewAddress(message), action)
    }

    /// Takes an address from a link.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] when the link does not have it.
    pub fn delete_address(&self, link: &Link, net: IpNet) -> Result<(), RouteError> {
        let message = RouteNetlinkMessage::DelAddress(address_message(link, net));
        self.transport.run(Verb::Change, message, format_args!("delete address {net} from {}", link.name))
    }

    /// Waits until duplicate address detection has come to an end for all addresses of a link, at
    /// most for `patience`, and returns the addresses as they are then. Detection makes no progress
    /// while the link is down.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn wait_for_detection(&self, link: &Link, patience: Duration) -> Result<Vec<Address>, RouteError> {
        let end = Instant::now() + patience;
        let mut pause = Duration::from_millis(2);
        loop {
            let seen = self.addresses(link)?;
            let left = end.saturating_duration_since(Instant::now());
            let settled = seen.iter().all(|address| !address.tentative || address.duplicate);
            if settled || left.is_zero() {
                return Ok(seen);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

fn address_message(link: &Link, net: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = match net {
        IpNet::V4(_) => AddressFamily::Inet,
        IpNet::V6(_) => AddressFamily::Inet6,
    };
    message.header.prefix_len = net.prefix_len();
    message.header.scope = match net.addr() {
        IpAddr::V4(address) if address.is_loopback() => AddressScope::Host,
        IpAddr::V4(_) | IpAddr::V6(_) => AddressScope::Universe,
    };
    message.header.index = link.index;
    // Equal but for point-to-point addresses: the first is the other end's, the second the link's.
    message.attributes.push(AddressAttribute::Address(net.addr()));
    message.attributes.push(AddressAttribute::Local(net.addr()));
    message
}

/// Length of `struct ifaddrmsg` of `linux/if_addr.h`.
const IFADDRMSG: usize = 8;

/// An address in the namespace with this number. A kernel that does not look there tells of its own ones.
fn decode_in(payload: &[u8], netns: i32) -> Result<Option<Address>, String> {
    /// `IFA_TARGET_NETNSID` (`linux/if_addr.h`).
    const TARGET: u16 = 10;
    let (_, rest) = payload.split_at_checked(IFADDRMSG).ok_or("an address without a header")?;
    let told = wire::attributes(rest).find(|(kind, _)| *kind == TARGET);
    if told.is_none_or(|(_, value)| wire::u32_of(value).cast_signed() != netns) {
        return Ok(None);
    }
    decode(payload)
}

fn decode(payload: &[u8]) -> Result<Option<Address>, String> {
    let (header, rest) = payload.split_at_checked(IFADDRMSG).ok_or("an address without a header")?;
    let mut flags = u32::from(header[2]);
    let (mut address, mut local) = (None, None);
    for (kind, value) in wire::attributes(rest) {
        match kind {
            nix::libc::IFA_ADDRESS => address = wire::address(value),
            nix::libc::IFA_LOCAL => local = wire::address(value),
            nix::libc::IFA_FLAGS => flags = wire::u32_of(value),
            _ => {}
        }
    }
    let flags = AddressFlags::from_bits_retain(flags);
    let Some(net) = local.or(address).and_then(|address| IpNet::new(address, header[1]).ok()) else {
        return Ok(None); // Another family than IP.
    };
    Ok(Some(Address {
        link: wire::u32_of(&header[4..]),
        net,
        tentative: flags.contains(AddressFlags::Tentative),
        duplicate: flags.contains(AddressFlags::Dadfailed),
        secondary: flags.contains(AddressFlags::Secondary),
        deprecated: flags.contains(AddressFlags::Deprecated),
        global: header[3] == u8::from(AddressScope::Universe),
    }))
}
