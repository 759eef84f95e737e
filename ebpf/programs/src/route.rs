//! The route of a packet that leaves.

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NO_NEIGH,
    BPF_FIB_LKUP_RET_NOT_FWDED, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup, bpf_redir_neigh,
};
use aya_ebpf::helpers::{bpf_fib_lookup as lookup, bpf_redirect_neigh};
use slipway_ebpf_abi::Uplink;

use crate::family::{Addr, Family, next_hop};
use crate::maps::UPLINKS;
use crate::skb::Skb;
use crate::words::clear;
use crate::work::Work;

/// What the kernel would do with a packet.
pub(crate) enum Verdict {
    /// Send it out of this interface.
    Forward,
    /// Take it itself, or has no route.
    Here,
    /// It is too large for the route.
    TooBig,
    /// Nothing: forwarding is off.
    Disabled,
    /// Something else.
    Other,
}

/// Asks for the route of the packet at hand, to `destination`. The packet is not changed, so that a route that
/// depends on the source (`ip rule`) is the one that the stack would take.
#[inline(never)]
fn ask<F: Family>(skb: Skb, work: &mut Work<F>, destination: Addr<F>) -> u32 {
    clear(&raw mut work.route);
    let (packet, question) = (&work.packet, &mut work.route);
    question.family = F::AF;
    question.l4_protocol = packet.key.protocol;
    question.sport = packet.key.source_port.0;
    question.dport = packet.key.destination_port.0;
    question.__bindgen_anon_1.tot_len = if packet.length > 0xffff { 0xffff } else { packet.length as u16 };
    question.ifindex = skb.interface();
    question.__bindgen_anon_2.tos = packet.tos;
    F::ask_route(question, (packet.key.source, destination));
    // SAFETY: the helper reads and writes the question only.
    unsafe { lookup(skb.0.cast(), question, size_of::<bpf_fib_lookup>() as i32, 0) as u32 }
}

#[inline(always)]
fn verdict(code: u32) -> Verdict {
    match code {
        // The neighbour is asked for by `bpf_redirect_neigh`.
        BPF_FIB_LKUP_RET_SUCCESS | BPF_FIB_LKUP_RET_NO_NEIGH => Verdict::Forward,
        BPF_FIB_LKUP_RET_NOT_FWDED => Verdict::Here,
        BPF_FIB_LKUP_RET_FRAG_NEEDED => Verdict::TooBig,
        BPF_FIB_LKUP_RET_FWD_DISABLED => Verdict::Disabled,
        _ => Verdict::Other,
    }
}

/// What the kernel would do with the packet at hand as it is.
#[inline(always)]
pub(crate) fn of_packet<F: Family>(skb: Skb, work: &mut Work<F>) -> Verdict {
    let destination = work.packet.key.destination;
    verdict(ask(skb, work, destination))
}

/// What it would do with a packet from the pod's own address to the flow's destination.
#[inline(always)]
pub(crate) fn of_flow<F: Family>(skb: Skb, work: &mut Work<F>) -> Verdict {
    let destination = work.flow.destination;
    verdict(ask(skb, work, destination))
}

/// The uplink that the route leads to, if it does.
#[inline(always)]
pub(crate) fn uplink<F: Family>(work: &Work<F>) -> Option<&'static Uplink> {
    // SAFETY: user space writes whole elements; what is read is an address or a number.
    unsafe { UPLINKS.get(work.route.ifindex) }
}

/// Sends the packet out by the route that was found.
#[inline(always)]
pub(crate) fn send<F: Family>(work: &Work<F>) -> i32 {
    let mut next = next_hop(&work.route);
    // SAFETY: the helper copies `next`.
    unsafe {
        bpf_redirect_neigh(work.route.ifindex, &raw mut next, size_of::<bpf_redir_neigh>() as i32, 0) as i32
    }
}
