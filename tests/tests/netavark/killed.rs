// SPDX-License-Identifier: GPL-2.0-or-later

//! The driver is killed right after each of its system calls that may have changed something. The next set-up or
//! teardown removes what it has left. Also covers containers that vanish and that podman has forgotten. By default only
//! some system calls are tried; `SLIPWAY_EVERY_CALL=1` tries all.

use std::time::{Duration, Instant};

use slipway_tests::{
    Node, Pod, Point, Proto, assert_killed, kill_points, killed, points_to_try, slipway_only, within,
};

use crate::{Call, Net, state};

/// The number of points to try for each command.
const SAMPLE: usize = 24;

/// The points of a call that succeeds.
fn points(call: &Call<'_>, command: &str) -> Vec<Point> {
    let (output, found) = kill_points(call.node, call.prepare(command));
    assert_eq!(output.process.code, Some(0), "{}", output.process);
    points_to_try(found, SAMPLE)
}

#[test]
fn a_killed_setup_is_torn_down_or_set_up_again() {
    slipway_only!();
    let (node, client) = Node::with_client();
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
        kills += usize::from(killed(&node, call(5).prepare("setup"), point));
        if number % 2 == 0 {
            // For the next start, podman gives the container another address.
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
    assert_killed(kills, points.len());
}

#[test]
fn a_second_teardown_finishes_a_killed_one() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
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
        kills += usize::from(killed(&node, call.prepare("teardown"), point));
        call.teardown();
        let changes = before.changes(&state(&node, &[&pod]));
        assert!(changes.is_empty(), "teardown killed at {point:?} left:\n{}", changes.join("\n"));
    }
    assert_killed(kills, points.len());
}

/// On `podman rm --force` of a container whose namespace is gone, netavark before 2.1 fails before it calls the driver,
/// and podman forgets the container.
#[test]
fn restore_removes_what_containers_without_a_namespace_have() {
    slipway_only!();
    let (node, client) = Node::with_client();
    let net = Net::new();
    let first = node.pod("first");
    let earlier = Call::new(&node, &net, &first, 4).publish("", "tcp", 9000, 80, 1);
    earlier.setup();
    earlier.teardown();
    let before = state(&node, &[&first]);
    let (gone, stays) = (node.pod("gone"), node.pod("stays"));
    for (pod, number, port) in [(&gone, 5, 9000), (&stays, 6, 9001)] {
        Call::new(&node, &net, pod, number).publish("", "tcp", port, 80, 1).setup();
    }
    let web = stays.serve(Proto::Tcp, "[::]:80", "stays");
    node.slipway("restore");
    assert_eq!(node.slipway("ports").matches("blue").count(), 4, "a restoration removes nothing that lives");
    vanish(&node, gone);
    let found = node.try_slipway("check-node").stdout;
    assert!(found.contains("1 owner whose namespace is gone"), "{found}");
    let dry = node.try_slipway("restore --dry-run").stdout;
    assert!(!dry.contains("was removed"), "{dry}");
    let restored = node.slipway("restore");
    assert!(restored.contains("what it had was removed"), "{restored}");
    let ports = node.slipway("ports");
    assert!(!ports.contains("9000") && ports.contains("9001"), "{ports}");
    client.expect(Proto::Tcp, (client.node_v4, 9001), "stays");
    drop(web);
    vanish(&node, stays);
    node.slipway("restore");
    before.assert_same(&state(&node, &[&first]));
    assert!(!node.has_link("sw0"));
    assert_eq!(node.list("/run/slipway/netavark/results"), Vec::<String>::new());
}

/// Removes the namespace, and waits until the kernel has deleted the links in it.
fn vanish(node: &Node, pod: Pod) {
    let links = || node.cmd("ip -oneline link show type veth").lines().count();
    let before = links();
    pod.remove();
    let begun = Instant::now();
    while links() == before {
        assert!(begun.elapsed() < within(Duration::from_secs(10)), "the namespace still exists");
        std::thread::sleep(Duration::from_millis(20));
    }
}
