// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! IPv6 (RFC 8200).

use aya_ebpf::bindings::{
    BPF_F_RECOMPUTE_CSUM, bpf_fib_lookup, bpf_sock_tuple, bpf_sock_tuple__bindgen_ty_1,
    bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2 as Tuple,
};
use aya_ebpf::maps::{HashMap, LpmTrie, LruHashMap, PerCpuArray};
use slipway_ebpf_abi::{
    Addr6, ExemptKey6, FlowKey, FragmentKey6, FragmentPorts, IPPROTO_ICMPV6, PodAddress, PortKey6,
    PortTarget6, Reason, Uplink,
};

use crate::config::count_fallback;
use crate::csum::Difference;
use crate::family::{Ends, Family, Flows, Upper};
use crate::maps;
use crate::packet::{Fragment, Packet};
use crate::route::CachedRoute;
use crate::scratch::Scratch;
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
/// Maximum number of extension headers; packets with more are left to the kernel's stack.
const EXTENSIONS: u32 = 4;

/// Skips extension headers.
#[inline(always)]
fn walk(skb: Skb, mut next: u8, mut offset: u32) -> Option<Upper> {
    let mut upper = Upper { offset: 0, protocol: 0, fragment: Fragment::Whole, id: 0 };
    for _ in 0..EXTENSIONS {
        match next {
            FRAGMENT => {
                let header = skb.load::<FragmentHeader>(offset)?;
                let place = u16::from_be(header.offset);
                upper.id = header.id;
                next = header.next;
                offset += size_of::<FragmentHeader>() as u32;
                if place & !7 != 0 {
                    // No header follows, but the middle of the packet. Only the first fragment has the
                    // extension headers after this one, so the protocol is the one here.
                    upper.fragment = Fragment::Later;
                    break;
                } else if place & 1 != 0 {
                    upper.fragment = Fragment::First;
                }
            }
            HOP_BY_HOP | ROUTING | DESTINATION => {
                let header = skb.load::<Extension>(offset)?;
                if next == ROUTING && header.segments != 0 {
                    count_fallback(Reason::Headers);
                    return None;
                }
                next = header.next;
                offset += (u32::from(header.length) + 1) * 8;
            }
            _ => break,
        }
    }
    if matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION) {
        count_fallback(Reason::Headers);
        return None;
    }
    upper.offset = offset;
    upper.protocol = next;
    Some(upper)
}

#[inline(always)]
fn address_difference(difference: Difference, old: Addr6, new: Addr6) -> Difference {
    let ([a, b, c, d], [e, f, g, h]) = (old.0, new.0);
    difference.word(a, e).word(b, f).word(c, g).word(d, h)
}

impl Family for V6 {
    type Addr = Addr6;

    const AF: u8 = 10;
    const BITS: u32 = 128;
    const ICMP: u8 = IPPROTO_ICMPV6;
    const ECHO_REQUEST: u8 = 128;
    const ECHO_REPLY: u8 = 129;
    const ICMP_PSEUDO: bool = true;
    const TUPLE: u32 = 36;

    #[inline(always)]
    fn scratch() -> Option<&'static mut Scratch<Self>> {
        // SAFETY: the element is this processor's own, and each program requests it once.
        maps::SCRATCH6.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
    }
    #[inline(always)]
    fn routes() -> &'static PerCpuArray<CachedRoute<Self>> {
        &maps::ROUTE_CACHE6
    }
    #[inline(always)]
    fn flows() -> &'static Flows<Self> {
        &maps::FLOWS6
    }
    #[inline(always)]
    fn half_open() -> &'static Flows<Self> {
        &maps::HALF_OPEN6
    }
    #[inline(always)]
    fn ports() -> &'static HashMap<PortKey6, PortTarget6> {
        &maps::PORTS6
    }
    #[inline(always)]
    fn pod_addresses() -> &'static HashMap<Addr6, PodAddress> {
        &maps::POD_ADDRESSES6
    }
    #[inline(always)]
    fn exempt() -> &'static LpmTrie<ExemptKey6, u32> {
        &maps::EXEMPT6
    }
    #[inline(always)]
    fn locals() -> &'static HashMap<Addr6, u32> {
        &maps::LOCALS6
    }
    #[inline(always)]
    fn fragments() -> &'static LruHashMap<FragmentKey6, FragmentPorts> {
        &maps::FRAGMENTS6
    }

    /// Destination unreachable, packet too big, time exceeded, parameter problem (RFC 4443, section 3).
    #[inline(always)]
    fn is_error(icmp: u8) -> bool {
        matches!(icmp, 1..=4)
    }

    #[inline(always)]
    fn read_header(skb: Skb, offset: u32, packet: &mut Packet<Self>) -> Option<Upper> {
        let header = skb.load::<Header>(offset)?;
        let [first, second, ..] = header.version;
        if first >> 4 != 6 {
            return None;
        }
        packet.key.source = header.source;
        packet.key.destination = header.destination;
        packet.total = size_of::<Header>() as u32 + u32::from(u16::from_be(header.length));
        let [high, low] = header.length.to_ne_bytes();
        packet.hops = u32::from_ne_bytes([high, low, header.next, header.hops]);
        packet.ttl = header.hops;
        packet.tos = first << 4 | second >> 4;
        packet.dont_fragment = true;
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
    fn write_inner(skb: Skb, inner: &Packet<Self>, new: Ends<Self>) -> Option<Difference> {
        let difference = Self::difference((inner.key.source, inner.key.destination), new);
        let rewritten = Rewritten { hops: inner.hops, source: new.0, destination: new.1 };
        if skb.store(inner.l3 + HOPS, &rewritten, 0) { Some(difference) } else { None }
    }

    #[inline(always)]
    fn difference(old: Ends<Self>, new: Ends<Self>) -> Difference {
        address_difference(address_difference(Difference::default(), old.0, new.0), old.1, new.1)
    }

    #[inline(always)]
    fn set_addresses(request: &mut bpf_fib_lookup, ends: Ends<Self>) {
        request.__bindgen_anon_3.ipv6_src = ends.0.0;
        request.__bindgen_anon_4.ipv6_dst = ends.1.0;
    }

    #[inline(always)]
    fn socket_tuple(key: &FlowKey<Addr6>) -> bpf_sock_tuple {
        let ends = Tuple {
            saddr: key.source.0,
            daddr: key.destination.0,
            sport: key.source_port.0,
            dport: key.destination_port.0,
        };
        bpf_sock_tuple { __bindgen_anon_1: bpf_sock_tuple__bindgen_ty_1 { ipv6: ends } }
    }

    #[inline(always)]
    fn uplink_address(uplink: &Uplink) -> &Addr6 {
        &uplink.address6
    }

    /// False for `::/8` (unspecified, loopback, IPv4-mapped), link-local and multicast addresses (RFC 4291).
    #[inline(always)]
    fn is_routable(address: Addr6) -> bool {
        let [first, second, ..] = address.0[0].to_ne_bytes();
        !(first == 0 || first == 0xff || first == 0xfe && second & 0xc0 == 0x80)
    }

    #[inline(always)]
    fn same_network(one: Addr6, other: Addr6, prefix: u32) -> bool {
        let bits = |a: u32, b: u32| u64::from(u32::from_be(a)) << 32 | u64::from(u32::from_be(b));
        let ([a, b, c, d], [e, f, g, h]) = (one.0, other.0);
        let (high, low) = (bits(a ^ e, b ^ f), bits(c ^ g, d ^ h));
        match prefix {
            0 => true,
            1..=64 => high >> (64 - prefix) == 0,
            65..=127 => high == 0 && low >> (128 - prefix) == 0,
            _ => high == 0 && low == 0,
        }
    }

    #[inline(always)]
    fn same(one: Addr6, other: Addr6) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (one.0, other.0);
        (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) == 0
    }
}
