// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! ICMP errors about translated packets: path MTU discovery, closed ports, unreachable destinations.
//!
//! An error contains the packet that caused it, after translation. It must reach the sender of the original
//! packet, and contain that packet.

use aya_ebpf::bindings::BPF_F_PSEUDO_HDR;
use slipway_ebpf_abi::{Action, Counter, FlowKey, IPPROTO_UDP, Reason, SIDE_UPLINK};

use crate::config::{count, count_fallback, count_packet};
use crate::csum::Difference;
use crate::family::Family;
use crate::flow;
use crate::packet;
use crate::route::{self, Verdict};
use crate::scratch::Scratch;
use crate::skb::{Act, Skb, now};
use crate::translate::{checksum_offset, covers_addresses, write_header, write_ports};

/// Length of the ICMP header in front of the packet that caused the error.
const ICMP_HEADER: u32 = 8;

/// Finds the flow of the packet inside, if it is translated. The error travels in the reverse direction of
/// that packet.
#[inline(always)]
fn find_flow<F: Family>(scratch: &mut Scratch<F>) -> bool {
    let (outer, inner) = (&scratch.packet.key, &scratch.inner.key);
    // An error goes to the sender of the packet that caused it.
    if !F::same(outer.destination, inner.source) {
        return false;
    }
    scratch.reverse_key = FlowKey {
        source: inner.destination,
        destination: inner.source,
        source_port: inner.destination_port,
        destination_port: inner.source_port,
        protocol: inner.protocol,
        side: outer.side,
        pad: 0,
    };
    flow::find_reverse(scratch, now()) && scratch.flow.action != Action::Pass as u8
}

/// The result of the functions that rewrite the packet inside if a write failed; otherwise it is the change
/// of a sum.
const FAILED: i64 = -1;

/// The change of the sum over the packet inside by its new addresses.
#[inline(never)]
fn inner_difference<F: Family>(scratch: &Scratch<F>) -> i64 {
    let (inner, flow) = (&scratch.inner, &scratch.flow);
    let (old, new) = ((inner.key.source, inner.key.destination), (flow.destination, flow.source));
    i64::from(F::difference(old, new).sum())
}

/// Writes new addresses into the header of the packet inside. In a stack frame of its own: before Linux 6.6
/// the frames of the callers are rounded up to 32 bytes each.
#[inline(never)]
fn rewrite_inner_header<F: Family>(skb: Skb, scratch: &Scratch<F>) -> i64 {
    match F::write_inner(skb, &scratch.inner, (scratch.flow.destination, scratch.flow.source)) {
        Some(difference) => i64::from(difference.sum()),
        None => FAILED,
    }
}

/// Rewrites the packet inside. Returns the change of the sum over it.
#[inline(never)]
fn rewrite_inner<F: Family>(skb: Skb, scratch: &Scratch<F>) -> i64 {
    let (inner, flow) = (&scratch.inner, &scratch.flow);
    let protocol = inner.key.protocol;
    let old_ports = (inner.key.source_port.0, inner.key.destination_port.0);
    let new_ports = (flow.destination_port.0, flow.source_port.0);
    let header = rewrite_inner_header(skb, scratch);
    if header < 0 {
        return FAILED;
    }
    let difference = Difference::of(header as u32).ports(old_ports, new_ports);
    if !write_ports::<F>(skb, inner.l4, protocol, (flow.destination_port, flow.source_port)) {
        return FAILED;
    }
    // The checksum may be beyond the part of the packet that the error contains, or omitted.
    let offset = inner.l4 + checksum_offset(protocol);
    let Some(checksum) = skb.load::<u16>(offset) else { return i64::from(difference.sum()) };
    if protocol == IPPROTO_UDP && checksum == 0 {
        return i64::from(difference.sum());
    }
    let mut change = Difference::default().ports(old_ports, new_ports);
    if covers_addresses::<F>(protocol) {
        change = change.and(Difference::of(inner_difference(scratch) as u32));
    }
    let mut new_checksum = change.apply(checksum);
    if protocol == IPPROTO_UDP && new_checksum == 0 {
        new_checksum = 0xffff;
    }
    if !skb.store(offset, &new_checksum, 0) {
        return FAILED;
    }
    i64::from(difference.word(u32::from(checksum), u32::from(new_checksum)).sum())
}

/// Rewrites the error: the packet inside, the checksum, and the outer addresses to [`Scratch::ends`].
#[inline(never)]
fn rewrite<F: Family>(skb: Skb, scratch: &Scratch<F>) -> bool {
    let difference = rewrite_inner(skb, scratch);
    if difference < 0 || !skb.untag() {
        return false;
    }
    let checksum = scratch.packet.l4 + checksum_offset(F::ICMP);
    if !write_header(skb, scratch) || !skb.update_checksum(checksum, difference as u32, 0) {
        return false;
    }
    if !F::ICMP_PSEUDO {
        return true;
    }
    let difference = F::difference((scratch.packet.key.source, scratch.packet.key.destination), scratch.ends);
    skb.update_checksum(checksum, difference.sum(), u64::from(BPF_F_PSEUDO_HDR))
}

/// Handles an ICMP error that arrived at an uplink or from a pod.
#[inline(never)]
pub(crate) fn error<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    let (l3, side) = (scratch.packet.l4 + ICMP_HEADER, scratch.packet.key.side);
    if packet::read_inner(skb, scratch, l3, side) { translate_error(skb, scratch) } else { Act::STACK }
}

#[inline(never)]
fn translate_error<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    if !find_flow(scratch) {
        return Act::STACK;
    }
    if scratch.packet.ttl <= 1 {
        count_fallback(Reason::Ttl);
        return Act::STACK;
    }
    // As in `route::replies_bypass_uplinks`; the flow is not about the sender of the error.
    if !F::is_routable(scratch.packet.key.source) {
        count_fallback(Reason::Route);
        return Act::STACK;
    }
    if scratch.packet.key.side == SIDE_UPLINK { to_pod(skb, scratch) } else { out(skb, scratch) }
}

#[inline(always)]
fn to_pod<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    scratch.ends = (scratch.packet.key.source, scratch.flow.destination);
    if !rewrite(skb, scratch) || scratch.packet.l3 == 0 && !skb.add_ethernet() {
        count(Counter::DropWrite);
        return Act::DROP;
    }
    count(Counter::Errors);
    count_packet(skb, Counter::ToPodPackets, Counter::ToPodBytes);
    skb.into_pod(scratch.flow.pod)
}

#[inline(always)]
fn out<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    if scratch.flow.pod != skb.interface() {
        return Act::STACK;
    }
    if !matches!(route::of_flow(skb, scratch), Verdict::Forward) || route::uplink(scratch).is_none() {
        count_fallback(Reason::Route);
        return Act::STACK;
    }
    scratch.ends = (scratch.flow.source, scratch.flow.destination);
    if !rewrite(skb, scratch) {
        count(Counter::DropWrite);
        return Act::DROP;
    }
    count(Counter::Errors);
    count_packet(skb, Counter::FromPodPackets, Counter::FromPodBytes);
    route::send(scratch)
}
