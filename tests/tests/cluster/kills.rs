// SPDX-License-Identifier: GPL-2.0-or-later

//! Agents that are killed at random moments and started again: no packet is lost, and the state in the end is the same
//! as before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use slipway_tests::{
    ApiServer, Proto, Random, Snapshot, Stop, api_server_programs, at, skip, stride, within,
};
use slipwayd::cluster::annotations::{VXLAN_MAC, vxlan_mac_of};
use slipwayd::cluster::desired::TunnelMode;

use crate::Lab;
use crate::agents::{Agents, Flows, SERVED, Web, of};
use crate::api::NODES;
use crate::repairs::until;

/// The number of kills in a run without sampling.
const KILLS: usize = 50;
/// The minimum number of kills, however small the sample is.
const AT_LEAST: usize = 10;
/// The maximum life of an agent, which is long enough to list the Nodes and repair the dataplane.
const LIFE: Duration = Duration::from_millis(1200);
const PORT: u16 = 8080;
const INTERVAL: Duration = Duration::from_millis(10);
/// A Node that is created, changed and deleted, without a host behind it.
const GUEST: &str = "guest";
const GUESTS_PODS: &str = "10.244.9.0/24";

/// The part of the nodes' state that must not change.
fn state(lab: &Lab) -> Vec<(Snapshot, String)> {
    let of_node = |node: &slipway_tests::ClusterNode| {
        let snapshot = Snapshot::take(node, &[]).without(&["/run/slipwayd.log"]);
        // A link that was created anew has another index.
        let links = node.cmd("ip -o link show");
        let numbers = links.lines().map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(" "));
        let mut lines: Vec<String> = numbers.collect();
        let fdb = node.try_cmd("bridge fdb show dev slipway-vxlan").stdout;
        lines.extend(fdb.lines().map(str::to_owned));
        lines.sort();
        (snapshot, lines.join("\n"))
    };
    lab.cluster.nodes.iter().map(of_node).collect()
}

/// The differences between two states, by node.
fn changes(before: &[(Snapshot, String)], now: &[(Snapshot, String)]) -> Vec<String> {
    let pairs = before.iter().zip(now);
    pairs
        .flat_map(|((before, links), (now, now_links))| {
            let mut changes = before.changes(now);
            if links != now_links {
                changes.push(format!("links or FDB:\n{links}\nnow:\n{now_links}"));
            }
            changes
        })
        .collect()
}

/// Creates, changes and deletes a Node until it is stopped, so that the agents always have something to change.
fn disturb(server: &ApiServer<'_>, mut random: Random, stop: &AtomicBool) {
    let path = format!("{NODES}/{GUEST}");
    let addresses = ["192.168.50.98", "192.168.50.99"].map(|ip| ip.parse().expect("an address"));
    let mac = vxlan_mac_of(&GUEST.parse().expect("a name")).to_string();
    let mut pause = || thread::sleep(random.time_below(within(Duration::from_millis(300))));
    while !stop.load(Ordering::Relaxed) {
        let mut node = of(GUEST, &[GUESTS_PODS], &addresses[..1]);
        node["metadata"]["annotations"] = json!({ VXLAN_MAC: mac });
        server.create(NODES, &node);
        pause();
        let other = json!([{ "type": "InternalIP", "address": addresses[1] }]);
        server.patch(&format!("{path}/status"), &json!({ "status": { "addresses": other } }));
        pause();
        server.delete(&path);
        pause();
    }
}

fn killed_agents_lose_no_packet(tunnel: &str) {
    let Some(programs) = api_server_programs() else { skip!(slipway_tests::API_SERVER) };
    let mut random = Random::seeded();
    let lab = Lab::new(2, TunnelMode::Auto);
    let server = ApiServer::start(&programs, &lab.cluster.control);
    server.wait();
    let mut agents = Agents::start(&lab, &server, &server.kubeconfig(), tunnel, &[]);
    let webs =
        [1, 2].map(|number| Web::new(lab.node(number), &lab.network(number), &format!("web{number}"), PORT));
    for (web, other) in webs.iter().zip(webs.iter().rev()) {
        for ip in &web.addresses {
            other.pod.expect(Proto::Udp, at(*ip, SERVED), &web.name);
        }
    }
    let begin = Instant::now();
    let before = state(&lab);
    let flows = Flows::start(&lab, webs.each_ref(), PORT, INTERVAL);
    let kills = (KILLS / stride()).max(AT_LEAST);
    thread::scope(|scope| {
        let guest = Random::new(random.below(u64::MAX));
        // Dropped at the end of the scope, even if a panic ends it.
        let stop = Stop::default();
        let (server, stopped) = (&server, stop.flag());
        scope.spawn(move || disturb(server, guest, &stopped));
        for _ in 0..kills {
            let number = if random.below(2) == 0 { 1 } else { 2 };
            thread::sleep(random.time_below(within(LIFE)));
            agents.kill(number);
            agents.resume(number);
        }
    });
    for number in [1, 2] {
        until("a complete list", || agents.log(number).contains("the list of Nodes is complete"));
    }
    let mut found = Vec::new();
    let waited = Instant::now();
    while waited.elapsed() < within(Duration::from_secs(30)) {
        found = changes(&before, &state(&lab));
        if found.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(200));
    }
    assert!(found.is_empty(), "the state changed:\n{}", found.join("\n"));
    eprintln!("{kills} kills in {:?}", begin.elapsed());
    flows.assert_whole();
    agents.assert_running();
}

#[test]
fn killed_agents_lose_no_packet_over_vxlan() {
    killed_agents_lose_no_packet("always");
}

#[test]
fn killed_agents_lose_no_packet_over_plain_routes() {
    killed_agents_lose_no_packet("never");
}
