// SPDX-License-Identifier: GPL-2.0-or-later

//! The node's agent deletes what containerd has left behind, and nothing else.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::image::{expect, expect_closed};
use slipway_tests::system::{Daemon, System};
use slipway_tests::{Node, slipway_only, slipwayd, until};

use crate::containerd::{LIST, list, pod, restart, start, tcp};
use crate::cri::{Cri, PodConfig};

const AGENT: &str = "/opt/cni/bin/slipwayd";
const KUBECONFIG: &str = "/etc/kubeconfig";
/// The grace period, which is longer than an ADD usually takes on a busy machine.
const GRACE: Duration = Duration::from_secs(8);
const MINUTE: Duration = Duration::from_secs(60);
/// A plugin that reports success and does nothing.
const IDLE: &str = "#!/bin/busybox sh\nexit 0\n";

/// Starts the agent. Its API server never replies, because the agent deletes garbage without one.
fn agent(system: &System) -> Daemon {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": "https://192.0.2.200:6443"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "users": [{"name": "test", "user": {"token": "test"}}],
    });
    system.write(KUBECONFIG, config.to_string());
    let into = system.path(AGENT);
    system.space().run(|| fs::copy(slipwayd(), &into)).expect("copy the agent");
    let grace = format!("{}s", GRACE.as_secs());
    let words = [
        AGENT,
        "run",
        "--node-name",
        "node-1",
        "--kubeconfig",
        KUBECONFIG,
        "--network-name",
        "pods",
        "--conflist",
        LIST,
        "--gc-grace",
        &grace,
        "--listen",
        "none",
    ];
    system.daemon("slipwayd", &words)
}

/// Replaces a plugin with a script during `body`.
pub(crate) fn with_plugin<T>(system: &System, name: &str, script: &str, body: impl FnOnce() -> T) -> T {
    let path = system.path(&format!("/opt/cni/bin/{name}"));
    let away = path.with_extension("away");
    system.space().run(|| {
        fs::rename(&path, &away).expect("move the plugin away");
        if !script.is_empty() {
            fs::write(&path, script).expect("write a plugin");
            fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("make it a program");
        }
    });
    let done = body();
    system.space().run(|| fs::rename(&away, &path)).expect("move the plugin back");
    done
}

/// What the agent's status says about garbage.
fn garbage(system: &System) -> Value {
    let output = system.try_run(&[AGENT, "status", "--output", "json"]);
    let document: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    document["garbage"].clone()
}

fn log(system: &System) -> String {
    system.read("/tmp/slipwayd.log")
}

fn is_cached(node: &Node, id: &str) -> bool {
    node.list("/var/lib/cni/results").iter().any(|name| name.contains(id))
}

/// Runs a pod with a web server and returns the pod's ID.
fn web(cri: &Cri<'_>, config: &PodConfig) -> String {
    let id = cri.run_pod(config).expect("a pod");
    cri.start_web(config, &id, &config.name).expect("a web server");
    id
}

pub(crate) fn a_leak(packages: &Path, specification: &str) {
    slipway_only!();
    let (node, client) = Node::with_client();
    let system = System::start(&node, packages);
    let daemon = start(&system, &list(specification));
    let cri = Cri(&node);
    let live = web(&cri, &pod(&system, "live", &[tcp(8080)]));
    let agent = agent(&system);

    // The plugins report success without deleting anything, and containerd forgets the pod.
    let idle = cri.run_pod(&pod(&system, "idle", &[tcp(8081)])).unwrap();
    with_plugin(&system, "bridge", IDLE, || {
        with_plugin(&system, "portmap", IDLE, || {
            cri.stop_pod(&idle).unwrap();
            cri.remove_pod(&idle).unwrap();
        });
    });
    assert!(!cri.pods().unwrap().contains(&idle) && !is_cached(&node, &idle));
    assert_eq!(node.reserved("pods").len(), 4, "two addresses are left");

    // DEL fails because a plugin is missing, and containerd keeps the pod.
    let stopped = cri.run_pod(&pod(&system, "stopped", &[tcp(8082)])).unwrap();
    with_plugin(&system, "portmap", "", || cri.stop_pod(&stopped).expect_err("no plugin"));
    // The pod's records are deleted. The restarted daemon does not know the pod any more if it has no other records.
    let lost = cri.run_pod(&pod(&system, "lost", &[tcp(8083)])).unwrap();
    with_plugin(&system, "portmap", "", || cri.stop_pod(&lost).expect_err("no plugin"));
    system.run(&["ctr", "--namespace", "k8s.io", "containers", "delete", &lost]);
    until(MINUTE, "a suspicion", || garbage(&system)["suspected"].as_u64().is_some_and(|count| count > 0));
    system.end(daemon, "KILL");
    let _daemon = restart(&system);
    let is_lost = !cri.pods().unwrap().contains(&lost);
    eprintln!("containerd has forgotten the pod without records: {is_lost}");
    assert!(is_lost || !specification.starts_with("1.0"), "1.6 and 1.7 have no other records");

    let deleted = 1 + u64::from(is_lost);
    until(MINUTE, "the deletion", || garbage(&system)["deleted"] == deleted);
    let expected = if is_lost { 4 } else { 6 };
    assert_eq!(node.reserved("pods").len(), expected, "{}", log(&system));
    assert_eq!(is_cached(&node, &lost), !is_lost);
    expect_closed(&client, (client.node_v4, 8081));
    // Pods that are running, or that kubelet will stop again, are kept for longer than another grace period.
    thread::sleep(GRACE + GRACE / 2);
    let log = log(&system);
    assert!(log.contains(&format!("deleted what pod sandbox {idle} had in network pods (eth0)")), "{log}");
    for id in [&live, &stopped] {
        assert!(is_cached(&node, id) && !log.contains(id.as_str()), "{log}");
    }
    assert_eq!(expect(&client, (client.node_v4, 8080), "live"), client.v4);
    assert_eq!(garbage(&system)["troubles"], json!([]), "{log}");
    // The port and the addresses are free again.
    web(&cri, &pod(&system, "next", &[tcp(8081)]));
    assert_eq!(expect(&client, (client.node_v4, 8081), "next"), client.v4);
    cri.stop_pod(&stopped).expect("the plugin is back");
    system.end(agent, "TERM");
}

/// An ADD that takes longer than the grace period is not mistaken for garbage, because its link exists.
pub(crate) fn a_long_add(packages: &Path, specification: &str) {
    slipway_only!();
    let (node, client) = Node::with_client();
    let system = System::start(&node, packages);
    let _daemon = start(&system, &list(specification));
    let cri = Cri(&node);
    web(&cri, &pod(&system, "live", &[tcp(8080)]));
    let agent = agent(&system);
    let slow = format!(
        "#!/bin/busybox sh\n[ \"$CNI_COMMAND\" = ADD ] && /bin/busybox sleep {}\nexec /opt/cni/bin/slipway plugin portmap\n",
        3 * GRACE.as_secs()
    );
    let config = pod(&system, "slow", &[tcp(8081)]);
    let id = with_plugin(&system, "portmap", &slow, || cri.run_pod(&config)).expect("a pod");
    cri.start_web(&config, &id, "slow").unwrap();
    assert_eq!(expect(&client, (client.node_v4, 8081), "slow"), client.v4);
    let log = log(&system);
    assert!(log.contains(&format!("garbage: {id} eth0 is not deleted: its link veth")), "{log}");
    assert!(!log.contains("deleted what"), "{log}");
    until(MINUTE, "the end of the suspicion", || garbage(&system)["suspected"] == 0);
    assert_eq!(node.reserved("pods").len(), 4);
    system.end(agent, "TERM");
}
