// SPDX-License-Identifier: GPL-2.0-or-later

//! Wherever the plugin is killed, a DEL leaves no lease and no other object.

use slipway_tests::{Disturbance, disturbed, kill_points, slipway_only};

use crate::server::{RELEASE, Received, Rules, Server};

/// The approximate number of points at which each call is killed.
const TRIES: usize = 20;

#[test]
fn del_removes_all_of_a_killed_add() {
    kill_at_every_point("ADD");
}

#[test]
fn a_second_del_completes_a_killed_del() {
    kill_at_every_point("DEL");
}

fn kill_at_every_point(verb: &str) {
    slipway_only!();
    let (stage, server) = Server::start_with_daemon(Rules::default());
    let (pod, network, attach) = stage.pod();
    let prepare = || {
        let mut config = network.configs(Some(&attach)).remove(0);
        if verb == "DEL" {
            config["prevResult"] = network.add(&attach).expect("ADD");
        }
        network.prepare(verb, &config, Some(&attach))
    };
    let (output, found) = kill_points(&stage.node, prepare());
    drop(output.ok());
    network.del(&attach).expect("DEL");
    let points: Vec<_> = found.into_iter().filter(|point| point.after_change).collect();
    for point in points.iter().step_by(points.len().div_ceil(TRIES)) {
        drop(disturbed(&stage.node, prepare(), point, Disturbance::Kill));
        network.del(&attach).unwrap_or_else(|e| panic!("killed at {point:?}: {e}"));
        assert_eq!(stage.leases(), Vec::<String>::new(), "killed at {point:?}");
        assert!(!pod.has_link("eth0"), "killed at {point:?}");
        let ports = || stage.node.cmd("ip -br link show master lan0");
        stage.wait(&format!("killed at {point:?}: the bridge has no port"), || ports().is_empty());
    }
    // Each lease was released, through the same link for which it was granted.
    let count = |which: fn(&Received) -> bool| server.count(which);
    let released = |received: &Received| received.kind == RELEASE;
    stage.wait("the server has received all releases", || count(Received::selects) == count(released));
}
