// SPDX-License-Identifier: GPL-2.0-or-later

//! The kernel's connection tracking table (ctnetlink, `linux/netfilter/nfnetlink_conntrack.h`).

mod create;

use std::net::IpAddr;

use cni_netlink::message::{be16, be32, be64, find, flag};
use cni_netlink::{Attributes, Message};
pub use create::NewFlow;
use nix::errno::Errno;

use cni_kernel::AddressFamily;

use crate::channel::Channel;
use crate::error::Error;
use crate::nfnetlink;

/// `NFNL_SUBSYS_CTNETLINK` in `linux/netfilter/nfnetlink.h`.
const SUBSYSTEM: u16 = 1;
// enum cntl_msg_types
const GET: u16 = 1;
const DELETE: u16 = 2;
// enum ctattr_type
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL_INFO: u16 = 4;
const COUNTERS_ORIGINAL: u16 = 9;
const COUNTERS_REPLY: u16 = 10;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const STATUS_MASK: u16 = 26;
// enum ctattr_tuple
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
// enum ctattr_ip
const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const V6_SOURCE: u16 = 3;
const V6_DESTINATION: u16 = 4;
// enum ctattr_l4proto
const PROTO_NUMBER: u16 = 1;
const PROTO_SOURCE_PORT: u16 = 2;
const PROTO_DESTINATION_PORT: u16 = 3;
const PROTO_ICMP_ID: u16 = 4;
const PROTO_ICMP_TYPE: u16 = 5;
const PROTO_ICMP_CODE: u16 = 6;
const PROTO_ICMPV6_ID: u16 = 7;
const PROTO_ICMPV6_TYPE: u16 = 8;
const PROTO_ICMPV6_CODE: u16 = 9;
// enum ctattr_protoinfo and ctattr_protoinfo_tcp
const INFO_TCP: u16 = 1;
const INFO_TCP_STATE: u16 = 1;
// enum ctattr_counters
const COUNTED_PACKETS: u16 = 1;
const COUNTED_BYTES: u16 = 2;
// enum ctattr_filter
const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;
// The parts of a tuple that a filter compares (net/netfilter/nf_internals.h).
const BY_SOURCE: u32 = 1 << 0;
const BY_DESTINATION: u32 = 1 << 1;
const BY_PROTOCOL: u32 = 1 << 3;
const BY_DESTINATION_PORT: u32 = 1 << 5;

/// ICMP, ICMPv6 (IANA protocol numbers).
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
// Types of their messages (RFC 792, RFC 4443).
const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;

/// One direction of a flow. For an ICMP echo, the port of the host that sends the request is the identifier, and the
/// other port is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source port, or 0 for protocols without ports.
    pub source_port: u16,
    /// Destination port, or 0 for protocols without ports.
    pub destination_port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The direction of the first packet.
    pub original: Tuple,
    /// The direction of replies. With address translation, this is not the reverse of `original`.
    pub reply: Tuple,
    /// `IPS_*` bits (`linux/netfilter/nf_conntrack_common.h`).
    pub status: u32,
    pub zone: u16,
    /// Packets and bytes (from the IP header on) of both directions together. None if accounting is off
    /// (`net.netfilter.nf_conntrack_acct`).
    pub counted: Option<(u64, u64)>,
    /// `enum tcp_conntrack` (`linux/netfilter/nf_conntrack_tcp.h`). None for other protocols than TCP.
    pub tcp_state: Option<u8>,
}

impl Flow {
    /// `IPS_OFFLOAD`: the flow is in a flowtable.
    pub const OFFLOADED: u32 = 1 << 14;
    /// `IPS_SEEN_REPLY`: packets were seen in both directions.
    pub const SEEN_REPLY: u32 = 1 << 1;
    /// `IPS_ASSURED`: the flow is kept when the table is full. For UDP, more than one request and one reply were
    /// seen.
    pub(crate) const ASSURED: u32 = 1 << 2;

    /// True if the flow's destination was translated (`IPS_DST_NAT`).
    #[must_use]
    pub const fn is_dnat(&self) -> bool {
        self.status & 32 != 0
    }
}

/// `AF_INET`, `AF_INET6`, or `AF_UNSPEC` for both.
const fn number(family: Option<AddressFamily>) -> u8 {
    match family {
        Some(AddressFamily::V4) => 2,
        Some(AddressFamily::V6) => 10,
        None => 0,
    }
}

/// Which flows are selected. An empty filter selects all flows of the family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The family. None selects both families in one pass through the kernel's table, without filtering by the
    /// kernel. This is meant for tables with few flows, because a pass takes time for each bucket (several
    /// milliseconds for 262,144 buckets).
    pub family: Option<AddressFamily>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Original destinations, or empty for any.
    pub destinations: Vec<IpAddr>,
    /// Original destination port.
    pub port: Option<u16>,
    /// Source of the reply direction, which is the flow's translated destination.
    pub reply_source: Option<IpAddr>,
    /// Bits of [`Flow::status`] that must all be set, or 0 for any status.
    pub status: u32,
}

impl Filter {
    /// Selects all flows of the family, or of both.
    #[must_use]
    pub fn all(family: Option<AddressFamily>) -> Self {
        Self { family, protocol: None, destinations: Vec::new(), port: None, reply_source: None, status: 0 }
    }

    fn fits(&self, address: IpAddr) -> bool {
        self.family.is_none_or(|family| family == AddressFamily::of(address))
    }

    fn passes(&self, flow: &Flow) -> bool {
        let original = &flow.original;
        self.fits(original.destination)
            && self.protocol.is_none_or(|protocol| protocol == original.protocol)
            && self.port.is_none_or(|port| port == original.destination_port)
            && (self.destinations.is_empty() || self.destinations.contains(&original.destination))
            && self.reply_source.is_none_or(|source| source == flow.reply.source)
            && flow.status & self.status == self.status
    }

    /// The request for a dump, with the conditions that the kernel can apply. Kernels before 5.8 ignore conditions,
    /// and none accepts a list of addresses, so the reply is filtered again.
    ///
    /// IPv6 addresses are never sent, because the kernel's comparison is inverted (seen on 6.18) and would leave out
    /// exactly the selected flows.
    fn request(&self) -> Message {
        let mut message = nfnetlink::request(SUBSYSTEM << 8 | GET, flag::DUMP, number(self.family), 0);
        if self.status != 0 {
            // The kernel filters by status since Linux 5.16. The bits of the mask must have this value.
            message.be32(STATUS, self.status).be32(STATUS_MASK, self.status);
        }
        if self.family.is_none() {
            // `ctnetlink_parse_tuple_filter` accepts no tuple without a family.
            return message;
        }
        let destination = match self.destinations.as_slice() {
            [single @ IpAddr::V4(_)] if self.fits(*single) => Some(*single),
            _ => None,
        };
        // The kernel compares ports only together with the protocol.
        let port = self.protocol.and(self.port);
        let reply_source = self.reply_source.filter(|source| source.is_ipv4() && self.fits(*source));
        let mut original_flags = 0;
        if destination.is_some() || self.protocol.is_some() {
            message.nest(TUPLE_ORIGINAL, |tuple| {
                if let Some(address) = destination {
                    original_flags |= BY_DESTINATION;
                    tuple.nest(TUPLE_IP, |ip| put_address(ip, V4_DESTINATION, address));
                }
                if let Some(protocol) = self.protocol {
                    original_flags |= BY_PROTOCOL;
                    tuple.nest(TUPLE_PROTO, |proto| {
                        proto.attr(PROTO_NUMBER, &[protocol]);
                        if let Some(port) = port {
                            original_flags |= BY_DESTINATION_PORT;
                            proto.attr(PROTO_DESTINATION_PORT, &port.to_be_bytes());
                        }
                    });
                }
            });
        }
        if let Some(source) = reply_source {
            message.nest(TUPLE_REPLY, |tuple| {
                tuple.nest(TUPLE_IP, |ip| put_address(ip, V4_SOURCE, source));
            });
        }
        let reply_flags = if reply_source.is_some() { BY_SOURCE } else { 0 };
        if original_flags != 0 || reply_flags != 0 {
            // Unlike nearly all numbers of netfilter, these are in host byte order.
            message.nest(FILTER, |filter| {
                filter.attr(FILTER_ORIGINAL, &original_flags.to_ne_bytes());
                filter.attr(FILTER_REPLY, &reply_flags.to_ne_bytes());
            });
        }
        message
    }
}

fn put_address(message: &mut Attributes, kind: u16, address: IpAddr) {
    if let IpAddr::V4(address) = address {
        message.attr(kind, &address.octets());
    }
}

/// A socket to conntrack. It belongs to the network namespace in which the thread was when the socket was opened.
#[derive(Debug)]
pub struct Conntrack {
    channel: Channel,
}

impl Conntrack {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no netfilter netlink; [`Error::Open`] without permission.
    pub fn open() -> Result<Self, Error> {
        match Channel::open() {
            Ok(channel) => Ok(Self { channel }),
            Err(Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT) => Err(unsupported()),
            Err(errno) => Err(Error::Open { errno }),
        }
    }

    /// Calls `each` for the selected flows. Since Linux 5.8, the kernel sends only these. Flows that begin or end
    /// during the dump may be missing or repeated.
    ///
    /// `each` must not use this socket, from which the reply is being read (EDEADLK).
    ///
    /// Returns the number of flows in the kernel's reply, which is larger than the number of calls if the kernel
    /// could not apply the whole filter.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no conntrack netlink; else [`Error::Io`].
    pub fn for_each(&self, filter: &Filter, mut each: impl FnMut(&Flow)) -> Result<usize, Error> {
        self.dump(filter, |flow, _| each(flow))
    }

    /// Counts the selected flows.
    pub fn count(&self, filter: &Filter) -> Result<usize, Error> {
        let mut count = 0;
        self.for_each(filter, |_| count += 1)?;
        Ok(count)
    }

    /// Deletes the selected flows one by one, and returns their number. It is not an error if a flow has ended
    /// concurrently, or if the kernel refuses to delete an offloaded flow, as it does before Linux 6.4.
    pub fn delete(&self, filter: &Filter) -> Result<usize, Error> {
        self.delete_if(filter, |_| true)
    }

    /// Deletes the selected flows for which `condition` is true, as [`Conntrack::delete`] does.
    pub fn delete_if(
        &self,
        filter: &Filter,
        mut condition: impl FnMut(&Flow) -> bool,
    ) -> Result<usize, Error> {
        let mut deletions = Vec::new();
        self.dump(filter, |flow, body| {
            if condition(flow) {
                deletions.push(deletion(AddressFamily::of(flow.original.destination), body));
            }
        })?;
        let mut deleted = 0;
        for message in deletions.into_iter().flatten() {
            match self.channel.request(message, |_, _| {}) {
                Ok(_) => deleted += 1,
                Err(Errno::ENOENT | Errno::EBUSY) => {}
                Err(errno) => {
                    return Err(Error::Io { operation: format!("delete a flow ({filter:?})"), errno });
                }
            }
        }
        Ok(deleted)
    }

    fn dump(&self, filter: &Filter, mut each: impl FnMut(&Flow, &[u8])) -> Result<usize, Error> {
        let mut received = 0;
        let result = self.channel.request(filter.request(), |_, body| {
            received += 1;
            if let Some(flow) = flow(body).filter(|flow| filter.passes(flow)) {
                each(&flow, body);
            }
        });
        match result {
            Ok(_) => Ok(received),
            // nfnetlink's error for a missing subsystem
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Err(unsupported()),
            Err(errno) => Err(Error::Io { operation: format!("list flows ({filter:?})"), errno }),
        }
    }
}

fn unsupported() -> Error {
    Error::Unsupported { feature: "conntrack netlink".to_owned(), op: "list flows".to_owned() }
}

/// The message that deletes the flow in this reply, by its tuple, zone and id. The id keeps a new flow with the same
/// tuple from being deleted.
fn deletion(family: AddressFamily, body: &[u8]) -> Option<Message> {
    const NESTED: u16 = 0x8000;
    let mut message = nfnetlink::request(SUBSYSTEM << 8 | DELETE, flag::ACK, number(Some(family)), 0);
    message.attr(TUPLE_ORIGINAL | NESTED, find(body, TUPLE_ORIGINAL)?);
    for kind in [ZONE, ID] {
        if let Some(value) = find(body, kind) {
            message.attr(kind, value);
        }
    }
    Some(message)
}

pub(crate) fn flow(body: &[u8]) -> Option<Flow> {
    Some(Flow {
        original: tuple(find(body, TUPLE_ORIGINAL)?)?,
        reply: tuple(find(body, TUPLE_REPLY)?)?,
        status: find(body, STATUS).and_then(be32).unwrap_or_default(),
        zone: find(body, ZONE).and_then(be16).unwrap_or_default(),
        counted: counted(body),
        tcp_state: tcp_state(body),
    })
}

fn tcp_state(body: &[u8]) -> Option<u8> {
    let tcp = find(find(body, PROTOCOL_INFO)?, INFO_TCP)?;
    find(tcp, INFO_TCP_STATE)?.first().copied()
}

fn counted(body: &[u8]) -> Option<(u64, u64)> {
    let number = |counters: &[u8], kind| find(counters, kind).and_then(be64).unwrap_or_default();
    [COUNTERS_ORIGINAL, COUNTERS_REPLY].into_iter().filter_map(|kind| find(body, kind)).fold(
        None,
        |sum, one| {
            let (packets, bytes) = sum.unwrap_or_default();
            let [more_packets, more_bytes] = [COUNTED_PACKETS, COUNTED_BYTES].map(|kind| number(one, kind));
            Some((packets.saturating_add(more_packets), bytes.saturating_add(more_bytes)))
        },
    )
}

fn tuple(body: &[u8]) -> Option<Tuple> {
    let (ip, proto) = (find(body, TUPLE_IP)?, find(body, TUPLE_PROTO)?);
    let address = |v4: u16, v6: u16| -> Option<IpAddr> {
        match (find(ip, v4), find(ip, v6)) {
            (Some(bytes), _) => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
            (None, Some(bytes)) => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
            (None, None) => None,
        }
    };
    let port = |kind| find(proto, kind).and_then(be16).unwrap_or_default();
    let protocol = find(proto, PROTO_NUMBER)?.first().copied()?;
    let (source_port, destination_port) = match protocol {
        ICMP => echo_ports(proto, PROTO_ICMP_TYPE, port(PROTO_ICMP_ID)),
        ICMPV6 => echo_ports(proto, PROTO_ICMPV6_TYPE, port(PROTO_ICMPV6_ID)),
        _ => (port(PROTO_SOURCE_PORT), port(PROTO_DESTINATION_PORT)),
    };
    Some(Tuple {
        source: address(V4_SOURCE, V6_SOURCE)?,
        destination: address(V4_DESTINATION, V6_DESTINATION)?,
        protocol,
        source_port,
        destination_port,
    })
}

/// The source and destination port of an echo (see [`Tuple`]).
fn echo_ports(proto: &[u8], kind: u16, id: u16) -> (u16, u16) {
    match find(proto, kind).and_then(|value| value.first()) {
        Some(&(ECHO | ECHO_V6)) => (id, 0),
        Some(&(ECHO_REPLY | ECHO_REPLY_V6)) => (0, id),
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_directions_are_added_up_to_the_largest_number() {
        let body = |numbers: [u64; 2]| {
            Attributes::encode(|message| {
                for (kind, number) in [COUNTERS_ORIGINAL, COUNTERS_REPLY].into_iter().zip(numbers) {
                    message.nest(kind, |counters| {
                        let bytes = number.to_be_bytes();
                        counters.attr(COUNTED_PACKETS, &bytes).attr(COUNTED_BYTES, &bytes);
                    });
                }
            })
        };
        assert_eq!(counted(&body([1, 2])), Some((3, 3)));
        assert_eq!(counted(&body([u64::MAX, 1])), Some((u64::MAX, u64::MAX)));
        assert_eq!(counted(&[]), None);
    }
}
