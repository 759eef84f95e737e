// SPDX-License-Identifier: MIT OR Apache-2.0

//! Neighbours of links, and FDB entries of VXLAN links and bridges (ip-neighbour(8), bridge(8)).
//!
//! Layout: `struct ndmsg` and its attributes in `linux/neighbour.h`.

use std::fmt;
use std::net::IpAddr;

use cni_netlink::Message;
use cni_netlink::message::{self, flag};

use super::error::{ReplyError, RouteError};
use super::link::Link;
use super::transport::Verb;
use super::{RouteSocket, wire};
use crate::AddressFamily;
use crate::mac::Mac;

/// The Ethernet address of an IP address on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// The IP address.
    pub address: IpAddr,
    /// The neighbour's Ethernet address.
    pub mac: Mac,
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.address, self.mac)
    }
}

/// A neighbour in any state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownNeighbour {
    /// The neighbour's Ethernet address. None while the kernel looks for it.
    pub mac: Option<Mac>,
    /// True if the entry was set permanently (`NUD_PERMANENT`).
    pub is_permanent: bool,
}

/// Whether a neighbour counts towards the limits of the kernel's table (`net.ipv4.neigh.default.gc_thresh3`), which
/// all network namespaces share. The kernel never garbage-collects a neighbour that does not count: it is deleted
/// with its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// Counts, like a neighbour that the kernel has learnt.
    Yes,
    /// Does not count (`NTF_EXT_LEARNED`).
    No,
}

/// The remote to which a VXLAN link sends the frames to an Ethernet address. It does not expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FdbEntry {
    /// The destination of the frames.
    pub mac: Mac,
    /// The address to which they are sent.
    pub remote: IpAddr,
    /// The UDP port to which they are sent, or none for that of the VXLAN link.
    pub port: Option<u16>,
    /// True if the VNI and the outgoing link are those of the VXLAN link. Entries for which this is false can be read
    /// but not written.
    pub plain: bool,
}

impl FdbEntry {
    /// The entry with the link's port and VNI.
    #[must_use]
    pub const fn new(mac: Mac, remote: IpAddr) -> Self {
        Self { mac, remote, port: None, plain: true }
    }
}

impl fmt::Display for FdbEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.mac, self.remote)?;
        self.port.map_or(Ok(()), |port| write!(f, " port {port}"))
    }
}

// linux/rtnetlink.h
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
// linux/socket.h
const AF_UNSPEC: u8 = 0;
const AF_BRIDGE: u8 = 7;
// linux/neighbour.h
const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const NTF_SELF: u8 = 0x02;
const NTF_MASTER: u8 = 0x04;
const NTF_PROXY: u8 = 0x08;
const NTF_EXT_LEARNED: u8 = 0x10;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_PORT: u16 = 6;
const NDA_VNI: u16 = 7;
const NDA_IFINDEX: u16 = 8;
const NDA_NH_ID: u16 = 13;
/// Length of `struct ndmsg`.
const NDMSG: usize = 12;

/// The fixed part of a request.
struct Header {
    family: u8,
    link: u32,
    state: u16,
    flags: u8,
}

fn message(kind: u16, header: &Header, attributes: &[(u16, &[u8])]) -> Message {
    let mut message = Message::new(kind, 0);
    message.raw(&[header.family, 0, 0, 0]).raw(&header.link.to_ne_bytes());
    message.raw(&header.state.to_ne_bytes()).raw(&[header.flags, 0]);
    for (kind, value) in attributes {
        message.attr(*kind, value);
    }
    message
}

/// A request for the entries of one link. With `NETLINK_GET_STRICT_CHK`, the kernel accepts the index only as an
/// attribute. Without that option, it ignores the attribute for the FDB.
fn list_of(family: u8, link: &Link) -> Message {
    let header = Header { family, link: 0, state: 0, flags: 0 };
    message(RTM_GETNEIGH, &header, &[(NDA_IFINDEX, &link.index.to_ne_bytes())])
}

fn neighbour(link: &Link, address: IpAddr) -> Header {
    let family = u8::from(wire::family(AddressFamily::of(address)));
    Header { family, link: link.index, state: NUD_PERMANENT, flags: 0 }
}

/// The header for an entry of the link itself (`NTF_SELF`), not of its bridge.
fn fdb(link: &Link) -> Header {
    Header { family: AF_BRIDGE, link: link.index, state: NUD_PERMANENT | NUD_NOARP, flags: NTF_SELF }
}

impl RouteSocket {
    /// The permanent neighbours of a link, of both families.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn neighbours(&self, link: &Link) -> Result<Vec<Neighbour>, RouteError> {
        let action = format_args!("list neighbours of {}", link.name);
        self.transport.list(list_of(AF_UNSPEC, link), action, |payload| decode(payload, link.index))
    }

    /// What the kernel knows about one neighbour, in any state.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel refuses the request, as before Linux 5.0.
    pub fn neighbour(&self, link: &Link, address: IpAddr) -> Result<Option<KnownNeighbour>, RouteError> {
        let header = Header { state: 0, ..neighbour(link, address) };
        let message = message(RTM_GETNEIGH, &header, &[(NDA_DST, &wire::octets(address))]);
        let action = format_args!("find neighbour {address} of {}", link.name);
        match self.transport.get(message, action, decode_any) {
            Err(error) if error.is_not_found() => Ok(None),
            other => other,
        }
    }

    /// Adds a neighbour as if the kernel had received a packet from it. The first packet to the neighbour then needs
    /// no request, and the kernel verifies the entry like any other once it is used. `known` is the entry for the IP
    /// address that [`Self::neighbour`] has returned, which is replaced. Without it, no existing entry is replaced.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] if the link has an entry that is not `known`; [`RouteError::is_not_found`] if
    /// the link is gone.
    pub fn introduce_neighbour(
        &self,
        link: &Link,
        new: Neighbour,
        known: Option<KnownNeighbour>,
        counts: Counts,
    ) -> Result<(), RouteError> {
        let flags = match counts {
            Counts::Yes => 0,
            Counts::No => NTF_EXT_LEARNED,
        };
        let header = Header { state: NUD_STALE, flags, ..neighbour(link, new.address) };
        let attributes = [(NDA_DST, &wire::octets(new.address)[..]), (NDA_LLADDR, &new.mac.0)];
        let action = format_args!("introduce neighbour {new} on {}", link.name);
        let verb = if known.is_some() { Verb::CreateWith(flag::REPLACE) } else { Verb::Create };
        self.transport.run(verb, message(RTM_NEWNEIGH, &header, &attributes), action)
    }

    /// Tells a bridge that an Ethernet address is behind one of its ports, as if the port had received a frame from
    /// it. The entry expires like a learnt one. If the bridge already has an entry for the address, that entry stays,
    /// because replacing it could also take away the address of the bridge itself or of another port.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] if the bridge knows the address; other errors if the link is not a port of a
    /// bridge.
    pub fn introduce_to_bridge(&self, port: &Link, mac: Mac) -> Result<(), RouteError> {
        let header = Header { family: AF_BRIDGE, link: port.index, state: NUD_REACHABLE, flags: NTF_MASTER };
        let action = format_args!("introduce {mac} behind {}", port.name);
        let message = message(RTM_NEWNEIGH, &header, &[(NDA_LLADDR, &mac.0)]);
        self.transport.run(Verb::Create, message, action)
    }

    /// Sets a permanent neighbour of a link, replacing any entry that the link has for its IP address. The entry does
    /// not expire, and the kernel sends no request for it (`NUD_PERMANENT`).
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if the link is gone.
    pub fn set_neighbour(&self, link: &Link, new: Neighbour) -> Result<(), RouteError> {
        let attributes = [(NDA_DST, &wire::octets(new.address)[..]), (NDA_LLADDR, &new.mac.0)];
        let message = message(RTM_NEWNEIGH, &neighbour(link, new.address), &attributes);
        let action = format_args!("set neighbour {new} on {}", link.name);
        self.transport.run(Verb::CreateWith(flag::REPLACE), message, action)
    }

    /// Deletes a link's neighbour with this IP address.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if it has none.
    pub fn delete_neighbour(&self, link: &Link, address: IpAddr) -> Result<(), RouteError> {
        let message = message(RTM_DELNEIGH, &neighbour(link, address), &[(NDA_DST, &wire::octets(address))]);
        let action = format_args!("delete neighbour {address} from {}", link.name);
        self.transport.run(Verb::Change, message, action)
    }

    /// The permanent FDB entries of a VXLAN link, one for each remote.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn fdb_entries(&self, link: &Link) -> Result<Vec<FdbEntry>, RouteError> {
        let action = format_args!("list FDB entries of {}", link.name);
        self.transport.list(list_of(AF_BRIDGE, link), action, |payload| decode_fdb(payload, link.index))
    }

    /// Sets the only remote of an Ethernet address, replacing all remotes that the VXLAN link has for it. The entry
    /// has the link's VNI. A port that equals the link's port is read back as none.
    ///
    /// # Errors
    /// EAFNOSUPPORT if the remote is not of the family of the link's source address; EOPNOTSUPP for a
    /// multicast or zero Ethernet address, which the kernel does not replace (`vxlan_fdb_update`).
    pub fn set_fdb_entry(&self, link: &Link, new: FdbEntry) -> Result<(), RouteError> {
        let (remote, port) = (wire::octets(new.remote), new.port.map(u16::to_be_bytes));
        let mut attributes = vec![(NDA_LLADDR, &new.mac.0[..]), (NDA_DST, &remote)];
        attributes.extend(port.as_ref().map(|port| (NDA_PORT, &port[..])));
        let message = message(RTM_NEWNEIGH, &fdb(link), &attributes);
        let action = format_args!("set FDB entry {new} on {}", link.name);
        self.transport.run(Verb::CreateWith(flag::REPLACE), message, action)
    }

    /// Deletes the entries of an Ethernet address, with all their remotes.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is none.
    pub fn delete_fdb_entry(&self, link: &Link, mac: Mac) -> Result<(), RouteError> {
        let message = message(RTM_DELNEIGH, &fdb(link), &[(NDA_LLADDR, &mac.0)]);
        let action = format_args!("delete FDB entry {mac} from {}", link.name);
        self.transport.run(Verb::Change, message, action)
    }
}

/// The attributes of a permanent entry of this link. None for any other entry.
fn permanent(payload: &[u8], link: u32) -> Result<Option<(u8, &[u8])>, ReplyError> {
    let (header, rest) = payload.split_at_checked(NDMSG).ok_or(ReplyError::NoHeader("a neighbour"))?;
    let ours = message::u32_of(&header[4..]) == link
        && message::u16_of(&header[8..]) & NUD_PERMANENT != 0
        && header[10] & NTF_PROXY == 0;
    Ok(ours.then_some((header[0], rest)))
}

fn decode(payload: &[u8], link: u32) -> Result<Option<Neighbour>, ReplyError> {
    Ok(permanent(payload, link)?.and_then(|(family, attributes)| entry(family, attributes)))
}

pub(super) fn decode_any(payload: &[u8]) -> Result<Option<KnownNeighbour>, ReplyError> {
    let (header, attributes) = payload.split_at_checked(NDMSG).ok_or(ReplyError::NoHeader("a neighbour"))?;
    let is_permanent = message::u16_of(&header[8..]) & NUD_PERMANENT != 0;
    let address = message::attributes(attributes).find(|(kind, _)| *kind == NDA_LLADDR);
    Ok(Some(KnownNeighbour { mac: address.and_then(|(_, value)| wire::mac(value)), is_permanent }))
}

/// An entry that has both addresses. None if it has no Ethernet address.
fn entry(family: u8, attributes: &[u8]) -> Option<Neighbour> {
    let (mut address, mut mac) = (None, None);
    for (kind, value) in message::attributes(attributes) {
        match kind {
            NDA_DST => address = wire::address(value),
            NDA_LLADDR => mac = wire::mac(value),
            _ => {}
        }
    }
    let address = address.filter(|address| wire::family_of(family) == Some(AddressFamily::of(*address)));
    address.zip(mac).map(|(address, mac)| Neighbour { address, mac })
}

pub(super) fn decode_fdb(payload: &[u8], link: u32) -> Result<Option<FdbEntry>, ReplyError> {
    let Some((AF_BRIDGE, attributes)) = permanent(payload, link)? else { return Ok(None) };
    let (mut mac, mut remote, mut port, mut plain) = (None, None, None, true);
    for (kind, value) in message::attributes(attributes) {
        match kind {
            NDA_LLADDR => mac = wire::mac(value),
            NDA_DST => remote = wire::address(value),
            // The kernel sends these only if they differ from those of the link (`vxlan_fdb_info`).
            NDA_PORT => port = value.first_chunk().map(|bytes| u16::from_be_bytes(*bytes)),
            NDA_VNI | NDA_IFINDEX | NDA_NH_ID => plain = false,
            _ => {}
        }
    }
    Ok(mac.zip(remote).map(|(mac, remote)| FdbEntry { mac, remote, port, plain }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);

    fn link() -> Link {
        Link { index: 5, name: "vxlan0".to_owned(), ..Link::default() }
    }

    #[test]
    fn an_encoded_neighbour_decodes_to_the_same() {
        for address in ["10.1.2.3", "fd00::1"] {
            let address: IpAddr = address.parse().unwrap();
            let header = neighbour(&link(), address);
            let bytes = wire::octets(address);
            let message = message(RTM_NEWNEIGH, &header, &[(NDA_DST, &bytes), (NDA_LLADDR, &MAC.0)]);
            assert_eq!(decode(message.payload(), 5), Ok(Some(Neighbour { address, mac: MAC })));
            assert_eq!(decode(message.payload(), 6), Ok(None), "of another link");
            let mut learned = message.payload().to_vec();
            learned[8..10].copy_from_slice(&2_u16.to_ne_bytes());
            assert_eq!(decode(&learned, 5), Ok(None), "reachable, but not permanent");
            assert_eq!(
                decode_any(&learned),
                Ok(Some(KnownNeighbour { mac: Some(MAC), is_permanent: false }))
            );
            let set = Ok(Some(KnownNeighbour { mac: Some(MAC), is_permanent: true }));
            assert_eq!(decode_any(message.payload()), set);
            for length in 0..message.payload().len() {
                let _ = decode(&message.payload()[..length], 5);
            }
        }
        assert!(decode(&[2; 11], 5).is_err());
    }

    #[test]
    fn an_fdb_entry_with_a_vni_of_its_own_is_not_plain() {
        let remote: IpAddr = "192.0.2.1".parse().unwrap();
        let bytes = wire::octets(remote);
        let plain = [(NDA_LLADDR, &MAC.0[..]), (NDA_DST, &bytes[..])];
        let decode = |attributes: &[(u16, &[u8])]| {
            decode_fdb(message(RTM_NEWNEIGH, &fdb(&link()), attributes).payload(), 5).unwrap()
        };
        assert_eq!(decode(&plain), Some(FdbEntry::new(MAC, remote)));
        for kind in [NDA_VNI, NDA_IFINDEX] {
            let with = [&plain[..], &[(kind, &[0, 0, 0, 9][..])]].concat();
            assert_eq!(decode(&with), Some(FdbEntry { plain: false, ..FdbEntry::new(MAC, remote) }));
        }
        let port = 8472_u16.to_be_bytes();
        let with = [&plain[..], &[(NDA_PORT, &port[..])]].concat();
        assert_eq!(decode(&with), Some(FdbEntry { port: Some(8472), ..FdbEntry::new(MAC, remote) }));
        // The age of a cache entry, and an attribute of a later kernel.
        let with = [&plain[..], &[(3, &[0; 16][..]), (99, &[1][..])]].concat();
        assert_eq!(decode(&with), Some(FdbEntry::new(MAC, remote)));
        assert_eq!(decode(&plain[..1]), None, "an entry without a remote");
    }
}
