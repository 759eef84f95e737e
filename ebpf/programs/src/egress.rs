// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Packets that came out of the kernel's stack.

use slipway_ebpf_abi::{CLONE_SEEN, Counter, HAS_ETHERNET, Pending, SPENT};

use crate::family::Addr;
use crate::maps::{Maps, add};
use crate::memory::{clear, copy, same};
use crate::packet::{FIN, RST, SYN};
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
    let Some(record) = F::pending().get_ptr_mut(index) else { return Act::NEXT };
    copy(record, &raw mut scratch.record);
    // SAFETY: the element is aligned, and stays allocated.
    check(skb, scratch, unsafe { &mut *record }, flags)
}

/// True if the packet is the one that the record describes. The final verdict of another program's filter at ingress may
/// have set `tc_index` of another packet: a record is used once, and a reply comes out where its request arrived.
#[inline(always)]
fn is_recorded<F: Maps>(skb: Skb, scratch: &mut Scratch<F>, now: u32) -> bool {
    scratch.read_payload(skb);
    let record = &scratch.record;
    let [a, b, c] = record.proof;
    let [d, e, f] = scratch.proof;
    (a ^ d) | (b ^ e) | (c ^ f) == 0
        && record.key.protocol == scratch.key.protocol
        && record.length == scratch.above
        && record.kind != SPENT
        && record.key.interface != skb.interface()
        && now.wrapping_sub(record.tick) <= 1
}

/// True if the kernel's stack has changed the packet in no other way than the BPF programs change packets.
#[inline(always)]
fn is_alike<F: Maps>(scratch: &Scratch<F>) -> bool {
    let (packet, record) = (&scratch.packet, &scratch.record);
    record.ttl == u32::from(packet.ttl) + 1
        && record.tos >> 2 == u32::from(packet.tos >> 2)
        && packet.tcp & (SYN | FIN | RST) == 0
}

/// Handles a packet with a record.
#[inline(never)]
fn check<F: Maps>(skb: Skb, scratch: &mut Scratch<F>, place: &mut Pending<Addr<F>>, flags: u32) -> i32 {
    let now = now();
    if !is_recorded(skb, scratch, now) {
        add(Counter::Unlike, 1);
        return Act::NEXT;
    }
    place.kind = SPENT;
    let is_clone = scratch.record.kind == CLONE_SEEN;
    if is_alike(scratch) {
        learn(skb, scratch, flags, now);
    } else {
        add(Counter::Unlike, 1);
    }
    if is_clone { Act::DROP } else { Act::NEXT }
}

/// Writes or renews the entry of the packet's direction.
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
    let (length, dscp) = (scratch.packet.length, u32::from(scratch.packet.tos >> 2));
    clear(&raw mut scratch.entry);
    if let Some(entry) = F::carried().get_ptr_mut(&scratch.record.key) {
        // SAFETY: as in `ingress`.
        let entry = unsafe { &mut *entry };
        if same(&raw const entry.way, &raw const scratch.way) && entry.dscp == dscp {
            let is_stale = now.wrapping_sub(entry.checked) > 1;
            if is_stale || length > entry.fits {
                entry.fits = length;
            }
            entry.checked = now;
            entry.epoch = scratch.record.epoch;
            return Act::NEXT;
        }
        scratch.entry.queued = entry.queued;
        scratch.entry.packets = entry.packets;
        scratch.entry.bytes = entry.bytes;
        scratch.entry.bytes_at_tick = entry.bytes_at_tick;
        scratch.entry.bytes_before = entry.bytes_before;
    }
    let entry = &mut scratch.entry;
    entry.epoch = scratch.record.epoch;
    entry.checked = now;
    entry.asked = now;
    // The packet itself, and those before it. Numbers do not begin again: a clone may still arrive with one.
    entry.queued = entry.queued.wrapping_add(1);
    entry.fits = length;
    entry.dscp = dscp;
    entry.acknowledgment = scratch.acknowledgment;
    copy(&raw const scratch.way, &raw mut entry.way);
    // Replaces the whole element: a reader sees one way or the other. If the map is full of elements in use,
    // netfilter serves the flow.
    let _ = F::carried().insert(&scratch.record.key, &scratch.entry, 0);
    Act::NEXT
}
