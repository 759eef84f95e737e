// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! IPv4 (RFC 791).

use slipway_ebpf_abi::Addr4;

use crate::csum::Difference;
use crate::family::{Ends, Family};
use crate::packet::Packet;
use crate::skb::Skb;

#[derive(Clone, Copy)]
pub(crate) struct V4;

#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    version: u8,
    tos: u8,
    length: u16,
    id: u16,
    fragment: u16,
    ttl: u8,
    protocol: u8,
    checksum: u16,
    source: Addr4,
    destination: Addr4,
}

/// The part of the header that a translation rewrites, from offset [`HOPS`] on.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rewritten {
    hops: u32,
    source: Addr4,
    destination: Addr4,
}

/// Version 4, and a header of five words, which has no options.
const VERSION: u8 = 0x45;
/// Offset of the time to live. The protocol, the checksum and the addresses follow it.
const HOPS: u32 = 8;
/// The flag that says that more fragments follow.
const MORE: u16 = 0x2000;
/// The bits for the offset of the fragment, in units of 8 bytes.
const OFFSET: u16 = 0x1fff;

impl Family for V4 {
    type Addr = Addr4;
    const IS_V6: bool = false;
    const HEADER: u32 = size_of::<Header>() as u32;

    #[inline(always)]
    fn read_header(skb: Skb, offset: u32, packet: &mut Packet<Addr4>) -> Option<u8> {
        let header = skb.load::<Header>(offset)?;
        if header.version != VERSION {
            return None;
        }
        packet.source = header.source;
        packet.destination = header.destination;
        packet.total = u32::from(u16::from_be(header.length));
        let [first, second] = header.checksum.to_ne_bytes();
        packet.hops = u32::from_ne_bytes([header.ttl, header.protocol, first, second]);
        packet.ttl = header.ttl;
        packet.tos = header.tos;
        packet.id = u32::from(header.id);
        if u16::from_be(header.fragment) & (MORE | OFFSET) != 0 {
            return None;
        }
        Some(header.protocol)
    }

    #[inline(always)]
    fn write_header(skb: Skb, packet: &Packet<Addr4>, new: Ends<Self>) -> bool {
        let hops = |ttl: u8, protocol: u8| u32::from(u16::from_ne_bytes([ttl, protocol]));
        let [ttl, protocol, first, second] = packet.hops.to_ne_bytes();
        let less = ttl.wrapping_sub(1);
        let checksum = Self::difference((packet.source, packet.destination), new)
            .word(hops(ttl, protocol), hops(less, protocol))
            .apply(u16::from_ne_bytes([first, second]));
        let [first, second] = checksum.to_ne_bytes();
        let hops = u32::from_ne_bytes([less, protocol, first, second]);
        // The header's own checksum compensates for the change, so a sum over the packet that the device has
        // computed stays valid.
        skb.store(packet.l3 + HOPS, &Rewritten { hops, source: new.0, destination: new.1 }, 0)
    }

    #[inline(always)]
    fn difference(old: Ends<Self>, new: Ends<Self>) -> Difference {
        Difference::default().word(old.0.0, new.0.0).word(old.1.0, new.1.0)
    }

    #[inline(always)]
    fn same(one: Addr4, other: Addr4) -> bool {
        one.0 == other.0
    }
}
