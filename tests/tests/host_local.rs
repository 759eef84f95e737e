// SPDX-License-Identifier: GPL-2.0-or-later

//! host-local: reservations that two implementations share, that survive a kill at any moment, and
//! that fail cleanly on a full disk.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cni_state::subnet_file::SubnetFile;
use serde_json::{Value, json};
use slipway_tests::{
    Attach, CniFailure, Disturbance, Node, Output, PluginCall, Point, Proto, REFERENCE, Reference, disturbed,
    kill_points, killed, sample, skip, stride,
};

const DIR: &str = "/var/lib/cni/networks";
const NET: &str = "/var/lib/cni/networks/net";

fn config(ipam: Value) -> Value {
    let mut config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "test", "ipam": ipam });
    config["ipam"]["type"] = json!("host-local");
    config
}

fn four() -> Value {
    config(json!({ "subnet": "10.1.2.0/24" }))
}

fn dual() -> Value {
    config(json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00:1::/64" }]] }))
}

/// A call as bridge makes it, without a namespace: host-local does not use it.
fn call(node: &Node, verb: &str, id: &str, config: &Value) -> PluginCall {
    let call = node.plugin("host-local").command(verb).container(id).ifname("eth0");
    call.netns(format!("/run/netns/{id}")).config(config)
}

/// The same for the reference's host-local.
fn reference(program: &Path, node: &Node, verb: &str, id: &str, config: &Value) -> Output {
    call(node, verb, id, config).instead(program).run()
}

/// A GC or STATUS.
fn node_call(node: &Node, verb: &str, config: &Value) -> Output {
    let mut config = config.clone();
    config["cniVersion"] = json!("1.1.0");
    node.plugin("host-local").command(verb).config(&config).run()
}

fn gc(node: &Node, config: &Value, valid: &[&str]) -> Output {
    let mut config = config.clone();
    let valid = valid.iter().map(|id| json!({ "containerID": id, "ifname": "eth0" }));
    config["cni.dev/valid-attachments"] = valid.collect();
    node_call(node, "GC", &config)
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().expect("addresses");
    ips.iter().map(|ip| ip["address"].as_str().expect("a text").to_owned()).collect()
}

/// Files in the network's directory that are named after addresses.
fn reserved(node: &Node) -> BTreeSet<String> {
    let names = node.list(NET).into_iter();
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
}

fn theirs() -> Option<PathBuf> {
    Reference::any().map(|reference| reference.plugin("host-local"))
}

#[test]
fn a_node_is_switched_over_and_back_with_pods_running() {
    let Some(program) = theirs() else {
        skip!(REFERENCE);
    };
    let node = Node::new();
    let conf = dual();
    let ours = |verb: &str, id: &str| call(&node, verb, id, &conf).run();
    let theirs = |verb: &str, id: &str| reference(&program, &node, verb, id, &conf);
    let pair = |n: u8| vec![format!("10.1.2.{n}/24"), format!("fd00:1::{n}/64")];

    for (n, id) in [(2, "r1"), (3, "r2"), (4, "r3")] {
        assert_eq!(addresses(&theirs("ADD", id).ok()), pair(n));
    }
    let first = node.read(&format!("{NET}/10.1.2.2"));
    // The switch to Slipway: it knows the reservations and continues the round robin.
    let _ = ours("CHECK", "r1").ok();
    assert_eq!(addresses(&ours("ADD", "s1").ok()), pair(5));
    assert_eq!(addresses(&ours("ADD", "s2").ok()), pair(6));
    assert!(ours("ADD", "r1").error().msg.contains("10.1.2.2 has been allocated to r1"));
    let _ = ours("DEL", "r2").ok();
    assert_eq!(first.as_deref(), Some("r1\r\neth0"));
    assert_eq!(node.read(&format!("{NET}/10.1.2.5")).as_deref(), Some("s1\r\neth0"), "the same format");
    // The switch back to the reference.
    let _ = theirs("CHECK", "s1").ok();
    assert!(theirs("CHECK", "r2").error().msg.contains("Failed to find address"));
    assert_eq!(addresses(&theirs("ADD", "r4").ok()), pair(7));
    assert!(theirs("ADD", "s1").error().msg.contains("10.1.2.5 has been allocated to s1"));
    let _ = theirs("DEL", "s2").ok();
    // The second switch to Slipway, whose index lacks the latest changes.
    assert_eq!(addresses(&ours("ADD", "s3").ok()), pair(8));
    assert!(ours("CHECK", "s2").error().msg.contains("Failed to find address"));
    let _ = theirs("DEL", "s3").ok();
    for id in ["r1", "r3", "r4", "s1"] {
        let _ = ours("DEL", id).ok();
    }
    assert_eq!(reserved(&node), BTreeSet::new());
    assert_eq!(node.list(NET), ["last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
}

#[test]
fn both_implementations_work_at_the_same_time() {
    let Some(program) = theirs() else {
        skip!(REFERENCE);
    };
    let node = Node::new();
    let running: Vec<_> = (0..40)
        .map(|n| {
            let add = call(&node, "ADD", &format!("c{n}"), &four());
            if n % 2 == 0 { add.spawn() } else { add.instead(&program).spawn() }
        })
        .collect();
    let given: BTreeSet<String> =
        running.into_iter().flat_map(|running| addresses(&running.wait().ok())).collect();
    assert_eq!(given.len(), 40, "two containers share an address: {given:?}");
    assert_eq!(reserved(&node).len(), 40);
    // Each implementation deletes the other's reservations.
    let running: Vec<_> = (0..40)
        .map(|n| {
            let del = call(&node, "DEL", &format!("c{n}"), &four());
            if n % 2 == 1 { del.spawn() } else { del.instead(&program).spawn() }
        })
        .collect();
    running.into_iter().for_each(|running| drop(running.wait().ok()));
    assert_eq!(reserved(&node), BTreeSet::new());
}

#[test]
fn a_hundred_concurrent_adds_get_a_hundred_addresses() {
    let node = Node::new();
    let start = |verb: &str| {
        (0..100).map(|n| call(&node, verb, &format!("c{n}"), &dual()).spawn()).collect::<Vec<_>>()
    };
    let given: BTreeSet<String> =
        start("ADD").into_iter().flat_map(|running| addresses(&running.wait().ok())).collect();
    assert_eq!(given.len(), 200);
    assert_eq!(reserved(&node).len(), 200);
    start("DEL").into_iter().for_each(|running| drop(running.wait().ok()));
    assert_eq!(reserved(&node), BTreeSet::new());
}

#[test]
fn a_small_range_gives_each_address_once_to_many_callers() {
    let node = Node::new();
    let conf = config(json!({ "subnet": "10.1.2.0/28" }));
    let running: Vec<_> = (0..30).map(|n| call(&node, "ADD", &format!("c{n}"), &conf).spawn()).collect();
    let mut given = BTreeSet::new();
    let mut refused = 0;
    for running in running {
        match running.wait().result() {
            Ok(result) => given.extend(addresses(&result)),
            Err(failure) => {
                assert!(failure.msg.contains("no IP addresses available in range set"), "{failure:?}");
                refused += 1;
            }
        }
    }
    assert_eq!((given.len(), refused), (13, 17));
}

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
        // Another container gets its addresses at once, from Slipway and from the reference.
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

#[test]
fn the_lock_of_a_killed_process_is_released() {
    let node = Node::new();
    let _ = call(&node, "ADD", "c1", &four()).run().ok();
    let mut holder = node.plugin("slipway").instead(Path::new("/usr/bin/flock"));
    holder = holder.arguments(&[&format!("{NET}/lock"), "sleep", "30"]);
    let mut holder = holder.spawn();
    wait_for_lock(&node);
    let waiting = call(&node, "ADD", "c2", &four()).spawn();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(reserved(&node).len(), 1, "the lock is held");
    node.cmd(&format!("pkill -KILL -P {}", holder.pid()));
    holder.kill();
    assert_eq!(addresses(&waiting.wait().ok()), ["10.1.2.3/24"]);
}

fn wait_for_lock(node: &Node) {
    for _ in 0..100 {
        if node.try_cmd(&format!("flock --nonblock {NET}/lock true")).code == Some(1) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("the lock was not taken");
}

/// Returns the error of an ADD on a disk in this state. Asserts that it reserved nothing, and that STATUS
/// fails alike.
fn refused(node: &Node, id: &str, errno: &str) -> CniFailure {
    let before = reserved(node);
    let failure = call(node, "ADD", id, &dual()).run().error();
    assert_eq!(failure.code, 5, "{failure:?}");
    assert!(failure.msg.contains(errno) && failure.msg.contains(DIR), "{failure:?}");
    assert_eq!(reserved(node), before, "{failure:?}");
    let status = node_call(node, "STATUS", &dual()).error();
    assert_eq!(status.code, 50, "{status:?}");
    assert!(status.msg.contains(errno) && status.msg.contains(DIR), "{status:?}");
    failure
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

/// The disk has space for the reservation and for ever more of what follows, page by page.
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

/// The files of the round robin and the index are optional: an ADD works without inodes for them.
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
            // The next search begins at the last recorded address or before it.
            node.cmd(&format!("mount -o remount,nr_inodes={} {DIR}", used + 4));
            assert_eq!(addresses(&add("c3").ok()), ["10.1.2.4/24", "fd00:1::4/64"]);
            let _ = call(&node, "DEL", "c2", &dual()).run().ok();
            assert_eq!(reserved(&node).len(), 4);
        }
    }
}

/// The first ADD of a network needs inodes for its directory, the lock and two reservations, and for the root
/// of the file system.
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

#[test]
fn torn_reservations_of_the_reference_block_nothing() {
    let node = Node::new();
    let conf = config(json!({ "subnet": "10.1.2.0/29" }));
    for (name, torn) in [("10.1.2.2", &b""[..]), ("10.1.2.4", b"\0\0\0\0\0\0\0"), ("10.1.2.6", b"\r\n")] {
        node.write(&format!("{NET}/{name}"), torn);
    }
    node.write(&format!("{NET}/last_reserved_ip.0"), "");
    let _ = node_call(&node, "STATUS", &conf).ok();
    for n in 2..=6 {
        let given = addresses(&call(&node, "ADD", &format!("c{n}"), &conf).run().ok());
        assert_eq!(given, [format!("10.1.2.{n}/29")]);
    }
    let failure = call(&node, "ADD", "c7", &conf).run().error();
    let text = "failed to allocate for range 0: no IP addresses available in range set: 10.1.2.1-10.1.2.6";
    assert_eq!((failure.code, failure.msg.as_str()), (999, text));
    let status = node_call(&node, "STATUS", &conf).error();
    assert_eq!((status.code, status.msg.as_str()), (50, &text[32..]));
}

#[test]
fn gc_keeps_the_listed_attachments_only() {
    let node = Node::new();
    for id in ["c1", "c2", "c3"] {
        let _ = call(&node, "ADD", id, &dual()).run().ok();
    }
    // No list: nothing may be removed.
    let _ = node_call(&node, "GC", &dual()).ok();
    assert_eq!(reserved(&node).len(), 6);
    let _ = gc(&node, &dual(), &["c2", "unheard-of"]).ok();
    assert_eq!(reserved(&node), BTreeSet::from(["10.1.2.3".to_owned(), "fd00:1::3".to_owned()]));
    // null means that no attachment is left.
    let mut config = dual();
    config["cni.dev/valid-attachments"] = Value::Null;
    config["cni.dev/attachments"] = Value::Null;
    let _ = node_call(&node, "GC", &config).ok();
    assert_eq!(reserved(&node), BTreeSet::new());
}

#[test]
fn hostile_names_are_refused() {
    let node = Node::new();
    for name in ["..", ".", "../x", "a/b", "/abs", "a\nb", "a\"b", "", " ", "-a", ".slipway"] {
        let mut conf = four();
        conf["name"] = json!(name);
        let failure = call(&node, "ADD", "c1", &conf).run().error();
        assert_eq!(failure.code, 7, "{name:?}: {failure:?}");
    }
    for id in ["..", "../x", "a/b", "a\nb", "a\"b", "c1\r\neth0", " "] {
        let failure = call(&node, "ADD", id, &four()).run().error();
        assert_eq!(failure.code, 4, "{id:?}: {failure:?}");
    }
    for ifname in ["..", ".", "a/b", "a b", "a:b", "a\tb", "sixteencharsname"] {
        let failure = call(&node, "ADD", "c1", &four()).ifname(ifname).run().error();
        assert_eq!(failure.code, 4, "{ifname:?}: {failure:?}");
    }
    assert!(node.list("/var/lib").is_empty(), "a file was created");
}

#[test]
fn bad_configurations_are_refused_with_the_references_messages() {
    let node = Node::new();
    for (ipam, msg) in [
        (json!({}), "no IP ranges specified"),
        (json!({ "ranges": [] }), "no IP ranges specified"),
        (json!({ "ranges": [[]] }), "invalid range set 0: empty range set"),
        (
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "fd00::/64" }]] }),
            "invalid range set 0: mixed address families",
        ),
        (
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "10.1.0.0/16" }]] }),
            "invalid range set 0: subnets 10.1.2.1-10.1.2.254 and 10.1.0.1-10.1.255.254 overlap",
        ),
        (
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "10.1.0.0/16" }]] }),
            "range set 0 overlaps with 1",
        ),
        (
            json!({ "subnet": "10.1.2.0/31" }),
            "invalid range set 0: Network 10.1.2.0/31 too small to allocate from",
        ),
        (
            json!({ "subnet": "10.1.2.3/24" }),
            "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0",
        ),
        (
            json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.3.1" }),
            "invalid range set 0: RangeStart 10.1.3.1 not in network 10.1.2.0/24",
        ),
        (
            json!({ "subnet": "10.1.2.0/24", "rangeEnd": "10.1.3.1" }),
            "invalid range set 0: RangeEnd 10.1.3.1 not in network 10.1.2.0/24",
        ),
        (
            json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.20", "rangeEnd": "10.1.2.10" }),
            "invalid range set 0: RangeStart 10.1.2.20 not in network 10.1.2.0/24",
        ),
    ] {
        let conf = config(ipam);
        let failure = call(&node, "ADD", "c1", &conf).run().error();
        assert_eq!((failure.code, failure.msg.as_str()), (7, msg));
        if let Some(program) = theirs() {
            let failure = reference(&program, &node, "ADD", "c1", &conf).error();
            assert_eq!(failure.msg, msg, "the reference's message");
        }
        let _ = call(&node, "DEL", "c1", &conf).run().ok();
    }
    assert!(node.list("/var/lib").is_empty(), "a file was created");
}

#[test]
fn results_are_the_references_in_every_version() {
    let Some(program) = theirs() else {
        skip!(REFERENCE);
    };
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"] {
        let (one, two) = (Node::new(), Node::new());
        let mut conf = dual();
        conf["cniVersion"] = json!(version);
        conf["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }, { "dst": "fd00:2::/64", "gw": "fd00:1::9" }]);
        conf["ipam"]["resolvConf"] = json!("/run/resolv.conf");
        conf["args"] = json!({ "cni": { "ips": ["10.1.2.9"] } });
        conf["runtimeConfig"] = json!({ "ips": ["fd00:1::77/64"], "ipRanges": [] });
        for node in [&one, &two] {
            node.write(
                "/run/resolv.conf",
                "nameserver 10.0.0.1\nsearch a.test b.test\ndomain c.test\noptions ndots:5\n",
            );
        }
        let ours = call(&one, "ADD", "c1", &conf).run().ok();
        assert_eq!(ours, reference(&program, &two, "ADD", "c1", &conf).ok(), "{version}");
        assert_eq!(reserved(&one), reserved(&two));
    }
}

/// System calls that a disk, a limit or a policy may refuse, with the error.
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

/// Makes each system call of `verb` fail, one per run. `verify` gets true for success, false for an error,
/// and
/// `None` if the result could not be written.
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

const SUBNETS: &str = "/run/slipway/subnet.json";

fn from_file() -> Value {
    config(json!({ "subnetFile": SUBNETS }))
}

/// Writes the file as the node's agent does.
fn write_subnets(node: &Node, subnets: &[&str]) {
    let subnets = subnets.iter().map(|subnet| subnet.parse().expect("a subnet")).collect();
    let file = SubnetFile { subnets, cluster_cidrs: Vec::new(), mtu: 1450 };
    node.run(|| file.write(Path::new(SUBNETS))).expect("the file is written");
}

#[test]
fn a_subnet_file_has_the_ranges_of_its_node() {
    let node = Node::new();
    let conf = from_file();
    let refused = |code: u32, reason: &str| {
        let before = reserved(&node);
        let add = call(&node, "ADD", "refused", &conf).run().error();
        assert_eq!(add.code, code, "{add:?}");
        let status = node_call(&node, "STATUS", &conf).error();
        assert_eq!(status.code, 50, "{status:?}");
        for failure in [add, status] {
            assert!(failure.msg.contains(reason) && failure.msg.contains(SUBNETS), "{failure:?}");
        }
        let _ = call(&node, "DEL", "refused", &conf).run().ok();
        assert_eq!(reserved(&node), before);
    };
    // Before the agent has written the file.
    refused(11, "no such file");
    let _ = gc(&node, &conf, &[]).ok();
    write_subnets(&node, &["10.244.1.0/24", "fd00:244:0:1::/64"]);
    let _ = node_call(&node, "STATUS", &conf).ok();
    let result = call(&node, "ADD", "c1", &conf).run().ok();
    assert_eq!(addresses(&result), ["10.244.1.2/24", "fd00:244:0:1::2/64"]);
    let gateways: Vec<&Value> =
        result["ips"].as_array().expect("a list").iter().map(|ip| &ip["gateway"]).collect();
    assert_eq!(gateways, ["10.244.1.1", "fd00:244:0:1::1"]);
    // Another subnet, and the families in another order.
    write_subnets(&node, &["fd00:244:0:1::/64", "10.244.7.0/24"]);
    assert_eq!(
        addresses(&call(&node, "ADD", "c2", &conf).run().ok()),
        ["fd00:244:0:1::3/64", "10.244.7.2/24"]
    );
    let whole = node.read(SUBNETS).expect("the file");
    for torn in ["", &whole[..whole.len() - 2], &"\0".repeat(whole.len()), "{}"] {
        node.write(SUBNETS, torn);
        refused(11, if torn.is_empty() { "the file is empty" } else { "not a file of subnets" });
    }
    node.write("/run/slipway/other.json", &whole);
    node.cmd(&format!("ln -sf other.json {SUBNETS}"));
    refused(5, "ELOOP");
    node.cmd(&format!("rm {SUBNETS}"));
    node.cmd(&format!("mkfifo {SUBNETS}"));
    refused(5, "not a regular file");
    // None of it concerns those that run.
    let _ = call(&node, "CHECK", "c1", &conf).run().ok();
    let _ = gc(&node, &conf, &["c1", "c2"]).ok();
    assert_eq!(reserved(&node).len(), 4);
    write_subnets(&node, &["10.244.1.0/24", "fd00:244:0:1::/64"]);
    assert_eq!(
        addresses(&call(&node, "ADD", "c3", &conf).run().ok()),
        ["10.244.1.3/24", "fd00:244:0:1::4/64"]
    );
    node.cmd(&format!("rm {SUBNETS}"));
    for id in ["c1", "c2", "c3"] {
        let _ = call(&node, "DEL", id, &conf).run().ok();
    }
    assert_eq!(reserved(&node), BTreeSet::new());
}

#[test]
fn a_pod_on_a_bridge_has_an_address_of_the_subnet_file() {
    let node = Node::new();
    let network = node.network(json!({
        "cniVersion": "1.1.0", "name": "net",
        "plugins": [{"type": "bridge", "bridge": "br0", "isGateway": true,
                     "ipam": {"type": "host-local", "subnetFile": SUBNETS}}],
    }));
    let (one, two) = (node.pod("one"), node.pod("two"));
    let failure = network.add(&Attach::new(&one)).expect_err("no file");
    assert_eq!(failure.error.code, 11, "{failure:?}");
    assert!(failure.error.msg.contains(SUBNETS), "{failure:?}");
    let status = network.status().expect_err("no file");
    assert_eq!(status.error.code, 50, "{status:?}");
    assert!(!one.has_link("eth0"));

    write_subnets(&node, &["10.244.1.0/24"]);
    network.status().expect("STATUS");
    let result = network.add(&Attach::new(&one)).expect("ADD");
    assert_eq!(addresses(&result), ["10.244.1.2/24"]);
    assert!(node.cmd("ip address show dev br0").contains("10.244.1.1/24"));
    let _server = one.serve(Proto::Tcp, "10.244.1.2:80", "one");
    node.expect(Proto::Tcp, ([10, 244, 1, 2], 80), "one");

    // Another subnet needs another address of the bridge, which `isGateway` alone refuses.
    write_subnets(&node, &["10.244.2.0/24"]);
    let failure = network.add(&Attach::new(&two)).expect_err("another gateway");
    assert!(
        failure.error.msg.contains("already has an IP address different from 10.244.2.1/24"),
        "{failure:?}"
    );
    assert_eq!(reserved(&node), BTreeSet::from(["10.244.1.2".to_owned()]));
    node.expect(Proto::Tcp, ([10, 244, 1, 2], 80), "one");
    network.check(&Attach::new(&one)).expect("CHECK");
    network.del(&Attach::new(&one)).expect("DEL");
    assert_eq!(reserved(&node), BTreeSet::new());
}
