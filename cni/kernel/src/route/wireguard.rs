// SPDX-License-Identifier: MIT OR Apache-2.0

//! WireGuard links: their key, their port and their peers, over generic netlink.
//!
//! The layout is that of `struct genlmsghdr` in `linux/genetlink.h` and of the attributes in `linux/wireguard.h`,
//! which document the protocol. The crate `netlink-packet-wireguard` is not used, because it needs another version of
//! `netlink-packet-core` than rtnetlink does, and decodes a list only as a whole.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use cni_netlink::message::{self, find};
use cni_netlink::{Attributes, Message, SockProtocol};
use ipnet::IpNet;

use super::error::{ReplyError, RouteError};
use super::link::Link;
use super::transport::{Transport, Verb};
use super::wire;

/// The length of a key in bytes.
const KEY: usize = 32;

/// A public key (Curve25519, RFC 7748).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; KEY]);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A private key. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey([u8; KEY]);

impl PrivateKey {
    /// Makes a key from 32 random bytes, of which some bits are fixed (RFC 7748, section 5). The kernel fixes the
    /// same bits, so a key is read back as it was set.
    #[must_use]
    pub const fn new(mut bytes: [u8; KEY]) -> Self {
        bytes[0] &= 0b1111_1000;
        bytes[KEY - 1] = bytes[KEY - 1] & 0b0111_1111 | 0b0100_0000;
        Self(bytes)
    }

    /// The key's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY] {
        &self.0
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

/// The state of a WireGuard link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WireGuardDevice {
    /// The link's private key, if it has one.
    pub private_key: Option<PrivateKey>,
    /// The public key that belongs to the private key, computed by the kernel.
    pub public_key: Option<PublicKey>,
    /// The UDP port on which the link receives packets, or 0 before the kernel has chosen one.
    pub port: u16,
    /// The peers, in the kernel's order.
    pub peers: Vec<Peer>,
}

/// A peer of a WireGuard link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The peer's public key.
    pub key: PublicKey,
    /// The address and port to which packets are sent, as they were set or as the source of the last authenticated
    /// packet.
    pub endpoint: Option<SocketAddr>,
    /// The destinations of packets to the peer, and the only sources of packets from it. A prefix belongs to at most
    /// one peer of a link.
    pub allowed: Vec<IpNet>,
    /// The time of the last handshake, since 1970. Zero before the first handshake.
    pub last_handshake: Duration,
}

/// A change of the peers of a WireGuard link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerChange {
    /// Adds a peer or changes one, whose session continues.
    Set {
        /// The peer's public key.
        key: PublicKey,
        /// The address and port to which packets are sent. None leaves them unchanged.
        endpoint: Option<SocketAddr>,
        /// All prefixes of the peer. None leaves them unchanged. If another peer has one of them, that peer loses it.
        allowed: Option<Vec<IpNet>>,
    },
    /// Removes a peer, if there is one with this key.
    Remove(PublicKey),
}

/// The largest part of a request with peers, in bytes. The length of an attribute has only 16 bits.
const PIECE: usize = 32 * 1024;

// linux/genetlink.h
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Length of `struct genlmsghdr`.
const GENLMSGHDR: usize = 4;
// linux/wireguard.h
const WG_GENL_NAME: &str = "wireguard";
const WG_GENL_VERSION: u8 = 1;
const WG_CMD_GET_DEVICE: u8 = 0;
const WG_CMD_SET_DEVICE: u8 = 1;
const WGDEVICE_A_IFINDEX: u16 = 1;
const WGDEVICE_A_PRIVATE_KEY: u16 = 3;
const WGDEVICE_A_PUBLIC_KEY: u16 = 4;
const WGDEVICE_A_LISTEN_PORT: u16 = 6;
const WGDEVICE_A_PEERS: u16 = 8;
const WGPEER_A_PUBLIC_KEY: u16 = 1;
const WGPEER_A_FLAGS: u16 = 3;
const WGPEER_A_ENDPOINT: u16 = 4;
const WGPEER_A_LAST_HANDSHAKE_TIME: u16 = 6;
const WGPEER_A_ALLOWEDIPS: u16 = 9;
const WGPEER_F_REMOVE_ME: u32 = 1;
const WGPEER_F_REPLACE_ALLOWEDIPS: u32 = 2;
const WGALLOWEDIP_A_FAMILY: u16 = 1;
const WGALLOWEDIP_A_IPADDR: u16 = 2;
const WGALLOWEDIP_A_CIDR_MASK: u16 = 3;
// linux/socket.h
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// A generic netlink socket of one network namespace, for WireGuard links.
///
/// Methods block like those of [`super::RouteSocket`].
#[derive(Debug)]
pub struct WireGuardSocket {
    transport: Transport,
    /// The number that the kernel gave WireGuard's messages.
    family: u16,
}

impl WireGuardSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if the kernel has no WireGuard, or if its module is not loaded. Creating a link
    /// loads the module.
    pub fn open() -> Result<Self, RouteError> {
        let transport =
            Transport::open_protocol(SockProtocol::NetlinkGeneric, "generic netlink", String::new())?;
        let request = message(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, |attributes| {
            attributes.text(CTRL_ATTR_FAMILY_NAME, WG_GENL_NAME);
        });
        let family = transport.get(request, format_args!("find WireGuard's netlink family"), |reply| {
            let reply = reply.get(GENLMSGHDR..).ok_or(ReplyError::NoHeader("a netlink family"))?;
            find(reply, CTRL_ATTR_FAMILY_ID).map(message::u16_of).ok_or(ReplyError::Empty)
        })?;
        Ok(Self { transport, family })
    }

    /// The state of a link.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if it is gone; EOPNOTSUPP if it is of another kind.
    pub fn device(&self, link: &Link) -> Result<WireGuardDevice, RouteError> {
        let request = message(self.family, WG_CMD_GET_DEVICE, |attributes| {
            attributes.u32(WGDEVICE_A_IFINDEX, link.index);
        });
        let action = format_args!("read WireGuard peers of {}", link.name);
        let parts = self.transport.list(request, action, |payload| decode(payload).map(Some))?;
        Ok(joined(parts))
    }

    /// Sets the private key of a link. The sessions with its peers end.
    ///
    /// # Errors
    /// The errors of [`Self::device`].
    pub fn set_private_key(&self, link: &Link, key: &PrivateKey) -> Result<(), RouteError> {
        self.set(link, format_args!("set private key of {}", link.name), |attributes| {
            attributes.attr(WGDEVICE_A_PRIVATE_KEY, &key.0);
        })
    }

    /// Sets the UDP port on which a link receives.
    ///
    /// # Errors
    /// The errors of [`Self::device`]; EADDRINUSE if the link is up and another socket has the port. If the link is
    /// down, the error occurs when it is set up.
    pub fn set_port(&self, link: &Link, port: u16) -> Result<(), RouteError> {
        self.set(link, format_args!("set UDP port {port} of {}", link.name), |attributes| {
            attributes.attr(WGDEVICE_A_LISTEN_PORT, &port.to_ne_bytes());
        })
    }

    /// Changes peers of a link, with one request for every 32 KB. Other peers keep their sessions.
    ///
    /// The kernel ignores a peer with the link's own public key.
    ///
    /// # Errors
    /// The errors of [`Self::device`]. The first changes in the list may have been made.
    pub fn change_peers(&self, link: &Link, changes: &[PeerChange]) -> Result<(), RouteError> {
        for piece in pieces(changes) {
            self.set(link, format_args!("set WireGuard peers of {}", link.name), |attributes| {
                attributes.nest(WGDEVICE_A_PEERS, |attributes| {
                    attributes.raw(&piece);
                });
            })?;
        }
        Ok(())
    }

    fn set(
        &self,
        link: &Link,
        action: fmt::Arguments<'_>,
        fill: impl FnOnce(&mut Attributes),
    ) -> Result<(), RouteError> {
        let request = message(self.family, WG_CMD_SET_DEVICE, |attributes| {
            attributes.u32(WGDEVICE_A_IFINDEX, link.index);
            fill(attributes);
        });
        self.transport.run(Verb::Change, request, action)
    }
}

fn message(kind: u16, command: u8, fill: impl FnOnce(&mut Attributes)) -> Message {
    let mut message = Message::new(kind, 0);
    message.raw(&[command, WG_GENL_VERSION, 0, 0]);
    fill(&mut message);
    message
}

/// The changes as attributes, in pieces of at most [`PIECE`] bytes unless one change is longer.
fn pieces(changes: &[PeerChange]) -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for change in changes {
        let peer = Attributes::encode(|attributes| {
            attributes.nest(0, |attributes| encode(change, attributes));
        });
        match pieces.last_mut() {
            Some(last) if last.len() + peer.len() <= PIECE => last.extend(peer),
            _ => pieces.push(peer),
        }
    }
    pieces
}

fn encode(change: &PeerChange, attributes: &mut Attributes) {
    match change {
        PeerChange::Remove(key) => {
            attributes.attr(WGPEER_A_PUBLIC_KEY, &key.0);
            attributes.u32(WGPEER_A_FLAGS, WGPEER_F_REMOVE_ME);
        }
        PeerChange::Set { key, endpoint, allowed } => {
            attributes.attr(WGPEER_A_PUBLIC_KEY, &key.0);
            if allowed.is_some() {
                attributes.u32(WGPEER_A_FLAGS, WGPEER_F_REPLACE_ALLOWEDIPS);
            }
            if let Some(endpoint) = endpoint {
                attributes.attr(WGPEER_A_ENDPOINT, &socket_address(*endpoint));
            }
            if let Some(allowed) = allowed {
                attributes.nest(WGPEER_A_ALLOWEDIPS, |attributes| {
                    for net in allowed {
                        attributes.nest(0, |attributes| encode_net(net, attributes));
                    }
                });
            }
        }
    }
}

fn encode_net(net: &IpNet, attributes: &mut Attributes) {
    let net = net.trunc();
    let family = if net.addr().is_ipv4() { AF_INET } else { AF_INET6 };
    attributes.attr(WGALLOWEDIP_A_FAMILY, &family.to_ne_bytes());
    attributes.attr(WGALLOWEDIP_A_IPADDR, &wire::octets(net.addr()));
    attributes.attr(WGALLOWEDIP_A_CIDR_MASK, &[net.prefix_len()]);
}

/// `struct sockaddr_in` or `struct sockaddr_in6`.
fn socket_address(address: SocketAddr) -> Vec<u8> {
    let family = if address.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut bytes = family.to_ne_bytes().to_vec();
    bytes.extend(address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes.extend(ip.octets());
            bytes.extend([0; 8]);
        }
        // Flow label and scope are 0.
        IpAddr::V6(ip) => {
            bytes.extend([0; 4]);
            bytes.extend(ip.octets());
            bytes.extend([0; 4]);
        }
    }
    bytes
}

fn decode_socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let ip = match message::u16_of(bytes) {
        AF_INET => Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into(),
        AF_INET6 => Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Decodes a message of the list. Only the first message contains the device's own attributes.
pub(super) fn decode(payload: &[u8]) -> Result<WireGuardDevice, ReplyError> {
    let attributes = payload.get(GENLMSGHDR..).ok_or(ReplyError::NoHeader("a WireGuard link"))?;
    let mut device = WireGuardDevice::default();
    for (kind, value) in message::attributes(attributes) {
        match kind {
            WGDEVICE_A_PRIVATE_KEY => device.private_key = value.try_into().ok().map(PrivateKey),
            WGDEVICE_A_PUBLIC_KEY => device.public_key = value.try_into().ok().map(PublicKey),
            WGDEVICE_A_LISTEN_PORT => device.port = message::u16_of(value),
            WGDEVICE_A_PEERS => {
                device.peers.extend(message::attributes(value).filter_map(|(_, peer)| decode_peer(peer)));
            }
            _ => {}
        }
    }
    Ok(device)
}

fn decode_peer(attributes: &[u8]) -> Option<Peer> {
    let mut key = None;
    let (mut endpoint, mut allowed, mut last_handshake) = (None, Vec::new(), Duration::ZERO);
    for (kind, value) in message::attributes(attributes) {
        match kind {
            WGPEER_A_PUBLIC_KEY => key = value.try_into().ok().map(PublicKey),
            WGPEER_A_ENDPOINT => endpoint = decode_socket_address(value),
            WGPEER_A_LAST_HANDSHAKE_TIME => last_handshake = decode_time(value).unwrap_or_default(),
            WGPEER_A_ALLOWEDIPS => {
                allowed.extend(message::attributes(value).filter_map(|(_, net)| decode_net(net)));
            }
            _ => {}
        }
    }
    Some(Peer { key: key?, endpoint, allowed, last_handshake })
}

/// `struct __kernel_timespec`: seconds and nanoseconds, of 64 bits each.
fn decode_time(value: &[u8]) -> Option<Duration> {
    let seconds = u64::from_ne_bytes(*value.first_chunk()?);
    let nanoseconds = u64::from_ne_bytes(*value.get(8..)?.first_chunk()?);
    Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanoseconds))
}

fn decode_net(attributes: &[u8]) -> Option<IpNet> {
    let (mut address, mut length) = (None, None);
    for (kind, value) in message::attributes(attributes) {
        match kind {
            WGALLOWEDIP_A_IPADDR => address = wire::address(value),
            WGALLOWEDIP_A_CIDR_MASK => length = Some(message::u8_of(value)),
            _ => {}
        }
    }
    IpNet::new(address?, length?).ok()
}

/// Joins the messages of a list. If a peer's prefixes do not fit into one message, the next message continues the
/// peer.
fn joined(parts: Vec<WireGuardDevice>) -> WireGuardDevice {
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or_default();
    for peer in parts.flat_map(|part| part.peers) {
        match whole.peers.last_mut() {
            Some(last) if last.key == peer.key => last.allowed.extend(peer.allowed),
            _ => whole.peers.push(peer),
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> PublicKey {
        let mut bytes = [7; KEY];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        PublicKey(bytes)
    }

    fn nets(number: u32) -> Vec<IpNet> {
        let [.., high, low] = number.to_be_bytes();
        let (v4, v6) = (format!("10.{high}.{low}.0/24"), format!("fd44:0:{number:x}::/64"));
        vec![v4.parse().unwrap(), v6.parse().unwrap()]
    }

    fn set(number: u32, endpoint: &str) -> PeerChange {
        PeerChange::Set {
            key: key(number),
            endpoint: Some(endpoint.parse().unwrap()),
            allowed: Some(nets(number)),
        }
    }

    /// The bytes of a message of the list with these pieces.
    fn reply(pieces: &[u8]) -> Vec<u8> {
        message(0, WG_CMD_GET_DEVICE, |attributes| {
            attributes.attr(WGDEVICE_A_LISTEN_PORT, &51820_u16.to_ne_bytes());
            attributes.nest(WGDEVICE_A_PEERS, |attributes| {
                attributes.raw(pieces);
            });
        })
        .payload()
        .to_vec()
    }

    #[test]
    fn encoded_peers_decode_to_the_same() {
        let changes = [set(1, "192.0.2.1:51820"), set(2, "[2001:db8::2]:7")];
        let pieces = pieces(&changes);
        let bytes = reply(&pieces[0]);
        let device = decode(&bytes).unwrap();
        let peer = |number, endpoint: &str| Peer {
            key: key(number),
            endpoint: Some(endpoint.parse().unwrap()),
            allowed: nets(number),
            last_handshake: Duration::ZERO,
        };
        assert_eq!((pieces.len(), device.port), (1, 51820));
        assert_eq!(device.peers, [peer(1, "192.0.2.1:51820"), peer(2, "[2001:db8::2]:7")]);
        for length in 0..bytes.len() {
            let _ = decode(&bytes[..length]);
        }
        assert!(decode(&bytes[..3]).is_err());
    }

    #[test]
    fn many_peers_are_sent_in_pieces_that_an_attribute_can_hold() {
        let changes: Vec<PeerChange> = (0..5000).map(|number| set(number, "[2001:db8::2]:7")).collect();
        let pieces = pieces(&changes);
        assert!(pieces.len() > 10 && pieces.iter().all(|piece| piece.len() <= PIECE), "{}", pieces.len());
        let parts = pieces.iter().map(|piece| decode(&reply(piece)).unwrap()).collect();
        let keys: Vec<PublicKey> = joined(parts).peers.iter().map(|peer| peer.key).collect();
        assert_eq!(keys, (0..5000).map(key).collect::<Vec<_>>());
    }

    #[test]
    fn a_peer_that_is_continued_is_one_peer() {
        let part = |numbers: &[u32]| {
            let changes: Vec<PeerChange> = numbers.iter().map(|number| set(*number, "192.0.2.1:1")).collect();
            decode(&reply(&pieces(&changes)[0])).unwrap()
        };
        let device = joined(vec![part(&[1, 2]), part(&[2]), part(&[3])]);
        let lengths: Vec<usize> = device.peers.iter().map(|peer| peer.allowed.len()).collect();
        assert_eq!(lengths, [2, 4, 2]);
    }

    #[test]
    fn a_change_has_only_what_changes() {
        let moved =
            PeerChange::Set { key: key(1), endpoint: Some("192.0.2.9:1".parse().unwrap()), allowed: None };
        let [piece] = &pieces(&[moved, PeerChange::Remove(key(2))])[..] else { panic!("one piece") };
        let kinds: Vec<Vec<u16>> = message::attributes(piece)
            .map(|(_, peer)| message::attributes(peer).map(|(kind, _)| kind).collect())
            .collect();
        let expected = [[WGPEER_A_PUBLIC_KEY, WGPEER_A_ENDPOINT], [WGPEER_A_PUBLIC_KEY, WGPEER_A_FLAGS]];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn a_private_key_is_clamped_and_not_printed() {
        let key = PrivateKey::new([0xff; KEY]);
        assert_eq!((key.bytes()[0], key.bytes()[31]), (0xf8, 0x7f));
        assert_eq!(PrivateKey::new(*key.bytes()), key);
        assert_eq!(PrivateKey::new([0; KEY]).bytes()[31], 0x40);
        let device = WireGuardDevice { private_key: Some(key), ..WireGuardDevice::default() };
        let text = format!("{device:?}");
        assert!(
            text.contains("Some(PrivateKey)") && !text.contains("255") && !text.contains("248"),
            "{text}"
        );
    }
}
