// SPDX-License-Identifier: GPL-2.0-or-later

//! DHCP messages (RFC 2131) and the options of RFC 2132 and RFC 3442 that an attachment needs.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use cni_kernel::mac::Mac;
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use smoltcp::wire::{
    ArpHardware, DhcpFlags as Flags, DhcpMessageType as MessageType, DhcpOpCode as OpCode, DhcpOption,
    DhcpPacket, EthernetAddress,
};

/// Options to send with every message, and options to request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Options {
    /// Option and value.
    pub(super) provide: Vec<(u8, String)>,
    /// The parameter request list.
    pub(super) request: Vec<u8>,
}

/// A DHCP client: one link of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Client {
    /// The link's MAC address.
    pub(super) mac: Mac,
    /// The client identifier, option 61.
    pub(super) id: String,
    pub(super) options: Options,
    /// True to request broadcast replies.
    pub(super) broadcast: bool,
}

/// A server's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) kind: MessageType,
    pub(super) address: Ipv4Addr,
    pub(super) server: Option<Ipv4Addr>,
    pub(super) mask: Option<Ipv4Addr>,
    pub(super) routers: Vec<Ipv4Addr>,
    pub(super) classless: Vec<(Ipv4Net, Ipv4Addr)>,
    pub(super) classful: Vec<(Ipv4Addr, Ipv4Addr)>,
    /// In seconds, like the next two fields.
    pub(super) lease: Option<u32>,
    pub(super) renewal: Option<u32>,
    pub(super) rebinding: Option<u32>,
}

/// The longest client identifier that is sent, in bytes.
const LONGEST_ID: usize = 254;
/// The largest message that servers may send (option 57), in bytes: one that fits an Ethernet frame.
const LARGEST: u16 = 1472;
/// The length of a message before its options, in bytes.
const HEADER: usize = 240;
/// The shortest message that old servers accept (RFC 951), in bytes.
const SHORTEST: usize = 300;
/// The magic cookie before the options (RFC 2131, section 3).
const MAGIC: u32 = 0x6382_5363;
/// The fields for the names of a server and of a file, which may hold more options (RFC 2132, section 9.3).
const SNAME: std::ops::Range<usize> = 34..108;
const FILE: std::ops::Range<usize> = 108..236;

/// The codes of the options that are used here (RFC 2132; the last one RFC 3442).
pub(super) mod code {
    pub(in super::super) const SUBNET_MASK: u8 = 1;
    pub(in super::super) const ROUTER: u8 = 3;
    pub(in super::super) const STATIC_ROUTE: u8 = 33;
    pub(in super::super) const REQUESTED_ADDRESS: u8 = 50;
    pub(in super::super) const LEASE_TIME: u8 = 51;
    pub(in super::super) const OVERLOAD: u8 = 52;
    pub(in super::super) const MESSAGE_TYPE: u8 = 53;
    pub(in super::super) const SERVER: u8 = 54;
    pub(in super::super) const REQUEST_LIST: u8 = 55;
    pub(in super::super) const LARGEST_MESSAGE: u8 = 57;
    pub(in super::super) const RENEWAL: u8 = 58;
    pub(in super::super) const REBINDING: u8 = 59;
    pub(in super::super) const CLIENT: u8 = 61;
    pub(in super::super) const CLASSLESS_ROUTE: u8 = 121;
}

/// Options of a message to send, in order, each once.
#[derive(Debug, Default)]
struct Outgoing(Vec<(u8, Vec<u8>)>);

impl Outgoing {
    fn set(&mut self, code: u8, value: &[u8]) {
        self.0.retain(|(other, _)| *other != code);
        self.0.push((code, value.to_vec()));
    }
}

impl Client {
    /// A DHCPDISCOVER, with the wanted address if there is one.
    pub(super) fn discover(&self, xid: u32, wanted: Option<Ipv4Addr>) -> Vec<u8> {
        let mut options = self.options(MessageType::Discover);
        if let Some(wanted) = wanted {
            options.set(code::REQUESTED_ADDRESS, &wanted.octets());
        }
        self.encode(xid, Ipv4Addr::UNSPECIFIED, &options)
    }

    /// A DHCPREQUEST that accepts a server's offer.
    pub(super) fn select(&self, xid: u32, address: Ipv4Addr, server: Ipv4Addr) -> Vec<u8> {
        let mut options = self.options(MessageType::Request);
        options.set(code::REQUESTED_ADDRESS, &address.octets());
        options.set(code::SERVER, &server.octets());
        self.encode(xid, Ipv4Addr::UNSPECIFIED, &options)
    }

    /// A DHCPREQUEST to extend a lease: unicast to renew, broadcast to rebind.
    pub(super) fn extend(&self, xid: u32, address: Ipv4Addr) -> Vec<u8> {
        self.encode(xid, address, &self.options(MessageType::Request))
    }

    /// A DHCPRELEASE.
    pub(super) fn release(&self, xid: u32, address: Ipv4Addr, server: Ipv4Addr) -> Vec<u8> {
        let mut options = self.options(MessageType::Release);
        // RFC 2131, table 5: a release requests no parameters.
        options.0.retain(|(code, _)| !matches!(*code, code::REQUEST_LIST | code::LARGEST_MESSAGE));
        options.set(code::SERVER, &server.octets());
        self.encode(xid, address, &options)
    }

    fn options(&self, kind: MessageType) -> Outgoing {
        let mut options = Outgoing::default();
        options.set(code::MESSAGE_TYPE, &[kind.into()]);
        // Type 0 marks an identifier that is not a hardware address (RFC 2132, section 9.14).
        let id = self.id.as_bytes();
        let id = [&[0][..], id.get(..LONGEST_ID).unwrap_or(id)].concat();
        options.set(code::CLIENT, &id);
        for (code, value) in &self.options.provide {
            options.set(*code, value.as_bytes());
        }
        options.set(code::LARGEST_MESSAGE, &LARGEST.to_be_bytes());
        if !self.options.request.is_empty() {
            options.set(code::REQUEST_LIST, &self.options.request);
        }
        options
    }

    /// Builds a message with these options; `address` is the client's current one.
    fn encode(&self, xid: u32, address: Ipv4Addr, options: &Outgoing) -> Vec<u8> {
        let length: usize = options.0.iter().map(|(_, value)| 2 + value.len()).sum();
        let mut bytes = vec![0; SHORTEST.max(HEADER + length + 1)];
        let mut packet = DhcpPacket::new_unchecked(&mut bytes[..]);
        packet.set_opcode(OpCode::Request);
        packet.set_hardware_type(ArpHardware::Ethernet);
        packet.set_hardware_len(6);
        packet.set_transaction_id(xid);
        packet.set_client_ip(address);
        packet.set_client_hardware_address(EthernetAddress(self.mac.0));
        packet.set_magic_number(MAGIC);
        if self.broadcast {
            packet.set_flags(Flags::BROADCAST);
        }
        let mut writer = packet.options_mut();
        let written = options
            .0
            .iter()
            .try_for_each(|(kind, data)| writer.emit(DhcpOption { kind: *kind, data }))
            .and_then(|()| writer.end());
        // Cannot fail: the buffer fits the options, and longer values are refused with the configuration.
        if let Err(error) = written {
            log::error!("{}: encode a DHCP message: {error}", self.id);
        }
        bytes
    }

    /// Parses a message, if it is a reply to this client.
    pub(super) fn read(&self, xid: u32, bytes: &[u8]) -> Option<Reply> {
        let packet = DhcpPacket::new_checked(bytes).ok()?;
        let is_ours = packet.opcode() == OpCode::Reply
            && packet.magic_number() == MAGIC
            && packet.transaction_id() == xid
            && packet.client_hardware_address() == EthernetAddress(self.mac.0);
        if !is_ours {
            return None;
        }
        let options = Incoming::of(&packet, bytes);
        let list = |code| options.addresses(code);
        Some(Reply {
            kind: MessageType::from(*options.0.get(&code::MESSAGE_TYPE)?.first()?),
            address: packet.your_ip(),
            server: list(code::SERVER).first().copied(),
            mask: list(code::SUBNET_MASK).first().copied(),
            routers: list(code::ROUTER),
            classless: options.classless(),
            classful: list(code::STATIC_ROUTE).chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(),
            lease: options.seconds(code::LEASE_TIME),
            renewal: options.seconds(code::RENEWAL),
            rebinding: options.seconds(code::REBINDING),
        })
    }
}

/// Options of a received message. An option longer than 255 bytes is split into several parts (RFC 3396).
#[derive(Debug, Default)]
struct Incoming(BTreeMap<u8, Vec<u8>>);

impl Incoming {
    fn of(packet: &DhcpPacket<&[u8]>, bytes: &[u8]) -> Self {
        let mut options = Self::default();
        options.add(packet);
        let overload = options.0.get(&code::OVERLOAD).and_then(|value| value.first()).copied().unwrap_or(0);
        for (bit, range) in [(1, FILE), (2, SNAME)] {
            if let Some(field) = bytes.get(range).filter(|_| overload & bit != 0) {
                let whole = [&[0; HEADER][..], field].concat();
                options.add(&DhcpPacket::new_unchecked(&whole[..]));
            }
        }
        options
    }

    fn add(&mut self, packet: &DhcpPacket<&[u8]>) {
        for option in packet.options() {
            self.0.entry(option.kind).or_default().extend(option.data);
        }
    }

    fn addresses(&self, code: u8) -> Vec<Ipv4Addr> {
        let bytes = self.0.get(&code).map(Vec::as_slice).unwrap_or_default();
        bytes.as_chunks::<4>().0.iter().copied().map(Ipv4Addr::from_octets).collect()
    }

    fn seconds(&self, code: u8) -> Option<u32> {
        self.0.get(&code)?.as_slice().try_into().ok().map(u32::from_be_bytes)
    }

    /// The classless routes (RFC 3442): prefix length, the prefix's significant bytes, and router. None if
    /// one of them is malformed.
    fn classless(&self) -> Vec<(Ipv4Net, Ipv4Addr)> {
        let mut rest = self.0.get(&code::CLASSLESS_ROUTE).map(Vec::as_slice).unwrap_or_default();
        let mut routes = Vec::new();
        while let Some((length, behind)) = rest.split_first() {
            let significant = usize::from(length.div_ceil(8));
            let read = || {
                let (prefix, behind) = behind.split_at_checked(significant)?;
                let (router, behind) = behind.split_first_chunk::<4>()?;
                let mut octets = [0; 4];
                octets.get_mut(..significant)?.copy_from_slice(prefix);
                let net = Ipv4Net::new(Ipv4Addr::from_octets(octets), *length).ok()?;
                Some((net.trunc(), Ipv4Addr::from_octets(*router), behind))
            };
            let Some((net, router, behind)) = read() else {
                log::warn!("classless routes ignored, malformed: {rest:02x?}");
                return Vec::new();
            };
            routes.push((net, router));
            rest = behind;
        }
        routes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client() -> Client {
        let options =
            Options { provide: vec![(12, "web".to_owned()), (60, "x".repeat(255))], request: vec![1, 3] };
        Client { mac: Mac([2, 0, 0, 0, 0, 1]), id: "c".repeat(300), options, broadcast: true }
    }

    /// The options of a message.
    fn sent(bytes: &[u8]) -> BTreeMap<u8, Vec<u8>> {
        Incoming::of(&DhcpPacket::new_checked(bytes).unwrap(), bytes).0
    }

    /// A server's reply with these options.
    fn reply(client: &Client, options: &[(u8, &[u8])]) -> Vec<u8> {
        let mut outgoing = Outgoing::default();
        options.iter().for_each(|(code, value)| outgoing.0.push((*code, value.to_vec())));
        let mut bytes = client.encode(7, Ipv4Addr::UNSPECIFIED, &outgoing);
        let mut packet = DhcpPacket::new_unchecked(&mut bytes[..]);
        packet.set_opcode(OpCode::Reply);
        packet.set_your_ip(Ipv4Addr::new(10, 0, 0, 5));
        bytes
    }

    #[test]
    fn messages_have_the_options_of_their_kind() {
        let address = Ipv4Addr::new(10, 0, 0, 5);
        let bytes = client().discover(7, Some(address));
        let packet = DhcpPacket::new_checked(&bytes[..]).unwrap();
        assert_eq!((packet.transaction_id(), packet.flags()), (7, Flags::BROADCAST));
        assert_eq!(packet.client_hardware_address().0, [2, 0, 0, 0, 0, 1]);
        assert_eq!((packet.hardware_len(), packet.hops(), packet.secs()), (6, 0, 0));
        let options = sent(&bytes);
        assert_eq!((&options[&53][..], &options[&50][..]), (&[1][..], &[10, 0, 0, 5][..]));
        assert_eq!((&options[&12][..], options[&60].len()), (&b"web"[..], 255));
        assert_eq!(options[&55], [1, 3]);
        let id = &options[&61];
        assert_eq!((id.len(), id[0], id[1]), (255, 0, b'c'));
        let bytes = client().extend(8, address);
        assert_eq!(DhcpPacket::new_checked(&bytes[..]).unwrap().client_ip(), address);
        assert_eq!(sent(&bytes).get(&50), None);
        let options = sent(&client().release(9, address, Ipv4Addr::LOCALHOST));
        assert_eq!((options.get(&55), &options[&54][..]), (None, &[127, 0, 0, 1][..]));
        assert!(client().discover(7, None).len() >= SHORTEST);
    }

    #[test]
    fn an_identifier_of_the_configuration_replaces_the_default() {
        let options = Options { provide: vec![(61, "mine".to_owned())], request: Vec::new() };
        let client = Client { options, broadcast: false, ..client() };
        let bytes = client.release(9, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST);
        assert_eq!(sent(&bytes)[&61], b"mine");
        assert_eq!(bytes.len(), SHORTEST);
    }

    #[test]
    fn replies_are_parsed() {
        let client = client();
        let bytes = reply(
            &client,
            &[
                (53, &[5]),
                (54, &[10, 0, 0, 1]),
                (1, &[255, 255, 255, 0]),
                (51, &[0, 0, 1, 0]),
                (58, &[1]),
                // In two parts, the second one in the file field.
                (121, &[0, 10, 0]),
                (52, &[1]),
            ],
        );
        let mut bytes = bytes;
        bytes[FILE][..16].copy_from_slice(&[121, 10, 0, 1, 17, 10, 9, 255, 0, 0, 0, 0, 33, 1, 7, 255]);
        let got = client.read(7, &bytes).unwrap();
        assert_eq!((got.kind, got.address), (MessageType::Ack, Ipv4Addr::new(10, 0, 0, 5)));
        assert_eq!((got.lease, got.renewal, got.mask), (Some(256), None, Some([255, 255, 255, 0].into())));
        let routes = [
            ("0.0.0.0/0".parse().unwrap(), Ipv4Addr::new(10, 0, 0, 1)),
            ("10.9.128.0/17".parse().unwrap(), Ipv4Addr::UNSPECIFIED),
        ];
        assert_eq!((got.classless, got.classful), (routes.to_vec(), Vec::new()));
        for broken in [&[33, 1, 2, 3, 4, 5, 6, 7, 8, 9][..], &[8, 10, 1, 2], &[32]] {
            let bytes = reply(&client, &[(53, &[5]), (121, broken)]);
            assert_eq!(client.read(7, &bytes).unwrap().classless, [], "{broken:?}");
        }
    }

    #[test]
    fn messages_for_other_clients_are_ignored() {
        let client = client();
        assert_eq!(client.read(7, &client.discover(7, None)), None, "a request is not a reply");
        let mut bytes = reply(&client, &[(53, &[5])]);
        assert_eq!(client.read(7, &bytes).map(|reply| reply.kind), Some(MessageType::Ack));
        assert_eq!(client.read(8, &bytes), None);
        assert_eq!(client.read(7, &reply(&client, &[(1, &[255; 4])])), None, "no kind");
        DhcpPacket::new_unchecked(&mut bytes[..])
            .set_client_hardware_address(EthernetAddress([2, 0, 0, 0, 0, 2]));
        assert_eq!(client.read(7, &bytes), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_ignored(bytes: Vec<u8>, tail: Vec<u8>) {
            let client = client();
            let _reply = client.read(7, &bytes);
            let mut nearly = reply(&client, &[(53, &[2]), (52, &[3])]);
            nearly.truncate(HEADER + 6);
            nearly.extend(tail);
            let _reply = client.read(7, &nearly);
        }

        #[test]
        fn classless_routes_are_read_as_they_were_written(routes: Vec<(u32, u8, u32)>) {
            let (mut bytes, mut want) = (Vec::new(), Vec::new());
            for (address, length, router) in routes {
                let net = Ipv4Net::new(address.into(), length % 33).unwrap().trunc();
                let octets = net.addr().octets();
                bytes.push(net.prefix_len());
                bytes.extend(&octets[..usize::from(net.prefix_len().div_ceil(8))]);
                bytes.extend(router.to_be_bytes());
                want.push((net, Ipv4Addr::from(router)));
            }
            let options = Incoming(BTreeMap::from([(code::CLASSLESS_ROUTE, bytes)]));
            prop_assert_eq!(options.classless(), want);
        }
    }
}
