// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Flows: looking them up, keeping both directions consistent, and claiming keys for new ones.

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use slipway_ebpf_abi::{
    Counter, Flow, FlowKey, IPPROTO_TCP, IPPROTO_UDP, LEFT, ONE_SIDED, ORIGINAL, STATES, State,
};

use crate::config::{config, count};
use crate::family::{Addr, Family, Flows};
use crate::maps::{KEY_LOCKS, PODS};
use crate::memory::{copy, mix};
use crate::packet::{Fragment, Kind, Packet};
use crate::scratch::Scratch;
use crate::skb::Skb;
use crate::tcp_state;

/// An element found for the packet. Its value is in [`Scratch::flow`].
pub(crate) struct Hit<F: Family> {
    /// The element in the map.
    entry: *mut Flow<Addr<F>>,
    /// True if it is in the map of half-open flows.
    half_open: bool,
}

/// The result of claiming a key for a new flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The new flow has it.
    Taken,
    /// Another live flow has it.
    Busy,
    /// The map is full.
    Full,
}

/// True if `found` is the reverse direction of the one with the key `own`.
#[inline(always)]
fn is_reverse_of<F: Family>(found: &Flow<Addr<F>>, own: &FlowKey<Addr<F>>) -> bool {
    found.flags & ONE_SIDED == 0
        && F::same(found.destination, own.source)
        && F::same(found.source, own.destination)
        && found.destination_port.0 == own.source_port.0
        && found.source_port.0 == own.destination_port.0
}

/// True if the pod's interface has this generation, and its traffic is not left to the kernel's stack.
#[inline(always)]
pub(crate) fn is_pod(pod: u32, generation: u32) -> bool {
    // SAFETY: two words of an element are read, once each.
    unsafe { PODS.get(pod) }.is_some_and(|pod| pod.generation == generation && pod.flags & LEFT == 0)
}

/// The fields on which a flow's life depends. Copied, so that the verifier need not track the map.
struct Life {
    state: u8,
    last_seen: u32,
    pod: u32,
    generation: u32,
}

impl Life {
    #[inline(always)]
    fn of<A: Copy>(flow: &Flow<A>) -> Self {
        Self {
            state: flow.timeout_state(),
            last_seen: flow.last_seen,
            pod: flow.pod,
            generation: flow.generation,
        }
    }

    #[inline(always)]
    fn is_live(&self, now: u32) -> bool {
        let Some(timeout) =
            config().and_then(|config| config.timeouts.get(usize::from(self.state) & (STATES - 1)))
        else {
            return false;
        };
        // `now` may be a little older than what another processor has stored.
        let age = now.wrapping_sub(self.last_seen);
        let over = age > *timeout && age < u32::MAX / 2;
        !over && (self.pod == 0 || is_pod(self.pod, self.generation))
    }
}

/// True if the flow's pod exists and the flow has not timed out.
#[inline(always)]
pub(crate) fn is_live<A: Copy>(flow: &Flow<A>, now: u32) -> bool {
    Life::of(flow).is_live(now)
}

/// Removes both directions of the flow. Another flow may have claimed the key of the reverse direction after
/// this flow died: that one stays.
#[inline(never)]
pub(crate) fn remove<F: Family>(scratch: &mut Scratch<F>, now: u32) -> u32 {
    scratch.set_reverse_key();
    // An error means that it is already gone.
    let _ = F::flows().remove(&scratch.packet.key);
    let _ = F::half_open().remove(&scratch.packet.key);
    if scratch.flow.flags & ONE_SIDED == 0 {
        free_reverse_key(scratch, now);
    }
    0
}

/// True if there is an element with the key [`Scratch::reverse_key`].
#[inline(always)]
fn is_occupied<F: Family>(scratch: &Scratch<F>) -> bool {
    // SAFETY: the values are not read.
    unsafe {
        F::half_open().get(&scratch.reverse_key).is_some() || F::flows().get(&scratch.reverse_key).is_some()
    }
}

/// Removes the element with the key [`Scratch::reverse_key`], unless it is of another live flow: then returns
/// 0. The kernel removes by key only: of two processors that see the same dead element, the second would
/// remove what the first has inserted instead. So they lock the key, and a processor that does not get the
/// lock returns 0.
#[inline(never)]
fn free_reverse_key<F: Family>(scratch: &Scratch<F>, now: u32) -> u32 {
    let lock = mix(&raw const scratch.reverse_key);
    if KEY_LOCKS.insert(&lock, &1, u64::from(BPF_NOEXIST)).is_err() {
        return 0;
    }
    let is_free =
        free_reverse_key_in(scratch, F::half_open(), now) && free_reverse_key_in(scratch, F::flows(), now);
    let _ = KEY_LOCKS.remove(&lock);
    u32::from(is_free)
}

#[inline(always)]
fn free_reverse_key_in<F: Family>(scratch: &Scratch<F>, map: &Flows<F>, now: u32) -> bool {
    // SAFETY: as in `find`.
    let Some(found) = (unsafe { map.get(&scratch.reverse_key) }) else { return true };
    if is_live(found, now) && !is_reverse_of::<F>(found, &scratch.packet.key) {
        return false;
    }
    let _ = map.remove(&scratch.reverse_key);
    true
}

/// Finds the packet's direction of a live flow. Removes a dead flow, and one that is over if the packet
/// begins another connection.
#[inline(always)]
pub(crate) fn find<F: Family>(scratch: &mut Scratch<F>, now: u32) -> Option<Hit<F>> {
    let (entry, half_open) = match F::flows().get_ptr_mut(&scratch.packet.key) {
        Some(entry) => (entry, false),
        None => (F::half_open().get_ptr_mut(&scratch.packet.key)?, true),
    };
    // The kernel keeps an element's memory while the program runs, but may reuse it for another key: so
    // everything is copied at once.
    copy(entry, &raw mut scratch.flow);
    let renewed = scratch.packet.kind == Kind::Opening
        && scratch.packet.key.protocol == IPPROTO_TCP
        && tcp_state::is_over(scratch.flow.state);
    if renewed || !is_live(&scratch.flow, now) {
        remove(scratch, now);
        return None;
    }
    Some(Hit { entry, half_open })
}

/// Copies the element with the key [`Scratch::reverse_key`] to [`Scratch::flow`]. Returns true if its flow is
/// live.
#[inline(always)]
pub(crate) fn find_reverse<F: Family>(scratch: &mut Scratch<F>, now: u32) -> bool {
    let entry = match F::flows().get_ptr_mut(&scratch.reverse_key) {
        Some(entry) => entry,
        None => match F::half_open().get_ptr_mut(&scratch.reverse_key) {
            Some(entry) => entry,
            None => return false,
        },
    };
    copy(entry, &raw mut scratch.flow);
    is_live(&scratch.flow, now)
}

impl<F: Family> Hit<F> {
    /// Records a packet of this direction.
    #[inline(always)]
    pub(crate) fn record(&self, skb: Skb, scratch: &mut Scratch<F>, now: u32) {
        let state = next_state(&scratch.flow, &scratch.packet, now);
        record_sequence(scratch);
        scratch.flow.packets = scratch.flow.packets.wrapping_add(skb.segments());
        scratch.flow.bytes = scratch.flow.bytes.wrapping_add(u64::from(skb.len()));
        // SAFETY: as in `find`. If two processors handle the same flow, a packet may not be counted; network
        // cards assign a flow to one processor.
        unsafe {
            (*self.entry).packets = scratch.flow.packets;
            (*self.entry).bytes = scratch.flow.bytes;
            (*self.entry).mark = scratch.flow.mark;
        }
        let established = self.half_open && is_established(state, scratch.packet.key.protocol);
        if state == scratch.flow.state && now == scratch.flow.last_seen && !established {
            return;
        }
        // SAFETY: as above.
        unsafe {
            (*self.entry).state = state;
            (*self.entry).last_seen = now;
        }
        // For the reverse direction and for the established flows. Not read from the element, which may be
        // another flow's now.
        scratch.flow.state = state;
        scratch.flow.last_seen = now;
        if established {
            promote(scratch);
        } else if scratch.flow.flags & ONE_SIDED == 0 {
            update_reverse(scratch, self.half_open);
        }
    }
}

#[inline(always)]
fn next_state<F: Family>(flow: &Flow<Addr<F>>, packet: &Packet<F>, now: u32) -> u8 {
    let original = flow.flags & ORIGINAL != 0;
    match packet.key.protocol {
        IPPROTO_TCP if packet.fragment == Fragment::Later || is_stray_reset(flow, packet) => flow.state,
        IPPROTO_TCP => tcp_state::next(flow.state, original, packet.tcp),
        IPPROTO_UDP => next_state_of_udp(flow, original, now),
        _ => flow.state,
    }
}

/// Minimum age in ticks of a UDP flow that becomes a stream: two seconds, as in conntrack.
const STREAM_AFTER: u32 = 2;

#[inline(always)]
fn next_state_of_udp<A: Copy>(flow: &Flow<A>, original: bool, now: u32) -> u8 {
    match flow.state {
        s if s == State::Unreplied as u8 && !original => State::Replied as u8,
        s if s == State::Replied as u8 && original && now.wrapping_sub(flow.mark) > STREAM_AFTER => {
            State::Stream as u8
        }
        other => other,
    }
}

/// True for a reset whose sequence number is far from the sender's, which its receiver ignores.
#[inline(always)]
fn is_stray_reset<F: Family>(flow: &Flow<Addr<F>>, packet: &Packet<F>) -> bool {
    packet.tcp & tcp_state::RST != 0 && flow.mark != 0 && !tcp_state::is_near(packet.sequence, flow.mark)
}

/// Records the sender's sequence number. One far away is ignored: otherwise an attacker who knows only the
/// ends of a connection could prepare a reset.
#[inline(always)]
fn record_sequence<F: Family>(scratch: &mut Scratch<F>) {
    let packet = &scratch.packet;
    let has_sequence = packet.key.protocol == IPPROTO_TCP && packet.fragment != Fragment::Later;
    if has_sequence && (scratch.flow.mark == 0 || tcp_state::is_near(packet.sequence, scratch.flow.mark)) {
        scratch.flow.mark = packet.sequence;
    }
}

#[inline(always)]
fn is_established(state: u8, protocol: u8) -> bool {
    if protocol == IPPROTO_TCP { tcp_state::is_established(state) } else { state == State::Stream as u8 }
}

/// Updates the reverse direction's state and time, or restores it if it was evicted.
#[inline(never)]
fn update_reverse<F: Family>(scratch: &mut Scratch<F>, half_open: bool) -> u32 {
    let map = if half_open { F::half_open() } else { F::flows() };
    scratch.set_reverse_key();
    match map.get_ptr_mut(&scratch.reverse_key) {
        // SAFETY: the element is in the map, or was a moment ago; its memory is not freed while a program
        // runs.
        Some(other) => unsafe {
            if is_reverse_of::<F>(&*other, &scratch.packet.key) {
                (*other).state = scratch.flow.state;
                (*other).last_seen = scratch.flow.last_seen;
            } else {
                // The key was evicted, and another flow has it now: this flow ends.
                let _ = map.remove(&scratch.packet.key);
            }
        },
        None => {
            scratch.set_reverse();
            if map.insert(&scratch.reverse_key, &scratch.reverse, u64::from(BPF_NOEXIST)).is_ok() {
                count(Counter::Restored);
            }
        }
    }
    0
}

/// Moves both directions to the established flows. Inserts before it removes, so that one of the maps always
/// has them.
#[inline(never)]
fn promote<F: Family>(scratch: &mut Scratch<F>) -> u32 {
    if F::flows().insert(&scratch.packet.key, &scratch.flow, u64::from(BPF_ANY)).is_err() {
        return 0;
    }
    if scratch.flow.flags & ONE_SIDED == 0 {
        scratch.set_reverse_key();
        scratch.set_reverse();
        // SAFETY: as in `find`.
        if let Some(half_open) = unsafe { F::half_open().get(&scratch.reverse_key) } {
            scratch.reverse.packets = half_open.packets;
            scratch.reverse.bytes = half_open.bytes;
            scratch.reverse.mark = half_open.mark;
        }
        if F::flows().insert(&scratch.reverse_key, &scratch.reverse, u64::from(BPF_ANY)).is_err() {
            let _ = F::flows().remove(&scratch.packet.key);
            return 0;
        }
        let _ = F::half_open().remove(&scratch.reverse_key);
    }
    let _ = F::half_open().remove(&scratch.packet.key);
    count(Counter::Established);
    0
}

/// True if a live flow has the key [`Scratch::reverse_key`].
#[inline(never)]
pub(crate) fn is_taken<F: Family>(scratch: &Scratch<F>, now: u32) -> bool {
    // SAFETY: as in `find`.
    let life = unsafe {
        match F::flows().get(&scratch.reverse_key) {
            Some(found) => Life::of(found),
            None => match F::half_open().get(&scratch.reverse_key) {
                Some(found) => Life::of(found),
                None => return false,
            },
        }
    };
    life.is_live(now)
}

/// Claims the key [`Scratch::reverse_key`] for [`Scratch::reverse`], the reverse direction of the flow.
#[inline(always)]
pub(crate) fn claim<F: Family>(scratch: &Scratch<F>, now: u32) -> Claim {
    if is_occupied(scratch) && free_reverse_key(scratch, now) == 0 {
        return Claim::Busy;
    }
    match F::half_open().insert(&scratch.reverse_key, &scratch.reverse, u64::from(BPF_NOEXIST)) {
        Ok(()) => {}
        Err(EEXIST) => return Claim::Busy,
        Err(_) => return Claim::Full,
    }
    // The established flows are checked afterwards: a flow that moves there now prevented the insertion.
    // SAFETY: as in `find`.
    if let Some(found) = unsafe { F::flows().get(&scratch.reverse_key) }
        && is_live(found, now)
        && !is_reverse_of::<F>(found, &scratch.packet.key)
    {
        let _ = F::half_open().remove(&scratch.reverse_key);
        return Claim::Busy;
    }
    Claim::Taken
}

/// The element exists (include/uapi/asm-generic/errno-base.h).
const EEXIST: i32 = -17;
