// SPDX-License-Identifier: GPL-2.0-or-later

//! A plugin is killed at any of its system calls: DEL, or GC if the namespace is gone too, removes what it
//! left, and a fresh ADD succeeds.
//!
//! By default some points right after a change are tried; `SLIPWAY_EVERY_CALL=1` tries all system calls, which takes
//! some minutes.

use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, Disturbance, Network, Node, PluginCall, Pod, Point, Proto, Snapshot,
    assert_killed, disturbed, host_local, is_peer, kill_points, points_to_try,
};

/// Number of points to try for each plugin call.
const SAMPLE: usize = 24;

struct Stage {
    node: Node,
    _first: Pod,
    pod: Pod,
}

/// A node with one pod; `interface` is the plugin that makes the links.
fn stage(interface: &str) -> Option<Stage> {
    // The reference is a Go program: the order of its runtime's system calls varies.
    if is_peer() {
        return None;
    }
    let node = Node::new();
    node.bridge_netfilter(BridgeNetfilter::Off);
    let first = node.pod("first");
    network(&node, interface)
        .add(&Attach::new(&first).port(Proto::Tcp, 8080, 80))
        .expect("ADD of the first pod");
    let pod = node.pod("pod");
    Some(Stage { node, _first: first, pod })
}

fn network<'a>(node: &'a Node, interface: &str) -> Network<'a> {
    node.network(json!({
        "name": "net",
        "plugins": [
            {
                "type": interface, "bridge": "br0", "isGateway": true, "ipMasq": true, "macspoofchk": true,
                "ipam": host_local("10.88.0.0/24", "fd00:88::/64"),
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    }))
}

fn attach(pod: &Pod) -> Attach {
    Attach::new(pod).port(Proto::Tcp, 9000, 80).port(Proto::Udp, 9000, 80).port_on(
        "192.0.2.1",
        Proto::Tcp,
        9001,
        80,
    )
}

const IGNORED: &[&str] = &[
    "last_reserved_ip",
    "networks/.slipway/",
    "networks/net/lock",
    "networks/net/.",
    "folder ",
    "netns /run",
];

/// The state that must be unchanged. The next call removes temporary files; the index is derived from the
/// reservations, and the lock file has no content.
fn state(stage: &Stage) -> Snapshot {
    let ignored =
        ["last_reserved_ip", "networks/.slipway/", "networks/net/lock", "networks/net/.", "folder "];
    Snapshot::take(&stage.node, &[&stage.pod]).without(&ignored)
}

fn prepare(stage: &Stage, verb: &str, config: &Value, pod: &Pod) -> PluginCall {
    let name = config["type"].as_str().expect("a type");
    stage.node.plugin(name).command(verb).for_pod(pod).args("").config(config)
}

/// Runs the call and kills it, or a program that it runs, at a point. False if it succeeded before.
fn kill_at(stage: &Stage, verb: &str, config: &Value, pod: &Pod, point: &Point) -> bool {
    let output = disturbed(&stage.node, prepare(stage, verb, config, pod), point, Disturbance::Kill);
    output.process.code != Some(0)
}

/// The points of a call to try, in the order of a traced run, which succeeds.
fn points(stage: &Stage, verb: &str, config: &Value) -> Vec<Point> {
    let (output, found) = kill_points(&stage.node, prepare(stage, verb, config, &stage.pod));
    output.ok();
    points_to_try(found, SAMPLE)
}

fn del_removes_what_a_killed_add_left(interface: &str) {
    let Some(stage) = stage(interface) else { return };
    let (network, attach) = (network(&stage.node, interface), attach(&stage.pod));
    let configs = network.configs(Some(&attach));
    network.add(&attach).expect("ADD");
    network.del(&attach).expect("DEL");
    let before = state(&stage);
    let points_of_interface = points(&stage, "ADD", &configs[0]);
    network.del(&attach).expect("DEL");
    before.assert_same(&state(&stage));
    let mut kills = 0;
    for point in &points_of_interface {
        kills += usize::from(kill_at(&stage, "ADD", &configs[0], &stage.pod, point));
        network.del(&attach).unwrap_or_else(|e| panic!("DEL after {interface} was killed at {point:?}: {e}"));
        let changes = before.changes(&state(&stage));
        assert!(changes.is_empty(), "{interface} killed at {point:?} left:\n{}", changes.join("\n"));
    }
    assert_killed(kills, points_of_interface.len());
    let result = network.call("ADD", &configs[0], Some(&attach)).ok();
    let mut portmap = configs[1].clone();
    portmap["prevResult"] = result;
    let points_of_portmap = points(&stage, "ADD", &portmap);
    network.call("DEL", &configs[1], Some(&attach)).ok();
    let settled = state(&stage);
    let mut kills = 0;
    for point in &points_of_portmap {
        kills += usize::from(kill_at(&stage, "ADD", &portmap, &stage.pod, point));
        network.call("DEL", &configs[1], Some(&attach)).ok();
        let changes = settled.changes(&state(&stage));
        assert!(changes.is_empty(), "portmap killed at {point:?} left:\n{}", changes.join("\n"));
    }
    assert_killed(kills, points_of_portmap.len());
    network.del(&attach).expect("DEL");
    before.assert_same(&state(&stage));
    network.add(&attach).expect("a fresh ADD");
    network.check(&attach).expect("CHECK");
}

fn a_second_del_finishes_a_killed_del(interface: &str) {
    let Some(stage) = stage(interface) else { return };
    let (network, attach) = (network(&stage.node, interface), attach(&stage.pod));
    let configs = network.configs(Some(&attach));
    network.add(&attach).expect("ADD");
    network.del(&attach).expect("DEL");
    let before = state(&stage);
    for config in [&configs[1], &configs[0]] {
        network.add(&attach).expect("ADD");
        let points = points(&stage, "DEL", config);
        network.del(&attach).expect("DEL");
        before.assert_same(&state(&stage));
        let mut kills = 0;
        let plugin = &config["type"];
        for point in &points {
            network.add(&attach).unwrap_or_else(|e| panic!("ADD before the kill at {point:?}: {e}"));
            kills += usize::from(kill_at(&stage, "DEL", config, &stage.pod, point));
            network.del(&attach).unwrap_or_else(|e| panic!("DEL after {plugin} at {point:?}: {e}"));
            let changes = before.changes(&state(&stage));
            assert!(changes.is_empty(), "DEL of {plugin} killed at {point:?} left:\n{}", changes.join("\n"));
        }
        assert_killed(kills, points.len());
    }
}

/// The namespace is gone with the crash, and the runtime does not know the attachment: GC finds it.
fn gc_removes_what_a_killed_add_left(interface: &str) {
    let Some(stage) = stage(interface) else { return };
    let network = network(&stage.node, interface);
    let first = json!([{"containerID": "first", "ifname": "eth0"}]);
    network.gc_plugins(&first).expect("GC");
    let before = Snapshot::take(&stage.node, &[]).without(IGNORED);
    let attach = attach(&stage.pod);
    let configs = network.configs(Some(&attach));
    let points_of_interface = points(&stage, "ADD", &configs[0]);
    network.del(&attach).expect("DEL");
    let mut kills = 0;
    for (n, point) in points_of_interface.iter().enumerate() {
        let pod = stage.node.pod(&format!("pod{n}"));
        kills += usize::from(kill_at(&stage, "ADD", &configs[0], &pod, point));
        pod.remove();
        network.gc_plugins(&first).unwrap_or_else(|e| panic!("GC after the kill at {point:?}: {e:?}"));
        // The kernel removes the namespace, and with it the link, in the background.
        let mut changes = Vec::new();
        for _ in 0..100 {
            let after = Snapshot::take(&stage.node, &[]).without(IGNORED);
            changes = before.changes(&after);
            if changes.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(changes.is_empty(), "{interface} killed at {point:?} left:\n{}", changes.join("\n"));
    }
    assert_killed(kills, points_of_interface.len());
}

#[test]
fn del_removes_all_of_a_killed_add_of_bridge() {
    del_removes_what_a_killed_add_left("bridge");
}

#[test]
fn del_removes_all_of_a_killed_add_of_ptp() {
    del_removes_what_a_killed_add_left("ptp");
}

#[test]
fn a_second_del_finishes_a_killed_del_of_bridge() {
    a_second_del_finishes_a_killed_del("bridge");
}

#[test]
fn a_second_del_finishes_a_killed_del_of_ptp() {
    a_second_del_finishes_a_killed_del("ptp");
}

#[test]
fn gc_removes_all_of_a_killed_add_of_bridge() {
    gc_removes_what_a_killed_add_left("bridge");
}

#[test]
fn gc_removes_all_of_a_killed_add_of_ptp() {
    gc_removes_what_a_killed_add_left("ptp");
}
