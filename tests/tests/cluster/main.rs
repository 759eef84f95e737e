// SPDX-License-Identifier: GPL-2.0-or-later

//! slipwayd as the network of a cluster, with nodes that a link joins and pods on each of them.

mod addresses;
mod advertisements;
mod agents;
mod api;
mod changes;
mod damage;
mod deployment;
mod encapsulated;
mod encryption;
mod figures;
mod foreign;
mod forward;
mod hostile;
mod kills;
mod leftovers;
mod observe;
mod outages;
mod path_mtu;
mod repairs;
mod routes;
mod services;
mod silence;
mod token;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use slipway_tests::{Attach, Cluster, ClusterNode, Network, Pod, Proto, addresses_of, at, pod_ranges};
use slipwayd::cluster::annotations::Annotations;
use slipwayd::cluster::desired::{self, Encryption, TunnelMode};
use slipwayd::cluster::node_name::NodeName;
use slipwayd::cluster::nodes::{Node, Nodes};
use slipwayd::cluster::reconcile::{Report, Settings, reconcile};

/// The files that the agent writes, in each node's private /run.
const CONFLIST: &str = "/run/net.d/10-slipway.conflist";
const SUBNET_FILE: &str = "/run/slipway/subnet.json";
const FLANNEL_FILE: &str = "/run/flannel/subnet.env";
/// The prefixes that contain the subnets of all pods.
const CLUSTER_CIDRS: [&str; 2] = ["10.244.0.0/16", "fd44::/32"];
const WIREGUARD_PORT: u16 = 51820;

/// Nodes with their agents' settings, and the Node objects that all agents see.
struct Lab {
    cluster: Cluster,
    tunnel: TunnelMode,
    /// The VXLAN port of each node.
    port: fn(u8) -> u16,
    path_mtu: Option<u32>,
    /// True if the nodes encrypt with WireGuard.
    encrypts: bool,
    nodes: Nodes,
}

impl Lab {
    fn new(count: u8, tunnel: TunnelMode) -> Self {
        let cluster = Cluster::without_pod_routes(count, |_| {});
        let nodes = cluster.nodes.iter().map(|node| (name(node.number), Arc::new(object(node)))).collect();
        Self { cluster, tunnel, port: |_| 4789, path_mtu: None, encrypts: false, nodes }
    }

    /// Nodes with WireGuard between them.
    fn encrypted(count: u8) -> Self {
        Self { encrypts: true, ..Self::new(count, TunnelMode::Auto) }
    }

    /// The node with this number, counted from 1.
    fn node(&self, number: u8) -> &ClusterNode {
        &self.cluster.nodes[usize::from(number) - 1]
    }

    fn settings(&self, number: u8) -> Settings {
        let cluster_cidrs = CLUSTER_CIDRS.map(|net| net.parse().expect("a prefix")).to_vec();
        let encryption = Encryption { port: WIREGUARD_PORT.try_into().expect("not 0") };
        Settings {
            node: name(number),
            paths: desired::Settings {
                tunnel: self.tunnel,
                vni: 1,
                port: (self.port)(number).try_into().expect("not 0"),
                pod_cidrs: Vec::new(),
                cluster_cidrs,
                service_cidrs: Vec::new(),
                path_mtu: self.path_mtu,
                encryption: self.encrypts.then_some(encryption),
            },
            network: "pods".to_owned(),
            bridge: "slipway0".to_owned(),
            conflist: CONFLIST.into(),
            subnet_file: SUBNET_FILE.into(),
            flannel_file: Some(FLANNEL_FILE.into()),
            sysctl_dir: "/proc/sys".into(),
            without_masquerade: Vec::new(),
            accepts_forwarded: true,
            in_host_mounts: false,
        }
    }

    /// Compares a node with its desired state.
    fn compare(&self, number: u8, is_complete: bool) -> Report {
        let settings = self.settings(number);
        let report = self.node(number).run(|| reconcile(&self.nodes, is_complete, &settings, None));
        report.unwrap_or_else(|failure| panic!("node {number}: {failure}"))
    }

    /// Compares all nodes until nothing is left to do, and adopts what they announce.
    fn settle(&mut self) {
        for _ in 0..3 {
            for number in 1..=u8::try_from(self.nodes.len()).expect("few nodes") {
                let report = self.compare(number, true);
                assert!(report.is_ready, "node {number}: {:?}", report.troubles().collect::<Vec<_>>());
                self.change(number, |node| node.annotations = report.announce.clone());
            }
        }
        for number in 1..=u8::try_from(self.nodes.len()).expect("few nodes") {
            let report = self.compare(number, true);
            assert_eq!(report.troubles().collect::<Vec<_>>(), [""; 0], "node {number}");
            assert_eq!(report.changes, [""; 0], "node {number}: it changes again and again");
        }
    }

    fn change(&mut self, number: u8, change: impl FnOnce(&mut Node)) {
        let node = self.nodes.get_mut(&name(number)).expect("a Node");
        change(Arc::make_mut(node));
    }

    /// The network of a node's pods, from the configuration that the agent wrote.
    fn network(&self, number: u8) -> Network<'_> {
        let node = self.node(number);
        node.network(serde_json::from_str(&node.read(CONFLIST).expect("a configuration")).expect("JSON"))
    }

    /// Adds a pod to a node and returns it with its addresses.
    fn pod(&self, number: u8, name: &str) -> (Pod, Vec<IpAddr>) {
        let pod = self.node(number).pod(name);
        let added = self.network(number).add(&Attach::new(&pod));
        let result = added.unwrap_or_else(|failure| panic!("{failure:?}"));
        (pod, addresses_of(&result))
    }
}

fn name(number: u8) -> NodeName {
    format!("node-{number}").parse().expect("a name")
}

fn object(node: &ClusterNode) -> Node {
    Node {
        name: name(node.number),
        uid: "".into(),
        created: Some(i64::from(node.number)),
        pod_cidrs: pod_ranges(node.number).iter().map(|range| range.parse().expect("a prefix")).collect(),
        addresses: node.addresses.to_vec(),
        annotations: Annotations::default(),
        unusable: Vec::new(),
    }
}

/// Sends requests from each pod to each address of every other pod, and checks that the server sees the pod's own
/// address.
fn all_reach_each_other(pods: &BTreeMap<u8, (Pod, Vec<IpAddr>)>) {
    for (to, (server, addresses)) in pods {
        for address in addresses {
            let listen = at(*address, 8080).to_string();
            let who = format!("node-{to}");
            let _serving = [Proto::Tcp, Proto::Udp].map(|proto| server.serve(proto, &listen, &who));
            for (from, (client, own)) in pods.iter().filter(|(from, _)| *from != to) {
                for proto in [Proto::Tcp, Proto::Udp] {
                    let answer = client.expect(proto, at(*address, 8080), &who);
                    assert!(own.contains(&answer.peer.ip()), "node {from} to {to}: seen as {}", answer.peer);
                }
            }
        }
    }
}
