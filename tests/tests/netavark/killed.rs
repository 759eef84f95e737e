// SPDX-License-Identifier: GPL-2.0-or-later

//! The driver is killed at any of its system calls: the next set-up or teardown removes what it left. By default a
//! sample is tried; `SLIPWAY_EVERY_CALL=1` tries them all.

use slipway_tests::{Point, Proto, kill_points, killed, sample};

use crate::{Call, Net, is_other, node, state};

/// The number of points to try for each command.
const SAMPLE: usize = 24;

/// The points of a call that succeeds to try: right after what may have changed something; other kills leave the same.
fn points(call: &Call<'_>, command: &str) -> Vec<Point> {
    let every = std::env::var_os("SLIPWAY_EVERY_CALL").is_some();
    let (output, found) = kill_points(call.node, call.prepare(command));
    assert_eq!(output.process.code, Some(0), "{}", output.process);
    let found: Vec<Point> = found.into_iter().filter(|point| every || point.after_change).collect();
    assert!(found.len() > SAMPLE, "too few calls to be true: {found:?}");
    let step = if every { 1 } else { found.len().div_ceil(SAMPLE) };
    sample(found.into_iter().step_by(step))
}

/// Kills the call at a point. False if it succeeded before: it may share its work between threads in another way than the
/// traced one, or wait less often.
fn is_killed(call: &Call<'_>, command: &str, point: &Point) -> bool {
    killed(call.node, call.prepare(command), point)
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
    let mut kills = 0;
    for (number, point) in points.iter().enumerate() {
        kills += usize::from(is_killed(&call(5), "setup", point));
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
    assert!(kills > points.len() / 4, "{kills} kills at {} points", points.len());
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
    let mut kills = 0;
    for point in &points {
        call.setup();
        kills += usize::from(is_killed(&call, "teardown", point));
        call.teardown();
        let changes = before.changes(&state(&node, &[&pod]));
        assert!(changes.is_empty(), "teardown killed at {point:?} left:\n{}", changes.join("\n"));
    }
    assert!(kills > points.len() / 4, "{kills} kills at {} points", points.len());
}
