//! What IPv4 and IPv6 do differently. The programs are written once, for a [`Family`], and compiled twice.

use aya_ebpf::bindings::{bpf_fib_lookup, bpf_redir_neigh, bpf_redir_neigh__bindgen_ty_1, bpf_sock_tuple};
use aya_ebpf::maps::{HashMap, LruHashMap, PerCpuArray};
use slipway_ebpf_abi::{Flow, FlowKey, FragmentKey, FragmentPorts, PodAddress, PortKey, PortTarget, Uplink};

use crate::csum::Difference;
use crate::packet::{Fragment, Packet};
use crate::route::Known;
use crate::skb::Skb;
use crate::work::Work;

/// The type of address of a family.
pub(crate) type Addr<F> = <F as Family>::Addr;
/// The flow maps of a family.
pub(crate) type Flows<F> = LruHashMap<FlowKey<Addr<F>>, Flow<Addr<F>>>;

/// Where the header above IP is, and what it is.
#[derive(Clone, Copy)]
pub(crate) struct Upper {
    /// Its offset.
    pub(crate) offset: u32,
    /// Its protocol.
    pub(crate) protocol: u8,
    /// Whether this is a piece of a packet, and which.
    pub(crate) fragment: Fragment,
    /// The packet's identification, if it is in pieces.
    pub(crate) id: u32,
}

/// The two ends of a packet: source, destination.
pub(crate) type Ends<F> = (Addr<F>, Addr<F>);

/// IPv4 or IPv6.
pub(crate) trait Family: Copy + Sized + 'static {
    /// An address.
    type Addr: Copy + Default;

    /// `AF_INET` or `AF_INET6`.
    const AF: u8;
    /// The protocol number of its ICMP.
    const ICMP: u8;
    /// ICMP type of an echo request.
    const ECHO_REQUEST: u8;
    /// ICMP type of an echo reply.
    const ECHO_REPLY: u8;
    /// Whether the checksum of ICMP covers a pseudo header.
    const ICMP_PSEUDO: bool;
    /// Length of what the kernel wants of `bpf_sock_tuple`.
    const TUPLE: u32;

    /// What this processor is working on.
    fn work() -> Option<&'static mut Work<Self>>;
    /// Routes that flows of this processor took lately.
    fn routes() -> &'static PerCpuArray<Known<Self>>;
    /// Established flows.
    fn flows() -> &'static Flows<Self>;
    /// Other flows.
    fn embryos() -> &'static Flows<Self>;
    /// Published ports.
    fn ports() -> &'static HashMap<PortKey<Self::Addr>, PortTarget<Self::Addr>>;
    /// Pods' addresses.
    fn pod_addresses() -> &'static HashMap<Self::Addr, PodAddress>;
    /// The node's addresses.
    fn locals() -> &'static HashMap<Self::Addr, u32>;
    /// Packets in pieces.
    fn fragments() -> &'static LruHashMap<FragmentKey<Self::Addr>, FragmentPorts>;

    /// Whether this type of ICMP message is an error, with the packet that caused it inside.
    fn is_error(icmp: u8) -> bool;
    /// Reads the IP header at `offset`, and its extension headers: fills the parts of `packet` that it knows,
    /// and says what comes next. `None`: not a packet for the programs.
    fn read_header(skb: Skb, offset: u32, packet: &mut Packet<Self>) -> Option<Upper>;
    /// Writes other addresses, and one hop less, into the IP header.
    fn write_header(skb: Skb, packet: &Packet<Self>, new: Ends<Self>) -> bool;
    /// Writes other addresses into the header of a packet inside an ICMP error. Returns whether it did, and
    /// adds what that changes in the sum over the header to `difference`.
    fn write_inner(skb: Skb, inner: &Packet<Self>, new: Ends<Self>) -> Option<Difference>;
    /// What two other addresses change in a sum.
    fn difference(old: Ends<Self>, new: Ends<Self>) -> Difference;

    /// Fills the addresses into the question for a route.
    fn ask_route(question: &mut bpf_fib_lookup, ends: Ends<Self>);
    /// The question for the socket that takes a packet with this key.
    fn socket_tuple(key: &FlowKey<Self::Addr>) -> bpf_sock_tuple;
    /// The address that an uplink masquerades with; all zeros if it has none.
    fn uplink_address(uplink: &Uplink) -> &Self::Addr;
    /// Whether an address belongs to one host, in the sense that a packet to it can be routed.
    fn is_routable(address: Self::Addr) -> bool;
    /// Whether two addresses have their first bits in common.
    fn same_network(one: Self::Addr, other: Self::Addr, prefix: u32) -> bool;
    /// Whether two addresses are the same, word by word (`==` of an array would call a function that a program
    /// does not have).
    fn same(one: Self::Addr, other: Self::Addr) -> bool;
}

/// The next hop in the form that the kernel wants, from the answer to a question for a route.
#[inline(always)]
pub(crate) fn next_hop(route: &bpf_fib_lookup) -> bpf_redir_neigh {
    bpf_redir_neigh {
        nh_family: u32::from(route.family),
        __bindgen_anon_1: bpf_redir_neigh__bindgen_ty_1 {
            // SAFETY: integers; the larger of both forms is copied, and the kernel looks at the family's.
            ipv6_nh: unsafe { route.__bindgen_anon_4.ipv6_dst },
        },
    }
}
