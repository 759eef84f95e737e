//! The route of a packet that leaves.

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NO_NEIGH,
    BPF_FIB_LKUP_RET_NOT_FWDED, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup, bpf_redir_neigh,
};
use aya_ebpf::helpers::{bpf_fib_lookup as lookup, bpf_redirect_neigh};
use slipway_ebpf_abi::{FlowKey, ORIGINAL, SEVERAL, Uplink};

use crate::family::{Addr, Family, next_hop};
use crate::flow;
use crate::maps::UPLINKS;
use crate::skb::Skb;
use crate::words::{clear, copy, mix, same};
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
    /// Send it, but not with the address that the flow was given: it is not the uplink's, or the node's no more.
    Moved,
    /// Something else.
    Other,
}

/// No length: what the uplink takes is what matters, not what the path takes.
const ANY: u32 = 0;

/// Asks for the route of the packet at hand, to `destination`, of a `length`. The packet is not changed, so that a route that
/// depends on the source (`ip rule`) is the one that the stack would take.
#[inline(never)]
fn ask<F: Family>(skb: Skb, work: &mut Work<F>, destination: Addr<F>, length: u32) -> u32 {
    clear(&raw mut work.route);
    let (packet, question) = (&work.packet, &mut work.route);
    question.family = F::AF;
    question.l4_protocol = packet.key.protocol;
    question.sport = packet.key.source_port.0;
    question.dport = packet.key.destination_port.0;
    question.__bindgen_anon_1.tot_len = if length > 0xffff { 0xffff } else { length as u16 };
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
    let (destination, length) = (work.packet.key.destination, work.packet.length);
    verdict(ask(skb, work, destination, length))
}

/// What it would do with a packet from the pod's own address to the flow's destination.
#[inline(always)]
pub(crate) fn of_flow<F: Family>(skb: Skb, work: &mut Work<F>) -> Verdict {
    let (destination, length) = (work.flow.destination, work.packet.length);
    verdict(ask(skb, work, destination, length))
}

/// No such interface (include/uapi/asm-generic/errno-base.h).
const ENODEV: i32 = -19;

/// Asks about an address as if a packet to it came in at `interface`. The answer is in [`Work::doubt`].
#[inline(never)]
fn ask_about<F: Family>(skb: Skb, work: &mut Work<F>, address: Addr<F>, interface: u32) -> i32 {
    clear(&raw mut work.doubt);
    let question = &mut work.doubt;
    question.family = F::AF;
    question.ifindex = interface;
    F::ask_route(question, (address, address));
    // SAFETY: the helper reads and writes the question only.
    unsafe { lookup(skb.0.cast(), question, size_of::<bpf_fib_lookup>() as i32, 0) as i32 }
}

/// Whether the node has no interface with this number any more. That of a pod that died goes with its namespace,
/// whether or not anybody tells the programs.
#[inline(always)]
pub(crate) fn is_gone<F: Family>(skb: Skb, work: &mut Work<F>, interface: u32) -> bool {
    let address = work.packet.key.destination;
    ask_about(skb, work, address, interface) == ENODEV
}

/// Whether answers to the packet at hand, which came in at an uplink, would leave by none: its source is an address of the
/// node, or of a pod, or the programs see nothing of what is sent there. A pod's may lead to an uplink all the same, where
/// the pods' bridge is one.
#[inline(always)]
pub(crate) fn is_one_way<F: Family>(skb: Skb, work: &mut Work<F>) -> bool {
    let source = work.packet.key.source;
    // `bpf_fib_lookup` finds the default route for them, where the kernel's stack drops them as martians.
    if !F::is_routable(source) {
        return true;
    }
    // SAFETY: copied at once.
    let pod = unsafe { F::pod_addresses().get(source) }.copied();
    if pod.is_some_and(|pod| flow::is_pod(pod.pod, pod.generation)) {
        return true;
    }
    match verdict(ask_about(skb, work, source, skb.interface()) as u32) {
        // SAFETY: the value is not read.
        Verdict::Forward => unsafe { UPLINKS.get(work.doubt.ifindex) }.is_none(),
        // Said of the packet itself, too, and counted there.
        Verdict::Disabled => false,
        _ => true,
    }
}

/// Whether the address in [`Work::flow`] that a packet would leave with, by the route that was found, is the node's no
/// more: a packet to it would be sent elsewhere.
#[inline(always)]
pub(crate) fn has_lost_address<F: Family>(skb: Skb, work: &mut Work<F>) -> bool {
    let (address, interface) = (work.flow.source, work.route.ifindex);
    let code = ask_about(skb, work, address, interface) as u32;
    !matches!(verdict(code), Verdict::Here | Verdict::Disabled)
}

/// Whether a flow that is masqueraded would leave by the route that was found with an address that is not its uplink's:
/// the route leads to another one since, or the address is gone. Netfilter's masquerade forgets such conversations, too.
#[inline(always)]
fn has_moved<F: Family>(skb: Skb, work: &mut Work<F>, uplink: &Uplink) -> bool {
    if work.flow.flags & ORIGINAL == 0 {
        return false;
    }
    if !F::same(*F::uplink_address(uplink), work.flow.source) {
        // SAFETY: copied at once.
        let at = unsafe { F::locals().get(work.flow.source) }.copied();
        if at != Some(work.route.ifindex) && at != Some(SEVERAL) {
            return true;
        }
    }
    has_lost_address(skb, work)
}

/// How many routes each processor remembers. Flows that fall on the same one take turns, and ask.
pub(crate) const SLOTS: u32 = 512;

/// The route that packets of one half of a flow took lately: the question is half of what such a packet costs. It is
/// asked again in each [tick](slipway_ebpf_abi::TICK_SHIFT) (about a second), and for a packet that is larger than those
/// before.
#[repr(C)]
pub(crate) struct Known<F: Family> {
    /// The half.
    key: FlowKey<Addr<F>>,
    /// The flow's pod, of which a later one may have the address.
    generation: u32,
    /// When it was asked.
    tick: u32,
    /// The longest packet that was found to fit.
    length: u32,
    /// Type of service or traffic class.
    tos: u32,
    /// The uplink.
    interface: u32,
    /// [`bpf_fib_lookup`]: family and address of the next hop.
    family: u32,
    hop: [u32; 4],
}

/// As [`of_flow`], for a packet of an established flow: [`Verdict::Forward`] only to an uplink.
#[inline(always)]
pub(crate) fn of_packet_of_flow<F: Family>(skb: Skb, work: &mut Work<F>, now: u32) -> Verdict {
    if recall(work, now) != 0 {
        return Verdict::Forward;
    }
    let verdict = of_flow(skb, work);
    match verdict {
        Verdict::Forward => {
            let Some(uplink) = uplink(work) else { return Verdict::Other };
            if has_moved(skb, work, uplink) {
                return Verdict::Moved;
            }
            remember(work, now);
        }
        Verdict::TooBig if !work.packet.dont_fragment => return of_large_packet(skb, work),
        _ => {}
    }
    verdict
}

/// The same for a packet that is too large for the path as the node knows it, and may be cut on the way: whoever finds
/// it too large does so. Its own uplink has to take it as it is. This is not remembered: it proves nothing about packets
/// that may not be cut.
#[inline(always)]
fn of_large_packet<F: Family>(skb: Skb, work: &mut Work<F>) -> Verdict {
    let destination = work.flow.destination;
    match verdict(ask(skb, work, destination, ANY)) {
        Verdict::Forward => match uplink(work) {
            Some(uplink) if work.packet.length <= uplink.mtu => Verdict::Forward,
            Some(_) => Verdict::TooBig,
            None => Verdict::Other,
        },
        other => other,
    }
}

/// Where the route of the packet's half is kept.
#[inline(always)]
fn slot<F: Family>(work: &Work<F>) -> Option<*mut Known<F>> {
    F::routes().get_ptr_mut(mix(&raw const work.packet.key) & (SLOTS - 1))
}

/// Takes the route from what is known, and says 1, if it is known. On a stack of its own, as [`remember`].
#[inline(never)]
fn recall<F: Family>(work: &mut Work<F>, now: u32) -> u32 {
    let Some(known) = slot(work) else { return 0 };
    // SAFETY: the element is this processor's own.
    let known = unsafe { &*known };
    if known.tick != now
        || known.generation != work.flow.generation
        || known.length < work.packet.length
        || known.tos != u32::from(work.packet.tos)
        || !same(&raw const known.key, &raw const work.packet.key)
    {
        return 0;
    }
    work.route.ifindex = known.interface;
    work.route.family = known.family as u8;
    copy(&raw const known.hop, (&raw mut work.route.__bindgen_anon_4).cast());
    1
}

#[inline(never)]
fn remember<F: Family>(work: &Work<F>, now: u32) -> u32 {
    let Some(known) = slot(work) else { return 0 };
    // SAFETY: as in `recall`.
    let known = unsafe { &mut *known };
    // A packet of the same half that was longer has shown that it fits, unless that was long ago.
    let is_same = known.tick == now && same(&raw const known.key, &raw const work.packet.key);
    let longest =
        if is_same && known.length > work.packet.length { known.length } else { work.packet.length };
    copy(&raw const work.packet.key, &raw mut known.key);
    known.generation = work.flow.generation;
    known.tick = now;
    known.length = longest;
    known.tos = u32::from(work.packet.tos);
    known.interface = work.route.ifindex;
    known.family = u32::from(work.route.family);
    copy((&raw const work.route.__bindgen_anon_4).cast(), &raw mut known.hop);
    1
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
