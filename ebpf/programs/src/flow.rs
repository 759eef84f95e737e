//! Flows: finding them, keeping both halves alike, and taking keys for new ones.

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use slipway_ebpf_abi::{
    Counter, Flow, FlowKey, IPPROTO_TCP, IPPROTO_UDP, LEFT, LONE, ORIGINAL, STATES, State,
};

use crate::config::{config, count};
use crate::family::{Addr, Family, Flows};
use crate::maps::{PODS, TURNS};
use crate::packet::{Fragment, Kind, Packet};
use crate::skb::Skb;
use crate::tcp_state;
use crate::words::{copy, mix};
use crate::work::Work;

/// A half that was found. What it says is in [`Work::flow`].
pub(crate) struct Hit<F: Family> {
    /// Where it is kept.
    entry: *mut Flow<Addr<F>>,
    /// Whether it is in the map of embryos.
    embryo: bool,
}

/// What became of a key that a new flow wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is the new flow's.
    Taken,
    /// Another flow, which is alive, has it.
    Busy,
    /// The map takes no more.
    Full,
}

/// Whether the half `found` belongs to the half with the key `own`.
#[inline(always)]
fn leads_to<F: Family>(found: &Flow<Addr<F>>, own: &FlowKey<Addr<F>>) -> bool {
    found.flags & LONE == 0
        && F::same(found.destination, own.source)
        && F::same(found.source, own.destination)
        && found.destination_port.0 == own.source_port.0
        && found.source_port.0 == own.destination_port.0
}

/// Whether the pod's interface is that of this generation.
#[inline(always)]
pub(crate) fn is_pod(pod: u32, generation: u32) -> bool {
    // SAFETY: two words of an element are read, once each.
    unsafe { PODS.get(pod) }.is_some_and(|pod| pod.generation == generation && pod.flags & LEFT == 0)
}

/// What a flow's life depends on. Copied, so that the verifier needs not know which map it is from.
struct Life {
    state: u8,
    last_seen: u32,
    pod: u32,
    generation: u32,
}

impl Life {
    #[inline(always)]
    fn of<A: Copy>(flow: &Flow<A>) -> Self {
        Self { state: flow.timed_as(), last_seen: flow.last_seen, pod: flow.pod, generation: flow.generation }
    }

    #[inline(always)]
    fn goes_on(&self, now: u32) -> bool {
        let Some(timeout) =
            config().and_then(|config| config.timeouts.get(usize::from(self.state) & (STATES - 1)))
        else {
            return false;
        };
        // `now` may be a little older than what another processor has written.
        let age = now.wrapping_sub(self.last_seen);
        let over = age > *timeout && age < u32::MAX / 2;
        !over && (self.pod == 0 || is_pod(self.pod, self.generation))
    }
}

/// Whether the flow's pod is there and its time is not over.
#[inline(always)]
pub(crate) fn is_live<A: Copy>(flow: &Flow<A>, now: u32) -> bool {
    Life::of(flow).goes_on(now)
}

/// Removes both halves of the flow at hand. The key of the other one may be another flow's by now, which has claimed it
/// when this one was dead already: that one stays.
#[inline(never)]
pub(crate) fn remove<F: Family>(work: &mut Work<F>, now: u32) -> u32 {
    work.turn_key();
    // An error says that it is not there, which is what is wanted.
    let _ = F::flows().remove(&work.packet.key);
    let _ = F::embryos().remove(&work.packet.key);
    if work.flow.flags & LONE == 0 {
        make_room(work, now);
    }
    0
}

/// Whether something is at the key [`Work::other`].
#[inline(always)]
fn is_occupied<F: Family>(work: &Work<F>) -> bool {
    // SAFETY: the values are not read.
    unsafe { F::embryos().get(&work.other).is_some() || F::flows().get(&work.other).is_some() }
}

/// Removes what is at the key [`Work::other`], unless it is alive and another flow's: then it says 0. The kernel removes by
/// key alone: of two processors that see the same dead half, the second one would remove what the first has put in its
/// place. They take turns, and who has to wait says 0.
#[inline(never)]
fn make_room<F: Family>(work: &Work<F>, now: u32) -> u32 {
    let turn = mix(&raw const work.other);
    if TURNS.insert(&turn, &1, u64::from(BPF_NOEXIST)).is_err() {
        return 0;
    }
    let is_free = make_room_in(work, F::embryos(), now) && make_room_in(work, F::flows(), now);
    let _ = TURNS.remove(&turn);
    u32::from(is_free)
}

#[inline(always)]
fn make_room_in<F: Family>(work: &Work<F>, map: &Flows<F>, now: u32) -> bool {
    // SAFETY: as in `find`.
    let Some(found) = (unsafe { map.get(&work.other) }) else { return true };
    if is_live(found, now) && !leads_to::<F>(found, &work.packet.key) {
        return false;
    }
    let _ = map.remove(&work.other);
    true
}

/// The half that the packet at hand belongs to, if it is alive; one that is dead is removed, and one that is
/// over is removed if the packet begins another connection.
#[inline(always)]
pub(crate) fn find<F: Family>(work: &mut Work<F>, now: u32) -> Option<Hit<F>> {
    let (entry, embryo) = match F::flows().get_ptr_mut(&work.packet.key) {
        Some(entry) => (entry, false),
        None => (F::embryos().get_ptr_mut(&work.packet.key)?, true),
    };
    // The kernel keeps the memory of an element while the program runs; it may give it to another key, which is
    // why everything is copied at once.
    copy(entry, &raw mut work.flow);
    let renewed = work.packet.kind == Kind::Opening
        && work.packet.key.protocol == IPPROTO_TCP
        && tcp_state::is_over(work.flow.state);
    if renewed || !is_live(&work.flow, now) {
        remove(work, now);
        return None;
    }
    Some(Hit { entry, embryo })
}

/// Copies the half with the key in [`Work::other`] into [`Work::flow`], if it is alive.
#[inline(always)]
pub(crate) fn look<F: Family>(work: &mut Work<F>, now: u32) -> bool {
    let entry = match F::flows().get_ptr_mut(&work.other) {
        Some(entry) => entry,
        None => match F::embryos().get_ptr_mut(&work.other) {
            Some(entry) => entry,
            None => return false,
        },
    };
    copy(entry, &raw mut work.flow);
    is_live(&work.flow, now)
}

impl<F: Family> Hit<F> {
    /// Notes a packet of this half.
    #[inline(always)]
    pub(crate) fn touch(&self, skb: Skb, work: &mut Work<F>, now: u32) {
        let state = next_state(&work.flow, &work.packet, now);
        note_place(work);
        work.flow.packets = work.flow.packets.wrapping_add(skb.segments());
        work.flow.bytes = work.flow.bytes.wrapping_add(u64::from(skb.len()));
        // SAFETY: as in `find`. The counts of a half may lose a packet when two processors handle the same
        // flow at once; the network card gives a flow to one.
        unsafe {
            (*self.entry).packets = work.flow.packets;
            (*self.entry).bytes = work.flow.bytes;
            (*self.entry).mark = work.flow.mark;
        }
        let established = self.embryo && is_established(state, work.packet.key.protocol);
        if state == work.flow.state && now == work.flow.last_seen && !established {
            return;
        }
        // SAFETY: as above.
        unsafe {
            (*self.entry).state = state;
            (*self.entry).last_seen = now;
        }
        // What the other half is told, and what moves to the established flows. It is not read from the element again,
        // which may have become another flow's.
        work.flow.state = state;
        work.flow.last_seen = now;
        if established {
            promote(work);
        } else if work.flow.flags & LONE == 0 {
            synchronize(work, self.embryo);
        }
    }
}

#[inline(always)]
fn next_state<F: Family>(flow: &Flow<Addr<F>>, packet: &Packet<F>, now: u32) -> u8 {
    let original = flow.flags & ORIGINAL != 0;
    match packet.key.protocol {
        IPPROTO_TCP if packet.fragment == Fragment::Later || is_misplaced_reset(flow, packet) => flow.state,
        IPPROTO_TCP => tcp_state::next(flow.state, original, packet.tcp),
        IPPROTO_UDP => next_state_of_udp(flow, original, now),
        _ => flow.state,
    }
}

/// Ticks that a conversation of UDP lasts before it may be a stream, as in conntrack: two seconds at least.
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

/// Whether this is a reset from far beside where the sender was, which its receiver does not take for one.
#[inline(always)]
fn is_misplaced_reset<F: Family>(flow: &Flow<Addr<F>>, packet: &Packet<F>) -> bool {
    packet.tcp & tcp_state::RST != 0 && flow.mark != 0 && !tcp_state::is_near(packet.sequence, flow.mark)
}

/// Notes where in the connection the sender is. A segment from nowhere near does not move that: whoever knows no more
/// than the ends of a connection would make room for a reset with it.
#[inline(always)]
fn note_place<F: Family>(work: &mut Work<F>) {
    let packet = &work.packet;
    let has_place = packet.key.protocol == IPPROTO_TCP && packet.fragment != Fragment::Later;
    if has_place && (work.flow.mark == 0 || tcp_state::is_near(packet.sequence, work.flow.mark)) {
        work.flow.mark = packet.sequence;
    }
}

#[inline(always)]
fn is_established(state: u8, protocol: u8) -> bool {
    if protocol == IPPROTO_TCP { tcp_state::is_established(state) } else { state == State::Stream as u8 }
}

/// Tells the other half what this one has learnt, or puts it back if it was evicted.
#[inline(never)]
fn synchronize<F: Family>(work: &mut Work<F>, embryo: bool) -> u32 {
    let map = if embryo { F::embryos() } else { F::flows() };
    work.turn_key();
    match map.get_ptr_mut(&work.other) {
        // SAFETY: the element is in the map, or was a moment ago; its memory is not given back while a program runs.
        Some(other) => unsafe {
            if leads_to::<F>(&*other, &work.packet.key) {
                (*other).state = work.flow.state;
                (*other).last_seen = work.flow.last_seen;
            } else {
                // The key was evicted and is another flow's now: this flow cannot go on.
                let _ = map.remove(&work.packet.key);
            }
        },
        None => {
            work.turn_half();
            if map.insert(&work.other, &work.half, u64::from(BPF_NOEXIST)).is_ok() {
                count(Counter::Restored);
            }
        }
    }
    0
}

/// Moves both halves to the established flows, first there, then away from here, so that one of both maps
/// always knows them.
#[inline(never)]
fn promote<F: Family>(work: &mut Work<F>) -> u32 {
    if F::flows().insert(&work.packet.key, &work.flow, u64::from(BPF_ANY)).is_err() {
        return 0;
    }
    if work.flow.flags & LONE == 0 {
        work.turn_key();
        work.turn_half();
        // SAFETY: as in `find`.
        if let Some(embryo) = unsafe { F::embryos().get(&work.other) } {
            work.half.packets = embryo.packets;
            work.half.bytes = embryo.bytes;
            work.half.mark = embryo.mark;
        }
        if F::flows().insert(&work.other, &work.half, u64::from(BPF_ANY)).is_err() {
            let _ = F::flows().remove(&work.packet.key);
            return 0;
        }
        let _ = F::embryos().remove(&work.other);
    }
    let _ = F::embryos().remove(&work.packet.key);
    count(Counter::Established);
    0
}

/// Whether a flow that is alive has the key [`Work::other`].
#[inline(never)]
pub(crate) fn is_taken<F: Family>(work: &Work<F>, now: u32) -> bool {
    // SAFETY: as in `find`.
    let life = unsafe {
        match F::flows().get(&work.other) {
            Some(found) => Life::of(found),
            None => match F::embryos().get(&work.other) {
                Some(found) => Life::of(found),
                None => return false,
            },
        }
    };
    life.goes_on(now)
}

/// Takes the key [`Work::other`] for [`Work::half`], the other half of the flow at hand.
#[inline(always)]
pub(crate) fn claim<F: Family>(work: &Work<F>, now: u32) -> Claim {
    if is_occupied(work) && make_room(work, now) == 0 {
        return Claim::Busy;
    }
    match F::embryos().insert(&work.other, &work.half, u64::from(BPF_NOEXIST)) {
        Ok(()) => {}
        Err(EEXIST) => return Claim::Busy,
        Err(_) => return Claim::Full,
    }
    // Only now the established flows: one that moves there at this moment was in the way of the insertion.
    // SAFETY: as in `find`.
    if let Some(found) = unsafe { F::flows().get(&work.other) }
        && is_live(found, now)
        && !leads_to::<F>(found, &work.packet.key)
    {
        let _ = F::embryos().remove(&work.other);
        return Claim::Busy;
    }
    Claim::Taken
}

/// The element is there already (include/uapi/asm-generic/errno-base.h).
const EEXIST: i32 = -17;
