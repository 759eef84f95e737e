// SPDX-License-Identifier: GPL-2.0-or-later

//! A hostile kubelet changes its own Node, the oldest of the cluster. The paths between the other nodes stay unchanged.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_kernel::route::{Peer, PublicKey};
use slipway_tests::{WIREGUARD, has_wireguard, needs};
use slipwayd::cluster::annotations::vxlan_mac_of;
use slipwayd::cluster::desired::TunnelMode;

use crate::encryption::device;
use crate::{Lab, all_reach_each_other, name};

/// The routes, neighbours, FDB entries and peers of a node, except those that lead to node 3.
fn paths(lab: &Lab, number: u8) -> BTreeSet<String> {
    let node = lab.node(number);
    let commands = [
        "ip route show proto 83",
        "ip -6 route show proto 83",
        "ip neigh show dev slipway-vxlan",
        "bridge fdb show dev slipway-vxlan",
    ];
    let is_there = |command: &&&str| !command.contains("vxlan") || node.has_link("slipway-vxlan");
    let of_hostile = ["10.244.3.", "fd44:0:0:3:", "192.168.50.13"];
    let mut text: String = commands.iter().filter(is_there).map(|command| node.cmd(command)).collect();
    if lab.encrypts {
        for Peer { key, endpoint, allowed, .. } in device(node).peers {
            text += &format!("{key:?} {endpoint:?} {allowed:?}\n");
        }
    }
    let lines = text.lines().filter(|line| of_hostile.iter().all(|own| !line.contains(own)));
    lines.map(str::to_owned).collect()
}

fn an_older_node_changes_no_path_between_others(mut lab: Lab) {
    lab.change(3, |node| node.created = Some(0));
    lab.settle();
    let pods = [1, 2].map(|number| (number, lab.pod(number, "web"))).into();
    all_reach_each_other(&pods);
    let before = [1, 2].map(|number| paths(&lab, number));
    let (addresses, key) = {
        let node = &lab.nodes[&name(2)];
        (node.addresses.clone(), node.annotations.wireguard_key)
    };
    lab.change(3, |node| {
        let claimed =
            ["10.244.1.7", "10.244.2.7", "fd44:0:0:1::7", "fd44:0:0:2::7", "10.244.1.0", "10.244.2.0"];
        node.addresses.extend(claimed.map(|address| address.parse::<IpAddr>().expect("an address")));
        node.addresses.extend(addresses);
        node.annotations.vxlan_mac = Some(vxlan_mac_of(&name(2)));
        node.annotations.wireguard_key = key.or(Some(PublicKey([7; 32])));
    });
    // The second round resembles a restart of the agents, which then know only the paths in the kernel.
    for _ in 0..2 {
        for number in [1, 2] {
            let report = lab.compare(number, true);
            let problems = report.desired.problems.iter();
            let refused = problems.filter(|problem| problem.node == name(3)).count();
            assert!(refused > 0 && report.errors.is_empty(), "{report:?}");
            assert_eq!(paths(&lab, number), before[usize::from(number) - 1], "node {number}");
        }
    }
    all_reach_each_other(&pods);
}

#[test]
fn an_older_node_changes_no_route_between_others() {
    an_older_node_changes_no_path_between_others(Lab::new(3, TunnelMode::Auto));
}

#[test]
fn an_older_node_changes_no_tunnel_between_others() {
    an_older_node_changes_no_path_between_others(Lab::new(3, TunnelMode::Always));
}

#[test]
fn an_older_node_changes_no_encrypted_path_between_others() {
    needs!(has_wireguard(), WIREGUARD);
    an_older_node_changes_no_path_between_others(Lab::encrypted(3));
}
