//! How long conversations of UDP and echoes last, and which of them are established.

use std::time::Duration;

use slipway_ebpf_abi::{self as abi, Counter, State};

use crate::bed::{HOST_PORT, POD_PORT, Rig, Sizes};
use crate::rig;
use crate::wire::Ip;

const CLIENT_PORT: u16 = 40000;

/// The states of all halves.
fn states(rig: &mut Rig) -> Vec<Option<State>> {
    let mut all = rig.flows4(abi::maps::FLOWS4);
    all.extend(rig.flows4(abi::maps::EMBRYOS4));
    all.into_values().map(|flow| State::from_number(flow.state)).collect()
}

/// As conntrack has it: a stream is what has gone both ways for two seconds.
#[test]
fn a_question_and_its_answer_are_no_stream() {
    let mut rig = rig!();
    for v6 in [false, true] {
        let at = rig.addresses(v6);
        let question = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"?");
        let answer = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"!");
        for _ in 0..3 {
            rig.arrives(&question).translated();
            rig.sends(&answer).translated();
        }
        assert_eq!(rig.halves(v6), (0, 2));
        std::thread::sleep(Duration::from_millis(3300));
        // An answer alone shows nothing about who asks.
        rig.sends(&answer).translated();
        assert_eq!(rig.halves(v6), (0, 2));
        rig.arrives(&question).translated();
        assert_eq!(rig.halves(v6), (2, 0));
        rig.age(100);
        rig.arrives(&question).translated();
        assert_eq!(rig.count(Counter::Established), 1 + u64::from(v6));
    }
    rig.forget_flows();
    // 30 seconds after the answer it is over, and so is what was never answered.
    let at = rig.addresses(false);
    let question = Ip::new(at.client, at.node).udp((CLIENT_PORT, HOST_PORT), b"?");
    let answer = Ip::new(at.pod, at.client).udp((POD_PORT, CLIENT_PORT), b"!");
    rig.arrives(&question).translated();
    assert_eq!(states(&mut rig), [Some(State::Unreplied); 2]);
    rig.sends(&answer).translated();
    rig.age(32);
    assert_eq!(rig.sends(&answer).translated().source, at.node);
    assert_eq!(rig.count(Counter::Masqueraded), 1);
}

/// However many there are: a flood of questions that are all answered takes no room from connections.
#[test]
fn questions_and_answers_evict_no_established_flow() {
    let mut rig = rig!(Sizes { flows: Some(1024), embryos: Some(1024) });
    let at = rig.addresses(false);
    for port in 1024..4000 {
        rig.arrives(&Ip::new(at.client, at.node).udp((port, HOST_PORT), b"?")).translated();
        rig.sends(&Ip::new(at.pod, at.client).udp((POD_PORT, port), b"!")).translated();
        let id = rig.sends(&Ip::new(at.pod, at.far).echo(true, port)).translated().ports.0;
        rig.arrives(&Ip::new(at.far, at.node).echo(false, id)).translated();
    }
    assert_eq!(rig.halves(false).0, 0);
}
