// SPDX-License-Identifier: GPL-2.0-or-later

//! The apps in the cluster: a DaemonSet with hostPorts, and a Deployment with a Service.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use slipway_tests::kubernetes::{Kubernetes, PodState, Report, Worker, objects};
use slipway_tests::{Proto, Server, Space, at, within};

pub(crate) const EDGE: &str = "edge";
/// The name of the Deployment and its Service.
pub(crate) const WEB: &str = "web";

/// The DaemonSet's hostPorts for TCP and UDP, and its container's UDP port.
pub(crate) const TCP_PORT: u16 = 8080;
pub(crate) const UDP_PORT: u16 = 5353;
pub(crate) const DNS_PORT: u16 = 53;
/// The Service's own port, and its port on the nodes.
pub(crate) const SERVICE_PORT: u16 = 8000;
pub(crate) const NODE_PORT: u16 = 30080;

/// The time limit for everything of deleted pods to disappear.
const RESTORED: Duration = Duration::from_secs(120);

/// The number of pods of the Deployment per node.
const PER_NODE: usize = 2;

pub(crate) struct Apps {
    /// The pods of the DaemonSet, in the order of their nodes.
    pub(crate) edge: Vec<PodState>,
    /// The pods of the Deployment.
    pub(crate) web: Vec<PodState>,
    /// The UDP servers. They run in the pods' network namespaces, because the containers have no UDP server.
    _servers: Vec<Server>,
    /// The state of the nodes before there was any pod.
    empty: Vec<BTreeSet<String>>,
}

impl Apps {
    /// Creates all apps, and waits until their pods are ready.
    pub(crate) fn create(cluster: &Kubernetes<'_>, report: &Report) -> Self {
        let empty = cluster.workers.iter().map(Worker::attachments).collect();
        report.claim("the pods of a DaemonSet with hostPorts and of a Deployment become ready", || {
            objects(cluster.workers.len()).iter().for_each(|object| cluster.create(object));
            Self::running(cluster, empty)
        })
    }

    /// Ends the servers, whose sockets would keep the namespaces of replaced pods alive. Returns the state for
    /// [`Self::running`].
    pub(crate) fn close(self) -> Vec<BTreeSet<String>> {
        self.empty
    }

    /// The running pods, once all are ready.
    pub(crate) fn running(cluster: &Kubernetes<'_>, empty: Vec<BTreeSet<String>>) -> Self {
        let mut edge = cluster.wait_pods(EDGE, cluster.workers.len());
        edge.sort_by_key(|pod| pod.node);
        let web = cluster.wait_pods(WEB, PER_NODE * cluster.workers.len());
        let listen = |pod: &PodState| {
            let inside = cluster.inside(pod);
            let serve = |ip: &IpAddr| inside.serve(Proto::Udp, &at(*ip, DNS_PORT).to_string(), &pod.name);
            pod.ips.iter().map(serve).collect::<Vec<_>>()
        };
        let servers = edge.iter().flat_map(listen).collect();
        Self { edge, web, _servers: servers, empty }
    }

    pub(crate) fn pods(&self) -> impl Iterator<Item = &PodState> {
        self.edge.iter().chain(&self.web)
    }

    /// For each node in order, the network namespace of a pod and the pod.
    pub(crate) fn clients<'a>(
        &'a self,
        cluster: &'a Kubernetes<'_>,
    ) -> impl Iterator<Item = (&'a PodState, Space)> {
        self.edge.iter().map(|pod| (pod, cluster.inside(pod)))
    }

    /// Deletes all apps, and waits until nothing of their pods is left on any node.
    pub(crate) fn delete(self, cluster: &Kubernetes<'_>, report: &Report) {
        let full = cluster.workers.iter().map(Worker::attachments);
        assert!(
            full.zip(&self.empty).all(|(full, empty)| full.len() > empty.len() + 3),
            "pods leave their marks"
        );
        let empty = self.close();
        objects(cluster.workers.len()).iter().for_each(|object| cluster.delete(object));
        report.claim("after the last pod no address, link, port or rule of any is left", || {
            wait_same(cluster, &empty);
        });
    }
}

/// Waits until the nodes' attachments are the same as before.
pub(crate) fn wait_same(cluster: &Kubernetes<'_>, before: &[BTreeSet<String>]) {
    let (mut changes, begin) = (Vec::new(), Instant::now());
    cluster.wait("the attachments of before", RESTORED, |cluster| {
        changes.clear();
        for (worker, before) in cluster.workers.iter().zip(before) {
            let now = worker.attachments();
            let differing = before.symmetric_difference(&now);
            changes.extend(differing.map(|line| format!("{}: {line}", worker.name())));
        }
        // Printed for the report of a failure that has become likely.
        if begin.elapsed() > within(RESTORED) / 2 {
            eprintln!("these attachments differ: {changes:#?}");
        }
        changes.is_empty()
    });
}

fn objects(nodes: usize) -> [Value; 3] {
    let edge = objects::web(&[("TCP", TCP_PORT, objects::WEB_PORT), ("UDP", UDP_PORT, DNS_PORT)]);
    [
        objects::daemon_set(EDGE, &edge),
        objects::deployment(WEB, PER_NODE * nodes, &objects::web(&[])),
        objects::service(WEB, SERVICE_PORT, NODE_PORT),
    ]
}
