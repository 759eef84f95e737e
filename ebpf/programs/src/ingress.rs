// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Packets that arrive, from a pod or from outside.
//!
//! The functions follow the diagram at [`State`]: [`ingress`] finds out the state of the packet's direction,
//! and the other functions do what has to be done in that state.

use slipway_ebpf_abi::maps::held_bit;
use slipway_ebpf_abi::{
    Counter, Entry, FlowKey, HAS_ETHERNET, IPPROTO_TCP, Stage, State, Step, TO_PEER, first_candidate,
};

use crate::family::Addr;
use crate::maps::{self, Maps, Slot, add};
use crate::memory::{copy, same};
use crate::packet::SYN;
use crate::scratch::Scratch;
use crate::skb::{Act, Skb, now};
use crate::translation::translate;

/// The program at ingress for one IP family. `l3` is the offset of the IP header, `index` that of the record
/// with which the packet arrived, or 0, and `from_pod` is true at a pod's link.
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
    if maps::held() & held_bit(F::IS_V6, scratch.key.protocol) != 0 {
        return Act::NEXT;
    }
    let is_control = scratch.packet.is_control();
    let first = first_candidate(scratch.key.protocol);
    let slot = Slot::of(&raw const scratch.key);
    if scratch.key.protocol == u32::from(IPPROTO_TCP) && slot.has_no_entry() {
        if !is_control && candidate(slot, first) == Step::Note {
            note(skb, scratch, epoch, now(), Stage::Original);
        }
        return Act::NEXT;
    }
    // A direction with an entry looks young if its count was made to begin again. That must not hide the
    // entry from the segments that end a connection, so these do not take this shortcut.
    if !is_control && slot.state(first) == State::Young {
        slot.count();
        return Act::NEXT;
    }
    let now = now();
    let Some(entry) = F::entries().get_ptr_mut(&scratch.key) else {
        if !is_control && candidate(slot, first) == Step::Note {
            note(skb, scratch, epoch, now, Stage::Original);
        }
        return Act::NEXT;
    };
    // SAFETY: the kernel frees no element while the program runs. It may reuse an evicted one for another
    // flow, so `send` works on a copy of the way.
    let entry = unsafe { &mut *entry };
    if is_control {
        entry.queue();
        return if from_pod { control_from_pod(scratch, entry) } else { control(scratch, entry) };
    }
    if from_pod && scratch.packet.is_acknowledgment() {
        entry.acknowledgment = scratch.acknowledgment;
    }
    match entry.arrive(scratch.packet.arrival(), epoch, now, || skb.is_decrypted()) {
        Step::Pass => return Act::NEXT,
        Step::Note => return note(skb, scratch, epoch, now, Stage::Original),
        Step::Sample => sample(skb, scratch, entry.queued, epoch, now),
        Step::Carry => {}
    }
    carry(skb, scratch, entry)
}

/// Counts a packet of a direction that has no entry, and returns what to do with it.
#[inline(always)]
fn candidate(slot: Slot, first: u32) -> Step {
    slot.count().map_or(Step::Pass, |count| count.step(first))
}

/// Returns whether the packet is the clone that a record describes. If it is, this also moves the record to
/// [`Stage::Returned`], and the direction may leave the queue of the pod's link.
#[inline(always)]
fn is_clone<F: Maps>(scratch: &Scratch<F>, index: u32, now: u32) -> bool {
    let Some(record) = F::records().get_ptr_mut(index) else { return false };
    // SAFETY: the element is aligned, and stays allocated.
    let record = unsafe { &mut *record };
    let is_clone = record.is_clone([scratch.proof[0], scratch.proof[1]], now)
        && same(&raw const record.key, &raw const scratch.key);
    if is_clone {
        record.stage = Stage::Returned;
        leave_queue(scratch, record.queued);
    }
    is_clone
}

/// Lets the direction leave the queue of a pod's link, unless a packet has taken the queue after the one with
/// the number `last`, which follows this clone there.
#[inline(never)]
fn leave_queue<F: Maps>(scratch: &Scratch<F>, last: u32) -> i32 {
    if last != 0
        && let Some(entry) = F::entries().get_ptr_mut(&scratch.key)
    {
        // SAFETY: as in `ingress`.
        unsafe { &mut *entry }.leave_queue(last);
    }
    Act::NEXT
}

/// Notes the packet, which the kernel's stack then checks. A packet that came through IPsec is not noted,
/// because its entry would also carry the same packet without encryption, which a policy may demand (RFC
/// 4301, section 5.2).
#[inline(never)]
fn note<F: Maps>(skb: Skb, scratch: &mut Scratch<F>, epoch: u32, now: u32, stage: Stage) -> i32 {
    if skb.is_decrypted() {
        return Act::NEXT;
    }
    let Some(index) = maps::next_record() else { return Act::NEXT };
    let Some(place) = F::records().get_ptr_mut(index) else { return Act::NEXT };
    // SAFETY: the element is aligned, and stays allocated.
    if unsafe { &*place }.is_in_use(now) {
        return Act::NEXT;
    }
    scratch.read_payload(skb);
    let record = &mut scratch.record;
    copy(&raw const scratch.key, &raw mut record.key);
    record.epoch = epoch;
    record.tick = now;
    record.proof = scratch.proof;
    record.length = scratch.above;
    record.ttl = u32::from(scratch.packet.ttl);
    record.tos = u32::from(scratch.packet.tos);
    record.stage = stage;
    record.came_out = 0;
    copy(&raw const scratch.record, place);
    skb.set_record(index);
    add(Counter::Asked, 1);
    Act::NEXT
}

/// Sends a clone of a carried packet through the kernel's stack. The packet itself is carried, because in the
/// stack it would be overtaken by packets that are carried after it.
#[inline(always)]
fn sample<F: Maps>(skb: Skb, scratch: &mut Scratch<F>, queued: u64, epoch: u32, now: u32) {
    scratch.record.queued = queued as u32;
    note(skb, scratch, epoch, now, Stage::Clone);
    if skb.record() != 0 {
        let _ = skb.clone_to_ingress();
        skb.set_record(0);
    }
}

/// Sets the key of the reverse direction. Its packets have the translated addresses and ports, and arrive on
/// the interface through which the packets of this direction leave.
#[inline(always)]
fn set_reverse<F: Maps>(scratch: &mut Scratch<F>, entry: &Entry<Addr<F>>) {
    let reverse = &mut scratch.reverse;
    reverse.source = entry.way.destination;
    reverse.destination = entry.way.source;
    reverse.source_port = entry.way.destination_port;
    reverse.destination_port = entry.way.source_port;
    reverse.interface = entry.way.interface;
    reverse.protocol = u32::from(IPPROTO_TCP);
}

/// Handles a SYN, FIN or RST from a pod. No other host can forge it, because the interface is part of the
/// key. A FIN or RST removes the entries of both directions, so that the rest of the connection passes the
/// kernel's stack, where conntrack sees its end.
#[inline(never)]
fn control_from_pod<F: Maps>(scratch: &mut Scratch<F>, entry: &mut Entry<Addr<F>>) -> i32 {
    if scratch.packet.is_acknowledgment() {
        entry.acknowledgment = scratch.acknowledgment;
    }
    entry.suspend();
    if scratch.packet.tcp & SYN == 0 {
        set_reverse(scratch, entry);
        remove::<F>(&scratch.reverse);
        remove::<F>(&scratch.key);
    }
    Act::NEXT
}

/// Removes an entry of a TCP connection, and only then lowers its slot's number of entries.
#[inline(always)]
fn remove<F: Maps>(key: &FlowKey<Addr<F>>) {
    if F::entries().remove(key).is_ok() {
        Slot::of(key).add_entries(-1);
    }
}

/// Handles a SYN, FIN or RST from outside. The kernel's stack gets it, unless it is a FIN or RST that the
/// pod's acknowledgment proves to be forged. Conntrack's own window check cannot find that out, because it
/// does not know the packets that the BPF programs carried.
#[inline(never)]
fn control<F: Maps>(scratch: &mut Scratch<F>, entry: &mut Entry<Addr<F>>) -> i32 {
    // A connection may begin or end here, so netfilter has to check the packets that follow.
    entry.suspend();
    // Only the acknowledgment of a pod proves anything, because nobody else can send packets on its link.
    if scratch.packet.tcp & SYN != 0 || entry.way.flags & TO_PEER == 0 {
        return Act::NEXT;
    }
    set_reverse(scratch, entry);
    let Some(reverse) = F::entries().get_ptr_mut(&scratch.reverse) else { return Act::NEXT };
    // SAFETY: as in `ingress`.
    let reverse = unsafe { &mut *reverse };
    if entry.is_far(scratch.packet.sequence, reverse.acknowledgment) {
        add(Counter::DroppedFar, 1);
        return Act::DROP;
    }
    reverse.suspend();
    Act::NEXT
}

/// Counts the packet and sends it as its entry says.
#[inline(always)]
fn carry<F: Maps>(skb: Skb, scratch: &mut Scratch<F>, entry: &mut Entry<Addr<F>>) -> i32 {
    let segments = skb.segments();
    entry.packets = entry.packets.wrapping_add(segments);
    entry.bytes = entry.bytes.wrapping_add(u64::from(skb.len()));
    copy(&raw const entry.way, &raw mut scratch.way);
    scratch.queued = entry.queued;
    add(Counter::Carried, segments);
    send(skb, scratch)
}

/// Sends the packet as [`Scratch::way`] says.
#[inline(never)]
fn send<F: Maps>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    if !translate(skb, scratch) {
        add(Counter::DroppedWrite, 1);
        return Act::DROP;
    }
    let way = &scratch.way;
    // A veth also clears both when a packet of the kernel's stack enters the pod's namespace.
    let (mark, priority) = if way.flags & TO_PEER != 0 { (0, 0) } else { (way.mark, way.priority) };
    skb.set_mark(mark, priority);
    // The kernel removes the Ethernet header of a packet that is redirected to an interface without one.
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
