// SPDX-License-Identifier: MIT OR GPL-2.0-only

use super::*;
use crate::address::Addr4;

const EPOCH: u32 = 7;
const NOW: u32 = 1000;
/// The hashes of two directions that are taken to share a slot.
const HASH: u32 = 0x0012_3456;
const OTHER: u32 = 0x0654_3211;

const PACKET: Arrival = Arrival { length: 1500, dscp: 0, ttl: 64 };

/// An entry in the state Direct, for packets that go straight into a container.
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

/// What happens to `N` equal packets that arrive in the same tick.
fn steps<const N: usize>(entry: &mut Entry<Addr4>, packet: Arrival) -> [Step; N] {
    core::array::from_fn(|_| entry.arrive(packet, EPOCH, NOW, || false))
}

#[test]
fn the_page_has_the_same_diagram() {
    let (_, rest) = include_str!("../life.rs").split_once("/// ```text\n").unwrap();
    let (diagram, _) = rest.split_once("/// ```\n").unwrap();
    let mut page = include_str!("../../../../docs/dataplane/ebpf.md").lines();
    let first = diagram.lines().next().unwrap().strip_prefix("/// ").unwrap();
    assert!(page.any(|line| line == first), "docs/dataplane/ebpf.md has no diagram that begins like State's");
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
            // Without a count, the direction may have an entry, so it is not taken for a young one.
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
    // The other direction may have an entry, because this count may have replaced its own.
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
    // Packets that leave by an uplink do not take such a queue.
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
    // The epoch is 0, so that not even a processor that has read the previous epoch carries a packet.
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
    // Short packets confirm the direction, but not the length.
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

#[test]
fn the_number_of_entries_is_the_upper_word() {
    assert_eq!((size_of::<Young>(), align_of::<Young>(), core::mem::offset_of!(Young, entries)), (8, 8, 4));
}
