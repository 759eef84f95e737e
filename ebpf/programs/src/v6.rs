// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! IPv6 (RFC 8200).

use aya_ebpf::bindings::BPF_F_RECOMPUTE_CSUM;
use slipway_ebpf_abi::Addr6;

use crate::csum::Difference;
use crate::family::{Ends, Family, Upper};
use crate::packet::Packet;
use crate::skb::Skb;

/// IPv6.
#[derive(Clone, Copy)]
pub(crate) struct V6;

#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    version: [u8; 4],
    length: u16,
    next: u8,
    hops: u8,
    source: Addr6,
    destination: Addr6,
}

/// The part of the header that a translation rewrites, from offset [`HOPS`] on.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rewritten {
    hops: u32,
    source: Addr6,
    destination: Addr6,
}

/// Offset of the payload length, which next header, hop limit and addresses follow.
const HOPS: u32 = 4;

/// The first bytes of the extension headers that are skipped.
#[repr(C)]
#[derive(Clone, Copy)]
struct Extension {
    next: u8,
    length: u8,
    kind: u8,
    segments: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct FragmentHeader {
    next: u8,
    reserved: u8,
    offset: u16,
    id: u32,
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
/// Bits of a fragment's offset that have no meaning.
const RESERVED: u16 = 0b110;
/// Maximum number of extension headers; packets with more are left to the kernel's stack.
const EXTENSIONS: u32 = 4;

/// Skips extension headers.
#[inline(always)]
fn walk(skb: Skb, mut next: u8, mut offset: u32) -> Option<Upper> {
    for _ in 0..EXTENSIONS {
        match next {
            FRAGMENT => {
                let header = skb.load::<FragmentHeader>(offset)?;
                // A packet of a single fragment is whole (RFC 6946).
                if u16::from_be(header.offset) & !RESERVED != 0 {
                    return None;
                }
                next = header.next;
                offset += size_of::<FragmentHeader>() as u32;
            }
            HOP_BY_HOP | ROUTING | DESTINATION => {
                let header = skb.load::<Extension>(offset)?;
                if next == ROUTING && header.segments != 0 {
                    return None;
                }
                next = header.next;
                offset += (u32::from(header.length) + 1) * 8;
            }
            _ => break,
        }
    }
    if matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION) {
        return None;
    }
    Some(Upper { offset, protocol: next })
}

#[inline(always)]
fn address_difference(difference: Difference, old: Addr6, new: Addr6) -> Difference {
    let ([a, b, c, d], [e, f, g, h]) = (old.0, new.0);
    difference.word(a, e).word(b, f).word(c, g).word(d, h)
}

impl Family for V6 {
    type Addr = Addr6;

    #[inline(always)]
    fn read_header(skb: Skb, offset: u32, packet: &mut Packet<Self>) -> Option<Upper> {
        let header = skb.load::<Header>(offset)?;
        let [first, second, ..] = header.version;
        if first >> 4 != 6 {
            return None;
        }
        packet.source = header.source;
        packet.destination = header.destination;
        packet.total = size_of::<Header>() as u32 + u32::from(u16::from_be(header.length));
        let [high, low] = header.length.to_ne_bytes();
        packet.hops = u32::from_ne_bytes([high, low, header.next, header.hops]);
        packet.ttl = header.hops;
        packet.tos = first << 4 | second >> 4;
        walk(skb, header.next, offset + size_of::<Header>() as u32)
    }

    #[inline(always)]
    fn write_header(skb: Skb, packet: &Packet<Self>, new: Ends<Self>) -> bool {
        let [high, low, next, hops] = packet.hops.to_ne_bytes();
        let hops = u32::from_ne_bytes([high, low, next, hops.wrapping_sub(1)]);
        let rewritten = Rewritten { hops, source: new.0, destination: new.1 };
        // The header has no checksum to compensate the change, so a sum computed by the device must be
        // updated; updating the checksum above IP then reverts that.
        skb.store(packet.l3 + HOPS, &rewritten, u64::from(BPF_F_RECOMPUTE_CSUM))
    }

    #[inline(always)]
    fn difference(old: Ends<Self>, new: Ends<Self>) -> Difference {
        address_difference(address_difference(Difference::default(), old.0, new.0), old.1, new.1)
    }

    #[inline(always)]
    fn same(one: Addr6, other: Addr6) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (one.0, other.0);
        (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) == 0
    }
}
