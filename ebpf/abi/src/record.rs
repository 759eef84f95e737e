// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Records of noted packets: the program at egress recognises a packet by its record.

use crate::address::{Addr4, Addr6};
use crate::flow::FlowKey;

/// A packet that passes through the kernel's stack. `__sk_buff::tc_index` has the index of its record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record<A> {
    /// The packet as it arrived.
    pub key: FlowKey<A>,
    /// [Epoch](crate::maps::EPOCH) at its arrival.
    pub epoch: u32,
    pub tick: u32,
    /// Fields that the kernel's stack does not change. TCP: sequence and acknowledgment number, and the word with the
    /// flags. UDP: the beginning of the payload.
    pub proof: [u32; 3],
    /// Length from the header above IP on.
    pub length: u32,
    /// Time to live, or the hop limit of IPv6.
    pub ttl: u32,
    /// Type of service, or the traffic class of IPv6.
    pub tos: u32,
    /// What became of the packet.
    pub stage: Stage,
    /// [`Stage::Clone`]: the lower bits of [`Entry::queued`](crate::Entry::queued) with the packet itself, or 0.
    pub queued: u32,
}

pub type Record4 = Record<Addr4>;
pub type Record6 = Record<Addr6>;

/// How far a noted packet has come.
///
/// ```text
///  noted                         it came out
/// ───────► Original ────────────────────────────────┐
///                                                   ▼
///  sampled        arrived again          came out   Spent
/// ───────► Clone ───────────────► Returned ─────────▲
///                                        dropped
/// ```
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// The packet itself.
    #[default]
    Original = 0,
    /// A clone of a carried packet, which is given to the interface of the packet once more.
    Clone = 1,
    /// A clone that has passed the program at ingress. It is dropped where it comes out, as the packet itself was
    /// carried.
    Returned = 2,
    /// The packet came out. A record is used once.
    Spent = 3,
}

/// Ticks after which a record is no longer used: a packet does not stay in the kernel's stack for so long.
const KEPT_FOR: u32 = 1;

impl<A> Record<A> {
    /// True if the record describes a clone with this proof, which therefore arrives again. Another packet with the
    /// record's index comes from a container that sets `tc_index`. The caller compares the keys.
    #[inline(always)]
    #[must_use]
    pub fn is_clone(&self, proof: u32, now: u32) -> bool {
        self.stage == Stage::Clone && self.proof[0] == proof && now.wrapping_sub(self.tick) <= KEPT_FOR
    }

    /// True if a packet that came out by an interface is the one that the record describes. The final verdict of
    /// another program's filter at ingress may have set `tc_index` of another packet: a record is used once, and a
    /// reply comes out where its request arrived.
    #[inline(always)]
    #[must_use]
    pub fn is_of(&self, packet: &Departure, now: u32) -> bool {
        let [a, b, c] = self.proof;
        let [d, e, f] = packet.proof;
        (a ^ d) | (b ^ e) | (c ^ f) == 0
            && self.key.protocol == packet.protocol
            && self.length == packet.length
            && self.stage != Stage::Spent
            && self.key.interface != packet.interface
            && now.wrapping_sub(self.tick) <= KEPT_FOR
    }

    /// True if the kernel's stack has changed the packet in no other way than the BPF programs change packets.
    #[inline(always)]
    #[must_use]
    pub const fn is_reproducible(&self, ttl: u8, tos: u8) -> bool {
        self.ttl == ttl as u32 + 1 && self.tos >> 2 == tos as u32 >> 2
    }
}

/// A packet that comes out.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// As [`Record::proof`].
    pub proof: [u32; 3],
    pub protocol: u32,
    /// Length from the header above IP on.
    pub length: u32,
    pub interface: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u32 = 1000;
    const PACKET: Departure = Departure { proof: [1, 2, 3], protocol: 6, length: 120, interface: 5 };

    fn record(stage: Stage) -> Record4 {
        let key = FlowKey { protocol: 6, interface: 3, ..FlowKey::default() };
        Record {
            key,
            tick: NOW,
            proof: [1, 2, 3],
            length: 120,
            ttl: 64,
            tos: 0x48,
            stage,
            ..Record::default()
        }
    }

    #[test]
    fn a_record_has_no_hidden_padding() {
        assert_eq!((size_of::<Record4>(), size_of::<Record6>()), (60, 84));
    }

    #[test]
    fn a_clone_arrives_again_once_within_a_tick() {
        let clone = record(Stage::Clone);
        assert!(clone.is_clone(1, NOW + 1));
        assert!(!clone.is_clone(1, NOW + 2), "too late");
        assert!(!clone.is_clone(9, NOW), "another packet with its index");
        for stage in [Stage::Original, Stage::Returned, Stage::Spent] {
            assert!(!record(stage).is_clone(1, NOW), "{stage:?}");
        }
    }

    #[test]
    fn a_packet_comes_out_once() {
        for stage in [Stage::Original, Stage::Clone, Stage::Returned] {
            assert!(record(stage).is_of(&PACKET, NOW + 1), "{stage:?}");
        }
        assert!(!record(Stage::Spent).is_of(&PACKET, NOW));
    }

    #[test]
    fn another_packet_with_the_index_is_not_recognised() {
        let record = record(Stage::Original);
        assert!(!record.is_of(&PACKET, NOW + 2), "too late");
        for packet in [
            Departure { proof: [9, 2, 3], ..PACKET },
            Departure { proof: [1, 9, 3], ..PACKET },
            Departure { proof: [1, 2, 9], ..PACKET },
            Departure { protocol: 17, ..PACKET },
            Departure { length: 121, ..PACKET },
            // A reply comes out where its request arrived.
            Departure { interface: 3, ..PACKET },
        ] {
            assert!(!record.is_of(&packet, NOW), "{packet:?}");
        }
    }

    #[test]
    fn the_programs_reproduce_one_hop_and_congestion_marks_but_no_other_change() {
        let record = record(Stage::Original);
        assert!(record.is_reproducible(63, 0x48));
        assert!(record.is_reproducible(63, 0x4b), "the mark of RFC 3168");
        for (ttl, tos) in [(64, 0x48), (62, 0x48), (63, 0)] {
            assert!(!record.is_reproducible(ttl, tos), "{ttl} {tos}");
        }
    }
}
