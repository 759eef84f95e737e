// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Packets that arrive, from a pod or from outside.

use aya_ebpf::helpers::bpf_get_smp_processor_id;
use slipway_ebpf_abi::{CLONE, CLONE_SEEN, Carried, Counter, HAS_ETHERNET, IPPROTO_TCP, ORIGINAL, TO_PEER};

use crate::family::Addr;
use crate::maps::{self, Maps, Young, add};
use crate::memory::{copy, hash, same};
use crate::packet::{ACK, FIN, RST, SYN};
use crate::scratch::Scratch;
use crate::skb::{Act, Skb, now};
use crate::translate::translate;

/// Ticks for which the BPF programs carry a direction after a packet came out of the kernel's stack.
const CARRIED_FOR: u32 = 2;
/// The packet of a direction, without SYN, FIN and RST, that is the first to be checked for an entry. The others
/// are those whose number is a higher power of two, so that flows to the node itself cost little. A connection
/// of one request, or one datagram and its reply, gets no entry.
const FIRST_TCP: u32 = 8;
const FIRST_UDP: u32 = 2;
/// Maximum distance of a FIN or RST from the acknowledged sequence number, in addition to the bytes that may
/// be in flight: conntrack's MAXACKWINDOW.
const NEAR: u64 = 66_000;

/// The program for one family. `l3`: offset of the IP header; `index`: of the record with which the
/// packet arrived, or 0; `from_pod`: true at a pod's link.
#[inline(never)]
pub(crate) fn ingress<F: Maps>(skb: Skb, l3: u32, index: u32, from_pod: bool) -> i32 {
    let epoch = maps::epoch();
    if epoch == 0 {
        return Act::NEXT;
    }
    let Some(scratch) = F::memory() else { return Act::NEXT };
    if !scratch.read(skb, l3) {
        return Act::NEXT;
    }
    if index != 0 && is_clone(scratch, index, now()) {
        skb.set_record(index);
        return Act::NEXT;
    }
    let first = if scratch.key.protocol == u32::from(IPPROTO_TCP) { FIRST_TCP } else { FIRST_UDP };
    let young = Young::of(hash(&raw const scratch.key));
    if young.packets().is_some_and(|before| before + 1 < first) {
        if scratch.packet.tcp & (SYN | FIN | RST) == 0 {
            young.count();
        }
        return Act::NEXT;
    }
    let now = now();
    let Some(entry) = F::carried().get_ptr_mut(&scratch.key) else {
        if scratch.packet.tcp & (SYN | FIN | RST) == 0 {
            let number = young.count();
            if number >= first && number & number.wrapping_sub(1) == 0 {
                ask(skb, scratch, epoch, now, ORIGINAL);
            }
        }
        return Act::NEXT;
    };
    // SAFETY: the kernel frees no element while the program runs. It may reuse an evicted one: `carry` works on
    // a copy.
    let entry = unsafe { &mut *entry };
    if scratch.packet.tcp & (SYN | FIN | RST) != 0 {
        entry.queued = entry.queued.wrapping_add(1);
        return if from_pod { control_from_pod(scratch, entry) } else { control(scratch, entry) };
    }
    if from_pod && scratch.packet.tcp & ACK != 0 {
        entry.acknowledgment = scratch.acknowledgment;
    }
    let is_first = entry.asked != now;
    if is_first {
        let bytes = entry.bytes;
        entry.bytes_before =
            if now.wrapping_sub(entry.asked) == 1 { bytes.wrapping_sub(entry.bytes_at_tick) } else { 0 };
        entry.bytes_at_tick = bytes;
        entry.asked = now;
    }
    let fits = entry.epoch == epoch
        && scratch.packet.length <= entry.fits
        && u32::from(scratch.packet.tos >> 2) == entry.dscp;
    let is_fresh = now.wrapping_sub(entry.checked) <= CARRIED_FOR && scratch.packet.ttl > 1;
    if !fits || is_first && (!is_fresh || skb.is_decrypted()) {
        entry.queued = entry.queued.wrapping_add(1);
        if !fits {
            // The kernel collects a network card's packets after this hook. Those that follow wait there, too, until
            // one has come out, which restores the epoch.
            entry.epoch = 0;
        }
        ask(skb, scratch, epoch, now, ORIGINAL);
        return Act::NEXT;
    }
    // Packets of the kernel's stack reach a pod through the queue of its link. Until that has none of this flow, the
    // carried ones take it, too: they would overtake those.
    if entry.queued != 0 || !is_fresh {
        entry.queued = entry.queued.wrapping_add(1);
    }
    if !is_fresh {
        return Act::NEXT;
    }
    let leaves_soon = entry.way.flags & TO_PEER != 0
        && entry.queued != 0
        && entry.queued & entry.queued.wrapping_sub(1) == 0;
    if is_first || leaves_soon {
        // A clone is checked: the packets that are carried after this one would overtake it in the kernel's stack.
        // More often than once in a tick while the queue of a pod's link is used, to leave it soon.
        scratch.record.queued = entry.queued as u32;
        ask(skb, scratch, epoch, now, CLONE);
        if skb.record() != 0 {
            let _ = skb.clone_to_ingress();
            skb.set_record(0);
        }
    }
    let segments = skb.segments();
    entry.packets = entry.packets.wrapping_add(segments);
    entry.bytes = entry.bytes.wrapping_add(u64::from(skb.len()));
    copy(&raw const entry.way, &raw mut scratch.way);
    scratch.queued = entry.queued;
    add(Counter::Carried, segments);
    carry(skb, scratch)
}

/// True if the packet is the clone that a record describes. Another packet with the index of a record comes from
/// a pod that sets `tc_index`.
#[inline(always)]
fn is_clone<F: Maps>(scratch: &Scratch<F>, index: u32, now: u32) -> bool {
    let Some(record) = F::pending().get_ptr_mut(index) else { return false };
    // SAFETY: the element is aligned, and stays allocated.
    let record = unsafe { &mut *record };
    let is_clone = record.kind == CLONE
        && record.proof[0] == scratch.proof[0]
        && now.wrapping_sub(record.tick) <= 1
        && same(&raw const record.key, &raw const scratch.key);
    if is_clone {
        record.kind = CLONE_SEEN;
        leave_queue(scratch, record.queued);
    }
    is_clone
}

/// Ends the flow's use of the queue of a pod's link if the packet that followed this clone into the processor's queue,
/// the one with the number `last`, was the last to take it: it is next there, and all others have left it.
#[inline(never)]
fn leave_queue<F: Maps>(scratch: &Scratch<F>, last: u32) -> i32 {
    if last != 0
        && let Some(entry) = F::carried().get_ptr_mut(&scratch.key)
    {
        // SAFETY: as in `ingress`.
        let entry = unsafe { &mut *entry };
        if entry.queued as u32 == last {
            entry.queued = 0;
        }
    }
    Act::NEXT
}

/// Records the packet, for the kernel's stack to check it; not one that came in an IPsec tunnel: an entry would carry
/// the same packet without the encryption that a policy may demand (RFC 4301, section 5.2).
#[inline(never)]
fn ask<F: Maps>(skb: Skb, scratch: &mut Scratch<F>, epoch: u32, now: u32, kind: u32) -> i32 {
    if skb.is_decrypted() {
        return Act::NEXT;
    }
    // SAFETY: no arguments.
    let processor = unsafe { bpf_get_smp_processor_id() };
    let Some(index) = maps::next_record(processor) else { return Act::NEXT };
    let Some(place) = F::pending().get_ptr_mut(index) else { return Act::NEXT };
    scratch.read_payload(skb);
    let record = &mut scratch.record;
    copy(&raw const scratch.key, &raw mut record.key);
    record.epoch = epoch;
    record.tick = now;
    record.proof = scratch.proof;
    record.length = scratch.above;
    record.ttl = u32::from(scratch.packet.ttl);
    record.tos = u32::from(scratch.packet.tos);
    record.kind = kind;
    copy(&raw const scratch.record, place);
    skb.set_record(index);
    add(Counter::Asked, 1);
    Act::NEXT
}

/// Sets [`Scratch::reverse`].
#[inline(always)]
fn set_reverse<F: Maps>(scratch: &mut Scratch<F>, entry: &Carried<Addr<F>>) {
    let reverse = &mut scratch.reverse;
    reverse.source = entry.way.destination;
    reverse.destination = entry.way.source;
    reverse.source_port = entry.way.destination_port;
    reverse.destination_port = entry.way.source_port;
    reverse.interface = entry.way.interface;
    reverse.protocol = u32::from(IPPROTO_TCP);
}

/// Handles a SYN, FIN or RST of a pod. No other host can forge it, as its interface is part of the key. After a
/// FIN or RST the connection passes the kernel's stack, where conntrack sees its end.
#[inline(never)]
fn control_from_pod<F: Maps>(scratch: &mut Scratch<F>, entry: &mut Carried<Addr<F>>) -> i32 {
    if scratch.packet.tcp & ACK != 0 {
        entry.acknowledgment = scratch.acknowledgment;
    }
    entry.epoch = 0;
    if scratch.packet.tcp & SYN == 0 {
        set_reverse(scratch, entry);
        let _ = F::carried().remove(&scratch.reverse);
        let _ = F::carried().remove(&scratch.key);
    }
    Act::NEXT
}

/// Handles a SYN, FIN or RST from outside. Netfilter sees it, except a FIN or RST that the pod's acknowledgment
/// proves to be forged: conntrack's own window check does not know the packets that the BPF programs carried.
#[inline(never)]
fn control<F: Maps>(scratch: &mut Scratch<F>, entry: &mut Carried<Addr<F>>) -> i32 {
    // Netfilter checks the next packet, as a connection may begin or end here.
    entry.epoch = 0;
    // Only a pod's acknowledgment is out of reach for others.
    if scratch.packet.tcp & SYN != 0 || entry.way.flags & TO_PEER == 0 {
        return Act::NEXT;
    }
    set_reverse(scratch, entry);
    let Some(reverse) = F::carried().get_ptr_mut(&scratch.reverse) else { return Act::NEXT };
    // SAFETY: as in `ingress`.
    let reverse = unsafe { &mut *reverse };
    let in_flight = entry.bytes.wrapping_sub(entry.bytes_at_tick).wrapping_add(entry.bytes_before);
    // At most the largest window (RFC 7323, section 2.3).
    let limit = NEAR + if in_flight < 1 << 30 { in_flight } else { 1 << 30 };
    let distance = scratch.packet.sequence.wrapping_sub(reverse.acknowledgment).cast_signed();
    if u64::from(distance.unsigned_abs()) > limit {
        add(Counter::DroppedFar, 1);
        return Act::DROP;
    }
    reverse.epoch = 0;
    Act::NEXT
}

/// Sends the packet by [`Scratch::way`].
#[inline(never)]
fn carry<F: Maps>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    if !translate(skb, scratch) {
        add(Counter::DroppedWrite, 1);
        return Act::DROP;
    }
    let way = &scratch.way;
    // As a veth does with packets of the kernel's stack.
    let (mark, priority) = if way.flags & TO_PEER != 0 { (0, 0) } else { (way.mark, way.priority) };
    skb.set_mark(mark, priority);
    // The kernel removes the Ethernet header of a packet to an interface without one.
    if way.flags & HAS_ETHERNET != 0
        && (scratch.packet.l3 == 0 && !skb.add_ethernet() || !skb.store(0, &way.ethernet, 0))
    {
        add(Counter::DroppedWrite, 1);
        return Act::DROP;
    }
    if way.flags & TO_PEER != 0 && scratch.queued == 0 {
        skb.into_pod(way.interface)
    } else {
        skb.send_by(way.interface)
    }
}
