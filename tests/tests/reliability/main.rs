// SPDX-License-Identifier: GPL-2.0-or-later

//! The chain bridge (or ptp) + host-local + portmap, and the other plugins after bridge or in its place. They are
//! killed before each of their system calls, and each of these calls is made to fail.
//!
//! A kill is tried right after each call that may have changed something, because other kills leave the same state.
//! Every third call is made to fail, with one of its errors. The plugins of `SPARSE` share most of their steps with bridge, ptp and portmap, so
//! only a third of these points is tried for each of them. `SLIPWAY_EVERY_CALL=1` tries all points. `SLIPWAY_SAMPLE`
//! then takes a sample of the remaining points.

mod backends;
mod beside;
mod clock;
mod commands;
mod power_cut;
mod stage;

use serde_json::Value;
use slipway_tests::{
    Attach, Disturbance, Network, Output, PluginCall, Point, SHARED_IN_NFTABLES, Snapshot, assert_killed,
    disturbed, error_points, every_call, failures, is_peer, kill_points, sample,
};

use crate::stage::{Cleanup, Stage};

/// The first point to try for a plugin, and the step to the next one.
fn thinned(interface: &str) -> (usize, usize) {
    match SPARSE.iter().position(|sparse| *sparse == interface) {
        Some(at) if !every_call() => (at % 3, 3),
        _ => (0, 1),
    }
}

/// The plugins for which a third of the points is enough.
const SPARSE: [&str; 13] = [
    "bandwidth",
    "dummy",
    "firewall",
    "firewall_iptables",
    "flannel",
    "host-device",
    "ipvlan",
    "macvlan",
    "sbr",
    "tap",
    "tuning",
    "vlan",
    "vrf",
];

fn to_try(found: Vec<Point>, interface: &str) -> Vec<Point> {
    sample(to_try_one_in(found, interface, 1))
}

/// One in `step` of the points that are tried by default.
fn to_try_one_in(found: Vec<Point>, interface: &str, step: usize) -> Vec<Point> {
    let all = every_call();
    let tried: Vec<Point> = found.into_iter().filter(|point| all || point.after_change).collect();
    assert!(tried.len() > 3, "{tried:?}");
    let (first, own) = thinned(interface);
    tried.into_iter().skip(first).step_by(if all { 1 } else { own * step }).collect()
}

/// The configuration of plugin `at` of the list, with the result of the plugins before it.
fn config_for(network: &Network<'_>, attach: &Attach, at: usize, verb: &str) -> Value {
    let mut configs = network.configs(Some(attach));
    for before in 0..at {
        if verb == "ADD" {
            let result = network.call("ADD", &configs[before], Some(attach)).ok();
            configs[before + 1]["prevResult"] = result;
        }
    }
    configs.swap_remove(at)
}

/// Kills a call, or a program that the call runs, at a point. Returns false if the call succeeded before.
fn kill_at(stage: &Stage, call: PluginCall, point: &Point) -> bool {
    disturbed(&stage.node, call, point, Disturbance::Kill).process.code != Some(0)
}

/// Asserts that enough calls were killed, if enough were tried to tell.
#[track_caller]
fn enough(kills: usize, tried: usize, interface: &str) {
    // The reference plugins are Go programs, and the order of the Go runtime's system calls varies.
    if !is_peer() && !SPARSE.contains(&interface) {
        assert_killed(kills, tried);
    }
}

fn add_is_killed(interface: &'static str, at: usize) {
    let stage = Stage::new(interface);
    let attach = stage.attach();
    stage.prove_fresh("before anything is killed");
    let before = stage.state();
    let network = stage.network();
    let prepare = || {
        let config = config_for(&network, &attach, at, "ADD");
        network.prepare("ADD", &config, Some(&attach))
    };
    let (output, found) = kill_points(&stage.node, prepare());
    let _ = output.ok();
    network.del(&attach).expect("DEL");
    before.assert_same(&stage.state());
    let points = to_try(found, interface);
    let mut kills = 0;
    for (turn, point) in points.iter().enumerate() {
        let why = format!("plugin {at} killed at {point:?}");
        kills += usize::from(kill_at(&stage, prepare(), point));
        let cleanup = Cleanup::of(interface, turn);
        cleanup.run(&stage, &why);
        let changes = before.changes_in_the_end(|| stage.state());
        assert!(changes.is_empty(), "{why}: {cleanup:?} left:\n{}", changes.join("\n"));
        stage.prove_fresh(&why);
    }
    enough(kills, points.len(), interface);
}

fn del_is_killed(interface: &'static str, at: usize) {
    let stage = Stage::new(interface);
    let attach = stage.attach();
    stage.prove_fresh("before anything is killed");
    let before = stage.state();
    let network = stage.network();
    let prepare = || {
        network.add(&attach).expect("ADD");
        let mut config = network.configs(Some(&attach)).swap_remove(at);
        config["prevResult"] = network.cached(&attach).expect("a result");
        network.prepare("DEL", &config, Some(&attach))
    };
    let (output, found) = kill_points(&stage.node, prepare());
    let _ = output.ok();
    network.del(&attach).expect("DEL");
    let points = to_try(found, interface);
    let mut kills = 0;
    for point in &points {
        let why = format!("plugin {at} killed at {point:?}");
        kills += usize::from(kill_at(&stage, prepare(), point));
        network.del(&attach).unwrap_or_else(|failure| panic!("{why}: the next DEL: {failure}"));
        let changes = before.changes(&stage.state());
        assert!(changes.is_empty(), "{why}: left:\n{}", changes.join("\n"));
    }
    enough(kills, points.len(), interface);
    stage.prove_fresh("after all");
}

/// The first ADD of a node creates the shared objects: the bridge, the tables and the folders. These may remain, but
/// the attachment's objects must not.
fn first_add_is_killed(interface: &'static str, at: usize) {
    let of = |stage: &Stage| {
        stage.state().without(SHARED_IN_NFTABLES).without(&[" br0 ", "\"br0\"", "folder ", "/lock"])
    };
    let model = Stage::empty(interface);
    let config = config_for(&model.network(), &model.attach(), at, "ADD");
    let call = model.network().prepare("ADD", &config, Some(&model.attach()));
    let (output, found) = kill_points(&model.node, call);
    let _ = output.ok();
    for point in &sample(to_try_one_in(found, interface, 2)) {
        let why = format!("plugin {at}, first ADD, killed at {point:?}");
        let stage = Stage::empty(interface);
        let before = of(&stage);
        let (network, attach) = (stage.network(), stage.attach());
        let config = config_for(&network, &attach, at, "ADD");
        let call = network.prepare("ADD", &config, Some(&attach));
        let _ = disturbed(&stage.node, call, point, Disturbance::Kill);
        network.del(&attach).unwrap_or_else(|failure| panic!("{why}: DEL: {failure}"));
        let changes = before.changes(&of(&stage));
        assert!(changes.is_empty(), "{why}: left:\n{}", changes.join("\n"));
        network.add(&attach).unwrap_or_else(|failure| panic!("{why}: a fresh ADD: {failure}"));
        network.check(&attach).unwrap_or_else(|failure| panic!("{why}: its CHECK: {failure}"));
    }
}

/// The calls that are made to fail, with their errors.
fn to_fail(found: Vec<Point>, interface: &str) -> Vec<(Point, &'static str)> {
    let (first, step) = thinned(interface);
    failures(found, first, 3 * step)
}

/// The outcome of a disturbed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Success,
    /// The call failed with an error that conforms to the specification.
    Refused,
    /// The result could not be written, so the call may have succeeded, or the program could not even be loaded.
    Unheard,
}

/// True if the dynamic loader met the failure. strace counts the calls of each thread, so the point of a thread may also
/// be a call with which the loader of the first thread began.
fn is_unloaded(output: &Output) -> bool {
    output.process.stderr.contains("error while loading shared libraries")
}

#[track_caller]
fn outcome(output: &Output, why: &str) -> Outcome {
    if is_unloaded(output) {
        return Outcome::Unheard;
    }
    assert!(matches!(output.process.code, Some(0 | 1)), "{why}: {}", output.process);
    if output.process.code == Some(0) {
        return Outcome::Success;
    }
    if output.process.stderr.contains("write the answer") {
        return Outcome::Unheard;
    }
    let failure = output.error();
    assert!(failure.code != 0 && !failure.msg.is_empty(), "{why}: {failure:?}");
    Outcome::Refused
}

fn add_fails(interface: &'static str, at: usize) {
    let stage = Stage::new(interface);
    let attach = stage.attach();
    stage.prove_fresh("before anything fails");
    let before = stage.state();
    let network = stage.network();
    let config = config_for(&network, &attach, at, "ADD");
    let (output, found) = error_points(&stage.node, network.prepare("ADD", &config, Some(&attach)));
    let _ = output.ok();
    network.del(&attach).expect("DEL");
    let (mut tried, mut failed) = (0, 0);
    for (point, errno) in to_fail(found, interface) {
        tried += 1;
        let why = format!("plugin {at}: {} fails with {errno}, number {}", point.syscall, point.nth);
        let config = config_for(&network, &attach, at, "ADD");
        let prepared = stage.state();
        let call = network.prepare("ADD", &config, Some(&attach));
        let output = disturbed(&stage.node, call, &point, Disturbance::Error(errno));
        match outcome(&output, &why) {
            Outcome::Success => {
                let config = with_result(&network, &attach, at, &output);
                let check = network.call("CHECK", &config, Some(&attach));
                assert!(check.result().is_ok(), "{why}: CHECK after success: {}", check.process);
            }
            Outcome::Refused => {
                failed += 1;
                // flannel's saved configuration remains if undoing the delegate's ADD met the same failure, because DEL
                // needs it then. portmap's route on a container's own link ends with the link, even if the kernel's
                // answer was lost.
                let saved = |state: &Snapshot| {
                    state.without(&["file /var/lib/cni/flannel/", "route local ::1 dev veth"])
                };
                let changes = saved(&prepared).changes(&saved(&stage.state()));
                assert!(changes.is_empty(), "{why}: left:\n{}\n{}", changes.join("\n"), output.process);
            }
            Outcome::Unheard => {}
        }
        network.del(&attach).unwrap_or_else(|failure| panic!("{why}: DEL: {failure}"));
        let changes = before.changes(&stage.state());
        assert!(changes.is_empty(), "{why}: left after DEL:\n{}", changes.join("\n"));
    }
    // In a small sample, the ADD may survive all failures.
    assert!(tried < 12 || failed > 0, "{failed} of {tried} failed");
    stage.prove_fresh("after all");
}

/// The configuration of plugin `at` of the list, with the output of an ADD as its prevResult.
fn with_result(network: &Network<'_>, attach: &Attach, at: usize, output: &Output) -> Value {
    let mut config = network.configs(Some(attach)).swap_remove(at);
    config["prevResult"] = output.json();
    config
}

fn del_fails(interface: &'static str, at: usize) {
    let stage = Stage::new(interface);
    let attach = stage.attach();
    stage.prove_fresh("before anything fails");
    let before = stage.state();
    let network = stage.network();
    let prepare = || {
        network.add(&attach).expect("ADD");
        let config = network.configs(Some(&attach)).swap_remove(at);
        network.prepare("DEL", &config, Some(&attach))
    };
    let (output, found) = error_points(&stage.node, prepare());
    let _ = output.ok();
    network.del(&attach).expect("DEL");
    for (point, errno) in to_fail(found, interface) {
        let why = format!("plugin {at}: {} fails with {errno}, number {}", point.syscall, point.nth);
        let output = disturbed(&stage.node, prepare(), &point, Disturbance::Error(errno));
        let success = outcome(&output, &why) == Outcome::Success;
        if success {
            // A refused ADD has undone its steps, so only the objects of other plugins may remain.
            for (other, config) in network.configs(Some(&attach)).iter().enumerate().rev() {
                if other != at {
                    let _ = network.call("DEL", config, Some(&attach)).ok();
                }
            }
        } else {
            network.del(&attach).unwrap_or_else(|failure| panic!("{why}: the next DEL: {failure}"));
        }
        let changes = before.changes(&stage.state());
        assert!(
            changes.is_empty(),
            "{why}: left after {}:\n{}",
            if success { "success" } else { "a second DEL" },
            changes.join("\n")
        );
        network.del(&attach).expect("DEL for the runtime's cache");
    }
    stage.prove_fresh("after all");
}

/// Generates the tests of each plugin, given by its name and its place in the list.
macro_rules! plugins {
    ($($module:ident: $name:literal, $at:literal $(, $first:ident)?;)*) => {
        $(
            mod $module {
                plugins! {
                    test $name, $at;
                    $($first: first_add_is_killed;)?
                    killed_in_add: add_is_killed;
                    killed_in_del: del_is_killed;
                    any_call_of_its_add_fails: add_fails;
                    any_call_of_its_del_fails: del_fails;
                }
            }
        )*
    };
    (test $name:literal, $at:literal; $($test:ident: $what:ident;)*) => {
        $(
            #[test]
            fn $test() {
                if let Some(feature) = slipway_tests::lacks($name) {
                    slipway_tests::skip!(feature);
                }
                super::$what($name, $at);
            }
        )*
    };
}

// First come the plugins that make a pair of links, and portmap after them; next the plugins that make or move a single
// link, or delegate to one that makes a pair; and then the chained plugins.
plugins! {
    bridge: "bridge", 0, killed_in_the_first_add;
    ptp: "ptp", 0, killed_in_the_first_add;
    portmap: "bridge", 1, killed_in_the_first_add;
    portmap_behind_ptp: "ptp", 1;
    dummy: "dummy", 0;
    flannel: "flannel", 0, killed_in_the_first_add;
    host_device: "host-device", 0;
    ipvlan: "ipvlan", 0;
    macvlan: "macvlan", 0;
    tap: "tap", 0;
    vlan: "vlan", 0;
    bandwidth: "bandwidth", 1;
    firewall: "firewall", 1, killed_in_the_first_add;
    firewall_iptables: "firewall_iptables", 1, killed_in_the_first_add;
    sbr: "sbr", 1;
    tuning: "tuning", 1, killed_in_the_first_add;
    vrf: "vrf", 1;
}
