// SPDX-License-Identifier: GPL-2.0-or-later

//! Disks that are full, out of inodes or read-only.

use std::collections::BTreeSet;

use slipway_tests::{Node, Reference};

use super::{DIR, NET, addresses, call, dual, node_call, reference, reserved};

/// Asserts that an ADD on a disk in this state fails and reserves nothing, and that STATUS fails with the same error.
fn refused(node: &Node, id: &str, errno: &str) {
    let before = reserved(node);
    let failure = call(node, "ADD", id, &dual()).run().error();
    assert_eq!(failure.code, 5, "{failure:?}");
    assert!(failure.msg.contains(errno) && failure.msg.contains(DIR), "{failure:?}");
    assert_eq!(reserved(node), before, "{failure:?}");
    let status = node_call(node, "STATUS", &dual()).error();
    assert_eq!(status.code, 50, "{status:?}");
    assert!(status.msg.contains(errno) && status.msg.contains(DIR), "{status:?}");
}

fn mount(node: &Node, options: &str) {
    node.cmd(&format!("mkdir -p {DIR}"));
    node.cmd(&format!("mount -t tmpfs -o {options} tmpfs {DIR}"));
}

#[test]
fn a_full_disk_refuses_and_leaves_nothing() {
    let node = Node::new();
    mount(&node, "size=80k");
    let _ = call(&node, "ADD", "c1", &dual()).run().ok();
    node.try_cmd(&format!("dd if=/dev/zero of={DIR}/filler bs=4k"));
    refused(&node, "c2", "ENOSPC");
    let _ = call(&node, "CHECK", "c1", &dual()).run().ok();
    let _ = call(&node, "DEL", "c1", &dual()).run().ok();
    node.cmd(&format!("rm {DIR}/filler"));
    let _ = call(&node, "ADD", "c2", &dual()).run().ok();
    let _ = node_call(&node, "STATUS", &dual()).ok();
}

/// In each round, the disk has one more page for what an ADD writes.
#[test]
fn a_disk_that_fills_up_at_any_moment_leaves_nothing() {
    for pages in 0..16 {
        let node = Node::new();
        mount(&node, "size=160k");
        node.cmd(&format!("mkdir -p {NET}"));
        node.try_cmd(&format!("dd if=/dev/zero of={DIR}/filler bs=4k"));
        node.cmd(&format!("truncate -s -{}k {DIR}/filler", pages * 4));
        let added = call(&node, "ADD", "c1", &dual()).run();
        match added.result() {
            Ok(result) => assert_eq!(addresses(&result).len(), reserved(&node).len(), "{pages}"),
            Err(failure) => {
                assert!(failure.msg.contains("ENOSPC") && failure.msg.contains(DIR), "{pages}: {failure:?}");
                assert_eq!(reserved(&node), BTreeSet::new(), "{pages}");
            }
        }
        node.cmd(&format!("rm {DIR}/filler"));
        let _ = call(&node, "DEL", "c1", &dual()).run().ok();
        let _ = call(&node, "ADD", "c2", &dual()).run().ok();
        assert_eq!(reserved(&node).len(), 2, "{pages}");
    }
}

#[test]
fn no_inodes_left_refuses_and_leaves_nothing() {
    let mut seen = 0;
    for inodes in 2..10 {
        let node = Node::new();
        mount(&node, &format!("nr_inodes={inodes}"));
        let added = call(&node, "ADD", "c1", &dual()).run();
        if let Err(failure) = added.result() {
            seen += 1;
            assert_eq!(failure.code, 5, "{failure:?}");
            assert!(failure.msg.contains("ENOSPC") && failure.msg.contains(DIR), "{failure:?}");
            assert_eq!(reserved(&node), BTreeSet::new(), "{inodes}");
            let status = node_call(&node, "STATUS", &dual());
            if let Err(status) = status.result() {
                assert_eq!(status.code, 50, "{status:?}");
            }
        }
        node.cmd(&format!("mount -o remount,nr_inodes=1000 {DIR}"));
        let _ = call(&node, "DEL", "c1", &dual()).run().ok();
        let _ = call(&node, "ADD", "c2", &dual()).run().ok();
        assert_eq!(reserved(&node).len(), 2, "{inodes}");
    }
    assert!(seen > 2, "the limit was met {seen} times");
}

/// The round-robin files and the index are optional, so an ADD succeeds without inodes for them.
#[test]
fn an_add_needs_an_inode_for_each_reservation_and_no_other() {
    let programs = Reference::all().into_iter().map(|one| Some(one.plugin("host-local"))).chain([None]);
    for program in programs {
        let node = Node::new();
        mount(&node, "nr_inodes=1000");
        let add = |id: &str| match &program {
            Some(program) => reference(program, &node, "ADD", id, &dual()),
            None => call(&node, "ADD", id, &dual()).run(),
        };
        let _ = add("c1").ok();
        let files = node.run(|| nix::sys::statvfs::statvfs(DIR)).expect("statvfs of the state directory");
        let used = files.files() - files.files_free();
        node.cmd(&format!("mount -o remount,nr_inodes={} {DIR}", used + 2));
        let added = addresses(&add("c2").ok());
        assert_eq!(added, ["10.1.2.3/24", "fd00:1::3/64"], "{program:?}");
        assert_eq!(reserved(&node).len(), 4, "{program:?}");
        if program.is_none() {
            let _ = call(&node, "CHECK", "c2", &dual()).run().ok();
            // The next search begins at or before the last recorded address.
            node.cmd(&format!("mount -o remount,nr_inodes={} {DIR}", used + 4));
            assert_eq!(addresses(&add("c3").ok()), ["10.1.2.4/24", "fd00:1::4/64"]);
            let _ = call(&node, "DEL", "c2", &dual()).run().ok();
            assert_eq!(reserved(&node).len(), 4);
        }
    }
}

/// The first ADD of a network needs inodes for its directory, the lock and two reservations. One more is the root of
/// the file system.
#[test]
fn the_first_add_creates_its_reservations_before_optional_files() {
    for inodes in 4..10 {
        let node = Node::new();
        mount(&node, &format!("nr_inodes={inodes}"));
        if inodes < 5 {
            refused(&node, "c1", "ENOSPC");
            continue;
        }
        let _ = node_call(&node, "STATUS", &dual()).ok();
        node.cmd(&format!("find {DIR} -mindepth 1 -delete"));
        let _ = call(&node, "ADD", "c1", &dual()).run().ok();
        assert_eq!(reserved(&node).len(), 2, "{inodes}");
        let _ = call(&node, "DEL", "c1", &dual()).run().ok();
        assert_eq!(reserved(&node).len(), 0, "{inodes}");
    }
}

#[test]
fn a_read_only_directory_is_named() {
    let node = Node::new();
    mount(&node, "size=1m");
    let _ = call(&node, "ADD", "c1", &dual()).run().ok();
    node.cmd(&format!("mount -o remount,ro {DIR}"));
    refused(&node, "c2", "EROFS");
    let _ = call(&node, "CHECK", "c1", &dual()).run().ok();
    let failure = call(&node, "DEL", "c1", &dual()).run().error();
    assert!(failure.code == 5 && failure.msg.contains("EROFS") && failure.msg.contains(NET), "{failure:?}");
    let _ = call(&node, "DEL", "unknown", &dual()).run().ok();
    node.cmd(&format!("mount -o remount,rw {DIR}"));
    let _ = call(&node, "DEL", "c1", &dual()).run().ok();
    assert_eq!(reserved(&node), BTreeSet::new());
}
