// SPDX-License-Identifier: GPL-2.0-or-later

//! The image of `slipwayd render` on a Debian system of debootstrap: the container file's commands, and both containers of
//! the DaemonSet's pods with its static binaries.

use std::thread;
use std::time::{Duration, Instant};

use slipway_tests::{Cluster, Container, daemon_set, patience, pod_of, render, skip};

use crate::system::unpacked;

const LOG: &str = "/run/slipwayd.log";
const IMAGE: [&str; 2] = ["--image", "registry.example/slipway:1"];

#[test]
fn the_containers_run_in_the_image() {
    let Some(base) = unpacked("image", "usr/bin/dpkg") else { skip!("a system of debootstrap") };
    let cluster = Cluster::without_pod_routes(1, |_| {});
    let node = &cluster.nodes[0];
    let manifests = render("manifests", &IMAGE);
    let daemon_set = daemon_set(&manifests);
    let containerfile = render("containerfile", &IMAGE);
    let container = |init: bool| Container::new(node, &base, &containerfile, pod_of(&daemon_set), init);

    let installed = container(true).run(None);
    assert_eq!(installed.code, Some(0), "{installed}");
    assert!(node.cmd("/run/bin/slipway plugins --names").contains("portmap"));

    // No server is there.
    let agent = container(false).account(("127.0.0.1", "1"), "token", "").start(LOG);
    let url = "http://127.0.0.1:9254";
    let begin = Instant::now();
    let (log, healthy) = loop {
        let log = node.read(LOG).unwrap_or_default();
        let healthy = node.try_cmd(&format!("curl --silent --fail {url}/healthz")).code == Some(0);
        if !agent.runs() || healthy || begin.elapsed() > patience() {
            break (log, healthy);
        }
        thread::sleep(Duration::from_millis(50));
    };
    assert!(agent.runs() && healthy, "{log}");
    let ready = node.try_cmd(&format!("curl --silent --fail {url}/readyz"));
    assert_ne!(ready.code, Some(0), "not ready without Nodes: {ready}");
}
