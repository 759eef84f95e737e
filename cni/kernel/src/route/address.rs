// SPDX-License-Identifier: MIT OR Apache-2.0

//! Addresses of links.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni_netlink::message;
use ipnet::IpNet;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};

use super::error::{ReplyError, RouteError};
use super::link::Link;
use super::transport::Verb;
use super::{RouteSocket, wire};
use crate::AddressFamily;

/// An address of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The link's index.
    pub link: u32,
    /// The address, not masked, with the length of its prefix.
    pub net: IpNet,
    /// Duplicate address detection is not finished (RFC 4862, section 5.4): the address cannot be used yet.
    pub tentative: bool,
    /// Another host on the link has the address.
    pub duplicate: bool,
    /// The link has an older address of the same subnet (IPv4), or the address is temporary (IPv6, RFC 8981).
    pub secondary: bool,
    /// No new connection should use it as its source (RFC 4862, section 5.5.4).
    pub deprecated: bool,
    /// True if its scope is global, not link (fe80::/10) or host.
    pub global: bool,
    /// True if its lifetime is limited, for example because a router advertised it or a DHCP client leased it.
    pub expires: bool,
}

/// Duplicate address detection for a new IPv6 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DuplicateDetection {
    /// As the link's `accept_dad` requires.
    AsLink,
    /// No detection for this address (`IFA_F_NODAD`).
    Skip,
}

impl RouteSocket {
    /// The addresses of a link, of both families.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn addresses(&self, link: &Link) -> Result<Vec<Address>, RouteError> {
        let mut message = AddressMessage::default();
        message.header.index = link.index;
        let action = format_args!("list addresses of {}", link.name);
        let all = self.transport.list(RouteNetlinkMessage::GetAddress(message), action, decode)?;
        Ok(all.into_iter().filter(|address| address.link == link.index).collect())
    }

    /// The addresses of all links that exist while the list is read, and perhaps some that come or go meanwhile.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn all_addresses(&self) -> Result<Vec<Address>, RouteError> {
        let message = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let key = |address: &Address| (address.link, address.net);
        self.transport.list_changing(message, format_args!("list addresses"), decode, key)
    }

    /// The addresses of a link's peer, which may be in another namespace and need not be known to the caller. Empty
    /// if the kernel cannot list them (before Linux 4.20).
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn peer_addresses(&self, link: &Link) -> Result<Vec<Address>, RouteError> {
        let (Some(peer), Some(netns)) = (link.peer, link.peer_netns) else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for family in AddressFamily::BOTH {
            let mut message = AddressMessage::default();
            (message.header.family, message.header.index) = (wire::family(family), peer);
            message.attributes.push(AddressAttribute::TargetNetNsId(netns));
            let action = format_args!("list addresses of the peer of {}", link.name);
            let request = RouteNetlinkMessage::GetAddress(message);
            all.extend(self.transport.list(request, action, |payload| decode_in(payload, netns))?);
        }
        Ok(all.into_iter().filter(|address: &Address| address.link == peer).collect())
    }

    /// Adds an address to a link. An IPv4 address gets its subnet's broadcast address. The kernel adds a route to the
    /// subnet.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] if the link has the address already.
    pub fn add_address(
        &self,
        link: &Link,
        net: IpNet,
        detection: DuplicateDetection,
    ) -> Result<(), RouteError> {
        self.add_address_with(link, net, detection, AddressFlags::empty())
    }

    /// Adds an address without the route to its subnet (`IFA_F_NOPREFIXROUTE`).
    ///
    /// # Errors
    /// [`RouteError::already_exists`] if the link has the address already.
    pub fn add_address_without_route(
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
            // The flags are sent as an attribute, because the header's field has room for only eight.
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

    /// Deletes an address of a link.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if the link does not have it.
    pub fn delete_address(&self, link: &Link, net: IpNet) -> Result<(), RouteError> {
        let message = RouteNetlinkMessage::DelAddress(address_message(link, net));
        self.transport.run(Verb::Change, message, format_args!("delete address {net} from {}", link.name))
    }

    /// Waits until duplicate address detection has finished for all addresses of a link, for at most `patience`.
    /// Returns the addresses, whether detection has finished or not. Detection makes no progress while the link is
    /// down.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list the addresses.
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
    message.header.family = wire::family(AddressFamily::of(net.addr()));
    message.header.prefix_len = net.prefix_len();
    message.header.scope = match net.addr() {
        IpAddr::V4(address) if address.is_loopback() => AddressScope::Host,
        IpAddr::V4(_) | IpAddr::V6(_) => AddressScope::Universe,
    };
    message.header.index = link.index;
    // The two differ only on point-to-point links: `Address` is the peer's, `Local` the link's.
    message.attributes.push(AddressAttribute::Address(net.addr()));
    message.attributes.push(AddressAttribute::Local(net.addr()));
    message
}

/// Length of `struct ifaddrmsg` (`linux/if_addr.h`).
const IFADDRMSG: usize = 8;

/// Decodes an address of the namespace with this ID. A kernel that cannot list the addresses of another namespace
/// lists those of the socket's namespace instead.
fn decode_in(payload: &[u8], netns: i32) -> Result<Option<Address>, ReplyError> {
    /// `IFA_TARGET_NETNSID` (`linux/if_addr.h`).
    const TARGET: u16 = 10;
    let (_, rest) = split_header(payload)?;
    let target = message::find(rest, TARGET);
    if target.is_none_or(|value| message::u32_of(value).cast_signed() != netns) {
        return Ok(None);
    }
    decode(payload)
}

fn split_header(payload: &[u8]) -> Result<(&[u8], &[u8]), ReplyError> {
    payload.split_at_checked(IFADDRMSG).ok_or(ReplyError::NoHeader("an address"))
}

pub(super) fn decode(payload: &[u8]) -> Result<Option<Address>, ReplyError> {
    let (header, rest) = split_header(payload)?;
    let mut flags = u32::from(header[2]);
    let (mut address, mut local) = (None, None);
    for (kind, value) in message::attributes(rest) {
        match kind {
            nix::libc::IFA_ADDRESS => address = wire::address(value),
            nix::libc::IFA_LOCAL => local = wire::address(value),
            nix::libc::IFA_FLAGS => flags = message::u32_of(value),
            _ => {}
        }
    }
    let flags = AddressFlags::from_bits_retain(flags);
    let Some(net) = local.or(address).and_then(|address| IpNet::new(address, header[1]).ok()) else {
        return Ok(None); // Not an IP address.
    };
    Ok(Some(Address {
        link: message::u32_of(&header[4..]),
        net,
        tentative: flags.contains(AddressFlags::Tentative),
        duplicate: flags.contains(AddressFlags::Dadfailed),
        secondary: flags.contains(AddressFlags::Secondary),
        deprecated: flags.contains(AddressFlags::Deprecated),
        global: header[3] == u8::from(AddressScope::Universe),
        expires: !flags.contains(AddressFlags::Permanent),
    }))
}
