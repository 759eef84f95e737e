// SPDX-License-Identifier: GPL-3.0-or-later

//! The reading of a Node, for fuzzing. The tests have more, with arbitrary Nodes.

use std::fmt::Debug;
use std::num::NonZeroU16;
use std::sync::Arc;

use serde_json::{Value, json};

use super::desired::{Claims, Settings, TunnelMode, Uplink, desired};
use super::node_name::NodeName;
use super::nodes::Nodes;
use super::object::NodeObject;
use super::{Desired, LocalView, Node};

/// The longest text of a problem: two names of 253 characters, prefixes and words.
const LONGEST: usize = 1000;

/// A Node as the API server sends it, next to this node's own and to an older one, whose route it must not change.
pub fn node(json: &[u8]) -> Option<impl Debug> {
    let read = |bytes: &[u8]| Node::read(&serde_json::from_slice::<NodeObject>(bytes).ok()?).ok();
    let node = read(json)?;
    let all: Option<Vec<Node>> = [
        object("own", 1, "10.244.0.0/24", "192.168.50.10"),
        object("old", 2, "10.244.1.0/24", "192.168.50.11"),
    ]
    .iter()
    .map(|object| read(object.to_string().as_bytes()))
    .collect();
    let mut nodes: Nodes = all?.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect();
    let before = wanted(&nodes)?;
    let is_new = !nodes.contains_key(&node.name);
    // Nodes cannot choose their age.
    let node = Node { created: Some(i64::MAX - 1), ..node };
    nodes.insert(node.name.clone(), Arc::new(node.clone()));
    let after = wanted(&nodes)?;
    for route in before.routes.iter().filter(|_| is_new) {
        assert!(after.routes.contains(route), "{node:?} takes {route:?} away");
    }
    for route in after.routes.iter().filter(|route| route.node == node.name) {
        assert!(node.pod_cidrs.contains(&route.prefix), "{route:?} is not of {node:?}");
    }
    // Problems are logged, and become Events.
    for problem in &after.problems {
        let text = problem.to_string();
        assert!(text.len() <= LONGEST && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
    }
    Some((node, after.routes.len(), after.problems))
}

fn wanted(nodes: &Nodes) -> Option<Desired> {
    let uplink = Uplink { index: 2, mtu: 1500, addresses: vec!["192.168.50.10/24".parse().ok()?] };
    let here = LocalView { uplinks: vec![uplink], ..LocalView::default() };
    let settings = Settings {
        tunnel: TunnelMode::Auto,
        vni: 1,
        port: NonZeroU16::new(8472)?,
        pod_cidrs: Vec::new(),
        cluster_cidrs: Vec::new(),
        service_cidrs: vec!["10.96.0.0/16".parse().ok()?],
        path_mtu: None,
        encryption: None,
    };
    let own: NodeName = "own".parse().ok()?;
    Some(desired(nodes, &own, &here, &settings, &Claims::default()))
}

fn object(name: &str, created: u8, pod_cidr: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z")},
        "spec": {"podCIDRs": [pod_cidr]},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    })
}
