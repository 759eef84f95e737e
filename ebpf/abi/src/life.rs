// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The life of a flow, or more precisely of one of its two directions, which are learnt and carried
//! independently of each other.
//!
//! The BPF programs read the packet and the maps, call these functions, and do what the returned [`Step`]
//! says. The functions call no helper of the kernel, so the unit tests can try every arrow of the diagram
//! without one.

use crate::flow::{Entry, IPPROTO_TCP, TO_PEER};

/// The state of a packet's direction of the flow when the packet arrives.
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
    /// There is no entry. The first packets are counted and left to the kernel's stack.
    Young,
    /// There is no entry. All packets are left to the kernel's stack, and those whose number is a power of
    /// two are noted.
    Candidate,
    /// One packet has come out, so far only once. The packets are left to the kernel's stack, and the first
    /// of them are noted. If the packet that came out was one of two copies, the other copy also comes out
    /// and bars the direction before a second packet can confirm what was learnt from the first one.
    Trial,
    /// Packets are carried, but through the queue of the container's link: it may still hold packets that
    /// went through the kernel's stack, which would otherwise be overtaken.
    Queued,
    /// Packets are carried past that queue.
    Direct,
    /// Netfilter has not confirmed the entry for two ticks. The packets are left to the kernel's stack, and
    /// the first one in every two ticks is noted.
    Stale,
    /// Netfilter has to decide again. The packets are left to the kernel's stack, and the first of them are
    /// noted.
    Suspended,
    /// Copies of the packets come out, or a rule decides about each packet. The packets are left to the
    /// kernel's stack, and the first one in every two ticks is noted, to find out whether that is still so.
    Barred,
}

/// What the program at ingress does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Leaves the packet to the kernel's stack.
    Pass,
    /// Leaves the packet to the kernel's stack, and writes a record by which the program at egress recognises
    /// it.
    Note,
    /// Carries the packet, and sends a clone with a record through the kernel's stack.
    Sample,
    /// Sends the packet as the entry says, past the kernel's stack.
    Carry,
}

/// The packet with which a direction becomes a candidate; SYN, FIN and RST do not count. A connection with a
/// single request, or a datagram and its reply, is too short for an entry to pay off.
const FIRST_TCP: u32 = 8;
const FIRST_UDP: u32 = 2;

/// The number of the packet with which a direction of this protocol becomes a candidate.
#[inline(always)]
#[must_use]
pub const fn first_candidate(protocol: u32) -> u32 {
    if protocol == IPPROTO_TCP as u32 { FIRST_TCP } else { FIRST_UDP }
}

/// The number of ticks for which a direction is carried after a packet came out of the kernel's stack. What
/// that packet has shown, such as its length or its way, is therefore relied on for 0.8 seconds at most.
pub const CARRIED_FOR: u32 = 2;
/// The length of a sample period in ticks. In each one, a clone of a packet of a carried direction passes the
/// kernel's stack.
const SAMPLED_EVERY: u32 = 2;
/// The number of ticks (30 s) for which a direction stays barred.
const BARRED_FOR: u32 = 112;
/// How many packets of a direction in the states Trial and Suspended are noted before only some of them are:
/// as many as one poll of a network card collects (NAPI_POLL_WEIGHT).
const NOTED_AT_ONCE: u32 = 64;
/// A second has about 2^2 ticks.
const SECOND_SHIFT: u32 = 2;
/// The maximum distance of a FIN or RST from the acknowledged sequence number, in addition to the bytes that
/// may be in flight. The value is that of conntrack's MAXACKWINCONST.
const NEAR: u64 = 66_000;
/// The largest window that a TCP receiver can announce (RFC 7323, section 2.3).
const WINDOW: u64 = 1 << 30;

/// The number of packets of a direction without an entry. Several directions share a slot, so the upper 24
/// bits are part of the hash of the direction's key, and only the lower 8 bits are the number. Directions
/// that share a slot restart each other's number, each of them with every other packet on average.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count(pub u32);

impl Count {
    /// The number of packets so far, if the slot counts this direction.
    #[inline(always)]
    #[must_use]
    pub const fn number(self, hash: u32) -> Option<u32> {
        if (self.0 ^ hash) >> 8 == 0 { Some(self.0 & 0xff) } else { None }
    }

    /// The state as far as it is known without a look-up of the entry. If the slot counts a young direction,
    /// there is normally no entry, and the look-up can be omitted. `first` is [`first_candidate`].
    #[inline(always)]
    #[must_use]
    pub fn state(self, hash: u32, first: u32) -> State {
        if self.number(hash).is_some_and(|before| before + 1 < first) {
            State::Young
        } else {
            State::Candidate
        }
    }

    /// The count with one more packet, or none if the slot stays with another direction. If the slot counts
    /// another direction, that one keeps it when `coin` returns true. If each packet took the slot over,
    /// neither of two directions that alternate, such as requests and replies, would ever count to 2.
    #[inline(always)]
    #[must_use]
    pub fn next(self, hash: u32, coin: impl FnOnce() -> bool) -> Option<Self> {
        let number = match self.number(hash) {
            Some(before) => before + 1,
            None if self.0 != 0 && coin() => return None,
            None => 1,
        };
        // The count continues at 128, which is a power of two, so that every 128th packet is noted from then
        // on.
        let number = if number > 0xff { 0x80 } else { number };
        Some(Self(hash & !0xff | number))
    }

    /// What happens to the packet that was counted last. Fewer and fewer packets are noted, so that flows to
    /// the node itself, whose packets never come out, cost little.
    #[inline(always)]
    #[must_use]
    pub const fn step(self, first: u32) -> Step {
        let number = self.0 & 0xff;
        if number >= first && number & number.wrapping_sub(1) == 0 { Step::Note } else { Step::Pass }
    }
}

/// An element of [`YOUNG`](crate::maps::YOUNG), shared by all directions that have the same slot. The
/// programs change `entries` by an atomic 64-bit addition to the whole element, hence the alignment. A
/// multiple of 2^32 is added, which leaves `count` as it is.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Young {
    pub count: Count,
    /// The number of entries that TCP directions have in this slot. It is too high after the kernel has
    /// evicted an entry, which only costs needless look-ups. It is never too low, because the segments that
    /// end a connection must find its entry.
    pub entries: u32,
}

/// A packet that is not a SYN, FIN or RST.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The length from the IP header on; for a packet that GRO merged, the length of its segments.
    pub length: u32,
    pub dscp: u32,
    /// Time to live, or the hop limit of IPv6.
    pub ttl: u8,
}

impl<A> Entry<A> {
    /// The state of a direction that has an entry.
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

    /// Handles a packet that arrives. `is_decrypted` returns whether the packet came through IPsec. It is
    /// called only for the first packet of a sample period, which would be noted otherwise: packets that came
    /// through IPsec never are, so they cannot keep an entry from becoming stale.
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
                // Behind this hook, the kernel collects the packets of a poll in a list before it hands them
                // to IP. Packets that follow must wait there as well, or they would overtake this one. So the
                // direction stays suspended until a packet has come out, which restores the epoch.
                self.suspend();
                self.queue();
                self.note_often()
            }
            // `state` returns neither of them, because they have no entry.
            State::Young | State::Candidate => Step::Pass,
        }
    }

    /// Has the packet noted. After [`NOTED_AT_ONCE`] packets of which none came out, only those whose number
    /// is a power of two are noted, because there are few records and other flows need them as well.
    #[inline(always)]
    const fn note_often(&mut self) -> Step {
        let before = self.noted;
        self.noted = before.wrapping_add(1);
        if before < NOTED_AT_ONCE || before & before.wrapping_sub(1) == 0 { Step::Note } else { Step::Pass }
    }

    /// The state for this packet. The entry may not hold for it although it holds for others.
    #[inline(always)]
    const fn state_for(&self, packet: Arrival, epoch: u32, now: u32) -> State {
        match self.state(epoch, now) {
            state @ (State::Barred | State::Trial) => state,
            _ if !self.fits(packet.length, now) || packet.dscp != self.dscp => State::Suspended,
            // The kernel's stack has to reply with an ICMP error, because the time to live is exceeded.
            State::Queued | State::Direct if packet.ttl <= 1 => State::Stale,
            state => state,
        }
    }

    /// True if a packet of this length or a longer one came out recently.
    #[inline(always)]
    const fn fits(&self, length: u32, now: u32) -> bool {
        length <= self.last_length || length <= self.fits && !self.has_length_expired(now)
    }

    #[inline(always)]
    const fn has_length_expired(&self, now: u32) -> bool {
        now.wrapping_sub(self.fits_checked) > CARRIED_FOR
    }

    /// True for `BARRED_FOR` ticks after the direction was [barred](Self::bar).
    #[inline(always)]
    #[must_use]
    pub const fn is_barred(&self, now: u32) -> bool {
        self.copied != 0 && now.wrapping_sub(self.copied) <= BARRED_FOR
    }

    /// Begins a new sample period if the previous one is over. Returns true if the packet is the first one of
    /// a period.
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

    /// Counts a packet that takes the queue of the container's link, or may take it because it is left to the
    /// kernel's stack.
    #[inline(always)]
    pub const fn queue(&mut self) {
        self.queued = self.queued.wrapping_add(1);
    }

    /// True for the packets 2, 4, 8 and so on that take the queue of a container's link. A clone that is sent
    /// just ahead of each of them soon shows that no earlier packets are left in the queue.
    #[inline(always)]
    const fn may_leave_queue(&self) -> bool {
        self.way.flags & TO_PEER != 0 && self.queued & self.queued.wrapping_sub(1) == 0
    }

    /// Handles a clone that arrives again. `last` is the number of the carried packet that entered the
    /// processor's queue right after the clone, or 0 if that packet did not take the queue. If no other
    /// packet has taken the queue since, this packet is the next one there and all earlier ones have left it,
    /// so packets that follow may go past the queue.
    #[inline(always)]
    pub const fn leave_queue(&mut self, last: u32) {
        #[allow(clippy::cast_possible_truncation, reason = "a record has the lower bits only")]
        if self.queued as u32 == last {
            self.queued = 0;
        }
    }

    /// Makes netfilter decide again: no packet is carried until a noted one has come out.
    #[inline(always)]
    pub const fn suspend(&mut self) {
        self.epoch = 0;
    }

    /// Handles a packet that came out in the same way as the entry would have sent it. `epoch` is the epoch
    /// in which the packet arrived.
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

    /// Fills a new entry after a packet came out. The caller has cleared the entry, apart from the numbers
    /// that it takes over from a previous entry, and sets the way and the acknowledgment. The numbering of
    /// packets in the queue continues, because a clone may still arrive with one of the numbers.
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

    /// Bars the direction: a packet came out twice, so nobody knows which of the two took the right way, or a
    /// rule decides about each packet.
    #[inline(always)]
    pub const fn bar(&mut self, now: u32) {
        self.is_trusted = 0;
        self.epoch = 0;
        self.copied = if now == 0 { 1 } else { now };
    }

    /// True if the sequence number of a FIN or RST of this direction is so far from what the other direction
    /// has acknowledged that the segment cannot belong to the connection.
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
