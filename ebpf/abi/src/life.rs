// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The life of a flow, or rather of one direction: the two are learnt, carried and forgotten separately.
//!
//! The BPF programs read the packet and the maps, call these functions, and do what the returned [`Step`] says. The
//! functions call no helper of the kernel, so the tests below try every arrow of the diagram without one.

use crate::flow::{Entry, IPPROTO_TCP, TO_PEER};

/// The state in which a packet finds its direction of a flow.
///
/// ```text
///            ┌───────────┐
///            │   Young   │
///            └─────┬─────┘
///                  │ its 8th packet (UDP: its 2nd)
///            ┌─────▼─────┐
///    ┌──────►│ Candidate │
///    │       └─────┬─────┘
///    │             │ a noted packet came out
///    │       ┌─────▼─────┐  a noted packet came out in another way
///    │       │   Trial   │◄────────────────────── from each state below but Barred
///    │       └─────┬─────┘
///    │             │ another noted one came out in the same way
///    │       ┌─────▼─────┐  the last packet in the queue has left it  ┌────────┐
///    │       │  Queued   ├───────────────────────────────────────────►│ Direct │
///    │       └─▲───┬───┬─┘                                            └─┬────┬─┘
///    │         │   │   │ no packet came out for two ticks               │    │
///    │         │   │   └───────────────┬────────────────────────────────┘    │
///    │         │   │               ┌───▼───┐                                 │
///    │         ├───│───────────────┤ Stale ├───────────┐                     │
///    │         │   │ a noted one   └───────┘           │                     │
///    │         │   │ came out                          │                     │
///    │         │   └───────────────┬───────────────────┴─────────────────────┘
///    │         │                   │ the epoch changed; a packet is longer than those that came out
///    │         │                   │ lately, or has another DSCP; SYN, FIN or RST
///    │         │             ┌─────▼─────┐
///    │         └─────────────┤ Suspended │
///    │  a noted one came out └───────────┘
///    │
///    │                       ┌────────┐    ┌──┐ a noted packet came out twice
///    │  from all these six:  │ Barred │◄───┴──┘
///    │  a noted packet came  └───┬────┘
///    │  out twice ──────────────►│ for 30 seconds none came out twice
///    │                           └───────► Trial
///    │
///    └─ from each with an entry: FIN or RST of a container, or the entry is evicted
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No entry. The first packets are counted; the kernel's stack has them.
    Young,
    /// No entry. The packets whose number is a power of two are noted; the kernel's stack has all.
    Candidate,
    /// One packet came out, alone as yet. The kernel's stack has the packets, and the first ones are noted: if the one was a
    /// copy, the other one bars the direction before a second packet confirms what was learnt from it.
    Trial,
    /// Carried, but through the queue of the container's link: packets that went through the kernel's stack may still
    /// be in it, and would otherwise be overtaken.
    Queued,
    /// Carried, past that queue.
    Direct,
    /// Netfilter has not confirmed the entry for two ticks. The kernel's stack has the packets; the first of each two
    /// ticks is noted.
    Stale,
    /// Netfilter has to decide again. The kernel's stack has the packets, and the first ones are noted.
    Suspended,
    /// Copies of the packets come out, or a rule decides about each of them. The kernel's stack has the packets; the first
    /// of each two ticks is noted, to see whether that has ended.
    Barred,
}

/// The action of the program at ingress on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Leaves the packet to the kernel's stack.
    Pass,
    /// Leaves the packet to the kernel's stack, and writes a record by which the program at egress recognises it.
    Note,
    /// Carries the packet, and has a clone noted and sent through the kernel's stack.
    Sample,
    /// Sends the packet by the entry's way, past the kernel's stack.
    Carry,
}

/// The number of the packet, without SYN, FIN and RST, with which a direction becomes a candidate. A connection of one
/// request, or one datagram and its reply, gets no entry.
const FIRST_TCP: u32 = 8;
const FIRST_UDP: u32 = 2;

/// [`FIRST_TCP`] or [`FIRST_UDP`].
#[inline(always)]
#[must_use]
pub const fn first_candidate(protocol: u32) -> u32 {
    if protocol == IPPROTO_TCP as u32 { FIRST_TCP } else { FIRST_UDP }
}

/// Ticks for which a direction is carried after a packet came out of the kernel's stack. What a packet has shown, its
/// length or its way, thus holds for 0.8 seconds at most.
pub const CARRIED_FOR: u32 = 2;
/// Ticks after which another packet of a carried direction passes the kernel's stack.
const SAMPLED_EVERY: u32 = 2;
/// Ticks for which a direction is barred after a packet came out twice (30 s).
const BARRED_FOR: u32 = 112;
/// Packets of a suspended direction that are noted before they become fewer: as many as a network card's poll collects.
const NOTED_AT_ONCE: u32 = 64;
/// A second has 2^2 ticks.
const SECOND_SHIFT: u32 = 2;
/// Maximum distance of a FIN or RST from the acknowledged sequence number, in addition to the bytes that may
/// be in flight: conntrack's MAXACKWINDOW.
const NEAR: u64 = 66_000;
/// The largest window (RFC 7323, section 2.3).
const WINDOW: u64 = 1 << 30;

/// The number of packets of a direction without an entry, in a slot that it shares with other directions: the upper
/// 24 bits are from the hash of its key, the lower 8 are the number. Directions with the same slot restart each other's
/// number, each with every other packet on average.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count(pub u32);

impl Count {
    /// The number of packets so far, if the slot is this direction's.
    #[inline(always)]
    #[must_use]
    pub const fn number(self, hash: u32) -> Option<u32> {
        if (self.0 ^ hash) >> 8 == 0 { Some(self.0 & 0xff) } else { None }
    }

    /// The state before a packet is looked up: if the count is that of a young flow, there is no entry to look for.
    /// `first` is [`first_candidate`].
    #[inline(always)]
    #[must_use]
    pub fn state(self, hash: u32, first: u32) -> State {
        if self.number(hash).is_some_and(|before| before + 1 < first) {
            State::Young
        } else {
            State::Candidate
        }
    }

    /// The count with another packet; none if the slot remains another direction's. `coin` decides about a slot that
    /// is in use: if all won it, neither of two flows that alternate, such as requests and replies, would ever count
    /// to 2.
    #[inline(always)]
    #[must_use]
    pub fn next(self, hash: u32, coin: impl FnOnce() -> bool) -> Option<Self> {
        let number = match self.number(hash) {
            Some(before) => before + 1,
            None if self.0 != 0 && coin() => return None,
            None => 1,
        };
        // Half of the range again, so that powers of two recur.
        let number = if number > 0xff { 0x80 } else { number };
        Some(Self(hash & !0xff | number))
    }

    /// What happens to the packet that was counted last. Fewer and fewer are noted, so that flows to the node itself,
    /// which never come out, cost little.
    #[inline(always)]
    #[must_use]
    pub const fn step(self, first: u32) -> Step {
        let number = self.0 & 0xff;
        if number >= first && number & number.wrapping_sub(1) == 0 { Step::Note } else { Step::Pass }
    }
}

/// A packet that arrives, without SYN, FIN and RST.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Length from the IP header on; of a packet merged by GRO, that of its segments.
    pub length: u32,
    pub dscp: u32,
    /// Time to live, or the hop limit of IPv6.
    pub ttl: u8,
}

impl<A> Entry<A> {
    /// The state of a direction with an entry.
    #[inline(always)]
    #[must_use]
    pub const fn state(&self, epoch: u32, now: u32) -> State {
        if self.is_barred(now) {
            State::Barred
        } else if self.is_trusted == 0 {
            State::Trial
        } else if self.epoch != epoch {
            State::Suspended
        } else if now.wrapping_sub(self.checked) > CARRIED_FOR {
            State::Stale
        } else if self.queued != 0 {
            State::Queued
        } else {
            State::Direct
        }
    }

    /// Handles a packet that arrives. `is_decrypted` returns whether the packet came in an IPsec tunnel, and is asked for
    /// sampled packets only: packets from a tunnel are never noted, so they cannot keep an entry from becoming stale.
    #[inline(always)]
    pub fn arrive(&mut self, packet: Arrival, epoch: u32, now: u32, is_decrypted: impl Fn() -> bool) -> Step {
        let is_first = self.begin_sample(now);
        match self.state_for(packet, epoch, now) {
            State::Queued | State::Direct if is_first && is_decrypted() => {
                self.queue();
                Step::Pass
            }
            State::Direct if is_first => Step::Sample,
            State::Direct => Step::Carry,
            State::Queued => {
                self.queue();
                if is_first || self.may_leave_queue() { Step::Sample } else { Step::Carry }
            }
            State::Stale | State::Barred => {
                self.queue();
                if is_first { Step::Note } else { Step::Pass }
            }
            State::Trial => {
                self.queue();
                self.note_often()
            }
            State::Suspended => {
                // The kernel collects a network card's packets after this hook. Those that follow wait there, too,
                // until one has come out, which restores the epoch.
                self.suspend();
                self.queue();
                self.note_often()
            }
            // `state` returns neither, as these have no entry.
            State::Young | State::Candidate => Step::Pass,
        }
    }

    /// Has a packet noted, but fewer and fewer of those that do not come out: records are few, and other flows need them.
    #[inline(always)]
    const fn note_often(&mut self) -> Step {
        let before = self.noted;
        self.noted = before.wrapping_add(1);
        if before < NOTED_AT_ONCE || before & before.wrapping_sub(1) == 0 { Step::Note } else { Step::Pass }
    }

    /// The state for one packet: the entry may not hold for it.
    #[inline(always)]
    const fn state_for(&self, packet: Arrival, epoch: u32, now: u32) -> State {
        match self.state(epoch, now) {
            state @ (State::Barred | State::Trial) => state,
            _ if !self.fits(packet.length, now) || packet.dscp != self.dscp => State::Suspended,
            // The kernel's stack replies that the time to live is exceeded.
            State::Queued | State::Direct if packet.ttl <= 1 => State::Stale,
            state => state,
        }
    }

    /// True if a packet of this length or a longer one came out lately.
    #[inline(always)]
    const fn fits(&self, length: u32, now: u32) -> bool {
        length <= self.last_length || length <= self.fits && !self.has_length_expired(now)
    }

    #[inline(always)]
    const fn has_length_expired(&self, now: u32) -> bool {
        now.wrapping_sub(self.fits_checked) > CARRIED_FOR
    }

    /// True while copies of the direction's packets came out lately.
    #[inline(always)]
    #[must_use]
    pub const fn is_barred(&self, now: u32) -> bool {
        self.copied != 0 && now.wrapping_sub(self.copied) <= BARRED_FOR
    }

    /// Begins a time between two samples with its first packet. Returns whether this packet is the first one.
    #[inline(always)]
    const fn begin_sample(&mut self, now: u32) -> bool {
        if now.wrapping_sub(self.asked) < SAMPLED_EVERY {
            return false;
        }
        let seconds = (now >> SECOND_SHIFT).wrapping_sub(self.asked >> SECOND_SHIFT);
        if seconds != 0 {
            self.bytes_before = if seconds == 1 { self.bytes.wrapping_sub(self.bytes_at_second) } else { 0 };
            self.bytes_at_second = self.bytes;
        }
        self.asked = now;
        true
    }

    /// Counts a packet that takes the queue of the container's link, or may take it because the kernel's stack has the
    /// packet.
    #[inline(always)]
    pub const fn queue(&mut self) {
        self.queued = self.queued.wrapping_add(1);
    }

    /// True for packets 2, 4, 8 and so on in the queue of a container's link: a clone after each shows soon when the
    /// queue has no more of them.
    #[inline(always)]
    const fn may_leave_queue(&self) -> bool {
        self.way.flags & TO_PEER != 0 && self.queued & self.queued.wrapping_sub(1) == 0
    }

    /// Handles a clone that arrives again. `last` is the number of the packet that followed the clone into the processor's
    /// queue, or 0. If no other packet took the queue since, that packet is next there, and all others have left the queue.
    #[inline(always)]
    pub const fn leave_queue(&mut self, last: u32) {
        #[allow(clippy::cast_possible_truncation, reason = "a record has the lower bits only")]
        if self.queued as u32 == last {
            self.queued = 0;
        }
    }

    /// Has netfilter decide again.
    #[inline(always)]
    pub const fn suspend(&mut self) {
        self.epoch = 0;
    }

    /// Handles a packet that came out and that the entry would have sent the same way. `epoch` is that of its arrival.
    #[inline(always)]
    pub const fn confirm(&mut self, length: u32, epoch: u32, now: u32) {
        if length >= self.fits || self.has_length_expired(now) {
            self.fits = length;
            self.fits_checked = now;
        }
        self.last_length = length;
        self.checked = now;
        self.epoch = epoch;
        self.is_trusted = 1;
        self.noted = 0;
    }

    /// Handles a packet that came out and that makes this entry: sets all but the way and the acknowledgment. The numbers of
    /// a former entry are in place already. The numbers of the queue do not begin again, because a clone may still arrive
    /// with one of them.
    #[inline(always)]
    pub const fn begin(&mut self, packet: Arrival, epoch: u32, now: u32) {
        self.epoch = epoch;
        self.checked = now;
        self.asked = now;
        self.queue();
        self.fits = packet.length;
        self.fits_checked = now;
        self.last_length = packet.length;
        self.dscp = packet.dscp;
    }

    /// Handles a packet that came out twice: which of them is the right one is unknown.
    #[inline(always)]
    pub const fn bar(&mut self, now: u32) {
        self.is_trusted = 0;
        self.epoch = 0;
        self.copied = if now == 0 { 1 } else { now };
    }

    /// True if a FIN or RST of this direction is too far from what the other one has acknowledged to be the
    /// connection's.
    #[inline(always)]
    #[must_use]
    pub fn is_far(&self, sequence: u32, acknowledgment: u32) -> bool {
        let in_flight = self.bytes.wrapping_sub(self.bytes_at_second).wrapping_add(self.bytes_before);
        let limit = NEAR + if in_flight < WINDOW { in_flight } else { WINDOW };
        let distance = sequence.wrapping_sub(acknowledgment).cast_signed();
        u64::from(distance.unsigned_abs()) > limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Addr4;

    const EPOCH: u32 = 7;
    const NOW: u32 = 1000;
    /// The hash of a direction, and that of another one with the same slot.
    const HASH: u32 = 0x0012_3456;
    const OTHER: u32 = 0x0654_3211;

    const PACKET: Arrival = Arrival { length: 1500, dscp: 0, ttl: 64 };

    /// An entry by which packets go straight into a container.
    fn direct() -> Entry<Addr4> {
        let mut entry = Entry {
            epoch: EPOCH,
            checked: NOW,
            asked: NOW,
            fits: 1500,
            fits_checked: NOW,
            last_length: 1500,
            is_trusted: 1,
            ..Entry::default()
        };
        entry.way.flags = TO_PEER;
        entry
    }

    fn queued() -> Entry<Addr4> {
        Entry { queued: 5, ..direct() }
    }

    fn stale() -> Entry<Addr4> {
        Entry { checked: NOW - CARRIED_FOR - 1, asked: NOW - SAMPLED_EVERY, ..direct() }
    }

    fn suspended() -> Entry<Addr4> {
        Entry { epoch: EPOCH - 1, ..direct() }
    }

    fn trial() -> Entry<Addr4> {
        Entry { is_trusted: 0, queued: 1, ..direct() }
    }

    fn barred() -> Entry<Addr4> {
        let mut entry = direct();
        entry.bar(NOW);
        entry
    }

    fn state(entry: &Entry<Addr4>) -> State {
        entry.state(EPOCH, NOW)
    }

    /// The steps of a number of equal packets.
    fn steps<const N: usize>(entry: &mut Entry<Addr4>, packet: Arrival) -> [Step; N] {
        core::array::from_fn(|_| entry.arrive(packet, EPOCH, NOW, || false))
    }

    #[test]
    fn the_page_has_the_same_diagram() {
        let (_, rest) = include_str!("life.rs").split_once("/// ```text\n").unwrap();
        let (diagram, _) = rest.split_once("/// ```\n").unwrap();
        let mut page = include_str!("../../../docs/dataplane/ebpf.md").lines();
        let first = diagram.lines().next().unwrap().strip_prefix("/// ").unwrap();
        assert!(
            page.any(|line| line == first),
            "docs/dataplane/ebpf.md has no diagram that begins like State's"
        );
        for line in diagram.lines().skip(1) {
            let line = line.strip_prefix("///").unwrap();
            assert_eq!(page.next().unwrap(), line.strip_prefix(' ').unwrap_or(line));
        }
        assert_eq!(page.next(), Some("```"));
    }

    #[test]
    fn a_young_direction_becomes_a_candidate_with_the_first_packet_that_may_be_noted() {
        for first in [FIRST_UDP, FIRST_TCP] {
            let mut count = Count::default();
            for number in 1..first {
                // A slot without a number may be a forgotten one.
                if number > 1 {
                    assert_eq!(count.state(HASH, first), State::Young, "packet {number} of {first}");
                }
                count = count.next(HASH, || true).unwrap();
                assert_eq!(count.step(first), Step::Pass, "packet {number} of {first}");
            }
            assert_eq!(count.state(HASH, first), State::Candidate);
            assert_eq!(count.next(HASH, || true).unwrap().step(first), Step::Note);
        }
    }

    #[test]
    fn packets_of_a_candidate_are_noted_less_and_less_often_but_again_and_again() {
        let mut count = Count::default();
        let mut noted = [0; 8];
        let mut notes = 0;
        for number in 1..=512 {
            count = count.next(HASH, || true).unwrap();
            if count.step(FIRST_TCP) == Step::Note {
                noted[notes] = number;
                notes += 1;
            }
        }
        assert_eq!(noted, [8, 16, 32, 64, 128, 256, 384, 512]);
        assert_eq!(notes, noted.len());
    }

    #[test]
    fn a_slot_in_use_goes_to_another_direction_by_the_coin() {
        let count = Count::default().next(HASH, || true).unwrap().next(HASH, || true).unwrap();
        assert_eq!((count.number(HASH), count.number(OTHER)), (Some(2), None));
        // It may have an entry, as its own count may be what this one has replaced.
        assert_eq!(count.state(OTHER, FIRST_TCP), State::Candidate);
        assert_eq!(count.next(OTHER, || true), None);
        assert_eq!(count.next(OTHER, || false).unwrap().number(OTHER), Some(1));
    }

    #[test]
    fn a_candidate_is_tried_when_a_noted_packet_came_out_and_queued_after_a_second_one() {
        let mut entry = Entry::<Addr4>::default();
        entry.begin(PACKET, EPOCH, NOW);
        assert_eq!(state(&entry), State::Trial);
        assert_eq!((entry.fits, entry.dscp, entry.queued), (1500, 0, 1));
        assert_eq!(steps(&mut entry, PACKET), [Step::Note; 3]);
        entry.confirm(1500, EPOCH, NOW);
        assert_eq!(state(&entry), State::Queued);
    }

    #[test]
    fn every_state_with_an_entry_is_barred_by_a_packet_that_came_out_twice() {
        for mut entry in [direct(), queued(), stale(), suspended(), trial(), barred()] {
            entry.bar(NOW);
            assert_eq!(entry.state(EPOCH, NOW + BARRED_FOR), State::Barred);
            assert_eq!(entry.state(EPOCH, NOW + BARRED_FOR + 1), State::Trial);
        }
    }

    #[test]
    fn of_a_barred_direction_one_packet_in_two_ticks_is_noted_and_all_pass() {
        let mut entry = barred();
        assert_eq!(steps(&mut entry, PACKET), [Step::Pass; 3]);
        entry.asked = NOW - SAMPLED_EVERY;
        let longer = Arrival { length: 9000, dscp: 46, ..PACKET };
        assert_eq!(steps(&mut entry, longer), [Step::Note, Step::Pass, Step::Pass]);
        assert_eq!(state(&entry), State::Barred);
    }

    #[test]
    fn a_queued_direction_is_direct_when_the_last_packet_in_the_queue_has_left_it() {
        let mut entry = queued();
        entry.leave_queue(4);
        assert_eq!((state(&entry), entry.queued), (State::Queued, 5), "a packet took the queue since");
        entry.leave_queue(5);
        assert_eq!(state(&entry), State::Direct);
    }

    #[test]
    fn a_queued_direction_is_sampled_each_time_the_number_in_its_queue_doubles() {
        let mut entry = Entry { queued: 1, ..direct() };
        let [s, c] = [Step::Sample, Step::Carry];
        assert_eq!(steps(&mut entry, PACKET), [s, c, s, c, c, c, s, c, c]);
        assert_eq!((state(&entry), entry.queued), (State::Queued, 10));
        // An uplink has no such queue.
        entry = Entry { queued: 1, ..direct() };
        entry.way.flags = 0;
        assert_eq!(steps(&mut entry, PACKET), [c, c, c, c]);
    }

    #[test]
    fn a_carried_direction_is_sampled_once_in_two_ticks() {
        for (entry, expected) in [(direct(), State::Direct), (queued(), State::Queued)] {
            let mut entry = Entry { asked: NOW - SAMPLED_EVERY, ..entry };
            assert_eq!(steps(&mut entry, PACKET), [Step::Sample, Step::Carry]);
            assert_eq!(state(&entry), expected);
        }
    }

    #[test]
    fn a_carried_direction_is_stale_when_no_packet_came_out_for_two_ticks() {
        for entry in [direct(), queued()] {
            let carried = entry.state(EPOCH, NOW);
            assert_eq!(entry.state(EPOCH, NOW + CARRIED_FOR), carried);
            assert_eq!(entry.state(EPOCH, NOW + CARRIED_FOR + 1), State::Stale);
        }
    }

    #[test]
    fn of_a_stale_direction_one_packet_in_two_ticks_is_noted_and_all_pass() {
        let mut entry = stale();
        assert_eq!(steps(&mut entry, PACKET), [Step::Note, Step::Pass, Step::Pass]);
        assert_eq!((state(&entry), entry.queued), (State::Stale, 3));
    }

    #[test]
    fn a_stale_or_suspended_direction_is_queued_when_a_noted_packet_came_out() {
        for mut entry in [stale(), suspended()] {
            let [step] = steps(&mut entry, PACKET);
            assert_eq!(step, Step::Note);
            entry.confirm(1500, EPOCH, NOW);
            assert_eq!(state(&entry), State::Queued);
        }
    }

    #[test]
    fn every_state_with_an_entry_is_suspended_by_another_epoch() {
        for entry in [direct(), queued(), stale()] {
            assert_ne!(state(&entry), State::Suspended);
            assert_eq!(entry.state(EPOCH + 1, NOW), State::Suspended);
        }
    }

    #[test]
    fn every_state_with_an_entry_is_suspended_by_a_packet_that_it_does_not_hold_for() {
        for packet in [Arrival { length: 1501, ..PACKET }, Arrival { dscp: 46, ..PACKET }] {
            for mut entry in [direct(), queued(), stale()] {
                assert_eq!(steps(&mut entry, packet), [Step::Note]);
                assert_eq!(state(&entry), State::Suspended);
            }
        }
    }

    #[test]
    fn every_state_with_an_entry_is_suspended_by_a_segment_that_begins_or_ends_a_connection() {
        for mut entry in [direct(), queued(), stale()] {
            entry.suspend();
            assert_eq!(state(&entry), State::Suspended);
        }
    }

    #[test]
    fn each_packet_of_a_suspended_direction_is_noted() {
        let mut entry = suspended();
        assert_eq!(steps(&mut entry, PACKET), [Step::Note; 3]);
        // Not even a processor that has read the former epoch carries one.
        assert_eq!((entry.epoch, entry.queued), (0, 3));
    }

    #[test]
    fn packets_that_do_not_come_out_are_noted_less_and_less_often() {
        for mut entry in [suspended(), trial()] {
            let notes = (0..100_000).filter(|_| {
                let [step] = steps(&mut entry, PACKET);
                step == Step::Note
            });
            assert_eq!(notes.count(), 64 + 11, "64, and each power of two from there to 65,536");
            entry.confirm(1500, EPOCH, NOW);
            assert_eq!(entry.noted, 0);
        }
    }

    #[test]
    fn a_packet_whose_last_hop_this_is_goes_to_the_stack_and_others_are_still_carried() {
        for entry in [direct(), queued()] {
            let mut entry = Entry { asked: NOW - SAMPLED_EVERY, ..entry };
            assert_eq!(steps(&mut entry, Arrival { ttl: 1, ..PACKET }), [Step::Note, Step::Pass]);
            assert_ne!(steps(&mut entry, PACKET), [Step::Pass]);
            assert_eq!(state(&entry), State::Queued);
        }
    }

    #[test]
    fn a_sample_is_neither_carried_nor_noted_if_it_was_decrypted() {
        for entry in [direct(), queued()] {
            let mut entry = Entry { asked: NOW - SAMPLED_EVERY, ..entry };
            assert_eq!(entry.arrive(PACKET, EPOCH, NOW, || true), Step::Pass);
            assert_eq!(state(&entry), State::Queued);
        }
    }

    #[test]
    fn a_length_holds_as_long_as_a_packet_of_that_length_came_out_lately() {
        let mut entry = direct();
        entry.confirm(1600, EPOCH, NOW + 1);
        // Short packets keep the direction, but not the length.
        for tick in [NOW + 2, NOW + 1 + CARRIED_FOR] {
            entry.confirm(400, EPOCH, tick);
            assert!(entry.fits(1600, tick) && !entry.fits(1601, tick));
        }
        let later = NOW + 2 + CARRIED_FOR;
        assert!(entry.fits(400, later) && !entry.fits(401, later), "before a packet came out again");
        let long = Arrival { length: 1600, ..PACKET };
        assert_eq!(entry.arrive(long, EPOCH, later, || false), Step::Note);
        entry.confirm(400, EPOCH, later);
        assert_eq!(entry.fits, 400);
        entry.confirm(1600, EPOCH, later);
        assert!(entry.fits(1600, later));
    }

    #[test]
    fn the_bytes_of_the_second_before_are_known_unless_there_was_a_pause() {
        const SECOND: u32 = 1 << SECOND_SHIFT;
        let mut entry = Entry { bytes: 700, bytes_at_second: 100, asked: NOW, ..direct() };
        let arrive = |entry: &mut Entry<Addr4>, now: u32| {
            entry.confirm(1500, EPOCH, now);
            assert_eq!(entry.arrive(PACKET, EPOCH, now, || false), Step::Sample);
            (entry.bytes_before, entry.bytes_at_second, entry.asked)
        };
        assert_eq!(arrive(&mut entry, NOW + 2), (0, 100, NOW + 2), "the same second");
        assert_eq!(arrive(&mut entry, NOW + SECOND), (600, 700, NOW + SECOND));
        assert_eq!(arrive(&mut entry, NOW + 3 * SECOND), (0, 700, NOW + 3 * SECOND));
    }

    #[test]
    fn an_end_is_far_beyond_what_is_in_flight_and_conntracks_margin() {
        let entry = Entry { bytes: 900, bytes_at_second: 500, bytes_before: 100, ..direct() };
        let acknowledgment = u32::MAX - 10;
        for (distance, is_far) in [(0, false), (66_500, false), (66_501, true), (1 << 31, true)] {
            assert_eq!(entry.is_far(acknowledgment.wrapping_add(distance), acknowledgment), is_far);
            assert_eq!(entry.is_far(acknowledgment.wrapping_sub(distance), acknowledgment), is_far);
        }
        let fast = Entry { bytes: 1 << 40, ..direct() };
        assert!(!fast.is_far(1 << 30, 0));
        assert!(fast.is_far((1 << 30) + 66_001, 0));
    }
}
