// SPDX-License-Identifier: GPL-2.0-or-later

//! Commands that change the node: each is killed, or fails, at its system calls. The next call then completes the work,
//! and what was there before comes back.

use slipway_tests::{
    Disturbance, Node, Output, PROGRAMS, PluginCall, Point, Snapshot, all_error_points, all_kill_points,
    disturbed, every_call, failures, has_programs, needs, needs_iptables, one_in, point_of, sample,
    slipway_only,
};

use crate::backends::{Backend, EBPF, IPTABLES, LEGACY, NFTABLES, Scene};
use crate::is_unloaded;

/// The folder of the plugins that `install` changes, and two of them that are not Slipway's.
const BIN: &str = "/run/cni-bin";
const FOREIGN: [&str; 2] = ["bridge", "portmap"];
const SCRIPT: &str = "#!/bin/sh\necho foreign\n";

/// What happens to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kill,
    Error,
}

fn call(node: &Node, words: &str) -> PluginCall {
    node.plugin("slipway").arguments(&words.split(' ').collect::<Vec<_>>())
}

/// Runs a command to its end, which must be a success.
#[track_caller]
fn succeeds(node: &Node, words: &str, why: &str) {
    let output = call(node, words).run();
    assert_eq!(output.process.code, Some(0), "{why}: {words}: {}", output.process);
}

/// The largest number of disturbances that a plain run tries of a command, before it takes a sample of them.
const MOST: usize = 16;

/// The disturbances of a command.
fn disturbances(node: &Node, words: &str, kind: Kind) -> Vec<(Point, Disturbance)> {
    let traced = |(output, points): (Output, Vec<Point>)| {
        assert_eq!(output.process.code, Some(0), "{words}: {}", output.process);
        assert!(points.len() > 10, "{words}: {points:?}");
        points
    };
    match kind {
        Kind::Kill => {
            let points = traced(all_kill_points(node, call(node, words)));
            let points: Vec<Point> =
                points.into_iter().filter(|point| every_call() || point.after_change).collect();
            let step = if every_call() { 1 } else { points.len().div_ceil(MOST) };
            let points = sample(one_in(points, words.len(), step));
            points.into_iter().map(|point| (point, Disturbance::Kill)).collect()
        }
        Kind::Error => {
            let points = traced(all_error_points(node, call(node, words)));
            let step = points.len().div_ceil(MOST);
            let failing = failures(points, words.len(), step).into_iter();
            failing.map(|(point, errno)| (point, Disturbance::Error(errno))).collect()
        }
    }
}

/// Disturbs a command, which must not panic. If it fails, it must say why.
#[track_caller]
fn disturb(node: &Node, words: &str, point: &Point, how: Disturbance) -> String {
    let output = disturbed(node, call(node, words), point, how);
    let why = format!("{words}: {how:?} at {} number {}", point.syscall, point.nth);
    let process = &output.process;
    if is_unloaded(&output) {
        return why;
    }
    assert!(!process.stderr.contains("panicked"), "{why}: {process}");
    if how != Disturbance::Kill {
        assert!(matches!(process.code, Some(0 | 1 | 3 | 4)), "{why}: {process}");
        let has_reason = !process.stderr.trim().is_empty() || !process.stdout.trim().is_empty();
        assert!(process.code == Some(0) || has_reason, "{why}: {process}");
    }
    why
}

/// Disturbs migrations from nftables to another backend and back.
fn migrate(other: Backend, kind: Kind) {
    slipway_only!();
    let scene = Scene::new(Backend { name: "nftables", ..other });
    let network = scene.network();
    let to_other = format!("migrate --to {}", other.name);
    let words = [to_other.as_str(), "migrate --to nftables"];
    let round_trip = |why: &str| words.iter().for_each(|words| succeeds(&scene.node, words, why));
    // The first migration creates the shared chains, which stay.
    network.add(&scene.attach()).expect("ADD");
    round_trip("at first");
    network.del(&scene.attach()).expect("DEL");
    let empty = (scene.state(), scene.served());
    network.add(&scene.attach()).expect("ADD");
    let before = scene.state();
    for (at, words) in words.iter().enumerate() {
        // The second direction begins where the first one ends.
        let begin = |why: &str| {
            if at == 1 {
                succeeds(&scene.node, &to_other, why);
            }
        };
        begin("traced");
        let all = disturbances(&scene.node, words, kind);
        round_trip("traced");
        for (point, how) in all {
            begin("before");
            let why = disturb(&scene.node, words, &point, how);
            succeeds(&scene.node, words, &why);
            for attach in [scene.attach(), scene.first()] {
                network.check(&attach).unwrap_or_else(|failure| panic!("{why}: CHECK: {failure}"));
            }
            succeeds(&scene.node, "migrate --to nftables", &why);
            let changes = before.changes_in_the_end(|| scene.state());
            assert!(changes.is_empty(), "{why}: there and back changed:\n{}", changes.join("\n"));
        }
    }
    scene.ends_clean(&network, &empty, "after all");
}

/// Disturbs restorations after the ruleset was flushed.
fn restore(backend: Backend, kind: Kind) {
    slipway_only!();
    let scene = Scene::new(backend);
    let network = scene.network();
    let flush = || {
        let node = &scene.node;
        node.cmd("nft flush ruleset");
        for family in ["iptables", "ip6tables"] {
            if backend.variant == "legacy" {
                node.cmd(&format!("{family}-legacy -t nat -F"));
            } else {
                // The sign of the variant is gone as well.
                node.cmd(&format!("{family}-nft -t mangle -N KUBE-IPTABLES-HINT"));
            }
        }
    };
    network.add(&scene.attach()).expect("ADD");
    for attach in [scene.attach(), scene.first()] {
        network.write_cache(&attach);
    }
    let cycle = |why: &str| {
        flush();
        succeeds(&scene.node, "restore", why);
    };
    cycle("at first");
    let before = scene.state();
    flush();
    let all = disturbances(&scene.node, "restore", kind);
    for (point, how) in all {
        flush();
        let why = disturb(&scene.node, "restore", &point, how);
        succeeds(&scene.node, "restore", &why);
        let changes = before.changes_in_the_end(|| scene.state());
        assert!(changes.is_empty(), "{why}: not as before:\n{}", changes.join("\n"));
        for attach in [scene.attach(), scene.first()] {
            network.check(&attach).unwrap_or_else(|failure| panic!("{why}: CHECK: {failure}"));
        }
    }
    network.del(&scene.attach()).expect("DEL");
    let left = scene.state();
    network.add(&scene.attach()).expect("a fresh ADD");
    network.del(&scene.attach()).expect("its DEL");
    left.assert_same(&scene.state());
}

/// Disturbs installations in a folder with foreign plugins. At any moment, a runtime finds the old plugin or the new one.
fn install(kind: Kind) {
    slipway_only!();
    let node = Node::new();
    for name in FOREIGN {
        node.write(&format!("{BIN}/{name}"), SCRIPT);
        node.cmd(&format!("chmod 755 {BIN}/{name}"));
    }
    // The folder is the administrator's, so it stays.
    node.cmd("mkdir /run/share");
    let state = || Snapshot::take(&node, &[]);
    let before = state();
    let (words, undo) =
        (format!("install --to {BIN} --replace --share-dir /run/share"), format!("uninstall --to {BIN}"));
    let all = disturbances(&node, &words, kind);
    let names = node.list(BIN);
    succeeds(&node, &undo, "traced");
    before.assert_same(&state());
    for (point, how) in all {
        let why = disturb(&node, &words, &point, how);
        for name in FOREIGN {
            let path = format!("{BIN}/{name}");
            // As runtimes do, which ask a plugin for its versions.
            let output = node.plugin(name).instead(path.as_ref()).command("VERSION").stdin("{}").run();
            let text = &output.process.stdout;
            assert!(text == "foreign\n" || text.contains("supportedVersions"), "{why}: {}", output.process);
        }
        succeeds(&node, &words, &why);
        let found = node.list(BIN);
        assert_eq!(found, names, "{why}");
        succeeds(&node, &undo, &why);
        let changes = before.changes(&state());
        assert!(changes.is_empty(), "{why}: uninstalled, but changed:\n{}", changes.join("\n"));
    }
}

/// Disturbs the set-up or the removal of the BPF programs.
fn node_task(task: &str, kind: Kind) {
    slipway_only!();
    needs!(has_programs(), PROGRAMS);
    let (node, client) = Node::with_client();
    node.cmd(&format!("ip route add default via {}", client.v4));
    let state = || Snapshot::take(&node, &[]);
    let done = |words: &str, is_loaded: bool, why: &str| {
        succeeds(&node, words, why);
        let status = node.programs();
        assert_eq!(
            (&status["loaded"], &status["current"]),
            (&is_loaded.into(), &is_loaded.into()),
            "{why}: {status:#}"
        );
    };
    let words = format!("node {task}");
    done("node setup", true, "at first");
    done("node teardown", false, "at first");
    let before = state();
    let prepare = |why: &str| {
        if task == "teardown" {
            done("node setup", true, why);
        }
    };
    prepare("traced");
    let all = disturbances(&node, &words, kind);
    done("node teardown", false, "traced");
    for (point, how) in all {
        prepare("before");
        let why = disturb(&node, &words, &point, how);
        if task == "setup" {
            done("node setup", true, &why);
        }
        done("node teardown", false, &why);
        let mut pinned = node.list("/sys/fs/bpf");
        // Some kernels put iterators of their own into each BPF file system.
        pinned.retain(|name| !name.ends_with(".debug"));
        assert!(pinned.is_empty(), "{why}: pinned: {pinned:?}");
        let changes = before.changes(&state());
        assert!(changes.is_empty(), "{why}: changed:\n{}", changes.join("\n"));
    }
}

/// The BPF programs of a link cannot be detached. Without their maps and pins, nobody could tell them any more that
/// rules have changed, so these stay until a later call has detached the programs.
#[test]
fn programs_that_cannot_be_detached_keep_their_maps() {
    slipway_only!();
    needs!(has_programs(), PROGRAMS);
    let (node, client) = Node::with_client();
    node.cmd(&format!("ip route add default via {}", client.v4));
    node.cmd(&format!("mkdir -p {BIN} /run/share"));
    let is_loaded = || node.programs()["loaded"] == true;
    for words in ["node teardown".to_owned(), format!("uninstall --to {BIN}")] {
        let prepare = || {
            succeeds(&node, &format!("install --to {BIN} --replace --share-dir /run/share"), &words);
            succeeds(&node, "node setup", &words);
        };
        prepare();
        // strace shows the kernel's acknowledgement of the message, which fails in its place.
        let point = point_of(&node, call(&node, &words), "RTM_DELTFILTER");
        assert!(!is_loaded(), "{words}");
        prepare();
        let output = disturbed(&node, call(&node, &words), &point, Disturbance::Error("ENOBUFS"));
        let process = &output.process;
        assert_eq!(process.code, Some(1), "{process}");
        assert!(process.stderr.contains("detach the BPF programs from"), "{process}");
        assert!(is_loaded(), "{words}: the programs have lost their maps");
        succeeds(&node, &words, "again");
        assert!(!is_loaded(), "{words}");
    }
}

/// Generates a test in which a command is killed, and one in which its calls fail.
macro_rules! commands {
    ($($module:ident: $function:ident($($argument:expr),*), $needs:tt;)*) => {
        $(
            mod $module {
                use super::*;

                #[test]
                fn is_killed() {
                    commands!(needs $needs);
                    $function($($argument,)* Kind::Kill);
                }

                #[test]
                fn any_of_its_calls_fails() {
                    commands!(needs $needs);
                    $function($($argument,)* Kind::Error);
                }
            }
        )*
    };
    (needs {}) => {};
    (needs {iptables}) => { needs_iptables!() };
    (needs {programs}) => { needs!(has_programs(), PROGRAMS) };
}

commands! {
    migrate_iptables_nft: migrate(IPTABLES), {iptables};
    migrate_iptables_legacy: migrate(LEGACY), {iptables};
    migrate_ebpf: migrate(EBPF), {programs};
    restore_nftables: restore(NFTABLES), {};
    restore_iptables_nft: restore(IPTABLES), {iptables};
    restore_iptables_legacy: restore(LEGACY), {iptables};
    restore_ebpf: restore(EBPF), {programs};
    installation: install(), {};
    node_setup: node_task("setup"), {};
    node_teardown: node_task("teardown"), {};
}
