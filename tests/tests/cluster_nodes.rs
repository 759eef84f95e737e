// SPDX-License-Identifier: GPL-2.0-or-later

//! slipwayd follows the Nodes of a real API server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{API_SERVER, ApiServer, Cluster, ClusterNode, Space, api_server_programs, skip, within};
use slipwayd::cluster::access::Access;
use slipwayd::cluster::annotations::{VXLAN_MAC, VXLAN_PORT};
use slipwayd::cluster::source::{Counters, Snapshot, follow};
use tokio::sync::watch::Receiver;

const NODES: &str = "/api/v1/nodes";
/// The kubeconfig, as the follower's namespace sees it.
const CONFIG: &str = "/run/kube/config";
/// The time limit for a change to arrive. After an outage, the longest delay between two attempts has to pass first.
const ARRIVAL: Duration = Duration::from_secs(90);

/// slipwayd's view of the Nodes. A thread in a node's namespace follows them until the `Follower` is dropped.
struct Follower {
    receiver: Receiver<Arc<Snapshot>>,
    counters: Arc<Counters>,
}

impl Follower {
    fn start(node: &ClusterNode, kubeconfig: String) -> Self {
        node.cmd("mkdir -p /run/kube");
        node.write(CONFIG, kubeconfig);
        let (receiver, counters, work) = follow(Access::new(Some(CONFIG.into())));
        let space: Space = (**node).clone();
        thread::spawn(move || {
            space.run(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("start tokio").block_on(work);
            });
        });
        Self { receiver, counters }
    }

    /// The name and the first pod CIDR of each Node.
    fn nodes(&self) -> Vec<String> {
        let snapshot = self.receiver.borrow();
        let cidr = |cidrs: &[ipnet::IpNet]| cidrs.first().map_or("-".to_owned(), ToString::to_string);
        snapshot.nodes().values().map(|node| format!("{} {}", node.name, cidr(&node.pod_cidrs))).collect()
    }

    /// Waits until the follower sees exactly these Nodes.
    fn expect(&self, nodes: &[&str]) {
        self.wait(&format!("{nodes:?}"), || self.receiver.borrow().synced() && self.nodes() == nodes);
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(
                begin.elapsed() < within(ARRIVAL),
                "no {what}: {:?}, {:?}",
                self.receiver.borrow(),
                self.counters
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn object(name: &str, cidr: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
    })
}

fn beat(server: &ApiServer<'_>, name: &str, count: u64) {
    for number in 0..count {
        let time = format!("2026-01-01T00:00:{number:02}Z");
        let condition = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": time});
        server.patch(&format!("{NODES}/{name}/status"), &json!({"status": {"conditions": [condition]}}));
    }
}

#[test]
fn nodes_arrive_change_and_leave() {
    let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
    let cluster = Cluster::new(1, |_| {});
    let server = ApiServer::start(&programs, &cluster.control);
    server.wait();
    server.create(NODES, &object("a", "10.244.1.0/24"));
    let mut follower = Follower::start(&cluster.nodes[0], server.kubeconfig());
    follower.expect(&["a 10.244.1.0/24"]);
    // Nodes are added, changed, deleted, and created again with another prefix.
    server.create(NODES, &object("b", "10.244.2.0/24"));
    follower.expect(&["a 10.244.1.0/24", "b 10.244.2.0/24"]);
    let address = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
    server.patch(&format!("{NODES}/a/status"), &json!({"status": {"addresses": address}}));
    follower.wait("address", || {
        let snapshot = follower.receiver.borrow();
        let addresses: Vec<_> = snapshot.nodes().values().flat_map(|node| &node.addresses).collect();
        addresses == [&"192.0.2.1".parse::<std::net::IpAddr>().unwrap()]
    });
    let announced = json!({VXLAN_MAC: "02:00:00:00:00:01", VXLAN_PORT: "4789"});
    server.patch(&format!("{NODES}/a"), &json!({"metadata": {"annotations": announced}}));
    follower.wait("announcement", || {
        let snapshot = follower.receiver.borrow();
        snapshot.nodes().values().any(|node| node.annotations.vxlan_mac.is_some())
    });
    server.delete(&format!("{NODES}/b"));
    follower.expect(&["a 10.244.1.0/24"]);
    server.create(NODES, &object("b", "10.244.3.0/24"));
    follower.expect(&["a 10.244.1.0/24", "b 10.244.3.0/24"]);
    // Heartbeats and other updates of fields that are not kept wake no receiver. A Node that is created afterwards
    // shows that they have arrived.
    follower.receiver.borrow_and_update();
    let (generation, unchanged) = (follower.receiver.borrow().generation(), follower.counters.unchanged());
    beat(&server, "a", 20);
    server.patch(&format!("{NODES}/a"), &json!({"metadata": {"labels": {"other": "label"}}}));
    follower.wait("heartbeats", || follower.counters.unchanged() >= unchanged + 21);
    assert!(!follower.receiver.has_changed().unwrap(), "{:?}", follower.counters);
    server.create(NODES, &object("c", "10.244.4.0/24"));
    follower.expect(&["a 10.244.1.0/24", "b 10.244.3.0/24", "c 10.244.4.0/24"]);
    assert_eq!(follower.receiver.borrow().generation(), generation + 1);
    assert_eq!((follower.counters.lists(), follower.counters.failures()), (1, 0));
}

/// The cluster has more Nodes than fit into one page of the list.
#[test]
fn a_long_list_is_read_in_pages() {
    let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
    let cluster = Cluster::new(1, |_| {});
    let server = ApiServer::start(&programs, &cluster.control);
    server.wait();
    // A single curl creates all of them.
    let count = 510;
    let mut config = String::new();
    for number in 0..count {
        let node = object(&format!("n{number:03}"), &format!("10.{}.{}.0/24", number / 256, number % 256));
        let body = node.to_string().replace('"', "\\\"");
        config += &format!(
            "url = \"{}{NODES}\"\noauth2-bearer = \"{}\"\nheader = \"Content-Type: application/json\"\n\
             data = \"{body}\"\ninsecure\nsilent\noutput = \"/dev/null\"\nfail\nnext\n",
            server.url,
            slipway_tests::KUBE_TOKEN
        );
    }
    cluster.control.cmd_input("curl --config -", config.trim_end_matches("next\n"));
    let follower = Follower::start(&cluster.nodes[0], server.kubeconfig());
    follower.wait("complete list", || follower.receiver.borrow().synced());
    // The receiver never sees only a part of the list.
    assert_eq!(
        (follower.receiver.borrow().generation(), follower.receiver.borrow().nodes().len()),
        (1, count)
    );
    assert_eq!(follower.counters.lists(), 1);
}

#[test]
fn the_nodes_stay_while_the_api_server_is_away_and_are_listed_again_after_a_compaction() {
    let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
    let cluster = Cluster::new(1, |_| {});
    let mut server = ApiServer::start(&programs, &cluster.control);
    server.wait();
    server.create(NODES, &object("a", "10.244.1.0/24"));
    server.create(NODES, &object("b", "10.244.2.0/24"));
    let node = &cluster.nodes[0];
    let follower = Follower::start(node, server.kubeconfig());
    follower.expect(&["a 10.244.1.0/24", "b 10.244.2.0/24"]);
    // The server goes away and returns. The Nodes are kept, and the watch resumes without a new list.
    server.stop();
    follower.wait("failure", || follower.counters.failures() >= 2);
    follower.expect(&["a 10.244.1.0/24", "b 10.244.2.0/24"]);
    server.resume();
    server.wait();
    server.create(NODES, &object("c", "10.244.3.0/24"));
    follower.expect(&["a 10.244.1.0/24", "b 10.244.2.0/24", "c 10.244.3.0/24"]);
    assert_eq!(follower.counters.lists(), 1);
    // The follower misses these changes, and the server has compacted them away when it is back, so it answers 410
    // Gone.
    server.stop();
    node.nft(
        "table inet away {
            chain out { type filter hook output priority 0; tcp dport 6443 reject with tcp reset; }
        }",
    );
    server.resume();
    server.wait();
    server.delete(&format!("{NODES}/a"));
    server.create(NODES, &object("d", "10.244.4.0/24"));
    server.stop();
    server.compact();
    server.resume();
    server.wait();
    node.cmd("nft delete table inet away");
    follower.expect(&["b 10.244.2.0/24", "c 10.244.3.0/24", "d 10.244.4.0/24"]);
    assert_eq!(follower.counters.lists(), 2);
    server.create(NODES, &object("e", "10.244.5.0/24"));
    follower.expect(&["b 10.244.2.0/24", "c 10.244.3.0/24", "d 10.244.4.0/24", "e 10.244.5.0/24"]);
}
