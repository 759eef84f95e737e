// SPDX-License-Identifier: GPL-3.0-or-later

//! One hostile kubelet: whatever it writes into its own Node, in whatever order, no path between other nodes changes.

use cni_kernel::mac::Mac;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::desired::InstalledPaths;
use super::*;

/// The name of the hostile Node.
const HOSTILE: &str = "hostile";
/// The pod CIDRs that the controller has given it.
const ASSIGNED: [&str; 2] = ["10.244.9.0/24", "fd44:0:0:9::/64"];
/// Addresses of other nodes and their pods, of this node, of Services, and some that nobody has.
const ADDRESSES: [&str; 26] = [
    "192.168.50.9",
    "192.168.50.10",
    "192.168.50.11",
    "192.168.60.12",
    "192.168.60.9",
    "192.168.50.1",
    "192.168.50.255",
    "10.244.0.1",
    "10.244.1.0",
    "10.244.1.7",
    "10.244.2.0",
    "10.244.2.7",
    "10.244.9.7",
    "10.244.200.1",
    "10.96.0.1",
    "127.0.0.1",
    "169.254.0.1",
    "224.0.0.1",
    "0.0.0.0",
    "fd50::9",
    "fd50::11",
    "fd60::12",
    "fd44:0:0:1::",
    "fd44:0:0:2::7",
    "fe80::1",
    "::ffff:192.168.50.11",
];
/// Pod CIDRs with which it registers itself.
const FORGED: [&str; 8] = [
    "10.244.1.0/24",
    "10.244.2.128/25",
    "10.244.0.0/16",
    "10.244.0.0/24",
    "192.168.50.0/24",
    "10.96.0.0/24",
    "fd44:0:0:1::/64",
    "fd44::/56",
];

/// What the hostile kubelet or its neighbours do.
#[derive(Debug, Clone)]
enum Step {
    /// The kubelet writes addresses and annotations.
    Write(Written),
    /// The hostile Node is deleted.
    Delete,
    /// The kubelet registers again with pod CIDRs of its choice, as a new Node, which is the youngest.
    Register(Vec<&'static str>, Written),
    /// This node's agent is started again.
    Restart,
}

/// The part of a Node that its kubelet may write.
#[derive(Debug, Clone)]
struct Written {
    addresses: Vec<&'static str>,
    /// The Node whose MAC address it announces.
    mac_of: Option<&'static str>,
    /// The byte of its key. 1 is this node's, 2 and 3 are those of others.
    key: Option<u8>,
    port: Option<u16>,
}

fn written() -> impl Strategy<Value = Written> {
    let addresses = subsequence(ADDRESSES.to_vec(), 0..20).prop_shuffle();
    let mac_of = option::weighted(0.8, select(vec![HOSTILE, OWN, "near", "far", "unknown"]));
    let port = option::of(any::<u16>());
    (addresses, mac_of, option::weighted(0.9, 0_u8..5), port)
        .prop_map(|(addresses, mac_of, key, port)| Written { addresses, mac_of, key, port })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => written().prop_map(Step::Write),
        1 => Just(Step::Delete),
        2 => (subsequence(FORGED.to_vec(), 0..4).prop_shuffle(), written())
            .prop_map(|(cidrs, written)| Step::Register(cidrs, written)),
        2 => Just(Step::Restart),
    ]
}

/// The hostile Node, created at a second of the minute in which the others were, from 2 to 9.
fn hostile(created: u8, pod_cidrs: &[&str], written: &Written) -> Node {
    let mut node = node(HOSTILE, created, pod_cidrs, &written.addresses);
    node.annotations.vxlan_mac = written.mac_of.map(|of| vxlan_mac_of(&name(of)));
    node.annotations.vxlan_port = written.port.and_then(NonZeroU16::new);
    node.annotations.wireguard_key = written.key.map(|byte| PublicKey([byte; 32]));
    node.annotations.wireguard_port = node.annotations.vxlan_port;
    node
}

fn honest() -> Nodes {
    let near = node("near", 5, &["10.244.1.0/24", "fd44:0:0:1::/64"], &["192.168.50.11", "fd50::11"]);
    let far = node("far", 6, &["10.244.2.0/24", "fd44:0:0:2::/64"], &["192.168.60.12", "fd60::12"]);
    all([with_key(announcing(near, None), 2), with_key(announcing(far, Some(4790)), 3), own_node()])
}

/// The paths to the pods of other nodes as the kernel has them: routes, neighbours, FDB entries, peers, and the prefixes of
/// others to which packets are refused.
fn paths(desired: &Desired) -> Vec<String> {
    let of_others = |net: &IpNet| !FORGED[3..].contains(&net.to_string().as_str());
    let is_honest = |node: &NodeName| node.as_str() != HOSTILE;
    let routes = desired.routes.iter().filter(|route| is_honest(&route.node));
    let mut paths: Vec<String> = routes.map(|route| format!("{} {:?}", route.prefix, route.via)).collect();
    let tunnel = desired.tunnel.iter().flat_map(|tunnel| &tunnel.peers);
    paths.extend(tunnel.filter(|peer| is_honest(&peer.node)).map(|peer| format!("{peer:?}")));
    let wireguard = desired.wireguard.iter().flat_map(|device| &device.peers);
    paths.extend(wireguard.filter(|peer| is_honest(&peer.node)).map(|peer| format!("{peer:?}")));
    let refused = desired.refused.iter().filter(|net| !ASSIGNED.contains(&net.to_string().as_str()));
    paths.extend(refused.filter(|net| of_others(net)).map(|net| format!("refused {net}")));
    paths
}

/// What the kernel has after a comparison.
fn installed(desired: &Desired) -> InstalledPaths {
    let mut paths = InstalledPaths::default();
    for route in &desired.routes {
        if let Via::Link { gateway, .. } | Via::Tunnel { gateway } = route.via {
            paths.gateways.insert(route.prefix, gateway);
        }
    }
    let tunnel = desired.tunnel.iter().flat_map(|tunnel| &tunnel.peers);
    let macs = tunnel.flat_map(|peer| peer.gateways.iter().map(|gateway| (*gateway, peer.mac)));
    paths.macs = macs.collect::<Vec<(IpAddr, Mac)>>().into_iter().collect();
    for peer in desired.wireguard.iter().flat_map(|device| &device.peers) {
        paths.keys.extend(peer.prefixes.iter().map(|prefix| (*prefix, peer.key)));
    }
    paths
}

/// The ways in which nodes reach each other.
fn modes() -> [Settings; 4] {
    let [auto, always, never] = [TunnelMode::Auto, TunnelMode::Always, TunnelMode::Never].map(settings);
    [auto, always, never, encrypting()]
}

fn with_own_key() -> LocalView {
    LocalView { wireguard_key: Some(PublicKey([1; 32])), ..here() }
}

/// Applies steps to a cluster whose nodes know each other, and checks the paths between the others after each.
fn check(created: u8, first: &Written, steps: &[Step], settings: &Settings) -> Result<(), TestCaseError> {
    let (own, here) = (name(OWN), with_own_key());
    let compare = |nodes: &Nodes, claims: &Claims| desired::desired(nodes, &own, &here, settings, claims);
    let before = compare(&honest(), &Claims::default());
    let mut last = before.clone();
    let mut nodes = honest();
    let put = |nodes: &mut Nodes, node: Node| drop(nodes.insert(name(HOSTILE), Arc::new(node)));
    put(&mut nodes, hostile(created, &ASSIGNED, first));
    let (mut pod_cidrs, mut created) = (ASSIGNED.to_vec(), created);
    for step in [Step::Write(first.clone())].iter().chain(steps) {
        let mut claims = last.claims.clone();
        match step {
            // Without its Node it may write nothing.
            Step::Write(_) if !nodes.contains_key(&name(HOSTILE)) => {}
            Step::Write(written) => put(&mut nodes, hostile(created, &pod_cidrs, written)),
            Step::Delete => drop(nodes.remove(&name(HOSTILE))),
            Step::Register(forged, written) => {
                (pod_cidrs, created) = (forged.clone(), 50);
                put(&mut nodes, hostile(created, &pod_cidrs, written));
            }
            Step::Restart => claims = Claims::of_installed(&installed(&last), &nodes),
        }
        last = compare(&nodes, &claims);
        assert_sound(&nodes, &here, &last);
        prop_assert_eq!(paths(&last), paths(&before), "after {:?}: {:?}", step, last.problems);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_objects_of_one_kubelet_change_a_path_between_others(
        created in 2_u8..10,
        first in written(),
        steps in vec(step(), 1..12),
        mode in 0_usize..4,
    ) {
        check(created, &first, &steps, &modes()[mode])?;
    }

    /// A node that joins the cluster finds the hostile Node there already. A copied key then cannot be told from the
    /// original, so the older Node gets it.
    #[test]
    fn a_new_node_gets_the_same_paths(created in 2_u8..10, written in written(), mode in 0_usize..4) {
        let is_copied = written.key.is_some_and(|byte| (2..4).contains(&byte));
        let written = Written { key: written.key.filter(|_| !is_copied), ..written };
        let mut nodes = honest();
        let settings = &modes()[mode];
        let of = |nodes: &Nodes| desired(nodes, &name(OWN), &with_own_key(), settings);
        let before = of(&nodes);
        nodes.insert(name(HOSTILE), Arc::new(hostile(created, &ASSIGNED, &written)));
        let after = of(&nodes);
        prop_assert_eq!(paths(&after), paths(&before), "{:?}", after.problems);
    }
}

/// A key that an older Node copies stays with the Node that had it first, also after the agent's restart.
#[test]
fn an_announced_key_stays_where_it_was_first() {
    let settings = encrypting();
    let mut nodes = honest();
    let (own, here) = (name(OWN), with_own_key());
    let first = desired(&nodes, &own, &here, &settings);
    let written = Written { addresses: vec!["192.168.50.9"], mac_of: None, key: Some(2), port: None };
    nodes.insert(name(HOSTILE), Arc::new(hostile(2, &ASSIGNED, &written)));
    for claims in [first.claims.clone(), Claims::of_installed(&installed(&first), &nodes)] {
        let copied = desired::desired(&nodes, &own, &here, &settings, &claims);
        assert_eq!(paths(&copied), paths(&first));
        let reasons: Vec<_> = copied.problems.iter().map(|problem| problem.kind.reason()).collect();
        assert_eq!(reasons, ["same_key"]);
        assert_eq!(copied.problems[0].kind.holder(), Some(&name("near")));
    }
    // A node that has no path yet can only decide by age.
    let fresh = desired(&nodes, &own, &here, &settings);
    assert_eq!(fresh.problems[0].node, name("near"));
}

/// The pod CIDR of an older Node that comes later does not win, either.
#[test]
fn a_pod_cidr_stays_where_it_was_first() {
    for settings in modes() {
        let mut nodes = honest();
        let (own, here) = (name(OWN), with_own_key());
        let first = desired(&nodes, &own, &here, &settings);
        let written =
            Written { addresses: vec!["192.168.50.9"], mac_of: Some(HOSTILE), key: Some(4), port: None };
        nodes.insert(name(HOSTILE), Arc::new(hostile(0, &["10.244.0.0/20"], &written)));
        for claims in [first.claims.clone(), Claims::of_installed(&installed(&first), &nodes)] {
            let later = desired::desired(&nodes, &own, &here, &settings, &claims);
            assert_eq!(paths(&later), paths(&first));
        }
    }
}
