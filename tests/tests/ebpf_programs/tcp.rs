// SPDX-License-Identifier: GPL-2.0-or-later

//! The states of TCP connections, and their timeouts.

use slipway_ebpf_abi::{self as abi, Flow4, FlowKey4, State};

use crate::bed::{HOST_PORT, POD_PORT, Rig};
use crate::rig;
use crate::wire::{ACK, FIN, Ip, RST, SYN};

const CLIENT_PORT: u16 = 40000;

/// The sender of a segment.
#[derive(Clone, Copy, Debug)]
enum Sender {
    Client,
    Pod,
}
use Sender::{Client, Pod};

/// Sends segments, and asserts that each is translated.
fn play(rig: &Rig, segments: &[(Sender, u8)]) {
    let at = rig.addresses(false);
    for (from, flags) in segments {
        match from {
            Client => rig.arrives(&Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT), *flags)),
            Pod => rig.sends(&Ip::new(at.pod, at.client).tcp((POD_PORT, CLIENT_PORT), *flags)),
        }
        .translated();
    }
}

/// The connection's state, which both directions must have.
#[track_caller]
fn state(rig: &mut Rig) -> Option<State> {
    let mut directions: Vec<(FlowKey4, Flow4)> = rig.flows4(abi::maps::FLOWS4).into_iter().collect();
    directions.extend(rig.flows4(abi::maps::HALF_OPEN4));
    let states: Vec<u8> = directions.iter().map(|(_, flow)| flow.state).collect();
    match states[..] {
        [] => None,
        [one, other] if one == other => State::from_number(one),
        _ => panic!("expected two directions in one state: {directions:?}"),
    }
}

#[test]
fn each_segment_leads_to_the_state_that_conntrack_has() {
    let open = [(Client, SYN), (Pod, SYN | ACK), (Client, ACK)];
    let cases: &[(&[(Sender, u8)], State)] = &[
        (&[(Client, SYN)], State::SynSent),
        (&[(Client, SYN), (Client, SYN)], State::SynSent),
        (&[(Client, SYN), (Pod, SYN | ACK)], State::SynReceived),
        (&[(Client, SYN), (Pod, SYN | ACK), (Pod, SYN | ACK)], State::SynReceived),
        (&[(Client, SYN), (Pod, RST | ACK)], State::Close),
        (&open, State::Established),
        (&[(Client, ACK), (Pod, ACK)], State::Established),
        (&[(Client, FIN | ACK)], State::FinWait),
        (&[(Client, FIN | ACK), (Pod, ACK)], State::CloseWait),
        (&[(Client, FIN | ACK), (Pod, FIN | ACK)], State::LastAck),
        (&[(Client, FIN | ACK), (Pod, ACK), (Pod, FIN | ACK)], State::LastAck),
        (&[(Client, FIN | ACK), (Pod, ACK), (Pod, FIN | ACK), (Client, ACK)], State::TimeWait),
        (&[(Pod, FIN | ACK)], State::FinWait),
        (&[(Pod, FIN | ACK), (Client, ACK), (Client, FIN | ACK), (Pod, ACK)], State::TimeWait),
        (&[(Client, RST)], State::Close),
        (&[(Pod, RST | ACK)], State::Close),
    ];
    let mut rig = rig!();
    for (segments, expected) in cases {
        rig.forget_flows();
        if !matches!(segments[0], (Client, SYN)) {
            play(&rig, &open);
        }
        play(&rig, segments);
        assert_eq!(state(&mut rig), Some(*expected), "{segments:?}");
    }
}

#[test]
fn each_state_lasts_as_long_as_in_conntrack() {
    let open = [(Client, SYN), (Pod, SYN | ACK), (Client, ACK)];
    let cases: &[(&[(Sender, u8)], u32)] = &[
        (&[(Client, SYN)], 120),
        (&[(Client, SYN), (Pod, SYN | ACK)], 60),
        (&open, 432_000),
        (&[(Client, FIN | ACK)], 120),
        (&[(Client, FIN | ACK), (Pod, ACK)], 60),
        (&[(Client, FIN | ACK), (Pod, FIN | ACK)], 30),
        (&[(Client, FIN | ACK), (Pod, FIN | ACK), (Client, ACK)], 120),
        (&[(Client, RST)], 10),
    ];
    let mut rig = rig!();
    let at = rig.addresses(false);
    let probe = Ip::new(at.pod, at.client).tcp((POD_PORT, CLIENT_PORT), ACK);
    for (segments, seconds) in cases {
        for late in [false, true] {
            rig.forget_flows();
            if !matches!(segments[0], (Client, SYN)) {
                play(&rig, &open);
            }
            play(&rig, segments);
            if late {
                rig.age(seconds + 2);
                rig.sends(&probe).left(&probe);
                assert_eq!(state(&mut rig), None, "both directions are removed together");
            } else {
                rig.age(seconds - 5);
                rig.sends(&probe).translated();
            }
        }
    }
}

#[test]
fn a_syn_begins_a_new_connection_if_the_old_one_is_over() {
    let mut rig = rig!();
    let open = [(Client, SYN), (Pod, SYN | ACK), (Client, ACK)];
    play(&rig, &open);
    // A SYN on an open connection does not change its state: the pod answers it.
    play(&rig, &[(Client, SYN)]);
    assert_eq!(state(&mut rig), Some(State::Established));
    for end in [&[(Client, RST)][..], &[(Client, FIN | ACK), (Pod, FIN | ACK), (Client, ACK)]] {
        play(&rig, end);
        play(&rig, &[(Client, SYN)]);
        assert_eq!(state(&mut rig), Some(State::SynSent));
        play(&rig, &open[1..]);
        assert_eq!(state(&mut rig), Some(State::Established));
    }
    // The new connection follows the port's current target.
    play(&rig, &[(Client, RST)]);
    rig.publish(6, HOST_PORT, 81, crate::bed::GENERATION);
    let at = rig.addresses(false);
    let seen = rig.arrives(&Ip::new(at.client, at.node).tcp((CLIENT_PORT, HOST_PORT), SYN)).translated();
    assert_eq!(seen.ports.1, 81);
}

/// A host that knows the addresses and ports of a connection, but not its sequence numbers, cannot end it:
/// the receiver ignores such a reset (RFC 5961), and so do the BPF programs.
#[test]
fn a_reset_outside_the_window_ends_no_connection() {
    let mut rig = rig!();
    let at = rig.addresses(false);
    let open = [(Client, SYN), (Pod, SYN | ACK), (Client, ACK), (Pod, ACK)];
    let send = |rig: &Rig, sender, flags, sequence| {
        match sender {
            Client => {
                rig.arrives(&Ip::new(at.client, at.node).tcp_at((CLIENT_PORT, HOST_PORT), flags, sequence))
            }
            Pod => rig.sends(&Ip::new(at.pod, at.client).tcp_at((POD_PORT, CLIENT_PORT), flags, sequence)),
        }
        .translated();
    };
    play(&rig, &open);
    for wrong in [0x1000_0000_u32, 0x8000_0000, 0xf000_0000] {
        for sender in [Client, Pod] {
            // The reset is forwarded, and another segment outside the window does not make the next reset
            // valid.
            send(&rig, sender, RST, wrong);
            send(&rig, sender, ACK, wrong);
            send(&rig, sender, RST, wrong.wrapping_add(1));
            assert_eq!(state(&mut rig), Some(State::Established), "{wrong:#x} {sender:?}");
        }
    }
    // A reset with a valid sequence number ends the connection, however far the numbers have advanced.
    for sender in [Client, Pod] {
        rig.forget_flows();
        play(&rig, &open);
        let mut sequence: u32 = 7;
        for _ in 0..9000 {
            sequence = sequence.wrapping_add(500_000);
            send(&rig, sender, ACK, sequence);
        }
        send(&rig, sender, RST, sequence.wrapping_add(1400));
        assert_eq!(state(&mut rig), Some(State::Close), "{sender:?}");
    }
}
