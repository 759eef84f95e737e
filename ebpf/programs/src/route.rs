// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Route lookups for packets that leave.

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NO_NEIGH,
    BPF_FIB_LKUP_RET_NOT_FWDED, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup, bpf_redir_neigh,
};
use aya_ebpf::helpers::{bpf_fib_lookup as fib_lookup, bpf_redirect_neigh};
use slipway_ebpf_abi::{FlowKey, ORIGINAL, SEVERAL, Uplink};

use crate::family::{Addr, Family, next_hop};
use crate::flow;
use crate::maps::UPLINKS;
use crate::memory::{clear, copy, mix, same};
use crate::scratch::Scratch;
use crate::skb::Skb;

/// The kernel's decision about a packet.
pub(crate) enum Verdict {
    /// Send it out of this interface.
    Forward,
    /// Deliver it locally, or no route.
    Local,
    /// Larger than the route's MTU.
    TooBig,
    /// Forwarding is off.
    Disabled,
    /// Send it, but the flow's address is no longer that of the uplink, or of the node.
    AddressChanged,
    /// Anything else.
    Other,
}

/// A length that every route accepts: to compare with the uplink's MTU instead of the path's.
const ANY: u32 = 0;

/// Looks up the route of the packet to `destination` with this `length`. Before the translation, so that a
/// route that depends on the source (`ip rule`) is the one that the kernel would choose.
#[inline(never)]
fn look_up<F: Family>(skb: Skb, scratch: &mut Scratch<F>, destination: Addr<F>, length: u32) -> u32 {
    clear(&raw mut scratch.route);
    let (packet, request) = (&scratch.packet, &mut scratch.route);
    request.family = F::AF;
    request.l4_protocol = packet.key.protocol;
    request.sport = packet.key.source_port.0;
    request.dport = packet.key.destination_port.0;
    request.__bindgen_anon_1.tot_len = if length > 0xffff { 0xffff } else { length as u16 };
    request.ifindex = skb.interface();
    request.__bindgen_anon_2.tos = packet.tos;
    F::set_addresses(request, (packet.key.source, destination));
    // SAFETY: the helper accesses only the request.
    unsafe { fib_lookup(skb.0.cast(), request, size_of::<bpf_fib_lookup>() as i32, 0) as u32 }
}

#[inline(always)]
fn verdict(code: u32) -> Verdict {
    match code {
        // `bpf_redirect_neigh` resolves the neighbour.
        BPF_FIB_LKUP_RET_SUCCESS | BPF_FIB_LKUP_RET_NO_NEIGH => Verdict::Forward,
        BPF_FIB_LKUP_RET_NOT_FWDED => Verdict::Local,
        BPF_FIB_LKUP_RET_FRAG_NEEDED => Verdict::TooBig,
        BPF_FIB_LKUP_RET_FWD_DISABLED => Verdict::Disabled,
        _ => Verdict::Other,
    }
}

/// The kernel's decision about the unchanged packet.
#[inline(always)]
pub(crate) fn of_packet<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> Verdict {
    let (destination, length) = (scratch.packet.key.destination, scratch.packet.length);
    verdict(look_up(skb, scratch, destination, length))
}

/// The kernel's decision about a packet from the pod's own address to the flow's destination.
#[inline(always)]
pub(crate) fn of_flow<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> Verdict {
    let (destination, length) = (scratch.flow.destination, scratch.packet.length);
    verdict(look_up(skb, scratch, destination, length))
}

/// No such interface (include/uapi/asm-generic/errno-base.h).
const ENODEV: i32 = -19;

/// Looks up the route to an address for a packet that arrives at `interface`. The result is in
/// [`Scratch::second_lookup`].
#[inline(never)]
fn look_up_again<F: Family>(skb: Skb, scratch: &mut Scratch<F>, address: Addr<F>, interface: u32) -> i32 {
    clear(&raw mut scratch.second_lookup);
    let request = &mut scratch.second_lookup;
    request.family = F::AF;
    request.ifindex = interface;
    F::set_addresses(request, (address, address));
    // SAFETY: the helper accesses only the request.
    unsafe { fib_lookup(skb.0.cast(), request, size_of::<bpf_fib_lookup>() as i32, 0) as i32 }
}

/// True if the node has no interface with this index. The interface of a dead pod is deleted with its
/// namespace, whether or not the map is updated.
#[inline(always)]
pub(crate) fn interface_is_gone<F: Family>(skb: Skb, scratch: &mut Scratch<F>, interface: u32) -> bool {
    let address = scratch.packet.key.destination;
    look_up_again(skb, scratch, address, interface) == ENODEV
}

/// True if replies to the packet, which arrived at an uplink, would not leave by an uplink: its source is an
/// address of the node or of a pod, or the BPF programs do not see what is sent there. A pod's address is
/// checked separately, as its route may lead to an uplink: the pods' bridge may be one.
#[inline(always)]
pub(crate) fn replies_bypass_uplinks<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> bool {
    let source = scratch.packet.key.source;
    // `bpf_fib_lookup` returns the default route for these; the kernel's stack drops them as martians.
    if !F::is_routable(source) {
        return true;
    }
    // SAFETY: copied at once.
    let pod = unsafe { F::pod_addresses().get(source) }.copied();
    if pod.is_some_and(|pod| flow::is_pod(pod.pod, pod.generation)) {
        return true;
    }
    match verdict(look_up_again(skb, scratch, source, skb.interface()) as u32) {
        // SAFETY: the value is not read.
        Verdict::Forward => unsafe { UPLINKS.get(scratch.second_lookup.ifindex) }.is_none(),
        // The lookup for the packet itself has the same result, and counts it.
        Verdict::Disabled => false,
        _ => true,
    }
}

/// True if the source address in [`Scratch::flow`] is no longer the node's: by the route found, a packet to
/// it would be sent elsewhere.
#[inline(always)]
pub(crate) fn has_lost_address<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> bool {
    let (address, interface) = (scratch.flow.source, scratch.route.ifindex);
    let code = look_up_again(skb, scratch, address, interface) as u32;
    !matches!(verdict(code), Verdict::Local | Verdict::Disabled)
}

/// True if a masqueraded flow would leave by the route found with an address that is not its uplink's: the
/// route has changed, or the address was deleted. Netfilter's masquerade forgets such flows, too.
#[inline(always)]
fn address_has_changed<F: Family>(skb: Skb, scratch: &mut Scratch<F>, uplink: &Uplink) -> bool {
    if scratch.flow.flags & ORIGINAL == 0 {
        return false;
    }
    if !F::same(*F::uplink_address(uplink), scratch.flow.source) {
        // SAFETY: copied at once.
        let at = unsafe { F::locals().get(scratch.flow.source) }.copied();
        if at != Some(scratch.route.ifindex) && at != Some(SEVERAL) {
            return true;
        }
    }
    has_lost_address(skb, scratch)
}

/// Slots of each processor's cache of routes. Flows with the same slot replace each other.
pub(crate) const SLOTS: u32 = 512;

/// A cached route of one direction of a flow: the lookup is half of the cost of a packet. It is repeated in
/// each [tick](slipway_ebpf_abi::TICK_SHIFT) (about a second), and for a packet longer than those before.
#[repr(C)]
pub(crate) struct CachedRoute<F: Family> {
    /// The direction's key.
    key: FlowKey<Addr<F>>,
    /// Generation of the flow's pod, as a later pod may have the same address.
    generation: u32,
    /// Time of the lookup.
    tick: u32,
    /// Length of the longest packet that fit.
    length: u32,
    /// Type of service or traffic class.
    tos: u32,
    /// The uplink.
    interface: u32,
    /// Family of the next hop in [`bpf_fib_lookup`].
    family: u32,
    /// Address of the next hop in [`bpf_fib_lookup`].
    hop: [u32; 4],
}

/// As [`of_flow`], for a packet of an established flow. [`Verdict::Forward`] only to an uplink.
#[inline(always)]
pub(crate) fn of_packet_of_flow<F: Family>(skb: Skb, scratch: &mut Scratch<F>, now: u32) -> Verdict {
    if load_cached(scratch, now) != 0 {
        return Verdict::Forward;
    }
    let verdict = of_flow(skb, scratch);
    match verdict {
        Verdict::Forward => {
            let Some(uplink) = uplink(scratch) else { return Verdict::Other };
            if address_has_changed(skb, scratch, uplink) {
                return Verdict::AddressChanged;
            }
            store_cached(scratch, now);
        }
        Verdict::TooBig if !scratch.packet.dont_fragment => return of_large_packet(skb, scratch),
        _ => {}
    }
    verdict
}

/// The decision about a packet that is too large for the path, as far as the node knows it, and that may be
/// fragmented on the way. The uplink's MTU must suffice. Not cached: it does not hold for packets that may
/// not be fragmented.
#[inline(always)]
fn of_large_packet<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> Verdict {
    let destination = scratch.flow.destination;
    match verdict(look_up(skb, scratch, destination, ANY)) {
        Verdict::Forward => match uplink(scratch) {
            Some(uplink) if scratch.packet.length <= uplink.mtu => Verdict::Forward,
            Some(_) => Verdict::TooBig,
            None => Verdict::Other,
        },
        other => other,
    }
}

/// The cache slot for the route of the packet's direction.
#[inline(always)]
fn slot<F: Family>(scratch: &Scratch<F>) -> Option<*mut CachedRoute<F>> {
    F::routes().get_ptr_mut(mix(&raw const scratch.packet.key) & (SLOTS - 1))
}

/// Takes the route from the cache; returns 1 if it was there. In a stack frame of its own, as
/// [`store_cached`].
#[inline(never)]
fn load_cached<F: Family>(scratch: &mut Scratch<F>, now: u32) -> u32 {
    let Some(known) = slot(scratch) else { return 0 };
    // SAFETY: the element is this processor's own.
    let known = unsafe { &*known };
    if known.tick != now
        || known.generation != scratch.flow.generation
        || known.length < scratch.packet.length
        || known.tos != u32::from(scratch.packet.tos)
        || !same(&raw const known.key, &raw const scratch.packet.key)
    {
        return 0;
    }
    scratch.route.ifindex = known.interface;
    scratch.route.family = known.family as u8;
    copy(&raw const known.hop, (&raw mut scratch.route.__bindgen_anon_4).cast());
    1
}

#[inline(never)]
fn store_cached<F: Family>(scratch: &Scratch<F>, now: u32) -> u32 {
    let Some(known) = slot(scratch) else { return 0 };
    // SAFETY: as in `load_cached`.
    let known = unsafe { &mut *known };
    // Within a tick, the longest packet of the direction counts: it has fit.
    let is_same = known.tick == now && same(&raw const known.key, &raw const scratch.packet.key);
    let longest =
        if is_same && known.length > scratch.packet.length { known.length } else { scratch.packet.length };
    copy(&raw const scratch.packet.key, &raw mut known.key);
    known.generation = scratch.flow.generation;
    known.tick = now;
    known.length = longest;
    known.tos = u32::from(scratch.packet.tos);
    known.interface = scratch.route.ifindex;
    known.family = u32::from(scratch.route.family);
    copy((&raw const scratch.route.__bindgen_anon_4).cast(), &raw mut known.hop);
    1
}

/// The uplink to which the route leads, if it does.
#[inline(always)]
pub(crate) fn uplink<F: Family>(scratch: &Scratch<F>) -> Option<&'static Uplink> {
    // SAFETY: user space replaces whole elements; what is read is an address or a number.
    unsafe { UPLINKS.get(scratch.route.ifindex) }
}

/// Sends the packet by the route found.
#[inline(always)]
pub(crate) fn send<F: Family>(scratch: &Scratch<F>) -> i32 {
    let mut next = next_hop(&scratch.route);
    // SAFETY: the helper copies `next`.
    unsafe {
        bpf_redirect_neigh(scratch.route.ifindex, &raw mut next, size_of::<bpf_redir_neigh>() as i32, 0)
            as i32
    }
}
