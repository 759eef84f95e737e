// SPDX-License-Identifier: GPL-3.0-or-later

//! Properties of the desired state, for arbitrary Nodes.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

/// There are only few values, so that Nodes collide.
const CIDRS: [&str; 16] = [
    "10.244.0.0/24",
    "10.244.1.0/24",
    "10.244.1.128/25",
    "10.244.2.0/23",
    "10.244.3.0/24",
    "10.0.0.0/8",
    "192.168.50.0/28",
    "192.168.60.0/24",
    "172.16.0.0/16",
    "fd44::/64",
    "fd44:0:0:1::/64",
    "fd44::/48",
    "fd50::/64",
    "fd60::/56",
    "fd00::/32",
    "nonsense",
];
const ADDRESSES: [&str; 14] = [
    "192.168.50.10",
    "192.168.50.11",
    "192.168.50.12",
    "192.168.50.255",
    "192.168.60.11",
    "192.168.60.12",
    "10.244.1.9",
    "10.244.3.9",
    "172.16.0.9",
    "fd50::10",
    "fd50::11",
    "fd60::11",
    "fd44:0:0:1::9",
    "nonsense",
];
const MACS: [&str; 3] = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"];

fn arbitrary_node(name: String) -> impl Strategy<Value = Node> {
    let cidrs = subsequence(CIDRS.to_vec(), 0..4).prop_shuffle();
    let addresses = subsequence(ADDRESSES.to_vec(), 0..4).prop_shuffle();
    let mac = option::of(option::weighted(0.2, select(MACS.to_vec())));
    // Key 1 is this node's own.
    let key = option::weighted(0.8, 1_u8..6);
    (option::weighted(0.9, 0_u8..5), cidrs, addresses, mac, key).prop_map(
        move |(created, cidrs, addresses, mac, key)| {
            let mut node = node(&name, created.unwrap_or(0), &cidrs, &addresses);
            node.created = created.map(i64::from);
            node.annotations.wireguard_key = key.map(|key| PublicKey([key; 32]));
            match mac {
                Some(Some(mac)) => {
                    node.annotations.vxlan_mac = mac.parse().ok();
                    node
                }
                Some(None) => announcing(node, None),
                None => node,
            }
        },
    )
}

fn arbitrary_nodes() -> impl Strategy<Value = Nodes> {
    let node = |index| arbitrary_node(format!("n{index}"));
    let others: Vec<_> = (0..6).map(node).collect();
    let used = vec(any::<bool>(), others.len());
    (others, used, option::weighted(0.8, arbitrary_node(OWN.to_owned()))).prop_map(|(others, used, own)| {
        all(others.into_iter().zip(used).filter_map(|(node, used)| used.then_some(node)).chain(own))
    })
}

fn arbitrary_here() -> impl Strategy<Value = LocalView> {
    let nets =
        ["192.168.50.10/24", "fd50::10/64", "192.168.60.9/25", "172.16.0.9/32", "10.244.3.1/24"].map(net);
    let uplink = (1_u32..5, 0_u32..9001, subsequence(nets.to_vec(), 0..3))
        .prop_map(|(index, mtu, addresses)| Uplink { index, mtu, addresses });
    (vec(uplink, 0..3), option::of(Just(PublicKey([1; 32])))).prop_map(|(mut uplinks, wireguard_key)| {
        // The kernel gives each link an index of its own.
        uplinks.sort_by_key(|uplink| uplink.index);
        uplinks.dedup_by_key(|uplink| uplink.index);
        LocalView { uplinks, wireguard_key, ..LocalView::default() }
    })
}

fn arbitrary_settings() -> impl Strategy<Value = Settings> {
    let mode = select(vec![TunnelMode::Auto, TunnelMode::Always, TunnelMode::Never]);
    let given = option::weighted(0.2, select(vec!["10.244.3.0/24", "fd44::/64"]));
    let encryption = option::of(Just(encrypting().encryption.unwrap()));
    let path_mtu = option::of(576_u32..2000);
    (mode, given, encryption, path_mtu).prop_map(|(mode, given, encryption, path_mtu)| Settings {
        pod_cidrs: given.map(net).into_iter().collect(),
        encryption,
        path_mtu,
        ..settings(mode)
    })
}

/// True if nothing of a Node is used.
fn claims_nothing(node: &Node, desired: &Desired) -> bool {
    let reported = desired.problems.iter().filter(|problem| problem.node == node.name);
    node.pod_cidrs.iter().all(|prefix| reported.clone().any(|it| refused(&it.kind) == Some(*prefix)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_desired_state_is_sound(
        nodes in arbitrary_nodes(),
        here in arbitrary_here(),
        settings in arbitrary_settings(),
    ) {
        assert_sound(&nodes, &here, &desired(&nodes, &name(OWN), &here, &settings));
    }

    #[test]
    fn the_order_of_uplinks_does_not_matter(
        nodes in arbitrary_nodes(),
        here in arbitrary_here(),
        settings in arbitrary_settings(),
    ) {
        let mut turned = here.clone();
        turned.uplinks.reverse();
        turned.uplinks.iter_mut().for_each(|uplink| uplink.addresses.reverse());
        let own = name(OWN);
        prop_assert_eq!(desired(&nodes, &own, &here, &settings), desired(&nodes, &own, &turned, &settings));
    }

    #[test]
    fn a_new_node_changes_no_route_of_the_others(
        nodes in arbitrary_nodes(),
        new in arbitrary_node("new".to_owned()),
        here in arbitrary_here(),
        settings in arbitrary_settings(),
    ) {
        // Younger than the others, of which some have no time: then the name decides, and a "z" comes last. The controller
        // assigns no pod CIDR with the address of a node.
        let is_of_pods = |prefix: &IpNet| {
            nodes.values().all(|node| node.addresses.iter().all(|address| !prefix.contains(address)))
        };
        let pod_cidrs = new.pod_cidrs.iter().copied().filter(is_of_pods).collect();
        let new = Node { name: name("z"), created: None, pod_cidrs, ..new };
        let before = desired(&nodes, &name(OWN), &here, &settings);
        let mut more = nodes;
        more.insert(new.name.clone(), Arc::new(new.clone()));
        let after = desired(&more, &name(OWN), &here, &settings);
        prop_assert_eq!(routes_without(&after, &new.name), routes(&before));
        prop_assert_eq!(before.own, after.own);
    }

    #[test]
    fn a_node_that_claims_nothing_changes_nothing(
        nodes in arbitrary_nodes(),
        here in arbitrary_here(),
        settings in arbitrary_settings(),
    ) {
        let own = name(OWN);
        let with_it = desired(&nodes, &own, &here, &settings);
        for node in nodes.values().filter(|node| node.name != own && claims_nothing(node, &with_it)) {
            let mut fewer = nodes.clone();
            fewer.remove(&node.name);
            let mut without = desired(&fewer, &own, &here, &settings);
            let mut expected = with_it.clone();
            expected.problems.retain(|problem| problem.node != node.name);
            without.problems.retain(|problem| problem.node != node.name);
            prop_assert_eq!(&without, &expected, "without {}", node.name);
        }
    }

    /// All nodes use the same owner of a prefix, whatever they are themselves.
    #[test]
    fn all_nodes_decide_alike(nodes in arbitrary_nodes()) {
        let settings = settings(TunnelMode::Auto);
        let strangers = ["x1", "x2"].map(|own| desired(&nodes, &name(own), &LocalView::default(), &settings));
        let [one, other] = strangers.map(|desired| {
            desired.problems.into_iter().filter(|problem| refused(&problem.kind).is_some()).collect::<Vec<_>>()
        });
        prop_assert_eq!(one, other);
    }
}
