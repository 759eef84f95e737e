// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Records of noted packets, by which the program at egress recognises the packets that come out of the
//! kernel's stack.

use crate::address::{Addr4, Addr6};
use crate::flow::FlowKey;

/// A packet on its way through the kernel's stack. The packet's `__sk_buff::tc_index` is the index of this
/// record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record<A> {
    /// The packet's direction, with addresses and ports as they arrived.
    pub key: FlowKey<A>,
    /// The [epoch](crate::maps::EPOCH) in which the packet arrived.
    pub epoch: u32,
    pub tick: u32,
    /// Fields of the packet that the kernel's stack does not change: the identification of IPv4 or the flow
    /// label of IPv6; for TCP also the sequence and acknowledgment numbers and the word with the flags; for
    /// UDP also the length, and the beginning and the end of the payload.
    pub proof: [u32; PROOF],
    /// The length from the TCP or UDP header on.
    pub length: u32,
    /// Time to live, or the hop limit of IPv6.
    pub ttl: u32,
    /// Type of service, or the traffic class of IPv6.
    pub tos: u32,
    pub stage: Stage,
    /// For [`Stage::Clone`]: the lower bits of [`Entry::queued`](crate::Entry::queued) after the packet
    /// itself was counted, or 0 if the packet did not take the queue.
    pub queued: u32,
    /// 1 once the packet has come out.
    pub came_out: u32,
}

/// The number of words of [`Record::proof`].
pub const PROOF: usize = 6;

pub type Record4 = Record<Addr4>;
pub type Record6 = Record<Addr6>;

/// How far a noted packet has come.
///
/// ```text
///  noted                                      it came out
/// ───────► Original ───────────────────────────────────────────► came_out ──┐
///                                                               ▲        ▲  │ it came out again:
///  sampled         arrived again               it came out      │        └──┘ the flow is barred
/// ───────► Clone ───────────────► Returned ─────────────────────┘
///                                 dropped where the packet itself was carried to
/// ```
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// The packet itself.
    #[default]
    Original = 0,
    /// A clone of a carried packet, on its way to the interface on which the packet arrived.
    Clone = 1,
    /// A clone that has arrived there. The program at egress drops it if it comes out where the packet itself
    /// was carried to.
    Returned = 2,
}

/// Which packet came out with the index of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A packet other than that of the record.
    Unknown,
    /// The packet of the record, which has not come out before.
    Out,
    /// The packet of the record, or a copy of it, through the interface on which it arrived. Nothing can be
    /// learnt from that.
    Back,
    /// A copy of the packet of the record, which has come out before.
    Again,
}

/// The number of ticks for which a record is used. A packet usually does not stay in the kernel's stack for
/// so long.
const KEPT_FOR: u32 = 4;

impl<A> Record<A> {
    /// True if the record describes a clone with this proof, so that the packet that arrives is this clone.
    /// Otherwise a container has sent a packet with the index of the record, because containers can set
    /// `tc_index`. Two words have to suffice, because the program has not read the payload yet. The caller
    /// compares the keys.
    #[inline(always)]
    #[must_use]
    pub fn is_clone(&self, proof: [u32; 2], now: u32) -> bool {
        self.stage == Stage::Clone
            && self.proof[0] == proof[0]
            && self.proof[1] == proof[1]
            && now.wrapping_sub(self.tick) <= KEPT_FOR
    }

    /// True if the packet of the record may still come out, so that the record must not be used for another
    /// packet.
    #[inline(always)]
    #[must_use]
    pub const fn is_in_use(&self, now: u32) -> bool {
        self.came_out == 0 && self.epoch != 0 && now.wrapping_sub(self.tick) <= KEPT_FOR
    }

    /// Compares a packet that came out with this record, whose index it has. It may be another packet,
    /// because a final verdict of another program's filter at ingress sets `tc_index`.
    #[inline(always)]
    #[must_use]
    pub fn outcome(&self, packet: &Departure, now: u32) -> Outcome {
        let mut difference = 0;
        for word in 0..PROOF {
            difference |= self.proof[word] ^ packet.proof[word];
        }
        difference |= self.key.protocol ^ packet.protocol;
        difference |= self.length ^ packet.length;
        if difference != 0 || self.epoch == 0 || now.wrapping_sub(self.tick) > KEPT_FOR {
            Outcome::Unknown
        } else if self.came_out != 0 {
            Outcome::Again
        } else if self.key.interface == packet.interface {
            Outcome::Back
        } else {
            Outcome::Out
        }
    }

    /// True if the kernel's stack has changed time to live and DSCP as the BPF programs would. A congestion
    /// mark (RFC 3168) may differ, because it says nothing about later packets.
    #[inline(always)]
    #[must_use]
    pub const fn is_reproducible(&self, ttl: u8, tos: u8) -> bool {
        self.ttl == ttl as u32 + 1 && self.tos >> 2 == tos as u32 >> 2
    }
}

/// A packet that comes out of the kernel's stack.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// The same fields as in [`Record::proof`].
    pub proof: [u32; PROOF],
    pub protocol: u32,
    /// The length from the TCP or UDP header on.
    pub length: u32,
    pub interface: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u32 = 1000;
    const PROOF: [u32; 6] = [1, 2, 3, 4, 5, 6];
    const PACKET: Departure = Departure { proof: PROOF, protocol: 6, length: 120, interface: 5 };

    fn record(stage: Stage) -> Record4 {
        let key = FlowKey { protocol: 6, interface: 3, ..FlowKey::default() };
        Record {
            key,
            epoch: 1,
            tick: NOW,
            proof: PROOF,
            length: 120,
            ttl: 64,
            tos: 0x48,
            stage,
            ..Record::default()
        }
    }

    #[test]
    fn a_record_has_no_hidden_padding() {
        assert_eq!((size_of::<Record4>(), size_of::<Record6>()), (76, 100));
    }

    #[test]
    fn a_clone_arrives_again_once_while_its_record_is_kept() {
        let clone = record(Stage::Clone);
        assert!(clone.is_clone([1, 2], NOW + KEPT_FOR));
        assert!(!clone.is_clone([1, 2], NOW + KEPT_FOR + 1), "too late");
        assert!(!clone.is_clone([9, 2], NOW), "another packet with its index");
        assert!(!clone.is_clone([1, 9], NOW), "another packet with its index");
        for stage in [Stage::Original, Stage::Returned] {
            assert!(!record(stage).is_clone([1, 2], NOW), "{stage:?}");
        }
    }

    #[test]
    fn a_packet_comes_out_once_and_then_again() {
        for stage in [Stage::Original, Stage::Clone, Stage::Returned] {
            let mut record = record(stage);
            assert_eq!(record.outcome(&PACKET, NOW + KEPT_FOR), Outcome::Out, "{stage:?}");
            record.came_out = 1;
            assert_eq!(record.outcome(&PACKET, NOW + KEPT_FOR), Outcome::Again, "{stage:?}");
        }
    }

    #[test]
    fn a_copy_by_the_interface_of_arrival_teaches_nothing_and_counts() {
        let mut record = record(Stage::Original);
        let back = Departure { interface: 3, ..PACKET };
        assert_eq!(record.outcome(&back, NOW), Outcome::Back);
        record.came_out = 1;
        assert_eq!(record.outcome(&PACKET, NOW), Outcome::Again);
        assert_eq!(record.outcome(&back, NOW), Outcome::Again);
    }

    #[test]
    fn another_packet_with_the_index_is_not_recognised() {
        let record = record(Stage::Original);
        assert_eq!(record.outcome(&PACKET, NOW + KEPT_FOR + 1), Outcome::Unknown, "too late");
        for word in 0..PROOF.len() {
            let mut packet = PACKET;
            packet.proof[word] ^= 1 << 31;
            assert_eq!(record.outcome(&packet, NOW), Outcome::Unknown, "{packet:?}");
        }
        for packet in [Departure { protocol: 17, ..PACKET }, Departure { length: 121, ..PACKET }] {
            assert_eq!(record.outcome(&packet, NOW), Outcome::Unknown, "{packet:?}");
        }
        assert_eq!(
            Record4::default().outcome(&Departure { proof: [0; 6], protocol: 0, length: 0, interface: 5 }, 1),
            Outcome::Unknown
        );
    }

    #[test]
    fn a_record_is_in_use_until_its_packet_came_out_or_is_late() {
        let mut record = record(Stage::Original);
        assert!(record.is_in_use(NOW + KEPT_FOR));
        assert!(!record.is_in_use(NOW + KEPT_FOR + 1));
        record.came_out = 1;
        assert!(!record.is_in_use(NOW));
        assert!(!Record4::default().is_in_use(0));
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
