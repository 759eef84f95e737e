// SPDX-License-Identifier: GPL-2.0-or-later

//! Inserts flows into conntrack.

use std::net::IpAddr;
use std::time::Duration;

use cni_netlink::message::flag;
use cni_netlink::{Attributes, Message};
use nix::errno::Errno;

use cni_kernel::AddressFamily;

use super::{
    Conntrack, DELETE, ECHO, ECHO_REPLY, ECHO_REPLY_V6, ECHO_V6, ICMP, ICMPV6, INFO_TCP, INFO_TCP_STATE,
    PROTO_DESTINATION_PORT, PROTO_ICMP_CODE, PROTO_ICMP_ID, PROTO_ICMP_TYPE, PROTO_ICMPV6_CODE,
    PROTO_ICMPV6_ID, PROTO_ICMPV6_TYPE, PROTO_NUMBER, PROTO_SOURCE_PORT, PROTOCOL_INFO, STATUS, SUBSYSTEM,
    TUPLE_IP, TUPLE_ORIGINAL, TUPLE_PROTO, TUPLE_REPLY, Tuple, V4_DESTINATION, V4_SOURCE, V6_DESTINATION,
    V6_SOURCE, number,
};
use crate::error::Error;
use crate::nfnetlink;

// enum cntl_msg_types
const NEW: u16 = 0;
// enum ctattr_type
const NAT_SOURCE: u16 = 6;
const TIMEOUT: u16 = 7;
const NAT_DESTINATION: u16 = 13;
// enum ctattr_nat
const NAT_V4: u16 = 1;
const NAT_PROTO: u16 = 3;
const NAT_V6: u16 = 4;
// enum ctattr_protonat
const NAT_PORT_FIRST: u16 = 1;
const NAT_PORT_LAST: u16 = 2;
// enum ctattr_protoinfo_tcp
const INFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const INFO_TCP_FLAGS_REPLY: u16 = 5;
/// `IP_CT_TCP_FLAG_BE_LIBERAL` (`linux/netfilter/nf_conntrack_tcp.h`): packets outside the window are not invalid.
/// Needed because the kernel has not seen the windows of an inserted flow.
const LIBERAL: u8 = 0x08;
// `IPS_*` (`linux/netfilter/nf_conntrack_common.h`). Every flow in the table is confirmed.
const CONFIRMED: u32 = 1 << 3;
const SEEN_REPLY: u32 = super::Flow::SEEN_REPLY;
const ASSURED: u32 = super::Flow::ASSURED;
/// TCP, UDP (IANA protocol numbers).
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A flow to insert with [`Conntrack::insert`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NewFlow {
    /// A packet of the original direction before translation.
    pub original: Tuple,
    /// The same packet after translation of source and destination.
    pub translated: Tuple,
    /// True if packets were seen in both directions.
    pub seen_reply: bool,
    /// True if the flow is kept when the table is full, because the handshake is complete, or because a UDP flow has
    /// had more than one request and reply.
    pub is_assured: bool,
    /// `enum tcp_conntrack`. Only for TCP.
    pub tcp_state: Option<u8>,
    /// The time after which the flow is deleted if no packet comes; at least one second.
    pub timeout: Duration,
}

impl Tuple {
    /// The tuple of a reply to a packet with this tuple.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

impl Conntrack {
    /// Inserts a flow with its translation. Existing flows with the same tuple in either direction are deleted,
    /// because they belong to an older connection.
    ///
    /// The kernel translates packets only if a chain of type nat is hooked.
    pub fn insert(&self, flow: &NewFlow) -> Result<(), Error> {
        let failed = |errno| Error::Io { operation: format!("insert the flow {:?}", flow.original), errno };
        match self.put(flow) {
            Ok(()) => return Ok(()),
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        for tuple in [flow.original, flow.translated.reversed()] {
            let mut message = nfnetlink::request(
                SUBSYSTEM << 8 | DELETE,
                flag::ACK,
                number(Some(AddressFamily::of(tuple.source))),
                0,
            );
            put_tuple(&mut message, TUPLE_ORIGINAL, &tuple);
            match self.channel.request(message, |_, _| {}) {
                Ok(_) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        self.put(flow).map_err(failed)
    }

    fn put(&self, flow: &NewFlow) -> Result<(), Errno> {
        /// How often an insertion is attempted while the kernel reports that its table is changing.
        const TRIES: u32 = 5;
        let mut tries = 0;
        loop {
            match self.channel.request(flow.request(), |_, _| {}) {
                Err(Errno::EAGAIN) if tries < TRIES => tries += 1,
                other => return other.map(drop),
            }
        }
    }
}

impl NewFlow {
    /// The request that inserts the flow. The kernel requires both directions without translation, and derives the
    /// real reply direction from the translation.
    fn request(&self) -> Message {
        let Self { original, translated, .. } = self;
        let family = number(Some(AddressFamily::of(original.source)));
        let flags = flag::ACK | flag::CREATE | flag::EXCLUSIVE;
        let mut message = nfnetlink::request(SUBSYSTEM << 8 | NEW, flags, family, 0);
        put_tuple(&mut message, TUPLE_ORIGINAL, original);
        put_tuple(&mut message, TUPLE_REPLY, &original.reversed());
        let seconds = u32::try_from(self.timeout.as_secs()).unwrap_or(u32::MAX).max(1);
        message.be32(TIMEOUT, seconds);
        let seen_reply = if self.seen_reply { SEEN_REPLY } else { 0 };
        let assured = if self.is_assured { ASSURED } else { 0 };
        message.be32(STATUS, CONFIRMED | seen_reply | assured);
        // The two translations are sent, even if nothing changes, because the kernel may otherwise choose another port.
        let is_echo = matches!(original.protocol, ICMP | ICMPV6);
        let target = (!is_echo).then_some(translated.destination_port);
        message.nest(NAT_DESTINATION, |nat| put_nat(nat, translated.destination, target));
        message.nest(NAT_SOURCE, |nat| put_nat(nat, translated.source, Some(translated.source_port)));
        if let Some(state) = self.tcp_state {
            message.nest(PROTOCOL_INFO, |info| {
                info.nest(INFO_TCP, |tcp| {
                    tcp.attr(INFO_TCP_STATE, &[state]);
                    // Flags and their mask.
                    tcp.attr(INFO_TCP_FLAGS_ORIGINAL, &[LIBERAL, LIBERAL]);
                    tcp.attr(INFO_TCP_FLAGS_REPLY, &[LIBERAL, LIBERAL]);
                });
            });
        }
        message
    }
}

fn put_nat(nat: &mut Attributes, address: IpAddr, port: Option<u16>) {
    match address {
        IpAddr::V4(address) => nat.attr(NAT_V4, &address.octets()),
        IpAddr::V6(address) => nat.attr(NAT_V6, &address.octets()),
    };
    if let Some(port) = port {
        nat.nest(NAT_PROTO, |proto| {
            proto.attr(NAT_PORT_FIRST, &port.to_be_bytes());
            proto.attr(NAT_PORT_LAST, &port.to_be_bytes());
        });
    }
}

fn put_tuple(message: &mut Attributes, kind: u16, tuple: &Tuple) {
    message.nest(kind, |nest| {
        nest.nest(TUPLE_IP, |ip| match (tuple.source, tuple.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ip.attr(V4_SOURCE, &source.octets()).attr(V4_DESTINATION, &destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ip.attr(V6_SOURCE, &source.octets()).attr(V6_DESTINATION, &destination.octets());
            }
            // The kernel refuses a tuple without addresses.
            _ => {}
        });
        nest.nest(TUPLE_PROTO, |proto| put_protocol(proto, tuple));
    });
}

fn put_protocol(proto: &mut Attributes, tuple: &Tuple) {
    let Tuple { source_port, destination_port, .. } = *tuple;
    proto.attr(PROTO_NUMBER, &[tuple.protocol]);
    let is_request = destination_port == 0;
    let id = source_port.max(destination_port).to_be_bytes();
    match tuple.protocol {
        ICMP => {
            let kind = if is_request { ECHO } else { ECHO_REPLY };
            proto.attr(PROTO_ICMP_ID, &id).attr(PROTO_ICMP_TYPE, &[kind]).attr(PROTO_ICMP_CODE, &[0]);
        }
        ICMPV6 => {
            let kind = if is_request { ECHO_V6 } else { ECHO_REPLY_V6 };
            proto.attr(PROTO_ICMPV6_ID, &id).attr(PROTO_ICMPV6_TYPE, &[kind]).attr(PROTO_ICMPV6_CODE, &[0]);
        }
        TCP | UDP => {
            proto.attr(PROTO_SOURCE_PORT, &source_port.to_be_bytes());
            proto.attr(PROTO_DESTINATION_PORT, &destination_port.to_be_bytes());
        }
        // The kernel accepts this information only for these protocols.
        _ => {}
    }
}
