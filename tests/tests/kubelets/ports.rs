// SPDX-License-Identifier: GPL-2.0-or-later

//! hostPorts, requested from everywhere.

use std::net::IpAddr;

use slipway_tests::image::expect;
use slipway_tests::kubernetes::{Backend, Kubernetes, PodState, Report, Worker};
use slipway_tests::{Proto, Space, at};

use crate::apps::{Apps, TCP_PORT, UDP_PORT};

pub(crate) fn all(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    report.title("hostPorts of a DaemonSet");
    report.claim("another host reaches them over TCP and UDP, and the pods see its own address", || {
        from_outside(cluster, apps, report);
    });
    report.claim("so does each other node", || from_nodes(cluster, apps, report));
    report.claim("the node itself reaches them at its addresses and at 127.0.0.1", || {
        from_the_node(cluster, apps, report);
    });
    report.claim("pods of other nodes reach them, and are seen with their node's address", || {
        from_pods(cluster, apps, report);
    });
}

/// The nodes, each with its pod of the DaemonSet.
fn pairs<'a>(
    cluster: &'a Kubernetes<'_>,
    apps: &'a Apps,
) -> impl Iterator<Item = (&'a Worker, &'a PodState)> {
    apps.edge.iter().map(|pod| (&cluster.workers[pod.node], pod))
}

/// A client, and the addresses with which pods must see it.
struct Client<'a> {
    name: &'a str,
    space: &'a Space,
    seen: [IpAddr; 2],
}

/// Requests both ports of a pod at its node's addresses.
fn both(client: &Client<'_>, (worker, pod): (&Worker, &PodState), report: &Report) {
    let Client { name, space: from, seen } = client;
    for (ip, seen) in worker.node.addresses.into_iter().zip(*seen) {
        let peer = expect(from, (ip, TCP_PORT), &pod.name);
        report.request(name, &format!("http://{}", at(ip, TCP_PORT)), &format!("{} sees {peer}", pod.name));
        assert_eq!(peer, seen, "TCP from {name} to {}", at(ip, TCP_PORT));
        let answer = from.expect(Proto::Udp, at(ip, UDP_PORT), &pod.name);
        assert_eq!(answer.peer.ip(), seen, "UDP from {name} to {}", at(ip, UDP_PORT));
    }
}

/// Sends requests from another host. A node must pass them even after a reboot, and while its programs are dead.
pub(crate) fn from_outside(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    let seen = cluster.lan.outside.addresses;
    let client = Client { name: "outside", space: cluster.outside(), seen };
    for pair in pairs(cluster, apps) {
        both(&client, pair, report);
    }
}

fn from_nodes(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    for (worker, pod) in pairs(cluster, apps) {
        for other in cluster.workers.iter().filter(|other| other.name() != worker.name()) {
            let client = Client { name: &other.name(), space: &other.node, seen: other.node.addresses };
            both(&client, (worker, pod), report);
        }
    }
}

fn from_the_node(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    for (worker, pod) in pairs(cluster, apps) {
        for ip in worker.node.addresses.into_iter().chain([[127, 0, 0, 1].into()]) {
            let peer = expect(&worker.node, (ip, TCP_PORT), &pod.name);
            let answer = format!("{} sees {peer}", pod.name);
            report.request(&worker.name(), &format!("http://{}", at(ip, TCP_PORT)), &answer);
        }
    }
}

fn from_pods(cluster: &Kubernetes<'_>, apps: &Apps, report: &Report) {
    for (client, inside) in apps.clients(cluster) {
        let seen = cluster.workers[client.node].node.addresses;
        let from = Client { name: &client.name, space: &inside, seen };
        for pair in pairs(cluster, apps).filter(|(_, pod)| pod.node != client.node) {
            both(&from, pair, report);
        }
    }
}

/// Asserts that the backend has the ports of the DaemonSet.
pub(crate) fn check_backend(cluster: &Kubernetes<'_>, backend: Backend) {
    for worker in &cluster.workers {
        let chains = worker.node.cmd("iptables-save -t nat");
        let has_chains = chains.contains(&format!("--dport {TCP_PORT}"));
        assert_eq!(has_chains, backend == Backend::Iptables, "{}: {chains}", worker.name());
        let status = worker.run(&["/opt/cni/bin/slipway", "node", "status", "--output", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status).expect("slipway prints JSON");
        assert_eq!(status["loaded"] == true, backend == Backend::Ebpf, "{}: {status}", worker.name());
    }
}
