// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Packets that came out of the kernel's stack.
//!
//! A packet with a record ends the record's life (the diagram at [`Stage`]), and begins or renews the life of its
//! direction of the flow (the diagram at [`State`](slipway_ebpf_abi::State)).

use slipway_ebpf_abi::{Counter, Departure, HAS_ETHERNET, Record, Stage};

use crate::family::Addr;
use crate::maps::{Maps, add};
use crate::memory::{clear, copy, same};
use crate::scratch::Scratch;
use crate::skb::{Act, Skb, now};

/// The program for one family. `l3`: offset of the IP header; `flags`: of the way by this interface.
#[inline(never)]
pub(crate) fn egress<F: Maps>(skb: Skb, index: u32, l3: u32, flags: u32) -> i32 {
    let Some(scratch) = F::memory() else { return Act::NEXT };
    if !scratch.read(skb, l3) {
        add(Counter::Unlike, 1);
        return Act::NEXT;
    }
    let Some(record) = F::records().get_ptr_mut(index) else { return Act::NEXT };
    copy(record, &raw mut scratch.record);
    // SAFETY: the element is aligned, and stays allocated.
    check(skb, scratch, unsafe { &mut *record }, flags)
}

/// Handles a packet with a record.
#[inline(never)]
fn check<F: Maps>(skb: Skb, scratch: &mut Scratch<F>, place: &mut Record<Addr<F>>, flags: u32) -> i32 {
    let now = now();
    scratch.read_payload(skb);
    let departure = Departure {
        proof: scratch.proof,
        protocol: scratch.key.protocol,
        length: scratch.above,
        interface: skb.interface(),
    };
    if !scratch.record.is_of(&departure, now) {
        add(Counter::Unlike, 1);
        return Act::NEXT;
    }
    place.stage = Stage::Spent;
    let is_clone = scratch.record.stage == Stage::Returned;
    let packet = &scratch.packet;
    if scratch.record.is_reproducible(packet.ttl, packet.tos) && !packet.is_control() {
        learn(skb, scratch, flags, now);
    } else {
        add(Counter::Unlike, 1);
    }
    if is_clone { Act::DROP } else { Act::NEXT }
}

/// Writes or confirms the entry of the packet's direction.
#[inline(never)]
fn learn<F: Maps>(skb: Skb, scratch: &mut Scratch<F>, flags: u32, now: u32) -> i32 {
    let way = &mut scratch.way;
    way.source = scratch.key.source;
    way.destination = scratch.key.destination;
    way.source_port = scratch.key.source_port;
    way.destination_port = scratch.key.destination_port;
    way.interface = skb.interface();
    way.mark = skb.mark();
    way.priority = skb.priority();
    way.flags = flags;
    way.ethernet = [0; 3];
    if flags & HAS_ETHERNET != 0 {
        // A packet for the network stack of the peer needs the header, too: the pod may bridge it.
        let Some(ethernet) = skb.load(0) else { return Act::NEXT };
        way.ethernet = ethernet;
    }
    add(Counter::Checked, 1);
    let packet = scratch.packet.arrival();
    clear(&raw mut scratch.entry);
    if let Some(entry) = F::entries().get_ptr_mut(&scratch.record.key) {
        // SAFETY: as in `ingress`.
        let entry = unsafe { &mut *entry };
        if same(&raw const entry.way, &raw const scratch.way) && entry.dscp == packet.dscp {
            entry.confirm(packet.length, scratch.record.epoch, now);
            return Act::NEXT;
        }
        scratch.entry.queued = entry.queued;
        scratch.entry.packets = entry.packets;
        scratch.entry.bytes = entry.bytes;
        scratch.entry.bytes_at_tick = entry.bytes_at_tick;
        scratch.entry.bytes_before = entry.bytes_before;
    }
    let entry = &mut scratch.entry;
    entry.begin(packet, scratch.record.epoch, now);
    entry.acknowledgment = scratch.acknowledgment;
    copy(&raw const scratch.way, &raw mut entry.way);
    // Replaces the whole element: a reader sees one way or the other. If the map is full of elements in use,
    // netfilter serves the flow.
    let _ = F::entries().insert(&scratch.record.key, &scratch.entry, 0);
    Act::NEXT
}
