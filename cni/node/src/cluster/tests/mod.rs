// SPDX-License-Identifier: GPL-3.0-or-later

//! Tests of reading Nodes and of the desired state.

mod encryption;
mod hostile;
mod mutation;
mod paths;
mod properties;
mod reading;
mod refusals;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use cni_kernel::route::PublicKey;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::annotations::{VXLAN_MAC, VXLAN_PORT, WIREGUARD_KEY, WIREGUARD_PORT, vxlan_mac_of};
use super::desired::{
    self, Claims, Desired, Encryption, LocalView, Settings, TunnelMode, TunnelSenders, Uplink, Via,
};
use super::node_name::NodeName;
use super::nodes::{Node, Nodes};
use super::object::NodeObject;
use super::problem::ProblemKind;
use cni_spec::address::overlap;

/// The name of the node that the tests are on.
const OWN: &str = "own";
/// The longest text of a problem: two names of 253 characters, prefixes and words.
const LONGEST: usize = 1000;

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A Node's JSON. `created` is in seconds after 2026 began, below a minute.
fn object(name: &str, created: u8, pod_cidrs: &[&str], addresses: &[&str]) -> Value {
    let addresses: Vec<Value> =
        addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "resourceVersion": "7",
            "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z"),
        },
        "spec": {"podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs},
        "status": {"addresses": addresses},
    })
}

/// The Node as it is read from text.
fn read(object: &Value) -> Node {
    let object: NodeObject = serde_json::from_str(&object.to_string()).unwrap();
    Node::read(&object).unwrap()
}

fn node(name: &str, created: u8, pod_cidrs: &[&str], addresses: &[&str]) -> Node {
    read(&object(name, created, pod_cidrs, addresses))
}

/// The Node with the announcement of its tunnel.
fn announcing(mut node: Node, port: Option<u16>) -> Node {
    node.annotations.vxlan_mac = Some(vxlan_mac_of(&node.name));
    node.annotations.vxlan_port = port.and_then(NonZeroU16::new);
    node
}

/// The Node with a WireGuard key, all bytes of which are this one.
fn with_key(mut node: Node, key: u8) -> Node {
    node.annotations.wireguard_key = Some(PublicKey([key; 32]));
    node
}

fn all(nodes: impl IntoIterator<Item = Node>) -> Nodes {
    nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect()
}

fn own_node() -> Node {
    node(OWN, 9, &["10.244.0.0/24", "fd44::/64"], &["192.168.50.10", "fd50::10"])
}

fn here() -> LocalView {
    let addresses = vec![net("192.168.50.10/24"), net("fd50::10/64")];
    LocalView { uplinks: vec![Uplink { index: 2, mtu: 1500, addresses }], ..LocalView::default() }
}

fn settings(tunnel: TunnelMode) -> Settings {
    Settings {
        tunnel,
        vni: 1,
        port: NonZeroU16::new(8472).unwrap(),
        pod_cidrs: Vec::new(),
        cluster_cidrs: Vec::new(),
        service_cidrs: vec![net("10.96.0.0/16")],
        path_mtu: None,
        encryption: None,
    }
}

/// The settings with encryption.
fn encrypting() -> Settings {
    let cluster_cidrs = vec![net("10.244.0.0/16"), net("fd44::/32")];
    let encryption = Encryption { port: NonZeroU16::new(51820).unwrap() };
    Settings { encryption: Some(encryption), cluster_cidrs, ..settings(TunnelMode::Auto) }
}

/// The desired state of a node that has no path yet.
fn desired(nodes: &Nodes, own: &NodeName, here: &LocalView, settings: &Settings) -> Desired {
    desired::desired(nodes, own, here, settings, &Claims::default())
}

/// The desired state with this node's own Node and these.
fn with(others: impl IntoIterator<Item = Node>, tunnel: TunnelMode) -> Desired {
    let nodes = all(others.into_iter().chain([own_node()]));
    let desired = desired(&nodes, &name(OWN), &here(), &settings(tunnel));
    assert_sound(&nodes, &here(), &desired);
    desired
}

/// The routes as text: prefix, Node and next hop.
fn routes(desired: &Desired) -> Vec<String> {
    let text = |via| match via {
        Via::Link { gateway, link } => format!("via {gateway} dev {link}"),
        Via::Tunnel { gateway } => format!("via {gateway} in the tunnel"),
        Via::WireGuard => "by WireGuard".to_owned(),
    };
    desired
        .routes
        .iter()
        .map(|route| format!("{} {} {}", route.prefix, route.node, text(route.via)))
        .collect()
}

/// The routes of all Nodes but one.
fn routes_without(desired: &Desired, left_out: &NodeName) -> Vec<String> {
    let others = desired.routes.iter().filter(|route| route.node != *left_out);
    routes(&Desired { routes: others.cloned().collect(), ..Desired::default() })
}

/// The problems as text.
fn problems(desired: &Desired) -> Vec<String> {
    desired.problems.iter().map(ToString::to_string).collect()
}

/// Checks a desired state against the Nodes: what must hold whatever they contain.
fn assert_sound(nodes: &Nodes, here: &LocalView, desired: &Desired) {
    let own_prefixes = desired.own.iter().flat_map(|own| &own.prefixes);
    let nets: Vec<&IpNet> = here.uplinks.iter().flat_map(|uplink| &uplink.addresses).collect();
    let own = nodes.get(&name(OWN));
    let local: BTreeSet<IpAddr> =
        nets.iter().map(|net| net.addr()).chain(own.iter().flat_map(|own| own.addresses.clone())).collect();
    let kept: Vec<&IpNet> = own_prefixes.chain(nets.iter().copied()).collect();
    for (index, route) in desired.routes.iter().enumerate() {
        let prefix = &route.prefix;
        assert!(kept.iter().all(|net| !overlap(net, prefix)), "{route:?} overlaps {kept:?}");
        assert!(local.iter().all(|address| !prefix.contains(address)), "{route:?} contains one of {local:?}");
        let others = &desired.routes[index + 1..];
        assert!(others.iter().all(|other| !overlap(&other.prefix, prefix)), "{route:?} overlaps {others:?}");
        let node = &nodes[&route.node];
        assert!(node.name.as_str() != OWN && node.pod_cidrs.contains(prefix), "{route:?} is not of {node:?}");
        let next_hop = match route.via {
            Via::Link { gateway, link } => {
                let uplink = here.uplinks.iter().find(|uplink| uplink.index == link).unwrap();
                assert!(uplink.addresses.iter().any(|net| net.contains(&gateway)), "{route:?}");
                gateway
            }
            Via::Tunnel { gateway } => {
                assert_eq!(gateway, prefix.network());
                let peers = &desired.tunnel.as_ref().unwrap().peers;
                let peer = peers.iter().find(|peer| peer.node == route.node).unwrap();
                assert!(peer.gateways.contains(&gateway));
                peer.address
            }
            Via::WireGuard => {
                let peers = &desired.wireguard.as_ref().unwrap().peers;
                let peer = peers.iter().find(|peer| peer.node == route.node).unwrap();
                assert!(peer.prefixes.contains(prefix) && peer.addresses.contains(&peer.endpoint.ip()));
                peer.endpoint.ip()
            }
        };
        assert!(node.addresses.contains(&next_hop) && !local.contains(&next_hop), "{route:?}");
        let loops = desired.routes.iter().find(|route| route.prefix.contains(&next_hop));
        assert!(loops.is_none(), "the next hop of {route:?} is within {loops:?}");
    }
    let peers = desired.tunnel.iter().flat_map(|tunnel| &tunnel.peers);
    let macs: BTreeSet<_> = peers.clone().map(|peer| peer.mac).collect();
    assert_eq!(macs.len(), peers.count(), "two peers have one MAC address: {:?}", desired.tunnel);
    assert_encrypted(nodes, here, desired);
    // Then no tunnel is possible, which is reported once.
    let without_underlay =
        |kind: &ProblemKind| matches!(kind, ProblemKind::NoUnderlay | ProblemKind::OwnNodeMissing);
    let is_alone = desired.problems.iter().any(|problem| without_underlay(&problem.kind));
    for node in nodes.values() {
        let reached = |prefix: &IpNet| desired.routes.iter().any(|route| route.prefix == *prefix);
        let is_whole = node.name.as_str() == OWN || node.pod_cidrs.iter().all(reached);
        let is_reported = desired.problems.iter().any(|problem| problem.node == node.name);
        assert!(
            (is_whole || is_alone) && node.unusable.is_empty() || is_reported,
            "{node:?} is not reported"
        );
    }
    for problem in &desired.problems {
        let text = problem.to_string();
        assert!(text.len() <= LONGEST && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
    }
    assert!(desired.problems.is_sorted() && desired.routes.is_sorted_by_key(|route| route.prefix));
    assert_eq!(desired.prune, own.is_some());
}

/// Checks the part of encryption: no key has two Nodes, no path is in clear text, no prefix of a peer is another Node's, and no
/// packet is refused that has a path.
fn assert_encrypted(nodes: &Nodes, here: &LocalView, desired: &Desired) {
    let Some(wireguard) = &desired.wireguard else {
        assert!(desired.refused.is_empty(), "{:?}", desired.refused);
        return;
    };
    assert!(desired.tunnel.is_none() && desired.routes.iter().all(|route| route.via == Via::WireGuard));
    let keys: BTreeSet<_> = wireguard.peers.iter().map(|peer| peer.key).collect();
    assert_eq!(keys.len(), wireguard.peers.len(), "two peers have one key: {wireguard:?}");
    assert!(here.wireguard_key.is_none_or(|own| !keys.contains(&own)), "this node's key is a peer's");
    let allowed: Vec<IpNet> = wireguard.peers.iter().flat_map(|peer| peer.prefixes.clone()).collect();
    let routed: BTreeSet<IpNet> = desired.routes.iter().map(|route| route.prefix).collect();
    assert_eq!(allowed.len(), routed.len(), "{allowed:?} {routed:?}");
    for peer in &wireguard.peers {
        let node = &nodes[&peer.node];
        assert_eq!(node.annotations.wireguard_key, Some(peer.key));
        let own = desired.routes.iter().filter(|route| route.node == peer.node);
        assert!(peer.prefixes.is_sorted() && own.map(|route| route.prefix).eq(peer.prefixes.iter().copied()));
    }
    assert!(desired.refused.is_sorted() && desired.refused.iter().all(|net| !routed.contains(net)));
    for prefix in &desired.refused {
        let uplinks = here.uplinks.iter().flat_map(|uplink| &uplink.addresses);
        assert!(uplinks.clone().all(|net| !overlap(net, prefix)), "{prefix} is refused");
        let inside = |peer: &desired::WireGuardPeer| prefix.contains(&peer.endpoint.ip());
        assert!(!wireguard.peers.iter().any(inside), "{prefix} has the endpoint of a peer");
    }
    assert!(desired.problems.iter().all(|problem| !matches!(problem.kind, ProblemKind::NoUnderlay)));
}

/// The prefix that a problem leaves out.
fn refused(kind: &ProblemKind) -> Option<IpNet> {
    match kind {
        ProblemKind::Overlap { prefix, .. }
        | ProblemKind::OverlapsUplink { prefix, .. }
        | ProblemKind::OverlapsServices { prefix, .. }
        | ProblemKind::ContainsAddress { prefix, .. } => Some(*prefix),
        _ => None,
    }
}
