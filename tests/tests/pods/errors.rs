// SPDX-License-Identifier: GPL-2.0-or-later

//! Whatever `slipwayd pod` cannot read or look up, a running pod keeps all of its networks. What it cannot store leaves
//! nothing behind.

use serde_json::json;
use slipway_tests::{Disturbance, all_error_points, disturbed, failures, slipway_only};

use crate::stage::{Stage, bridge, list};

/// The largest number of failures that a plain run tries, before it takes a sample of them.
const MOST: usize = 60;

/// The calls by which it learns what there is. Other errors, for instance of the eventfds that wake its threads, cannot
/// happen, or end the process before it does anything.
const LOOKS: [&str; 6] = ["getdents64", "openat", "read", "recvmsg", "sendto", "socket"];

/// The calls by which it stores what it has made.
const STORES: [&str; 4] = ["fchmod", "fsync", "linkat", "renameat"];

const UP: &str =
    "pod up test/web --sandbox s1 --create-netns --port 8080:80 --network pods --network storage=net1";
const DOWN: &str = "pod down test/web --sandbox s1";

/// A stage with a running pod.
fn with_pod() -> Stage {
    let stage = Stage::new();
    // Only from this version on, the plugins get a GC.
    let mut storage = list("storage", &json!([bridge("br1", "10.92.0.0/24")]));
    storage["cniVersion"] = "1.1.0".into();
    stage.write("20-storage.conflist", &storage);
    stage.warm_up();
    stage.ok(UP);
    // Removes the chain of pods that are only in the first network, which the second attachment has left unused.
    stage.ok("pod gc --keep s1");
    stage
}

/// Lets calls of `words` fail, one at a time, and compares the state afterwards.
#[track_caller]
fn changes_nothing(stage: &Stage, words: &str, succeeds: bool) {
    let before = stage.state(&[]);
    let (output, mut all) = all_error_points(&stage.node, stage.call(words));
    all.retain(|point| LOOKS.contains(&point.syscall.as_str()));
    assert_eq!(output.process.code, Some(i32::from(!succeeds)), "{}", output.process);
    before.assert_same(&stage.state(&[]));
    let step = all.len().div_ceil(MOST);
    for (point, errno) in failures(all, words.len(), step) {
        let output = disturbed(&stage.node, stage.call(words), &point, Disturbance::Error(errno));
        let changes = before.changes(&stage.state(&[]));
        assert!(changes.is_empty(), "{point:?} {errno}:\n{}\n{}", changes.join("\n"), output.process);
    }
    stage.ok("pod status test/web --sandbox s1");
    stage.ok(DOWN);
}

#[test]
fn a_valid_pod_survives_a_gc_that_meets_an_error() {
    slipway_only!();
    changes_nothing(&with_pod(), "pod gc --keep s1", true);
}

#[test]
fn a_running_pod_survives_a_second_set_up_that_meets_an_error() {
    slipway_only!();
    changes_nothing(&with_pod(), UP, false);
}

/// A set-up that fails because the disk does is undone, and leaves no record that would refuse the next one.
#[test]
fn a_set_up_that_cannot_be_stored_leaves_no_record() {
    slipway_only!();
    let stage = Stage::new();
    stage.warm_up();
    let up = "pod up test/web --sandbox s1 --create-netns --network storage";
    let stored = || ["results", "pending"].map(|folder| stage.node.list(&format!("/var/lib/cni/{folder}")));
    let before = stored();
    let (output, mut all) = all_error_points(&stage.node, stage.call(up));
    assert_eq!(output.process.code, Some(0), "{}", output.process);
    stage.ok(DOWN);
    all.retain(|point| STORES.contains(&point.syscall.as_str()));
    assert!(all.len() > 3, "{all:?}");
    for point in all {
        let output = disturbed(&stage.node, stage.call(up), &point, Disturbance::Error("EIO"));
        if output.process.code != Some(0) {
            assert_eq!(stored(), before, "{point:?}: {}", output.process);
            assert!(stage.node.reserved("storage").is_empty(), "{point:?}");
            stage.ok(up);
        }
        stage.ok(DOWN);
    }
}

/// The name of a damaged file still tells whose attachment it is about.
#[test]
fn a_valid_pod_with_a_damaged_file_survives_gc() {
    slipway_only!();
    let stage = with_pod();
    let state = || stage.state(&[]).without(&["storage-s1-net1"]);
    let before = state();
    stage.node.write("/var/lib/cni/results/storage-s1-net1", "{");
    stage.ok("pod gc --keep s1");
    before.assert_same(&state());
    // As the control, a GC without the pod removes what it finds.
    stage.ok("pod gc --all");
    assert!(stage.node.reserved("storage").is_empty() && stage.node.reserved("pods").is_empty());
}
