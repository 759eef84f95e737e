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

/// An element of [`YOUNG`](crate::maps::YOUNG). All directions whose hashes have the same remainder share it. The
/// programs add to the upper word by atomic operations on both words, as there are none on one.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Young {
    pub count: Count,
    /// The number of entries that directions with the protocol TCP have here. It is too high after an entry was evicted,
    /// which costs look-ups, but never too low, as a connection's end must find its entry.
    pub entries: u32,
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
mod tests;
