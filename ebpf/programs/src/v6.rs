// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! IPv6 (RFC 8200).

use aya_ebpf::bindings::BPF_F_RECOMPUTE_CSUM;
use slipway_ebpf_abi::Addr6;

use crate::csum::Difference;
use crate::family::{Ends, Family};
use crate::packet::Packet;
use crate::skb::Skb;

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

/// Offset of the payload length. The next header, the hop limit and the addresses follow it.
const HOPS: u32 = 4;

#[inline(always)]
fn address_difference(difference: Difference, old: Addr6, new: Addr6) -> Difference {
    let ([a, b, c, d], [e, f, g, h]) = (old.0, new.0);
    difference.word(a, e).word(b, f).word(c, g).word(d, h)
}

impl Family for V6 {
    type Addr = Addr6;
    const IS_V6: bool = true;
    const HEADER: u32 = size_of::<Header>() as u32;

    #[inline(always)]
    fn read_header(skb: Skb, offset: u32, packet: &mut Packet<Addr6>) -> Option<u8> {
        let header = skb.load::<Header>(offset)?;
        let [first, second, third, fourth] = header.version;
        if first >> 4 != 6 {
            return None;
        }
        packet.source = header.source;
        packet.destination = header.destination;
        packet.total = Self::HEADER + u32::from(u16::from_be(header.length));
        let [high, low] = header.length.to_ne_bytes();
        packet.hops = u32::from_ne_bytes([high, low, header.next, header.hops]);
        packet.ttl = header.hops;
        packet.tos = first << 4 | second >> 4;
        packet.id = u32::from_ne_bytes([0, second & 0xf, third, fourth]);
        Some(header.next)
    }

    #[inline(always)]
    fn write_header(skb: Skb, packet: &Packet<Addr6>, new: Ends<Self>) -> bool {
        let [high, low, next, hops] = packet.hops.to_ne_bytes();
        let hops = u32::from_ne_bytes([high, low, next, hops.wrapping_sub(1)]);
        let rewritten = Rewritten { hops, source: new.0, destination: new.1 };
        // The header has no checksum that would compensate for the change, so a sum over the packet that the
        // device has computed must be changed, too. When the TCP or UDP checksum is updated for the new
        // addresses, that reverts their part of it.
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
