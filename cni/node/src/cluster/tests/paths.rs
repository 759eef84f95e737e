// SPDX-License-Identifier: GPL-3.0-or-later

//! The paths to other nodes' pods, and the MTU.

use cni_dataplane::owner::{MADE, Owner};
use cni_kernel::route::{Link, LinkKind, MacvlanMode};
use cni_spec::Attachment;

use super::*;
use crate::cluster::tunnel;

/// A node on the link of this one.
fn near() -> Node {
    node("near", 1, &["10.244.1.0/24", "fd44:0:0:1::/64"], &["192.168.50.11", "fd50::11"])
}

/// A node behind a router.
fn far() -> Node {
    node("far", 2, &["10.244.2.0/24", "fd44:0:0:2::/64"], &["192.168.60.12", "fd60::12"])
}

#[test]
fn a_node_on_the_link_is_reached_directly() {
    let desired = with([near()], TunnelMode::Auto);
    assert_eq!(
        routes(&desired),
        ["10.244.1.0/24 near via 192.168.50.11 dev 2", "fd44:0:0:1::/64 near via fd50::11 dev 2"]
    );
    assert_eq!((problems(&desired), desired.tunnel, desired.mtu), (vec![], None, Some(1500)));
    assert_eq!(desired.own.unwrap().prefixes, [net("10.244.0.0/24"), net("fd44::/64")]);
}

#[test]
fn a_node_behind_a_router_is_reached_by_its_tunnel() {
    let desired = with([near(), announcing(far(), Some(4789))], TunnelMode::Auto);
    assert_eq!(
        routes(&desired),
        [
            "10.244.1.0/24 near via 192.168.50.11 dev 2",
            "10.244.2.0/24 far via 10.244.2.0 in the tunnel",
            "fd44:0:0:1::/64 near via fd50::11 dev 2",
            "fd44:0:0:2::/64 far via fd44:0:0:2:: in the tunnel",
        ]
    );
    let tunnel = desired.tunnel.as_ref().unwrap();
    assert_eq!((tunnel.local, tunnel.link, tunnel.vni, tunnel.port.get()), (ip("192.168.50.10"), 2, 1, 8472));
    let [peer] = &tunnel.peers[..] else { panic!("{tunnel:?}") };
    assert_eq!(
        (peer.address, peer.port.get(), peer.mac),
        (ip("192.168.60.12"), 4789, vxlan_mac_of(&name("far")))
    );
    assert_eq!(peer.gateways, [ip("10.244.2.0"), ip("fd44:0:0:2::")]);
    assert_eq!((problems(&desired), desired.mtu), (vec![], Some(1450)));
}

/// Each of two nodes waits for the device of the other one.
#[test]
fn the_tunnel_is_made_before_the_other_end_announces_its_own() {
    let desired = with([near(), far()], TunnelMode::Auto);
    assert_eq!(desired.tunnel.as_ref().map(|tunnel| tunnel.peers.len()), Some(0));
    assert_eq!(problems(&desired), ["node far: does not announce a tunnel"]);
    assert_eq!((desired.routes.len(), desired.mtu), (2, Some(1450)));
}

#[test]
fn the_mode_leaves_out_a_path() {
    let nodes = || [announcing(near(), None), announcing(far(), None)];
    let always = with(nodes(), TunnelMode::Always);
    assert!(always.routes.iter().all(|route| matches!(route.via, Via::Tunnel { .. })));
    assert_eq!((always.routes.len(), always.mtu), (4, Some(1450)));
    assert_eq!(always.tunnel.unwrap().peers[0].port.get(), 8472);
    let never = with(nodes(), TunnelMode::Never);
    assert!(never.routes.iter().all(|route| matches!(route.via, Via::Link { link: 2, .. })));
    assert_eq!((never.routes.len(), never.tunnel, never.mtu), (2, None, Some(1500)));
    // The device is needed before the first peer can announce itself.
    assert!(with([], TunnelMode::Always).tunnel.is_some());
}

#[test]
fn without_tunnels_a_node_behind_a_router_is_reported() {
    let desired = with([far()], TunnelMode::Never);
    assert_eq!(
        problems(&desired),
        [
            "node far: InternalIP 192.168.60.12 is on no link of this node, and tunnels are off",
            "node far: InternalIP fd60::12 is on no link of this node, and tunnels are off",
        ]
    );
}

#[test]
fn a_family_without_an_address_uses_the_tunnel() {
    let half = node("half", 1, &["10.244.1.0/24", "fd44:0:0:1::/64"], &["192.168.50.11"]);
    let desired = with([announcing(half.clone(), None)], TunnelMode::Auto);
    assert_eq!(
        routes(&desired),
        ["10.244.1.0/24 half via 192.168.50.11 dev 2", "fd44:0:0:1::/64 half via fd44:0:0:1:: in the tunnel"]
    );
    assert_eq!(problems(&with([half], TunnelMode::Never)), ["node half: no InternalIP of family IPv6"]);
}

#[test]
fn the_longest_prefix_names_the_uplink() {
    let mut here = here();
    let wide = |index, net: IpNet| Uplink { index, mtu: 9000, addresses: vec![net] };
    here.uplinks.insert(0, wide(7, net("192.168.0.1/16")));
    here.uplinks.push(wide(8, net("192.168.50.99/24")));
    let nodes = all([near(), own_node()]);
    let desired = desired(&nodes, &name(OWN), &here, &settings(TunnelMode::Auto));
    assert_eq!(routes(&desired)[0], "10.244.1.0/24 near via 192.168.50.11 dev 2");
    assert_eq!(desired.mtu, Some(1500), "that of the uplink with this node's InternalIP");
}

#[test]
fn the_mtu_is_that_of_the_underlay_less_the_headers() {
    let mut own = own_node();
    own.addresses.reverse();
    let nodes = all([far(), own]);
    let mut six = here();
    let over_six = desired(&nodes, &name(OWN), &six, &settings(TunnelMode::Auto));
    assert_eq!((over_six.tunnel.unwrap().local, over_six.mtu), (ip("fd50::10"), Some(1430)));
    six.uplinks[0].mtu = 1300;
    let small = desired(&nodes, &name(OWN), &six, &settings(TunnelMode::Auto));
    assert_eq!(small.mtu, Some(1230));
    assert!(
        problems(&small).contains(&"node own: MTU 1230 is below the 1280 bytes that IPv6 needs".to_owned())
    );
    // If no InternalIP is on an uplink, the smallest MTU of all uplinks counts.
    let two = LocalView {
        uplinks: [(3, 1400), (4, 1500)].map(|(index, mtu)| Uplink { index, mtu, addresses: vec![] }).to_vec(),
        ..LocalView::default()
    };
    let apart = desired(&nodes, &name(OWN), &two, &settings(TunnelMode::Auto));
    assert_eq!((apart.mtu, &apart.tunnel), (Some(1400), &None));
    assert!(problems(&apart).iter().any(|text| text.contains("no InternalIP is on an uplink")));
    assert_eq!(desired(&nodes, &name(OWN), &LocalView::default(), &settings(TunnelMode::Auto)).mtu, None);
}

#[test]
fn pod_cidrs_of_the_settings_replace_those_of_the_own_node() {
    let given = Settings { pod_cidrs: vec![net("10.9.0.0/24")], ..settings(TunnelMode::Auto) };
    let nodes = all([near(), own_node()]);
    let wanted = desired(&nodes, &name(OWN), &here(), &given);
    assert_eq!(wanted.own.unwrap().prefixes, [net("10.9.0.0/24")]);
    // Also without a Node.
    let alone = desired(&Nodes::new(), &name(OWN), &here(), &given);
    assert_eq!(alone.own.unwrap().prefixes, [net("10.9.0.0/24")]);
}

#[test]
fn a_node_waits_for_its_pod_cidr() {
    let own = node(OWN, 9, &[], &["192.168.50.10"]);
    let nodes = all([near(), own]);
    let waiting = desired(&nodes, &name(OWN), &here(), &settings(TunnelMode::Auto));
    assert_eq!((waiting.own, waiting.routes.len(), waiting.prune), (None, 2, true));
    assert_eq!(
        waiting.problems.iter().map(|problem| problem.kind.reason()).collect::<Vec<_>>(),
        ["no_pod_cidr"]
    );
}

/// An API server that lost its data must not cut a running cluster.
#[test]
fn without_the_own_node_nothing_is_pruned() {
    let lost = desired(&all([near()]), &name(OWN), &here(), &settings(TunnelMode::Auto));
    assert!(!lost.prune && lost.own.is_none());
    assert_eq!(problems(&lost), ["node own: the API server has no Node of this name"]);
    assert_eq!(lost.routes.len(), 2);
}

/// Packets of this node's pods must not reach the devices of others even if this node has none.
#[test]
fn the_senders_of_tunnels_are_the_nodes() {
    let wanted = with([near(), announcing(far(), None)], TunnelMode::Auto);
    assert!(wanted.tunnel.is_some());
    let senders = wanted.senders;
    assert_eq!(senders.own, [ip("192.168.50.10"), ip("fd50::10")].into());
    assert_eq!(senders.ends, BTreeSet::from_iter(far().addresses));
    assert!(near().addresses.iter().chain(&far().addresses).all(|address| senders.nodes.contains(address)));

    let without = with([announcing(near(), Some(4789))], TunnelMode::Auto);
    assert!(without.tunnel.is_none());
    assert_eq!(without.senders.ends, BTreeSet::from_iter(near().addresses));

    assert_eq!(with([near()], TunnelMode::Auto).senders, TunnelSenders::default());

    // With encryption, packets of pods must not arrive in clear text, also those of a Node without a key.
    let nodes = all([near(), with_key(far(), 3), own_node()]);
    let here = LocalView { wireguard_key: Some(PublicKey([1; 32])), ..here() };
    let wanted = desired(&nodes, &name(OWN), &here, &encrypting());
    let pods = [near(), far(), own_node()].into_iter().flat_map(|node| node.pod_cidrs);
    assert_eq!(wanted.senders.encrypted, BTreeSet::from_iter(pods));
}

/// A node can be a container, whose uplink was made for an attachment of the machine around it.
#[test]
fn packets_of_other_nodes_come_in_on_uplinks_of_any_kind() {
    let wanted = with([announcing(far(), None)], TunnelMode::Auto);
    let owner = Owner::of(&Attachment::new("lan", "node", "eth0").unwrap()).to_comment();
    let link = |index, name: &str, kind, alias: &str| Link {
        index,
        name: name.to_owned(),
        kind,
        alias: alias.to_owned(),
        ..Link::default()
    };
    let links = [
        link(1, "lo", LinkKind::Plain, ""),
        link(2, "eth0", LinkKind::Macvlan(MacvlanMode::Bridge), &owner),
        link(3, "eth1", LinkKind::Plain, ""),
        link(4, "slipway0", LinkKind::Bridge, MADE),
        link(5, "cni5.7", LinkKind::Veth, MADE),
        link(6, "veth1", LinkKind::Veth, &owner),
        link(7, "veth2", LinkKind::Veth, ""),
        link(8, "br0", LinkKind::Bridge, ""),
    ];
    let uplink = |index| Uplink { index, mtu: 1500, addresses: vec![net("192.168.50.10/24")] };
    let guard = |uplinks: &[Uplink]| {
        let port = NonZeroU16::new(8472).unwrap();
        tunnel::guard(&wanted, port, &links, uplinks, "slipway0").map(|guard| guard.links)
    };
    let names = |names: &[&str]| -> Option<BTreeSet<String>> {
        Some(names.iter().map(|name| (*name).to_owned()).collect())
    };
    assert_eq!(guard(&[uplink(2), uplink(5)]), names(&["eth0", "eth1"]));
    assert_eq!(guard(&[uplink(7), uplink(8)]), names(&["eth1", "veth2", "br0"]));
}
