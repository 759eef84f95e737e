// SPDX-License-Identifier: GPL-2.0-or-later

//! The documents that pages show as output, compared with what the programs print.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use cni_runtime::kubelet::PodNetworkStatus;
use cni_state::report::{LIMIT, SOCKET};
use serde_json::Value;
use slipway_tests::pages;
use slipway_tests::{Attach, Proto, slipwayd, within};

use crate::world::World;

/// The pages with such a document, one on each.
pub(crate) const PAGES: &[&str] =
    &["docs/kubenet.md", "docs/logs.md", "docs/metrics.md", "docs/questions/add-fails-with-code-11.md"];

/// The text that a page shows as output.
fn text(page: &str) -> String {
    assert!(PAGES.contains(&page), "{page} is not listed");
    let blocks = pages::blocks(page);
    let mut outputs = blocks.iter().filter(|block| block.words.iter().any(|word| word == "output"));
    let (output, more) = (outputs.next().expect("a block of output"), outputs.next());
    assert!(more.is_none(), "{page} has more than one");
    output.text()
}

/// The same text as JSON.
pub(crate) fn shown(page: &str) -> Value {
    serde_json::from_str(&text(page)).expect("JSON")
}

/// Compares all keys, and all values except those of `varying`.
#[track_caller]
fn compare(mut printed: Value, page: &str, varying: &[&str]) {
    let shown = shown(page);
    for key in varying {
        assert_eq!(printed[key].is_number(), shown[key].is_number(), "{key} in {printed}");
        printed[key] = shown[key].clone();
    }
    assert_eq!(printed, shown, "{page} on the right");
}

#[test]
fn the_report_of_a_failed_add() {
    let world = World::new();
    let _web = world.web("web1");
    world.node.cmd("mkdir -p /run/slipway");
    let agent = world.node.run(|| UnixDatagram::bind(SOCKET)).expect("a socket");
    agent.set_read_timeout(Some(within(Duration::from_secs(10)))).expect("a time limit");
    let late = world.node.pod("web2");
    let taken = world.network().add(&Attach::new(&late).port(Proto::Tcp, 8080, 80));
    taken.expect_err("the port is taken");
    let mut buffer = [0; LIMIT];
    loop {
        let length = agent.recv(&mut buffer).expect("a report of a failure");
        let report: Value = serde_json::from_slice(&buffer[..length]).expect("JSON");
        if !report["code"].is_null() {
            return compare(report, "docs/metrics.md", &["microseconds"]);
        }
    }
}

#[test]
fn a_line_of_the_agents_log() {
    let world = World::new();
    let words =
        ["run", "--node-name", "node-1", "--kubeconfig", "/run/none", "--cluster-cidr", "10.244.0.0/16"];
    let agent =
        world.node.daemon(slipwayd(), &[&words[..], &["--log-format", "json"]].concat(), "/run/agent.log");
    let end = std::time::Instant::now() + within(Duration::from_secs(30));
    loop {
        let log = world.node.read("/run/agent.log").unwrap_or_default();
        if let Some((line, _)) = log.split_once('\n') {
            drop(agent);
            return compare(serde_json::from_str(line).expect("JSON"), "docs/logs.md", &["time", "pid"]);
        }
        assert!(std::time::Instant::now() < end && agent.runs(), "no line: {log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_status_that_a_driver_prints_is_decoded() {
    let page = "docs/kubenet.md";
    let status =
        PodNetworkStatus::decode(text(page).as_bytes(), "web").expect("a status").expect("addresses");
    compare(serde_json::to_value(&status).expect("JSON"), page, &[]);
}
