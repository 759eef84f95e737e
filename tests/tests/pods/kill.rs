// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipwayd` or one of its plugins is killed at a system call: a teardown then leaves nothing.

use slipway_tests::{Disturbance, Point, all_kill_points, disturbed, is_peer, sample, stride};

use crate::stage::Stage;

/// The number of points in a run that tries a sample.
const FEW: usize = 14;

const NETWORKS: &str = "--network pods --network storage=net1";

/// The points at which a kill may leave something that one at the point before does not.
fn points(all: Vec<Point>) -> Vec<Point> {
    let all: Vec<Point> = all.into_iter().filter(|point| point.after_change).collect();
    if stride() == 1 {
        return sample(all);
    }
    let step = all.len().div_ceil(FEW).max(1);
    all.into_iter().step_by(step).collect()
}

#[test]
fn a_teardown_after_a_killed_set_up_leaves_nothing() {
    if is_peer() {
        return;
    }
    let stage = Stage::new();
    stage.warm_up();
    let pod = stage.node.pod("web");
    pod.cmd("ip link set lo up");
    let before = stage.state(&[&pod]);
    let up = || {
        stage.call(&format!("pod up test/web --sandbox s1 --netns /run/netns/web --port 8080:80 {NETWORKS}"))
    };
    let down = format!("pod down test/web --sandbox s1 --netns /run/netns/web {NETWORKS}");
    let (output, all) = all_kill_points(&stage.node, up());
    assert_eq!(output.process.code, Some(0), "{}", output.process);
    stage.ok(&down);
    before.assert_same(&stage.state(&[&pod]));
    for point in points(all) {
        let _killed = disturbed(&stage.node, up(), &point, Disturbance::Kill);
        stage.ok(&down);
        let changes = before.changes(&stage.state(&[&pod]));
        assert!(changes.is_empty(), "{point:?}:\n{}", changes.join("\n"));
    }
}

#[test]
fn a_teardown_after_a_killed_teardown_leaves_nothing() {
    if is_peer() {
        return;
    }
    let stage = Stage::new();
    stage.warm_up();
    let before = stage.state(&[]);
    let up = format!("pod up test/web --sandbox s1 --create-netns --port 8080:80 {NETWORKS}");
    let down = || stage.call("pod down test/web --sandbox s1");
    stage.ok(&up);
    let (output, all) = all_kill_points(&stage.node, down());
    assert_eq!(output.process.code, Some(0), "{}", output.process);
    before.assert_same(&stage.state(&[]));
    for point in points(all) {
        stage.ok(&up);
        let _killed = disturbed(&stage.node, down(), &point, Disturbance::Kill);
        stage.ok("pod down test/web --sandbox s1");
        let changes = before.changes(&stage.state(&[]));
        assert!(changes.is_empty(), "{point:?}:\n{}", changes.join("\n"));
    }
}
