// SPDX-License-Identifier: GPL-2.0-or-later

//! The image of `slipwayd render` on a Debian system made by debootstrap: the commands of the container file, and both
//! containers of the DaemonSet's pods with their static binaries. Prometheus scrapes the agent's metrics.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use slipway_tests::system::unpacked;
use slipway_tests::{
    Cluster, ClusterNode, Container, Daemon, comes, daemon_set, patience, pod_of, quoted, render, skip,
};

const LOG: &str = "/run/slipwayd.log";
const IMAGE: [&str; 2] = ["--image", "registry.example/slipway:1"];
const URL: &str = "http://127.0.0.1:9254";
const PROMETHEUS: &str = "127.0.0.1:9090";
const PROMETHEUS_LOG: &str = "/run/prometheus.log";

/// A container of a pod, based on the system in a folder.
fn container<'a>(node: &'a ClusterNode, base: &Path, pod: &'a Value, init: bool) -> Container<'a> {
    Container::new(node, base, &render("containerfile", &IMAGE), pod, init)
}

/// Starts the agent without an API server, and waits until it serves requests.
fn agent(node: &ClusterNode, base: &Path, pod: &Value) -> Daemon {
    let agent = container(node, base, pod, false).account(("127.0.0.1", "1"), "token", "").start(LOG);
    let is_healthy = || node.try_cmd(&format!("curl --silent --fail {URL}/healthz")).code == Some(0);
    assert!(comes(is_healthy), "{}", node.read(LOG).unwrap_or_default());
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

/// The data in Prometheus' reply to an API request.
fn replied(node: &ClusterNode, path: &str) -> Value {
    let reply = node.try_cmd(&format!("curl --silent --fail http://{PROMETHEUS}/api/v1/{path}"));
    serde_json::from_str::<Value>(&reply.stdout).unwrap_or_default()["data"].take()
}

/// The rules in the groups of a reply, none before Prometheus has read them.
fn rules_of(groups: &Value) -> Vec<&Value> {
    let groups = groups["groups"].as_array().into_iter().flatten();
    groups.flat_map(|group| group["rules"].as_array().into_iter().flatten()).collect()
}

#[test]
fn prometheus_reads_the_metrics_and_the_alert_rules() {
    let programs = unpacked("prometheus", "usr/bin/prometheus").zip(unpacked("promtool", "usr/bin/promtool"));
    let Some((server, tool)) = programs else { skip!("Prometheus") };
    let cluster = Cluster::without_pod_routes(1, |_| {});
    let node = &cluster.nodes[0];
    let daemon_set = daemon_set(&render("manifests", &IMAGE));
    let _agent = agent(node, Path::new("/"), pod_of(&daemon_set));
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/slipway-alerts.yaml");
    let checked =
        node.cmd(&format!("{} check rules {}", quoted(tool.join("usr/bin/promtool")), quoted(rules)));
    assert!(checked.contains("rules found"), "{checked}");

    let config = format!(
        "{{global: {{scrape_interval: 1s, evaluation_interval: 1s}}, rule_files: [{rules}], \
         scrape_configs: [{{job_name: slipwayd, static_configs: [{{targets: ['{}']}}]}}]}}",
        URL.trim_start_matches("http://"),
    );
    node.write("/run/prometheus.yaml", &config);
    let args = [
        "--config.file=/run/prometheus.yaml",
        "--storage.tsdb.path=/run/prometheus",
        &format!("--web.listen-address={PROMETHEUS}"),
    ];
    let program = server.join("usr/bin/prometheus").display().to_string();
    let prometheus = node.daemon(&program, &args, PROMETHEUS_LOG);
    let log = || node.read(PROMETHEUS_LOG).unwrap_or_default();
    let begin = Instant::now();
    let (info, groups) = loop {
        let found = replied(node, "query?query=slipway_build_info");
        let info = found.pointer("/result/0").cloned().unwrap_or_default();
        let groups = replied(node, "rules");
        let rules = rules_of(&groups);
        let evaluated = !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown");
        if evaluated && !info.is_null() {
            break (info, groups);
        }
        assert!(prometheus.runs() && begin.elapsed() < patience(), "{info} {groups} {}", log());
        thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(info["metric"]["version"], env!("CARGO_PKG_VERSION"), "{info}");
    for rule in rules_of(&groups) {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    let targets = replied(node, "targets?state=active");
    assert_eq!(targets["activeTargets"][0]["health"], "up", "{targets}");
    assert_eq!(targets["activeTargets"][0]["lastError"], "", "{targets}");
}
