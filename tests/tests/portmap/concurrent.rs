// SPDX-License-Identifier: GPL-2.0-or-later

//! Concurrent calls and killed processes.

use slipway_tests::{Node, kill_points, killed, sample};

use crate::{Call, elements_of, listed, map, run_of};

const MANY: u8 = 60;

/// When ADDs run concurrently on an empty node, one of them creates the table, and all succeed.
#[test]
fn concurrent_adds_succeed() {
    let node = Node::new();
    let pods: Vec<_> = (0..MANY).map(|i| node.pod(&format!("pod{i}"))).collect();
    let calls: Vec<Call<'_>> = pods
        .iter()
        .zip(2u8..)
        .map(|(pod, number)| {
            let mut ports =
                vec![map("tcp", 8000 + u16::from(number), 80), map("udp", 8000 + u16::from(number), 80)];
            // Every tenth has a range of ports, because publishing a range takes more checks than publishing single
            // ports.
            if number.is_multiple_of(10) {
                ports.extend(run_of(20000 + 100 * u16::from(number), 50));
            }
            Call::new(&node, pod, number, &ports)
        })
        .collect();
    let all = |verb: &str| {
        let running: Vec<_> = calls.iter().map(|call| call.call(verb).spawn()).collect();
        for process in running {
            process.wait().ok();
        }
    };
    all("ADD");
    for call in &calls {
        call.check();
    }
    assert_eq!(listed(&node).len(), usize::from(MANY) * 4 + 12);
    all("DEL");
    assert!(!node.ruleset().contains("slipway1"), "{}", node.ruleset());
}

/// When concurrent ADDs request the same port, one of them gets it.
#[test]
fn one_of_many_gets_the_port() {
    let node = Node::new();
    let pods: Vec<_> = (0..16).map(|i| node.pod(&format!("pod{i}"))).collect();
    let call = |i: usize| {
        let number = u8::try_from(i).expect("few") + 2;
        // Half of them request a range that contains the port of the others.
        let ports = if i.is_multiple_of(2) { run_of(9000, 20) } else { vec![map("tcp", 9010, 80)] };
        Call::new(&node, &pods[i], number, &ports)
    };
    let running: Vec<_> = (0..pods.len()).map(|i| call(i).call("ADD").spawn()).collect();
    let results: Vec<_> = running.into_iter().map(|process| process.wait().result()).collect();
    let won: Vec<usize> = (0..pods.len()).filter(|i| results[*i].is_ok()).collect();
    // A single port inside a range that was published a moment earlier is withdrawn. If two calls find each other, both
    // may yield, and are tried again.
    assert!(won.len() <= 1, "{won:?}");
    for error in results.into_iter().filter_map(Result::err) {
        assert_eq!(error.code, 11, "{error:?}");
    }
    for (i, pod) in pods.iter().enumerate() {
        assert_eq!(
            elements_of(&node, pod.name()) > 0,
            won.contains(&i),
            "{}: {}",
            pod.name(),
            node.ruleset()
        );
    }
}

/// Wherever an ADD is killed, DEL or GC removes everything, and a new ADD succeeds.
#[test]
fn an_add_may_be_killed_anywhere() {
    let node = Node::new();
    let (pod, other) = (node.pod("victim"), node.pod("other"));
    let mut ports = run_of(9000, 20);
    ports.push(map("udp", 53, 53));
    Call::new(&node, &other, 9, &[map("tcp", 1, 1)]).add();
    for ports in [vec![map("tcp", 80, 80), map("udp", 53, 53)], ports] {
        let call = Call::new(&node, &pod, 2, &ports);
        call.add();
        call.del();
        let before = node.ruleset();
        let (output, points) = kill_points(&node, call.call("ADD"));
        output.ok();
        call.del();
        assert!(points.len() > 20, "{points:?}");
        for (at, point) in sample(&points).into_iter().enumerate() {
            if !killed(&node, call.call("ADD"), point) {
                call.check();
            }
            if at.is_multiple_of(2) {
                call.add();
                call.check();
                call.del();
            } else {
                call.clone().forgetful().del();
            }
            assert_eq!(node.ruleset(), before, "{point:?}");
        }
    }
}

#[test]
fn a_del_may_be_killed_anywhere() {
    let node = Node::new();
    let pod = node.pod("victim");
    let mut ports = run_of(9000, 20);
    ports.push(map("udp", 53, 53));
    let call = Call::new(&node, &pod, 2, &ports);
    call.add();
    call.del();
    let before = node.ruleset();
    call.add();
    let (output, points) = kill_points(&node, call.call("DEL"));
    output.ok();
    for point in sample(&points) {
        call.add();
        let _ended = killed(&node, call.call("DEL"), point);
        call.clone().forgetful().del();
        assert_eq!(node.ruleset(), before, "{point:?}");
    }
}
