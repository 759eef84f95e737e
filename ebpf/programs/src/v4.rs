// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! IPv4 (RFC 791).

use aya_ebpf::bindings::{
    bpf_fib_lookup, bpf_sock_tuple, bpf_sock_tuple__bindgen_ty_1,
    bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1 as Tuple,
};
use aya_ebpf::maps::{HashMap, LpmTrie, LruHashMap, PerCpuArray};
use slipway_ebpf_abi::{
    Addr4, ExemptKey4, FlowKey, FragmentKey4, FragmentPorts, IPPROTO_ICMP, PodAddress, PortKey4, PortTarget4,
    Uplink,
};

use crate::csum::Difference;
use crate::family::{Ends, Family, Flows, Upper};
use crate::maps;
use crate::packet::{Fragment, Packet};
use crate::route::CachedRoute;
use crate::scratch::Scratch;
use crate::skb::Skb;

/// IPv4.
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

/// Offset of the time to live, which protocol, checksum and addresses follow.
const HOPS: u32 = 8;
/// More fragments follow.
const MORE: u16 = 0x2000;
/// Do not fragment.
const DONT: u16 = 0x4000;
/// Offset of this fragment in units of 8 bytes.
const OFFSET: u16 = 0x1fff;

impl Family for V4 {
    type Addr = Addr4;

    const AF: u8 = 2;
    const BITS: u32 = 32;
    const ICMP: u8 = IPPROTO_ICMP;
    const ECHO_REQUEST: u8 = 8;
    const ECHO_REPLY: u8 = 0;
    const ICMP_PSEUDO: bool = false;
    const TUPLE: u32 = 12;

    #[inline(always)]
    fn scratch() -> Option<&'static mut Scratch<Self>> {
        // SAFETY: the element is this processor's own, and each program requests it once.
        maps::SCRATCH4.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
    }
    #[inline(always)]
    fn routes() -> &'static PerCpuArray<CachedRoute<Self>> {
        &maps::ROUTE_CACHE4
    }
    #[inline(always)]
    fn flows() -> &'static Flows<Self> {
        &maps::FLOWS4
    }
    #[inline(always)]
    fn half_open() -> &'static Flows<Self> {
        &maps::HALF_OPEN4
    }
    #[inline(always)]
    fn ports() -> &'static HashMap<PortKey4, PortTarget4> {
        &maps::PORTS4
    }
    #[inline(always)]
    fn pod_addresses() -> &'static HashMap<Addr4, PodAddress> {
        &maps::POD_ADDRESSES4
    }
    #[inline(always)]
    fn exempt() -> &'static LpmTrie<ExemptKey4, u32> {
        &maps::EXEMPT4
    }
    #[inline(always)]
    fn locals() -> &'static HashMap<Addr4, u32> {
        &maps::LOCALS4
    }
    #[inline(always)]
    fn fragments() -> &'static LruHashMap<FragmentKey4, FragmentPorts> {
        &maps::FRAGMENTS4
    }

    /// Destination unreachable, time exceeded, parameter problem (RFC 792).
    #[inline(always)]
    fn is_error(icmp: u8) -> bool {
        matches!(icmp, 3 | 11 | 12)
    }

    #[inline(always)]
    fn read_header(skb: Skb, offset: u32, packet: &mut Packet<Self>) -> Option<Upper> {
        let header = skb.load::<Header>(offset)?;
        let words = u32::from(header.version & 0xf);
        if header.version >> 4 != 4 || words < 5 {
            return None;
        }
        packet.key.source = header.source;
        packet.key.destination = header.destination;
        packet.total = u32::from(u16::from_be(header.length));
        let [first, second] = header.checksum.to_ne_bytes();
        packet.hops = u32::from_ne_bytes([header.ttl, header.protocol, first, second]);
        packet.ttl = header.ttl;
        packet.tos = header.tos;
        let fragment = u16::from_be(header.fragment);
        packet.dont_fragment = fragment & DONT != 0;
        let fragment = if fragment & OFFSET != 0 {
            Fragment::Later
        } else if fragment & MORE != 0 {
            Fragment::First
        } else {
            Fragment::Whole
        };
        Some(Upper {
            offset: offset + words * 4,
            protocol: header.protocol,
            fragment,
            id: u32::from(header.id),
        })
    }

    #[inline(always)]
    fn write_header(skb: Skb, packet: &Packet<Self>, new: Ends<Self>) -> bool {
        let hops = |ttl: u8, protocol: u8| u32::from(u16::from_ne_bytes([ttl, protocol]));
        let [ttl, protocol, first, second] = packet.hops.to_ne_bytes();
        let less = ttl.wrapping_sub(1);
        let checksum = Self::difference((packet.key.source, packet.key.destination), new)
            .word(hops(ttl, protocol), hops(less, protocol))
            .apply(u16::from_ne_bytes([first, second]));
        let [first, second] = checksum.to_ne_bytes();
        let hops = u32::from_ne_bytes([less, protocol, first, second]);
        // The header's checksum compensates the change: a sum over the packet computed by the device stays
        // valid.
        skb.store(packet.l3 + HOPS, &Rewritten { hops, source: new.0, destination: new.1 }, 0)
    }

    #[inline(always)]
    fn write_inner(skb: Skb, inner: &Packet<Self>, new: Ends<Self>) -> Option<Difference> {
        let [ttl, protocol, first, second] = inner.hops.to_ne_bytes();
        let checksum = Self::difference((inner.key.source, inner.key.destination), new)
            .apply(u16::from_ne_bytes([first, second]));
        let [first, second] = checksum.to_ne_bytes();
        let hops = u32::from_ne_bytes([ttl, protocol, first, second]);
        let rewritten = Rewritten { hops, source: new.0, destination: new.1 };
        // The header's own checksum compensates the addresses.
        if skb.store(inner.l3 + HOPS, &rewritten, 0) { Some(Difference::default()) } else { None }
    }

    #[inline(always)]
    fn difference(old: Ends<Self>, new: Ends<Self>) -> Difference {
        Difference::default().word(old.0.0, new.0.0).word(old.1.0, new.1.0)
    }

    #[inline(always)]
    fn set_addresses(request: &mut bpf_fib_lookup, ends: Ends<Self>) {
        request.__bindgen_anon_3.ipv4_src = ends.0.0;
        request.__bindgen_anon_4.ipv4_dst = ends.1.0;
    }

    #[inline(always)]
    fn socket_tuple(key: &FlowKey<Addr4>) -> bpf_sock_tuple {
        let ends = Tuple {
            saddr: key.source.0,
            daddr: key.destination.0,
            sport: key.source_port.0,
            dport: key.destination_port.0,
        };
        bpf_sock_tuple { __bindgen_anon_1: bpf_sock_tuple__bindgen_ty_1 { ipv4: ends } }
    }

    #[inline(always)]
    fn uplink_address(uplink: &Uplink) -> &Addr4 {
        &uplink.address4
    }

    /// False for 0/8, 127/8, 169.254/16, multicast and reserved addresses (RFC 6890).
    #[inline(always)]
    fn is_routable(address: Addr4) -> bool {
        let [first, second, ..] = address.0.to_ne_bytes();
        !(first == 0 || first == 127 || first >= 224 || first == 169 && second == 254)
    }

    #[inline(always)]
    fn same_network(one: Addr4, other: Addr4, prefix: u32) -> bool {
        let differing = u64::from(u32::from_be(one.0 ^ other.0));
        // 64 bits wide: a shift of 32 bits by 32 is undefined.
        let prefix = if prefix < 32 { prefix } else { 32 };
        differing >> (32 - prefix) == 0
    }

    #[inline(always)]
    fn same(one: Addr4, other: Addr4) -> bool {
        one.0 == other.0
    }
}
