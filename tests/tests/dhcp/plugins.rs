//! The plugin is killed, wherever it is: a DEL leaves no lease behind, and nothing else.

use serde_json::json;
use slipway_tests::{Attach, Disturbance, disturbed, kill_points};

use crate::server::{Heard, RELEASE, Rules, Server};
use crate::stage::Stage;

/// How many points of a call are tried, about.
const TRIES: usize = 20;

#[test]
fn an_add_that_is_killed_leaves_nothing_that_del_does_not_find() {
    is_killed("ADD");
}

#[test]
fn a_del_that_is_killed_is_done_by_the_next() {
    is_killed("DEL");
}

fn is_killed(verb: &str) {
    ours_alone!();
    let stage = Stage::new();
    let server = Server::start(&stage, Rules::default());
    stage.start_daemon(&[]);
    let (pod, network) = (stage.node.pod("pod"), stage.network(&json!({})));
    let attach = Attach::new(&pod);
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
    // All that was leased was given back, through the link that had it.
    let count = |which: fn(&Heard) -> bool| server.count(which);
    let released = |heard: &Heard| heard.kind == RELEASE;
    stage.wait("the server has all back", || count(Heard::selects) == count(released));
}
