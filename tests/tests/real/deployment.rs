// SPDX-License-Identifier: GPL-2.0-or-later

//! The image of `slipwayd render` on a Debian system of debootstrap: the container file's commands, and both containers of
//! the DaemonSet's pods with their static binaries. Prometheus reads what the agent serves.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use slipway_tests::system::unpacked;
use slipway_tests::{Cluster, ClusterNode, Container, Daemon, daemon_set, patience, pod_of, render, skip};

const LOG: &str = "/run/slipwayd.log";
const IMAGE: [&str; 2] = ["--image", "registry.example/slipway:1"];
const URL: &str = "http://127.0.0.1:9254";

/// A container of a pod, on the system in a folder.
fn container<'a>(node: &'a ClusterNode, base: &Path, pod: &'a Value, init: bool) -> Container<'a> {
    Container::new(node, base, &render("containerfile", &IMAGE), pod, init)
}

/// Starts the agent, for which there is no API server, and waits until it serves requests.
fn agent(node: &ClusterNode, base: &Path, pod: &Value) -> Daemon {
    let agent = container(node, base, pod, false).account(("127.0.0.1", "1"), "token", "").start(LOG);
    let begin = Instant::now();
    while node.try_cmd(&format!("curl --silent --fail {URL}/healthz")).code != Some(0) {
        let log = || node.read(LOG).unwrap_or_default();
        assert!(agent.runs() && begin.elapsed() < patience(), "{}", log());
        thread::sleep(Duration::from_millis(50));
    }
    agent
}

#[test]
fn the_containers_run_in_the_image() {
    let Some(base) = unpacked("image", "usr/bin/dpkg") else { skip!("a system of debootstrap") };
    let cluster = Cluster::without_pod_routes(1, |_| {});
    let node = &cluster.nodes[0];
    let daemon_set = daemon_set(&render("manifests", &IMAGE));
    let installed = container(node, &base, pod_of(&daemon_set), true).run(None);
    assert_eq!(installed.code, Some(0), "{installed}");
    assert!(node.cmd("/run/bin/slipway plugins --names").contains("portmap"));
    let _agent = agent(node, &base, pod_of(&daemon_set));
    let ready = node.try_cmd(&format!("curl --silent --fail {URL}/readyz"));
    assert_ne!(ready.code, Some(0), "ready without Nodes: {ready}");
}

#[test]
fn prometheus_reads_the_metrics_and_the_alert_rules() {
    let Some(package) = unpacked("promtool", "usr/bin/promtool") else { skip!("promtool") };
    let promtool = package.join("usr/bin/promtool").display().to_string();
    let cluster = Cluster::without_pod_routes(1, |_| {});
    let node = &cluster.nodes[0];
    let daemon_set = daemon_set(&render("manifests", &IMAGE));
    let _agent = agent(node, Path::new("/"), pod_of(&daemon_set));
    let metrics = node.cmd(&format!("curl --silent --show-error --fail {URL}/metrics"));
    assert!(metrics.contains("# TYPE slipway"), "{metrics}");
    // It also reports names that break the conventions.
    let checked = node.cmd_input(&format!("{promtool} check metrics"), &metrics);
    assert_eq!(checked, "", "{metrics}");
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/slipway-alerts.yaml");
    let checked = node.cmd(&format!("{promtool} check rules {rules}"));
    assert!(checked.contains("rules found"), "{checked}");
}
