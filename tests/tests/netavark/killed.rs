// SPDX-License-Identifier: GPL-2.0-or-later

//! The driver is killed at any of its system calls: the next set-up or teardown removes what it left. By default a
//! sample is tried; `SLIPWAY_EVERY_CALL=1` tries them all.

use std::collections::HashMap;

use slipway_tests::{Output, Proto, sample};

use crate::{Call, Net, is_other, node, state};

/// The number of points to try for each command.
const SAMPLE: usize = 24;

/// The calls of a run that succeeds, as strace(1) counts them: the nth of a name in a thread.
fn points(call: &Call<'_>, command: &str) -> Vec<(String, usize)> {
    let run =
        call.node.plugin("slipway").without("CNI_PATH").arguments(&[command, &call.netns]).config(&call.exec);
    let output = run.through(&["strace", "-f", "-qq", "-o", "/run/trace"]).run();
    assert_eq!(output.process.code, Some(0), "{}", output.process);
    let trace = call.node.read("/run/trace").expect("strace writes its log");
    call.node.cmd("rm /run/trace");
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    let mut points = Vec::new();
    for line in trace.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let Some((name, _)) = rest.trim_start().split_once('(') else { continue };
        if !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') {
            continue;
        }
        let nth = counts.entry((pid, name)).or_default();
        *nth += 1;
        let point = (name.to_owned(), *nth);
        if name != "execve" && !name.starts_with("exit") && !points.contains(&point) {
            points.push(point);
        }
    }
    assert!(points.len() > 50, "too few calls to be true: {points:?}");
    let every = std::env::var_os("SLIPWAY_EVERY_CALL").is_some();
    let step = if every { 1 } else { points.len().div_ceil(SAMPLE) };
    sample(points.into_iter().step_by(step))
}

fn kill_at(call: &Call<'_>, command: &str, point: &(String, usize)) -> Output {
    let inject = format!("inject={}:signal=KILL:when={}", point.0, point.1);
    let run =
        call.node.plugin("slipway").without("CNI_PATH").arguments(&[command, &call.netns]).config(&call.exec);
    run.through(&["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject]).run()
}

/// Most of the calls must have ended by the signal, or the test tested nothing.
fn mostly_killed(outputs: &[Output]) {
    let missed = outputs.iter().filter(|output| output.process.code == Some(0)).count();
    assert!(
        missed <= (outputs.len() / 10 + 1).max(3) && missed < outputs.len(),
        "{missed} of {}",
        outputs.len()
    );
}

#[test]
fn a_killed_setup_is_torn_down_or_set_up_again() {
    if is_other() {
        return;
    }
    let node = node();
    let client = node.host("client");
    let (first, pod) = (node.pod("first"), node.pod("web"));
    let net = Net::new();
    Call::new(&node, &net, &first, 4).setup();
    let call = |number: u8| {
        let call = Call::new(&node, &net, &pod, number).publish("", "tcp", 9000, 80, 1);
        call.publish("", "udp", 9000, 80, 1)
    };
    call(5).setup();
    call(5).teardown();
    let before = state(&node, &[&pod]);
    let points = points(&call(5), "setup");
    call(5).teardown();
    before.assert_same(&state(&node, &[&pod]));
    let mut outputs = Vec::new();
    for (number, point) in points.iter().enumerate() {
        outputs.push(kill_at(&call(5), "setup", point));
        if number % 2 == 0 {
            // podman gives the container another address for the next start.
            call(6).setup();
            let _web = pod.serve(Proto::Tcp, "[::]:80", "web");
            client.expect(Proto::Tcp, (client.node_v4, 9000), "web");
            call(6).teardown();
        } else {
            call(5).teardown();
        }
        let changes = before.changes(&state(&node, &[&pod]));
        assert!(changes.is_empty(), "setup killed at {point:?} left:\n{}", changes.join("\n"));
    }
    mostly_killed(&outputs);
}

#[test]
fn a_second_teardown_finishes_a_killed_one() {
    if is_other() {
        return;
    }
    let node = node();
    let pod = node.pod("web");
    let net = Net::new();
    let call = Call::new(&node, &net, &pod, 5).publish("", "tcp", 9000, 80, 1);
    call.setup();
    call.teardown();
    let before = state(&node, &[&pod]);
    call.setup();
    let points = points(&call, "teardown");
    before.assert_same(&state(&node, &[&pod]));
    let mut outputs = Vec::new();
    for point in &points {
        call.setup();
        outputs.push(kill_at(&call, "teardown", point));
        call.teardown();
        let changes = before.changes(&state(&node, &[&pod]));
        assert!(changes.is_empty(), "teardown killed at {point:?} left:\n{}", changes.join("\n"));
    }
    mostly_killed(&outputs);
}
