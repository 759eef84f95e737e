//! ICMP errors about packets that were translated: path MTU discovery, ports that are closed, routes that end.
//!
//! An error carries the packet that caused it, as its sender saw it: translated. It has to reach the one who
//! sent that packet, and to speak of the packet that this one sent.

use aya_ebpf::bindings::BPF_F_PSEUDO_HDR;
use slipway_ebpf_abi::{Action, Counter, FlowKey, IPPROTO_UDP, Reason, SIDE_UPLINK};

use crate::config::{count, count_fallback, count_packet};
use crate::csum::Difference;
use crate::family::Family;
use crate::flow;
use crate::packet;
use crate::route::{self, Verdict};
use crate::skb::{Act, Skb, now};
use crate::translate::{checksum_offset, covers_addresses, write_header, write_ports};
use crate::work::Work;

/// Length of the ICMP header in front of the packet that caused the error.
const ICMP_HEADER: u32 = 8;

/// Finds the flow that the packet inside belongs to, if it is translated. The error travels in the direction of
/// the answers to that packet.
#[inline(always)]
fn find_flow<F: Family>(work: &mut Work<F>) -> bool {
    let (outer, inner) = (&work.packet.key, &work.inner.key);
    // Errors go to the sender of what caused them.
    if !F::same(outer.destination, inner.source) {
        return false;
    }
    work.other = FlowKey {
        source: inner.destination,
        destination: inner.source,
        source_port: inner.destination_port,
        destination_port: inner.source_port,
        protocol: inner.protocol,
        side: outer.side,
        pad: 0,
    };
    flow::look(work, now()) && work.flow.action != Action::Pass as u8
}

/// What the functions that rewrite the packet inside return if it is spoilt; else what they change in a sum.
const SPOILT: i64 = -1;

/// What other addresses change in the sum over the packet inside.
#[inline(never)]
fn inner_difference<F: Family>(work: &Work<F>) -> i64 {
    let (inner, flow) = (&work.inner, &work.flow);
    let (old, new) = ((inner.key.source, inner.key.destination), (flow.destination, flow.source));
    i64::from(F::difference(old, new).sum())
}

/// Writes other addresses into the header of the packet inside. On a stack of its own: before Linux 6.6 the frames
/// that lead to this one are rounded up to 32 bytes each.
#[inline(never)]
fn rewrite_inner_header<F: Family>(skb: Skb, work: &Work<F>) -> i64 {
    match F::write_inner(skb, &work.inner, (work.flow.destination, work.flow.source)) {
        Some(difference) => i64::from(difference.sum()),
        None => SPOILT,
    }
}

/// Rewrites the packet inside. Returns what that changes in the sum over it.
#[inline(never)]
fn rewrite_inner<F: Family>(skb: Skb, work: &Work<F>) -> i64 {
    let (inner, flow) = (&work.inner, &work.flow);
    let protocol = inner.key.protocol;
    let old_ports = (inner.key.source_port.0, inner.key.destination_port.0);
    let new_ports = (flow.destination_port.0, flow.source_port.0);
    let header = rewrite_inner_header(skb, work);
    if header < 0 {
        return SPOILT;
    }
    let difference = Difference::of(header as u32).ports(old_ports, new_ports);
    if !write_ports::<F>(skb, inner.l4, protocol, (flow.destination_port, flow.source_port)) {
        return SPOILT;
    }
    // The checksum may be beyond what the error has of the packet, or left out.
    let place = inner.l4 + checksum_offset(protocol);
    let Some(checksum) = skb.load::<u16>(place) else { return i64::from(difference.sum()) };
    if protocol == IPPROTO_UDP && checksum == 0 {
        return i64::from(difference.sum());
    }
    let mut change = Difference::default().ports(old_ports, new_ports);
    if covers_addresses::<F>(protocol) {
        change = change.and(Difference::of(inner_difference(work) as u32));
    }
    let mut new_checksum = change.apply(checksum);
    if protocol == IPPROTO_UDP && new_checksum == 0 {
        new_checksum = 0xffff;
    }
    if !skb.store(place, &new_checksum, 0) {
        return SPOILT;
    }
    i64::from(difference.word(u32::from(checksum), u32::from(new_checksum)).sum())
}

/// Rewrites the error: the packet inside, the checksum, and the addresses outside, which are in [`Work::ends`].
#[inline(never)]
fn rewrite<F: Family>(skb: Skb, work: &Work<F>) -> bool {
    let difference = rewrite_inner(skb, work);
    if difference < 0 || !skb.untag() {
        return false;
    }
    let checksum = work.packet.l4 + checksum_offset(F::ICMP);
    if !write_header(skb, work) || !skb.update_checksum(checksum, difference as u32, 0) {
        return false;
    }
    if !F::ICMP_PSEUDO {
        return true;
    }
    let difference = F::difference((work.packet.key.source, work.packet.key.destination), work.ends);
    skb.update_checksum(checksum, difference.sum(), u64::from(BPF_F_PSEUDO_HDR))
}

/// An error that arrived at an uplink or from a pod.
#[inline(never)]
pub(crate) fn error<F: Family>(skb: Skb, work: &mut Work<F>) -> i32 {
    let (l3, side) = (work.packet.l4 + ICMP_HEADER, work.packet.key.side);
    if packet::read_inner(skb, work, l3, side) { translate_error(skb, work) } else { Act::STACK }
}

#[inline(never)]
fn translate_error<F: Family>(skb: Skb, work: &mut Work<F>) -> i32 {
    if !find_flow(work) {
        return Act::STACK;
    }
    if work.packet.ttl <= 1 {
        count_fallback(Reason::Ttl);
        return Act::STACK;
    }
    // As in `route::is_one_way`: the flow says nothing about who sends an error.
    if !F::is_routable(work.packet.key.source) {
        count_fallback(Reason::Route);
        return Act::STACK;
    }
    if work.packet.key.side == SIDE_UPLINK { to_pod(skb, work) } else { out(skb, work) }
}

#[inline(always)]
fn to_pod<F: Family>(skb: Skb, work: &mut Work<F>) -> i32 {
    work.ends = (work.packet.key.source, work.flow.destination);
    if !rewrite(skb, work) || work.packet.l3 == 0 && !skb.add_ethernet() {
        count(Counter::DropWrite);
        return Act::DROP;
    }
    count(Counter::Errors);
    count_packet(skb, Counter::ToPodPackets, Counter::ToPodBytes);
    skb.into_pod(work.flow.pod)
}

#[inline(always)]
fn out<F: Family>(skb: Skb, work: &mut Work<F>) -> i32 {
    if work.flow.pod != skb.interface() {
        return Act::STACK;
    }
    if !matches!(route::of_flow(skb, work), Verdict::Forward) || route::uplink(work).is_none() {
        count_fallback(Reason::Route);
        return Act::STACK;
    }
    work.ends = (work.flow.source, work.flow.destination);
    if !rewrite(skb, work) {
        count(Counter::DropWrite);
        return Act::DROP;
    }
    count(Counter::Errors);
    count_packet(skb, Counter::FromPodPackets, Counter::FromPodBytes);
    route::send(work)
}
