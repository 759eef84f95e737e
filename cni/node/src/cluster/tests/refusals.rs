// SPDX-License-Identifier: GPL-3.0-or-later

//! Nodes that are left out, while the others keep their routes.

use super::*;

/// The reasons of problems, with the Node's name.
fn reasons(desired: &Desired) -> Vec<String> {
    desired.problems.iter().map(|problem| format!("{} {}", problem.node, problem.kind.reason())).collect()
}

/// A Node that is always reached.
fn good() -> Node {
    node("good", 1, &["10.244.1.0/24"], &["192.168.50.11"])
}

#[test]
fn a_bad_node_is_left_out_and_the_others_stand() {
    for (pod_cidr, address, reason) in [
        ("10.244.1.128/25", "192.168.50.12", "overlap"),
        ("10.244.0.0/16", "192.168.50.12", "overlap"),
        ("10.244.0.0/28", "192.168.50.12", "overlap"),
        ("192.168.50.128/25", "192.168.50.12", "overlaps_uplink"),
        ("192.168.0.0/16", "192.168.50.12", "overlaps_uplink"),
        ("10.244.2.0/24", "192.168.50.10", "own_address"),
        ("10.244.2.0/24", "10.244.1.7", "address_of_pods"),
        ("10.244.2.0/24", "10.244.0.7", "address_of_pods"),
        ("10.244.2.0/24", "10.244.2.7", "address_of_pods"),
        ("10.244.2.0/24", "10.96.0.1", "address_of_services"),
        ("10.96.3.0/24", "192.168.50.12", "overlaps_services"),
        ("10.244.2.0/24", "192.168.50.255", "reserved_address"),
        ("10.244.2.0/24", "192.168.50.0", "reserved_address"),
        ("nonsense", "192.168.50.12", "pod_cidr"),
        ("10.244.2.0/24", "nonsense", "address"),
    ] {
        let desired = with([good(), node("bad", 2, &[pod_cidr], &[address])], TunnelMode::Never);
        assert_eq!(routes(&desired), ["10.244.1.0/24 good via 192.168.50.11 dev 2"], "{pod_cidr} {address}");
        assert!(reasons(&desired).contains(&format!("bad {reason}")), "{pod_cidr} {address}: {desired:?}");
    }
    let empty = with([good(), node("bad", 2, &[], &[])], TunnelMode::Auto);
    assert_eq!((reasons(&empty), empty.routes.len()), (vec!["bad no_pod_cidr".to_owned()], 1));
}

#[test]
fn pods_are_within_the_clusters_prefixes() {
    let nodes = all([
        own_node(),
        good(),
        node("stranger", 2, &["8.8.8.0/24", "fd55::/64"], &["192.168.50.12", "fd50::12"]),
        node("wide", 3, &["10.0.0.0/8"], &["192.168.50.13"]),
    ]);
    // IPv6 is not limited.
    let settings = Settings { cluster_cidrs: vec![net("10.244.0.0/16")], ..settings(TunnelMode::Never) };
    let found = desired(&nodes, &name(OWN), &here(), &settings);
    assert_eq!(
        routes(&found),
        ["10.244.1.0/24 good via 192.168.50.11 dev 2", "fd55::/64 stranger via fd50::12 dev 2"]
    );
    assert_eq!(reasons(&found), ["stranger outside_cluster", "wide overlap"]);
    let settings = Settings { cluster_cidrs: vec![net("10.0.0.0/16")], ..settings };
    let found = desired(&nodes, &name(OWN), &here(), &settings);
    assert_eq!(found.own.map(|own| own.prefixes), Some(vec![net("fd44::/64")]));
}

/// The name and the order of the list do not decide, nor does this node's memory.
#[test]
fn of_two_nodes_with_one_prefix_the_older_one_keeps_it() {
    for (one, other) in [("a", "b"), ("b", "a")] {
        let older = node(one, 1, &["10.244.1.0/24"], &["192.168.50.11"]);
        let newer = node(other, 2, &["10.244.0.0/22"], &["192.168.50.12"]);
        let mut nodes = all([older, newer]);
        nodes.insert(name(OWN), Arc::new(node(OWN, 0, &["10.250.0.0/24"], &["192.168.50.10"])));
        let wanted = desired(&nodes, &name(OWN), &here(), &settings(TunnelMode::Auto));
        assert_eq!(routes(&wanted), [format!("10.244.1.0/24 {one} via 192.168.50.11 dev 2")]);
        assert_eq!(
            problems(&wanted),
            [format!("node {other}: pod CIDR 10.244.0.0/22 overlaps pod CIDR 10.244.1.0/24 of node {one}")]
        );
    }
    let same = with(
        [
            node("b", 3, &["10.244.1.0/24"], &["192.168.50.11"]),
            node("a", 3, &["10.244.1.0/24"], &["192.168.50.12"]),
        ],
        TunnelMode::Auto,
    );
    assert_eq!(routes(&same), ["10.244.1.0/24 a via 192.168.50.12 dev 2"], "of one age, the name decides");
    let mut timeless = good();
    timeless.created = None;
    let young = node("z", 59, &["10.244.1.0/24"], &["192.168.50.12"]);
    assert_eq!(with([timeless, young], TunnelMode::Auto).routes[0].node.as_str(), "z");
}

#[test]
fn this_nodes_pod_cidr_stands_against_an_older_node() {
    let desired = with([node("old", 0, &["10.244.0.0/24"], &["192.168.50.11"])], TunnelMode::Auto);
    assert!(desired.own.is_some());
    assert_eq!((desired.routes.len(), reasons(&desired)), (0, vec!["old overlap".to_owned()]));
}

#[test]
fn this_nodes_pod_cidr_must_not_overlap_an_uplink() {
    let own = node(OWN, 1, &["192.168.50.0/26", "fd44::/64"], &["192.168.50.10"]);
    let nodes = all([own]);
    let wanted = desired(&nodes, &name(OWN), &here(), &settings(TunnelMode::Auto));
    assert_eq!(wanted.own.as_ref().unwrap().prefixes, [net("fd44::/64")]);
    assert_eq!(reasons(&wanted), ["own overlaps_uplink"]);
}

#[test]
fn a_node_announces_the_mac_address_of_its_own_name_only() {
    let far = |name: &str, created, last: u8| {
        let (cidr, address) = (format!("10.244.{last}.0/24"), format!("192.168.60.{last}"));
        announcing(node(name, created, &[&cidr], &[&address]), None)
    };
    for mac in [vxlan_mac_of(&name("victim")), vxlan_mac_of(&name(OWN))] {
        let mut thief = far("thief", 1, 3);
        thief.annotations.vxlan_mac = Some(mac);
        let desired = with([thief, far("victim", 4, 4)], TunnelMode::Auto);
        assert_eq!(routes(&desired), ["10.244.4.0/24 victim via 10.244.4.0 in the tunnel"]);
        let expected = vxlan_mac_of(&name("thief"));
        assert_eq!(
            problems(&desired),
            [format!("node thief: tunnel MAC {mac} is not {expected}, which follows from the node's name")]
        );
    }
}

/// A cluster's oldest Node cuts off nobody by addresses that it writes into its own status.
#[test]
fn pod_cidrs_win_against_the_addresses_of_an_older_node() {
    let younger = |last: u8| {
        node(&format!("n{last}"), last, &[&format!("10.244.{last}.0/24")], &[&format!("192.168.50.{last}")])
    };
    let claimed: Vec<String> = (20..35).map(|last| format!("10.244.{last}.7")).collect();
    let claimed: Vec<&str> =
        ["192.168.50.19"].into_iter().chain(claimed.iter().map(String::as_str)).collect();
    let old = node("old", 0, &["10.244.19.0/24"], &claimed);
    let desired = with((20..35).map(younger).chain([old]), TunnelMode::Auto);
    let expected: Vec<String> = (19..35)
        .map(|last| {
            let node = if last == 19 { "old".to_owned() } else { format!("n{last}") };
            format!("10.244.{last}.0/24 {node} via 192.168.50.{last} dev 2")
        })
        .collect();
    assert_eq!(routes(&desired), expected);
    assert_eq!(reasons(&desired), ["old address_of_pods"; 15]);
}

/// A Node that is left out claims nothing.
#[test]
fn a_prefix_that_is_left_out_blocks_none() {
    let desired = with(
        [
            good(),
            node("wide", 2, &["10.244.0.0/16"], &["192.168.50.12"]),
            node("next", 3, &["10.244.2.0/24"], &["192.168.50.13"]),
        ],
        TunnelMode::Auto,
    );
    assert_eq!(desired.routes.iter().map(|route| route.node.as_str()).collect::<Vec<_>>(), ["good", "next"]);
}

/// The Node has an older name of this node, and still has this node's address.
#[test]
fn a_renamed_node_does_not_route_to_itself() {
    let before = node("before", 1, &["10.244.7.0/24", "fd44:0:0:7::/64"], &["fd51::1", "192.168.50.10"]);
    let desired = with([good(), before], TunnelMode::Auto);
    assert_eq!((desired.routes.len(), reasons(&desired)), (1, vec!["before own_address".to_owned()]));
}

/// The kernel refuses a gateway of IPv6 that is an address of the node itself.
#[test]
fn an_address_that_this_node_has_besides_its_uplinks_is_no_gateway() {
    let here = LocalView { own_v6: [ip("fd50::99")].into(), ..here() };
    let only = node("only", 2, &["fd44:0:0:7::/64"], &["fd50::99"]);
    let also = node("also", 3, &["fd44:0:0:8::/64"], &["fd50::99", "fd50::12"]);
    let nodes = all([own_node(), good(), only, also]);
    let found = desired(&nodes, &name(OWN), &here, &settings(TunnelMode::Never));
    assert_eq!(
        routes(&found),
        ["10.244.1.0/24 good via 192.168.50.11 dev 2", "fd44:0:0:8::/64 also via fd50::12 dev 2"]
    );
    assert_eq!(reasons(&found).iter().filter(|reason| reason.ends_with(" own_address")).count(), 2);
}
