// SPDX-License-Identifier: GPL-3.0-or-later

//! Encryption: WireGuard's peers, and the prefixes to which packets are refused.

use super::*;

/// The desired state with this node's own Node and these, with encryption. This node has the key of bytes 1.
fn encrypted(others: impl IntoIterator<Item = Node>) -> Desired {
    let nodes = all(others.into_iter().chain([own_node()]));
    let here = LocalView { wireguard_key: Some(PublicKey([1; 32])), ..here() };
    let desired = desired(&nodes, &name(OWN), &here, &encrypting());
    assert_sound(&nodes, &here, &desired);
    desired
}

/// A node on the link of this one, and one behind a router.
fn near_and_far() -> [Node; 2] {
    [
        node("near", 1, &["10.244.1.0/24", "fd44:0:0:1::/64"], &["192.168.50.11", "fd50::11"]),
        node("far", 2, &["10.244.2.0/24", "fd44:0:0:2::/64"], &["192.168.60.12", "fd60::12"]),
    ]
}

/// The cluster's subnets, which every test refuses.
const CLUSTER: [&str; 2] = ["10.244.0.0/16", "fd44::/32"];

fn refused(desired: &Desired) -> Vec<String> {
    desired.refused.iter().map(ToString::to_string).collect()
}

#[test]
fn all_nodes_are_reached_by_wireguard() {
    let [near, far] = near_and_far();
    let mut far = with_key(far, 3);
    far.annotations.wireguard_port = NonZeroU16::new(7);
    let desired = encrypted([with_key(near, 2), far]);
    assert_eq!(
        routes(&desired),
        [
            "10.244.1.0/24 near by WireGuard",
            "10.244.2.0/24 far by WireGuard",
            "fd44:0:0:1::/64 near by WireGuard",
            "fd44:0:0:2::/64 far by WireGuard",
        ]
    );
    let wireguard = desired.wireguard.as_ref().unwrap();
    let ends: Vec<String> =
        wireguard.peers.iter().map(|peer| format!("{} {}", peer.node, peer.endpoint)).collect();
    assert_eq!(
        (wireguard.port.get(), ends),
        (51820, vec!["far 192.168.60.12:7".to_owned(), "near 192.168.50.11:51820".to_owned()])
    );
    assert_eq!(wireguard.peers[1].addresses, [ip("192.168.50.11"), ip("fd50::11")]);
    assert_eq!((problems(&desired), refused(&desired)), (vec![], CLUSTER.map(str::to_owned).into()));
    assert_eq!((desired.mtu, desired.tunnel), (Some(1440), None));
}

/// Packets must never leave in clear text, neither through the link nor through the default route.
#[test]
fn packets_to_a_node_without_a_key_are_refused() {
    let [near, far] = near_and_far();
    let desired = encrypted([near, with_key(far, 3)]);
    assert_eq!(routes(&desired), ["10.244.2.0/24 far by WireGuard", "fd44:0:0:2::/64 far by WireGuard"]);
    assert_eq!(refused(&desired), ["10.244.0.0/16", "10.244.1.0/24", "fd44::/32", "fd44:0:0:1::/64"]);
    let problem = "node near: does not announce a WireGuard key: packets to its pods are refused, not sent in clear text";
    assert_eq!(problems(&desired), [problem]);
}

#[test]
fn a_key_belongs_to_the_older_node() {
    let [near, far] = near_and_far();
    let desired = encrypted([with_key(near.clone(), 9), with_key(far.clone(), 9)]);
    assert_eq!(desired.wireguard.as_ref().unwrap().peers.len(), 1);
    assert!(desired.routes.iter().all(|route| route.node.as_str() == "near"));
    let key = "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=";
    assert_eq!(problems(&desired), [format!("node far: WireGuard key {key} is announced by node near, too")]);
    // Nor may another Node announce this node's own, whatever its own annotation is.
    let desired = encrypted([with_key(near, 1), with_key(far, 3)]);
    assert_eq!(desired.problems[0].kind.reason(), "same_key");
    assert!(desired.routes.iter().all(|route| route.node.as_str() == "far"), "{desired:?}");
}

/// A hostile Node must not get an address of another one.
#[test]
fn a_peer_may_have_the_addresses_of_its_own_prefixes_only() {
    let [near, _] = near_and_far();
    let thief = node("thief", 3, &["10.244.1.0/25", "fd44:0:0:9::/64"], &["192.168.50.13"]);
    let desired = encrypted([with_key(near, 2), with_key(thief, 3)]);
    let peers = &desired.wireguard.as_ref().unwrap().peers;
    assert_eq!(peers[1].node.as_str(), "thief");
    assert_eq!(peers[1].prefixes, [net("fd44:0:0:9::/64")]);
}

#[test]
fn the_family_of_this_nodes_uplink_is_that_of_the_endpoints() {
    let [near, _] = near_and_far();
    let mut own = own_node();
    own.addresses.reverse();
    let only_v4 = node("v4", 3, &["10.244.3.0/24"], &["192.168.50.13"]);
    let nodes = all([with_key(near, 2), with_key(only_v4, 3), own.clone()]);
    let over_six = desired(&nodes, &name(OWN), &here(), &encrypting());
    let peers = &over_six.wireguard.as_ref().unwrap().peers;
    assert_eq!((peers.len(), peers[0].endpoint.ip(), over_six.mtu), (1, ip("fd50::11"), Some(1420)));
    assert_eq!(problems(&over_six), ["node v4: no InternalIP of family IPv6"]);
    assert!(refused(&over_six).contains(&"10.244.3.0/24".to_owned()));
    // If no address is on an uplink, the first address decides.
    let none = LocalView::default();
    own.addresses.reverse();
    let nodes = all([with_key(near_and_far()[0].clone(), 2), own]);
    let without = desired(&nodes, &name(OWN), &none, &encrypting());
    assert_eq!(without.wireguard.unwrap().peers[0].endpoint.ip(), ip("192.168.50.11"));
    assert_eq!(
        (without.mtu, problems(&Desired { problems: without.problems, ..Desired::default() })),
        (None, vec![])
    );
}

/// Another Node that claims an address in the cluster's subnet must not end the refusal, because packets would then
/// leave in clear text.
#[test]
fn the_clusters_subnet_is_refused_unless_this_node_is_within_it() {
    let inside = with_key(node("inside", 1, &["10.244.1.0/24"], &["10.244.200.1"]), 2);
    let nodes = all([node(OWN, 9, &["10.244.0.0/24"], &["192.168.50.10"]), inside.clone()]);
    let wanted = desired(&nodes, &name(OWN), &here(), &encrypting());
    assert_eq!(refused(&wanted), ["10.244.0.0/16", "10.244.1.0/24", "fd44::/32"]);
    let reasons: Vec<_> = wanted.problems.iter().map(|problem| problem.kind.reason()).collect();
    assert_eq!(reasons, ["no_address", "address_in_cluster"]);
    let mut inside_here = here();
    inside_here.uplinks[0].addresses.push(net("10.244.200.2/24"));
    let nodes = all([node(OWN, 9, &["10.244.0.0/24"], &["10.244.200.2"]), inside]);
    let wanted = desired(&nodes, &name(OWN), &inside_here, &encrypting());
    assert_eq!((refused(&wanted), wanted.routes.len()), (vec!["fd44::/32".to_owned()], 1));
    // A subnet that belongs to this node or to a peer as a whole is not refused either.
    let nodes = all([node(OWN, 9, &["10.244.0.0/16"], &["192.168.50.10"])]);
    assert_eq!(refused(&desired(&nodes, &name(OWN), &here(), &encrypting())), ["fd44::/32"]);
    let nodes = all([
        node(OWN, 9, &["10.9.0.0/24"], &["192.168.50.10"]),
        with_key(node("all", 1, &["10.244.0.0/16"], &["192.168.50.11"]), 2),
    ]);
    assert_eq!(refused(&desired(&nodes, &name(OWN), &here(), &encrypting())), ["fd44::/32"]);
}

/// If an API server has lost its data, the peers that are known stay, see `prune`.
#[test]
fn without_the_own_node_peers_have_their_first_address() {
    let [near, _] = near_and_far();
    let wanted = desired(&all([with_key(near, 2)]), &name(OWN), &here(), &encrypting());
    assert!(!wanted.prune);
    assert_eq!(wanted.wireguard.unwrap().peers[0].endpoint.ip(), ip("192.168.50.11"));
    assert_eq!(wanted.mtu, Some(1420), "the larger header");
}

#[test]
fn a_smaller_path_leaves_less_for_pods() {
    let [near, _] = near_and_far();
    let nodes = all([near, own_node()]);
    let mtu = |settings: Settings| desired(&nodes, &name(OWN), &here(), &settings).mtu;
    for (path_mtu, plain, vxlan, wireguard) in [(1400, 1400, 1350, 1340), (9000, 1500, 1450, 1440)] {
        let path_mtu = Some(path_mtu);
        assert_eq!(mtu(Settings { path_mtu, ..settings(TunnelMode::Auto) }), Some(plain));
        assert_eq!(mtu(Settings { path_mtu, ..settings(TunnelMode::Always) }), Some(vxlan));
        assert_eq!(mtu(Settings { path_mtu, ..encrypting() }), Some(wireguard));
    }
}
