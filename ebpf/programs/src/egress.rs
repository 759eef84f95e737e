// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Packets that come out of the kernel's stack.
//!
//! A noted packet that comes out takes its record to the last stage (the diagram at [`Stage`]), and makes,
//! confirms or bars the entry of its direction (the diagram at [`State`](slipway_ebpf_abi::State)).

use aya_ebpf::bindings::{BPF_EXIST, BPF_NOEXIST};
use slipway_ebpf_abi::maps::{HELD_PORTS, held_port};
use slipway_ebpf_abi::{
    Counter, Departure, Entry, HAS_ETHERNET, IPPROTO_TCP, IPPROTO_UDP, Outcome, Record, Stage, TO_PEER, Way,
};

use crate::family::{Addr, Family};
use crate::maps::{self, Maps, Slot, add};
use crate::memory::{clear, copy, same};
use crate::scratch::Scratch;
use crate::skb::{Act, Skb, now};

/// The program at egress for one IP family. `l3` is the offset of the IP header, and `flags` are those of a
/// way through this interface.
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

/// Compares the packet with its record, and learns from it if it is the recorded one.
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
    let outcome = scratch.record.outcome(&departure, now);
    // A bridge may flood a frame to the links of all containers, but only one of them is meant. For the
    // others, `read_way` returns false.
    if outcome == Outcome::Unknown || !read_way(skb, scratch, flags) {
        add(Counter::Unlike, 1);
        return Act::NEXT;
    }
    place.came_out = 1;
    let verdict = if is_carried_there(scratch) { Act::DROP } else { Act::NEXT };
    let packet = &scratch.packet;
    if outcome == Outcome::Again {
        add(Counter::Copied, 1);
        bar(scratch, now);
    } else if outcome == Outcome::Out
        && scratch.record.is_reproducible(packet.ttl, packet.tos)
        && !packet.is_control()
    {
        learn(scratch, verdict, now);
    } else {
        add(Counter::Unlike, 1);
    }
    verdict
}

/// Sets [`Scratch::way`] to the way of the packet. Returns false if nothing may be learnt from it, because
/// the frame is for another container than the one at this link, or because the address of that one is
/// unknown.
#[inline(never)]
fn read_way<F: Maps>(skb: Skb, scratch: &mut Scratch<F>, flags: u32) -> bool {
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
    if flags & HAS_ETHERNET == 0 {
        return true;
    }
    // Packets that are redirected to the peer need the Ethernet header as well, because the pod may bridge
    // them.
    let Some(ethernet) = skb.load(0) else { return false };
    way.ethernet = ethernet;
    let Some(container) = maps::container(way.interface) else {
        // As long as the address of the container at a link is unknown, a frame that was flooded cannot be
        // told from one that is meant for it.
        return maps::is_uplink(way.interface);
    };
    if container.takes_queue != 0 {
        way.flags &= !TO_PEER;
    }
    let [a, b, c, d] = way.ethernet[0].to_ne_bytes();
    let [e, f, ..] = way.ethernet[1].to_ne_bytes();
    let own = container.address;
    (a ^ own[0]) | (b ^ own[1]) | (c ^ own[2]) | (d ^ own[3]) | (e ^ own[4]) | (f ^ own[5]) == 0
}

/// True for a clone that came out where the packet itself was carried to, or whose entry has been removed.
/// The caller drops it, because the packet itself has arrived already. A copy that a rule sends elsewhere
/// goes on.
#[inline(never)]
fn is_carried_there<F: Maps>(scratch: &mut Scratch<F>) -> bool {
    if scratch.record.stage != Stage::Returned {
        return false;
    }
    let Some(entry) = F::entries().get_ptr_mut(&scratch.record.key) else { return true };
    // SAFETY: as in `ingress`.
    let entry = unsafe { &mut *entry };
    is_same_place::<F>(&entry.way, &scratch.way)
}

/// True if two ways lead to the same place, that is, to the same interface, Ethernet destination, addresses
/// and ports.
#[inline(always)]
fn is_same_place<F: Family>(one: &Way<Addr<F>>, other: &Way<Addr<F>>) -> bool {
    let mut difference = one.interface ^ other.interface;
    difference |= (one.ethernet[0] ^ other.ethernet[0]) | (one.ethernet[1] ^ other.ethernet[1]);
    difference |= u32::from(one.source_port.0 ^ other.source_port.0);
    difference |= u32::from(one.destination_port.0 ^ other.destination_port.0);
    difference == 0 && F::same(one.source, other.source) && F::same(one.destination, other.destination)
}

/// Bars the direction, because its packet came out twice.
#[inline(never)]
fn bar<F: Maps>(scratch: &mut Scratch<F>, now: u32) -> i32 {
    if let Some(entry) = F::entries().get_ptr_mut(&scratch.record.key) {
        // SAFETY: as in `ingress`.
        unsafe { &mut *entry }.bar(now);
        return Act::NEXT;
    }
    clear(&raw mut scratch.entry);
    scratch.entry.bar(now);
    scratch.entry.asked = now;
    insert(scratch)
}

/// Inserts [`Scratch::entry`] for a direction that has none. If the map is full and the kernel finds no
/// element to evict, the flow stays with netfilter.
#[inline(never)]
fn insert<F: Maps>(scratch: &Scratch<F>) -> i32 {
    let key = &scratch.record.key;
    let is_counted = key.protocol == u32::from(IPPROTO_TCP);
    let slot = Slot::of(key);
    if is_counted {
        slot.add_entries(1);
    }
    // The insertion also fails if another processor has inserted the entry meanwhile and counted it.
    if F::entries().insert(key, &scratch.entry, u64::from(BPF_NOEXIST)).is_err() && is_counted {
        slot.add_entries(-1);
    }
    Act::NEXT
}

/// True if one of the flow's ports, before or after translation, is that of a rule that decides about each
/// packet.
#[inline(always)]
fn has_held_port<F: Maps>(scratch: &Scratch<F>) -> bool {
    if maps::held() & HELD_PORTS == 0 {
        return false;
    }
    let (key, way) = (&scratch.record.key, &scratch.way);
    maps::is_held(held_port(key.protocol, key.source_port))
        || maps::is_held(held_port(key.protocol, key.destination_port))
        || maps::is_held(held_port(key.protocol, way.source_port))
        || maps::is_held(held_port(key.protocol, way.destination_port))
}

/// True if both ends of a datagram were translated. Then none of its addresses and ports shows that it is the
/// noted one, so no entry is made.
#[inline(always)]
fn is_wholly_translated<F: Maps>(scratch: &Scratch<F>) -> bool {
    let (key, way) = (&scratch.record.key, &scratch.way);
    key.protocol == u32::from(IPPROTO_UDP)
        && (key.source_port.0 != way.source_port.0 || !F::same(key.source, way.source))
        && (key.destination_port.0 != way.destination_port.0 || !F::same(key.destination, way.destination))
}

/// Makes, replaces or confirms the entry of the packet's direction. `verdict` is the verdict on the packet.
#[inline(never)]
fn learn<F: Maps>(scratch: &mut Scratch<F>, verdict: i32, now: u32) -> i32 {
    add(Counter::Checked, 1);
    let packet = scratch.packet.arrival();
    clear(&raw mut scratch.entry);
    let mut is_new = true;
    if let Some(entry) = F::entries().get_ptr_mut(&scratch.record.key) {
        // SAFETY: as in `ingress`.
        let entry = unsafe { &mut *entry };
        if has_held_port(scratch) || entry.is_barred(now) {
            // The direction stays barred until the rule has gone and no copies have come out for a while.
            if !entry.is_barred(now) {
                entry.bar(now);
            }
            return Act::NEXT;
        }
        if same(&raw const entry.way, &raw const scratch.way) && entry.dscp == packet.dscp {
            entry.confirm(packet.length, scratch.record.epoch, now);
            return Act::NEXT;
        }
        if scratch.record.stage == Stage::Returned && verdict != Act::DROP {
            // The clone came out elsewhere and may be a copy that a rule has made. The next packets are left
            // to the kernel's stack, so that they show their way themselves.
            entry.is_trusted = 0;
            return Act::NEXT;
        }
        keep_numbers::<F>(&mut scratch.entry, entry);
        is_new = false;
    } else if has_held_port(scratch) || is_wholly_translated(scratch) {
        return Act::NEXT;
    }
    let entry = &mut scratch.entry;
    entry.begin(packet, scratch.record.epoch, now);
    entry.acknowledgment = scratch.acknowledgment;
    copy(&raw const scratch.way, &raw mut entry.way);
    if is_new {
        return insert(scratch);
    }
    // This replaces the whole element, so that a reader sees either the old way or the new one. If the entry
    // was removed meanwhile, the insertion fails and the flow begins again.
    let _ = F::entries().insert(&scratch.record.key, &scratch.entry, u64::from(BPF_EXIST));
    Act::NEXT
}

/// Copies the numbers that continue when the way changes.
#[inline(always)]
fn keep_numbers<F: Family>(new: &mut Entry<Addr<F>>, former: &Entry<Addr<F>>) {
    new.queued = former.queued;
    new.packets = former.packets;
    new.bytes = former.bytes;
    new.bytes_at_second = former.bytes_at_second;
    new.bytes_before = former.bytes_before;
}
