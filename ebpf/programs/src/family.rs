// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The differences between IPv4 and IPv6. The programs are written once, for a [`Family`], and compiled
//! twice.

use aya_ebpf::bindings::{bpf_fib_lookup, bpf_redir_neigh, bpf_redir_neigh__bindgen_ty_1, bpf_sock_tuple};
use aya_ebpf::maps::{HashMap, LpmTrie, LruHashMap, PerCpuArray};
use slipway_ebpf_abi::{
    ExemptKey, Flow, FlowKey, FragmentKey, FragmentPorts, PodAddress, PortKey, PortTarget, Uplink,
};

use crate::csum::Difference;
use crate::packet::{Fragment, Packet};
use crate::route::CachedRoute;
use crate::scratch::Scratch;
use crate::skb::Skb;

/// The type of address of a family.
pub(crate) type Addr<F> = <F as Family>::Addr;
/// A map of flows of a family.
pub(crate) type Flows<F> = LruHashMap<FlowKey<Addr<F>>, Flow<Addr<F>>>;

/// The header above IP.
#[derive(Clone, Copy)]
pub(crate) struct Upper {
    /// Offset.
    pub(crate) offset: u32,
    /// Protocol.
    pub(crate) protocol: u8,
    /// Position in a fragmented packet.
    pub(crate) fragment: Fragment,
    /// Identification of a fragmented packet.
    pub(crate) id: u32,
}

/// Addresses of a packet: source, destination.
pub(crate) type Ends<F> = (Addr<F>, Addr<F>);

/// IPv4 or IPv6.
pub(crate) trait Family: Copy + Sized + 'static {
    /// An address.
    type Addr: Copy + Default;

    /// `AF_INET` or `AF_INET6`.
    const AF: u8;
    /// Bits of an address.
    const BITS: u32;
    /// Protocol number of ICMP.
    const ICMP: u8;
    /// ICMP type of an echo request.
    const ECHO_REQUEST: u8;
    /// ICMP type of an echo reply.
    const ECHO_REPLY: u8;
    /// True if ICMP's checksum includes a pseudo header.
    const ICMP_PSEUDO: bool;
    /// Length of the family's part of `bpf_sock_tuple`.
    const TUPLE: u32;

    /// The scratch memory of this program run.
    fn scratch() -> Option<&'static mut Scratch<Self>>;
    /// This processor's cache of routes.
    fn routes() -> &'static PerCpuArray<CachedRoute<Self>>;
    /// Established flows.
    fn flows() -> &'static Flows<Self>;
    /// Half-open flows.
    fn half_open() -> &'static Flows<Self>;
    /// Published ports.
    fn ports() -> &'static HashMap<PortKey<Self::Addr>, PortTarget<Self::Addr>>;
    /// Pods' addresses.
    fn pod_addresses() -> &'static HashMap<Self::Addr, PodAddress>;
    /// Networks that are exempt from masquerade.
    fn exempt() -> &'static LpmTrie<ExemptKey<Self::Addr>, u32>;
    /// The node's addresses.
    fn locals() -> &'static HashMap<Self::Addr, u32>;
    /// Fragmented packets.
    fn fragments() -> &'static LruHashMap<FragmentKey<Self::Addr>, FragmentPorts>;

    /// True if an ICMP message of this type is an error, with the packet that caused it inside.
    fn is_error(icmp: u8) -> bool;
    /// Decodes the IP header at `offset` and its extension headers into `packet`. Returns the header above;
    /// none if the BPF programs do not handle the packet.
    fn read_header(skb: Skb, offset: u32, packet: &mut Packet<Self>) -> Option<Upper>;
    /// Writes new addresses and the decremented hop limit into the IP header.
    fn write_header(skb: Skb, packet: &Packet<Self>, new: Ends<Self>) -> bool;
    /// Writes new addresses into the header of a packet inside an ICMP error. Returns the change of the sum
    /// over that header; none if writing failed.
    fn write_inner(skb: Skb, inner: &Packet<Self>, new: Ends<Self>) -> Option<Difference>;
    /// The change of a sum by new addresses.
    fn difference(old: Ends<Self>, new: Ends<Self>) -> Difference;

    /// Sets the addresses of a route lookup.
    fn set_addresses(request: &mut bpf_fib_lookup, ends: Ends<Self>);
    /// The tuple to look up the socket that receives a packet with this key.
    fn socket_tuple(key: &FlowKey<Self::Addr>) -> bpf_sock_tuple;
    /// The address with which an uplink masquerades; all zeros if there is none.
    fn uplink_address(uplink: &Uplink) -> &Self::Addr;
    /// True if packets to the address can be routed: it belongs to a single host.
    fn is_routable(address: Self::Addr) -> bool;
    /// True if two addresses have the same prefix.
    fn same_network(one: Self::Addr, other: Self::Addr, prefix: u32) -> bool;
    /// True if two addresses are equal. Compares word by word: `==` of an array calls a function that a BPF
    /// program does not have.
    fn same(one: Self::Addr, other: Self::Addr) -> bool;
}

/// The next hop for `bpf_redirect_neigh`, from the result of a route lookup.
#[inline(always)]
pub(crate) fn next_hop(route: &bpf_fib_lookup) -> bpf_redir_neigh {
    bpf_redir_neigh {
        nh_family: u32::from(route.family),
        __bindgen_anon_1: bpf_redir_neigh__bindgen_ty_1 {
            // SAFETY: integers; the larger form is copied, and the kernel reads that of the family.
            ipv6_nh: unsafe { route.__bindgen_anon_4.ipv6_dst },
        },
    }
}
