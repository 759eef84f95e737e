// SPDX-License-Identifier: GPL-2.0-or-later

//! The agent's lock, metrics, health and status.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};
use slipway_tests::{
    API_SERVER, ApiServer, ClusterNode, CommandOutput, Daemon, api_server_programs, skip, slipwayd,
};
use slipwayd::cluster::desired::TunnelMode;

use crate::Lab;
use crate::api::{LOG, agent, register, words};
use crate::repairs::until;

/// Runs `slipwayd` on a node until it ends.
fn run(node: &ClusterNode, args: &[&str]) -> CommandOutput {
    let mut command = Command::new(slipwayd());
    command.args(args);
    node.exec(command, b"")
}

fn status(node: &ClusterNode) -> CommandOutput {
    run(node, &["status"])
}

/// The HTTP status and the body of a page at the agent's address.
pub(crate) fn get(node: &ClusterNode, page: &str) -> (String, String) {
    let url = format!("http://127.0.0.1:9254{page}");
    let output = node.try_cmd(&format!("curl --silent --max-time 20 --write-out \\n%{{http_code}} {url}"));
    let (body, code) = output.stdout.rsplit_once('\n').unwrap_or_default();
    (code.to_owned(), body.to_owned())
}

/// Waits until the metrics contain a line, and returns them.
fn until_shown(node: &ClusterNode, line: &str) -> String {
    let mut text = String::new();
    until(line, || {
        text = get(node, "/metrics").1;
        text.lines().any(|shown| shown == line)
    });
    text
}

#[test]
fn a_second_agent_on_a_node_is_refused() {
    let lab = Lab::new(1, TunnelMode::Auto);
    let node = lab.node(1);
    // No API server replies, so the agent waits for one.
    node.cmd("mkdir -p /run/kube");
    let cluster = json!({"name": "test", "cluster": {"server": "https://192.168.50.2:6443"}});
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test", "clusters": [cluster],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "users": [{"name": "test", "user": {"token": "test"}}],
    });
    node.write("/run/kube/config", kubeconfig.to_string());
    let without = status(node);
    assert_eq!((without.code, without.stdout.as_str()), (Some(1), ""), "{without}");
    assert!(without.stderr.starts_with("slipwayd status: slipwayd does not run: connect to "), "{without}");
    let words = words(node, "auto");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let start = || node.daemon(slipwayd(), &words, LOG);
    let first = start();
    until("a reply", || status(node).code == Some(0));
    let second = run(node, &words);
    assert_eq!(second.code, Some(1), "{second}");
    let message = "slipwayd run: another slipwayd runs on this node: it holds the lock \
                   \"/run/slipway/slipwayd.lock\"\n";
    assert_eq!(second.stderr, message);
    assert!(first.runs());
    let shown = status(node).stdout;
    assert!(shown.contains("ready         no: the list of Nodes is not complete\n"), "{shown}");
    for name in ["slipwayd.sock", "reports.sock"] {
        let metadata = node.run(|| std::fs::metadata(format!("/run/slipway/{name}")));
        assert_eq!(metadata.expect("a socket").permissions().mode() & 0o777, 0o600, "{name}");
    }
    // An agent that is killed leaves its sockets and its lock file, and the next one starts nevertheless.
    drop(first);
    assert_eq!(status(node).code, Some(1));
    let next = start();
    until("a reply", || status(node).code == Some(0));
    assert!(next.runs());
}

#[test]
fn the_state_of_agents_is_exposed() {
    let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
    let lab = Lab::new(2, TunnelMode::Auto);
    let server = ApiServer::start(&programs, &lab.cluster.control);
    server.wait();
    let agents: Vec<Daemon> = lab.cluster.nodes.iter().map(|node| agent(node, &server, "auto")).collect();
    let node = lab.node(1);
    // Without its Node, the agent runs, but its network is not ready.
    until("a complete list", || get(node, "/metrics").1.contains("\nslipway_node_list_complete 1\n"));
    assert_eq!(get(node, "/healthz"), ("200".to_owned(), "ok\n".to_owned()));
    assert_eq!(get(node, "/readyz"), ("503".to_owned(), "this node has no pod CIDR\n".to_owned()));
    lab.cluster.nodes.iter().for_each(|node| register(&server, node));
    for number in [1, 2] {
        until("a ready node", || get(lab.node(number), "/readyz").0 == "200");
    }
    until_shown(node, "slipway_routes{via=\"link\"} 1");
    let _pod = lab.pod(1, "web");
    let text = until_shown(node, "slipway_plugin_calls_total{plugin=\"bridge\",verb=\"ADD\",code=\"0\"} 1");
    for line in [
        "slipway_ready 1",
        "slipway_nodes 2",
        "slipway_addresses_used{range=\"10.244.1.0/24\"} 1.0",
        "slipway_addresses_free{range=\"10.244.1.0/24\"} 252.0",
        "slipway_plugin_calls_total{plugin=\"portmap\",verb=\"ADD\",code=\"0\"} 1",
        "slipway_plugin_call_seconds_count{plugin=\"bridge\",verb=\"ADD\"} 1",
        "slipway_dataplane_up 1.0",
        "slipway_bpf_loaded 0.0",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}:\n{text}");
    }
    // bridge calls host-local within its own process, as a part of its own call.
    assert!(!text.contains("plugin=\"host-local\""), "{text}");
    assert_eq!(get(node, "/status").0, "404", "at the socket only");
    assert_eq!(get(node, "/").0, "404");
    let shown = status(node);
    assert_eq!(shown.code, Some(0), "{shown}");
    for line in [
        "node          node-1",
        "ready         yes",
        "subnets       10.244.1.0/24",
        "nodes         2",
        "routes        1",
        "tunnel        -",
        "addresses     10.244.1.0/24: 1 used, 252 free",
    ] {
        assert!(shown.stdout.lines().any(|shown| shown == line), "{line}:\n{shown}");
    }
    let document = run(node, &["status", "--output", "json"]).stdout;
    let document: Value = serde_json::from_str(&document).expect("JSON");
    assert_eq!((&document["schema"], &document["ready"]), (&json!(1), &json!(true)), "{document}");
    assert_eq!(document["addresses"], json!([{"range": "10.244.1.0/24", "used": 1, "free": 252}]));
    assert!(agents.iter().all(Daemon::runs));
}
