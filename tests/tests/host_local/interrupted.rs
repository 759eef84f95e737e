// SPDX-License-Identifier: GPL-2.0-or-later

//! Calls that are killed before any of their system calls, or in which one of the system calls fails.

use std::collections::BTreeSet;

use serde_json::json;
use slipway_tests::{Disturbance, Node, Point, disturbed, kill_points, killed, sample, stride};

use super::{DIR, NET, addresses, call, dual, four, gc, reference, reserved, theirs};

#[test]
fn an_add_that_is_killed_anywhere_blocks_nothing() {
    let node = Node::new();
    let conf = dual();
    let _ = call(&node, "ADD", "c0", &conf).run().ok();
    let _ = call(&node, "DEL", "c0", &conf).run().ok();
    let (output, found) = kill_points(&node, call(&node, "ADD", "c0", &conf));
    let _ = output.ok();
    let _ = call(&node, "DEL", "c0", &conf).run().ok();
    assert!(found.len() > 40, "{found:?}");
    let mut after = 0;
    for (at, point) in sample(&found).into_iter().enumerate() {
        assert!(killed(&node, call(&node, "ADD", "victim", &conf), point), "{point:?}");
        after += usize::from(!reserved(&node).is_empty());
        // Another container immediately gets its addresses, with Slipway as well as with the reference plugin.
        let other = addresses(&call(&node, "ADD", "other", &conf).run().ok());
        assert_eq!(other.len(), 2, "{point:?}");
        if let Some(program) = theirs().filter(|_| at % 8 == 0) {
            assert_eq!(
                addresses(&reference(&program, &node, "ADD", "theirs", &conf).ok()).len(),
                2,
                "{point:?}"
            );
            let _ = reference(&program, &node, "DEL", "theirs", &conf).ok();
        }
        if at % 2 == 0 {
            let _ = call(&node, "DEL", "victim", &conf).run().ok();
        } else {
            let _ = gc(&node, &conf, &["other"]).ok();
        }
        assert!(call(&node, "CHECK", "victim", &conf).run().result().is_err(), "{point:?}");
        let _ = call(&node, "CHECK", "other", &conf).run().ok();
        assert_eq!(reserved(&node).len(), 2, "{point:?}");
        let _ = call(&node, "ADD", "victim", &conf).run().ok();
        let _ = call(&node, "DEL", "victim", &conf).run().ok();
        let _ = call(&node, "DEL", "other", &conf).run().ok();
        assert_eq!(node.list(NET), ["last_reserved_ip.0", "last_reserved_ip.1", "lock"], "{point:?}");
        let left = node.list(&format!("{DIR}/.slipway/net"));
        let ours = ["index", "last_reserved_ip.0", "last_reserved_ip.1"];
        assert!(left.iter().all(|name| ours.contains(&name.as_str())), "{point:?}: {left:?}");
    }
    assert!(after * stride() > 5, "some were killed after a reservation was made");
}

#[test]
fn the_first_add_of_a_node_that_is_killed_anywhere_blocks_nothing() {
    let conf = dual();
    let first = Node::new();
    let (output, found) = kill_points(&first, call(&first, "ADD", "c0", &conf));
    let _ = output.ok();
    assert!(found.iter().any(|point| point.syscall == "mkdirat"), "{found:?}");
    for point in sample(&found) {
        let node = Node::new();
        assert!(killed(&node, call(&node, "ADD", "victim", &conf), point), "{point:?}");
        let _ = call(&node, "ADD", "other", &conf).run().ok();
        let _ = call(&node, "DEL", "victim", &conf).run().ok();
        assert_eq!(reserved(&node).len(), 2, "{point:?}");
        let _ = call(&node, "ADD", "victim", &conf).run().ok();
        assert_eq!(reserved(&node).len(), 4, "{point:?}");
    }
}

#[test]
fn a_del_that_is_killed_anywhere_is_finished_by_the_next() {
    let node = Node::new();
    let conf = dual();
    let _ = call(&node, "ADD", "other", &conf).run().ok();
    let _ = call(&node, "ADD", "victim", &conf).run().ok();
    let (output, found) = kill_points(&node, call(&node, "DEL", "victim", &conf));
    let _ = output.ok();
    for point in sample(&found) {
        let _ = call(&node, "ADD", "victim", &conf).run().ok();
        assert!(killed(&node, call(&node, "DEL", "victim", &conf), point), "{point:?}");
        let _ = call(&node, "DEL", "victim", &conf).run().ok();
        assert_eq!(reserved(&node).len(), 2, "{point:?}: only the other's are left");
        let _ = call(&node, "CHECK", "other", &conf).run().ok();
    }
}

#[test]
fn a_gc_that_is_killed_anywhere_is_finished_by_the_next() {
    let node = Node::new();
    let conf = four();
    let mut collect = conf.clone();
    collect["cniVersion"] = json!("1.1.0");
    collect["cni.dev/valid-attachments"] = json!([{ "containerID": "kept", "ifname": "eth0" }]);
    let gc_call = || node.plugin("host-local").command("GC").config(&collect);
    let fill = || {
        for id in ["dead1", "dead2"] {
            let _ = call(&node, "ADD", id, &conf).run().ok();
        }
    };
    let _ = call(&node, "ADD", "kept", &conf).run().ok();
    fill();
    let (output, found) = kill_points(&node, gc_call());
    let _ = output.ok();
    for point in sample(&found) {
        fill();
        assert!(killed(&node, gc_call(), point), "{point:?}");
        let _ = gc_call().run().ok();
        assert_eq!(reserved(&node), BTreeSet::from(["10.1.2.2".to_owned()]), "{point:?}");
        let _ = call(&node, "CHECK", "kept", &conf).run().ok();
    }
}

/// System calls that a disk, a limit or a policy may refuse, each with the error.
const FAILING: &[(&str, &str)] = &[
    ("fchmod", "EPERM"),
    ("fcntl", "EMFILE"),
    ("flock", "ENOLCK"),
    ("fsync", "EIO"),
    ("linkat", "ENOSPC"),
    ("mkdirat", "ENOSPC"),
    ("newfstatat", "EIO"),
    ("openat", "EMFILE"),
    ("pread64", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("read", "EIO"),
    ("renameat", "ENOSPC"),
    ("statx", "EIO"),
    ("unlinkat", "EROFS"),
    ("utimensat", "EPERM"),
    ("write", "ENOSPC"),
];

/// Makes each system call of `verb` fail, one per run. `verify` gets true if the run succeeded, false if it returned an
/// error, and `None` if the result could not be written.
fn each_call_fails(
    verb: &str,
    from: &str,
    before: impl Fn(&Node),
    verify: impl Fn(&Node, Option<bool>, &str),
) {
    let conf = dual();
    let node = Node::new();
    if from == "steady" {
        let _ = call(&node, "ADD", "other", &conf).run().ok();
    }
    before(&node);
    let (output, found) = kill_points(&node, call(&node, verb, "victim", &conf));
    let _ = output.ok();
    let errno = |point: &Point| FAILING.iter().find(|(name, _)| *name == point.syscall).map(|(_, e)| *e);
    let failing = found.iter().filter_map(|point| Some((point, errno(point)?)));
    for (point, errno) in sample(failing) {
        let why = format!("{verb}: {} number {} fails with {errno}", point.syscall, point.nth);
        let node = Node::new();
        if from == "steady" {
            let _ = call(&node, "ADD", "other", &conf).run().ok();
        }
        before(&node);
        let output = disturbed(&node, call(&node, verb, "victim", &conf), point, Disturbance::Error(errno));
        let ended = match output.process.code {
            Some(0) => Some(true),
            Some(1) if output.process.stderr.contains("write the answer") => None,
            Some(1) => {
                let failure = output.error();
                assert!(failure.code != 0 && !failure.msg.is_empty(), "{why}: {failure:?}");
                Some(false)
            }
            _ => panic!("{why}: {}", output.process),
        };
        verify(&node, ended, &why);
    }
}

fn verify_add(node: &Node, ended: Option<bool>, why: &str) {
    let conf = dual();
    let present = reserved(node).iter().filter(|ip| content(node, ip) == "victim\r\neth0").count();
    match ended {
        Some(true) => assert_eq!(present, 2, "{why}"),
        Some(false) => assert_eq!(present, 0, "{why}"),
        None => {}
    }
    let given = addresses(&call(node, "ADD", "next", &conf).run().ok());
    assert_eq!(given.len(), 2, "{why}");
    let _ = call(node, "DEL", "victim", &conf).run().ok();
    assert!(reserved(node).iter().all(|ip| content(node, ip) != "victim\r\neth0"), "{why}");
    let _ = call(node, "ADD", "victim", &conf).run().ok();
}

fn content(node: &Node, address: &str) -> String {
    node.read(&format!("{NET}/{address}")).unwrap_or_default()
}

#[test]
fn any_call_of_an_add_fails() {
    each_call_fails("ADD", "steady", |_| {}, verify_add);
}

#[test]
fn any_call_of_the_first_add_fails() {
    each_call_fails("ADD", "empty", |_| {}, verify_add);
}

#[test]
fn any_call_of_a_del_fails() {
    let conf = dual();
    let before = |node: &Node| drop(call(node, "ADD", "victim", &conf).run().ok());
    each_call_fails("DEL", "steady", before, |node, ended, why| {
        if ended == Some(true) {
            assert_eq!(reserved(node).len(), 2, "{why}");
        }
        let _ = call(node, "DEL", "victim", &conf).run().ok();
        assert_eq!(reserved(node).len(), 2, "{why}");
        let _ = call(node, "CHECK", "other", &conf).run().ok();
    });
}
