// SPDX-License-Identifier: GPL-2.0-or-later

//! Routes and tunnels after a single comparison.

use std::net::UdpSocket;

use serde_json::json;
use slipway_tests::{Attach, Proto, addresses_of, at, patience};
use slipwayd::cluster::desired::TunnelMode;
use slipwayd::cluster::routes::PROTOCOL;

use crate::{Lab, all_reach_each_other, name};

pub(crate) fn pods_of_all_nodes_reach_each_other(mut lab: Lab, mtu: &str) {
    lab.settle();
    let pods = (1..=3).map(|number| (number, lab.pod(number, "web"))).collect();
    all_reach_each_other(&pods);
    let (pod, _) = &pods[&1];
    assert_eq!(pod.link("eth0")["mtu"].to_string(), mtu);
    // The largest packet passes unfragmented, because Linux sets DF for UDP.
    let (server, peer) = &pods[&2];
    for (address, headers) in peer.iter().zip([28, 48]) {
        let receiver = server.bind(|| UdpSocket::bind(at(*address, 9000))).expect("a socket");
        receiver.set_read_timeout(Some(patience())).expect("a time limit");
        let payload = vec![7; mtu.parse::<usize>().expect("a number") - headers];
        let sent = pod.run(|| {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            UdpSocket::bind(any)?.send_to(&payload, at(*address, 9000))
        });
        assert_eq!(sent.expect("it is sent"), payload.len());
        let mut buffer = [0; 2000];
        assert_eq!(receiver.recv(&mut buffer).expect("it arrives"), payload.len());
    }
}

pub(crate) fn a_node_reaches_the_pods_of_others(mut lab: Lab) {
    lab.settle();
    let (pod, addresses) = lab.pod(2, "web");
    for address in addresses {
        let _serving = pod.serve(Proto::Tcp, &at(address, 80).to_string(), "web");
        lab.node(1).expect(Proto::Tcp, at(address, 80), "web");
    }
}

#[test]
fn pods_of_all_nodes_reach_each_other_by_the_link() {
    pods_of_all_nodes_reach_each_other(Lab::new(3, TunnelMode::Auto), "1500");
}

#[test]
fn pods_of_all_nodes_reach_each_other_by_vxlan() {
    pods_of_all_nodes_reach_each_other(Lab::new(3, TunnelMode::Always), "1450");
}

#[test]
fn the_path_between_nodes_may_change() {
    let mut lab = Lab::new(2, TunnelMode::Auto);
    lab.settle();
    let pods = [1, 2].map(|number| (number, lab.pod(number, "web"))).into();
    for tunnel in [TunnelMode::Always, TunnelMode::Auto] {
        lab.tunnel = tunnel;
        lab.settle();
        all_reach_each_other(&pods);
    }
}

#[test]
fn a_node_reaches_the_pods_of_others_and_is_seen_by_an_address_that_they_reach() {
    for tunnel in [TunnelMode::Auto, TunnelMode::Always] {
        a_node_reaches_the_pods_of_others(Lab::new(2, tunnel));
    }
}

#[test]
fn each_node_may_have_a_port_of_its_own_for_vxlan() {
    let mut lab = Lab::new(3, TunnelMode::Always);
    lab.port = |number| 4789 + u16::from(number);
    lab.settle();
    let pods = (1..=3).map(|number| (number, lab.pod(number, "web"))).collect();
    all_reach_each_other(&pods);
    let shown = lab.node(1).cmd("bridge fdb show dev slipway-vxlan");
    assert!(shown.contains("dst 192.168.50.12 port 4791") && shown.contains("port 4792"), "{shown}");
    // All nodes change to the same port.
    lab.port = |_| 4789;
    lab.settle();
    all_reach_each_other(&pods);
}

#[test]
fn pods_of_the_plugin_flannel_reach_each_other() {
    let mut lab = Lab::new(2, TunnelMode::Always);
    lab.settle();
    let pods = [1, 2].map(|number| {
        let node = lab.node(number);
        let delegate = json!({ "bridge": "slipway0", "ipMasq": false });
        let flannel = json!({ "type": "flannel", "delegate": delegate });
        let pod = node.pod("web");
        let network = node.network(json!({ "name": "flannel", "plugins": [flannel] }));
        let result = network.add(&Attach::new(&pod)).expect("ADD");
        (number, (pod, addresses_of(&result)))
    });
    assert!(pods.iter().all(|(_, (pod, ips))| ips.len() == 2 && pod.link("eth0")["mtu"] == 1450));
    all_reach_each_other(&pods.into());
}

#[test]
fn a_node_that_goes_takes_its_routes_and_no_others() {
    for tunnel in [TunnelMode::Auto, TunnelMode::Always] {
        let mut lab = Lab::new(3, tunnel);
        lab.settle();
        let node = lab.node(1);
        let via = node.addresses[0];
        // A route of another program to a prefix that no node has, and one of ours that the agent does not expect.
        node.cmd("ip route add 10.250.0.0/24 via 192.168.50.12 proto bird");
        node.cmd(&format!("ip route add 10.251.0.0/24 via 192.168.50.12 proto {PROTOCOL} metric 7"));
        let routes =
            |lab: &Lab| lab.node(1).cmd("ip route show table main") + &lab.node(1).cmd("ip -6 route show");
        lab.nodes.remove(&name(3));
        lab.compare(1, false);
        let shown = routes(&lab);
        assert!(
            shown.contains("10.244.3.0/24") && shown.contains("10.251.0.0/24"),
            "incomplete list: {shown}"
        );
        lab.compare(1, true);
        let shown = routes(&lab);
        for gone in ["10.244.3.0/24", "fd44:0:0:3::/64", "10.251.0.0/24"] {
            assert!(!shown.contains(gone), "{gone} via {via}: {shown}");
        }
        for left in ["10.244.2.0/24", "fd44:0:0:2::/64", "10.250.0.0/24"] {
            assert!(shown.contains(left), "{left}: {shown}");
        }
        if tunnel == TunnelMode::Always {
            let (fdb, neighbours) = (
                lab.node(1).cmd("bridge fdb show dev slipway-vxlan"),
                lab.node(1).cmd("ip neigh show dev slipway-vxlan"),
            );
            assert!(fdb.contains("192.168.50.12") && !fdb.contains("192.168.50.13"), "{fdb}");
            assert!(neighbours.contains("10.244.2.0") && !neighbours.contains("10.244.3.0"), "{neighbours}");
        }
    }
}

#[test]
fn without_its_own_node_nothing_is_deleted() {
    let mut lab = Lab::new(2, TunnelMode::Auto);
    lab.settle();
    lab.nodes.clear();
    let report = lab.compare(1, true);
    assert!(!report.is_ready && report.changes.is_empty(), "{report:?}");
    assert!(lab.node(1).cmd("ip route show").contains("10.244.2.0/24"));
}

#[test]
fn a_node_with_another_address_is_followed() {
    let mut lab = Lab::new(2, TunnelMode::Auto);
    lab.settle();
    lab.node(2).cmd("ip address add 192.168.50.77/24 dev eth0");
    lab.change(2, |node| node.addresses[0] = "192.168.50.77".parse().expect("an address"));
    let report = lab.compare(1, true);
    assert_eq!(report.changes, ["replaced route 10.244.2.0/24 via 192.168.50.77 metric 512"]);
    let shown = lab.node(1).cmd("ip route show 10.244.2.0/24");
    assert!(shown.contains("via 192.168.50.77") && shown.lines().count() == 1, "{shown}");
}

/// Some network managers give a link an address without the route to its subnet. The kernel then refuses the other nodes
/// as gateways.
#[test]
fn a_route_that_the_kernel_refuses_is_a_failure_and_not_a_change() {
    let mut lab = Lab::new(2, TunnelMode::Never);
    lab.settle();
    let node = lab.node(1);
    node.cmd("ip route del 10.244.2.0/24");
    node.cmd("ip route del 192.168.50.0/24 dev eth0");
    let report = lab.compare(1, true);
    let troubles: Vec<String> = report.troubles().collect();
    assert!(troubles.len() == 1 && troubles[0].contains("10.244.2.0/24"), "{troubles:?}");
    assert_eq!(report.changes, [""; 0]);
    assert_eq!(report.reason().as_ref(), troubles.first(), "the node is not ready");
    node.cmd("ip route add 192.168.50.0/24 dev eth0 proto kernel scope link src 192.168.50.11");
    let report = lab.compare(1, true);
    assert_eq!(report.changes, ["added route 10.244.2.0/24 via 192.168.50.12 metric 512"]);
    assert_eq!(report.reason(), None);
}

/// A cluster gets a second family: Nodes keep their pod CIDRs, and new ones have two.
#[test]
fn a_node_without_ipv6_is_ready_among_nodes_with_both_families() {
    let mut lab = Lab::new(2, TunnelMode::Always);
    lab.change(1, |node| node.pod_cidrs.retain(|net| net.addr().is_ipv4()));
    lab.node(1).sysctl("net/ipv6/conf/default/disable_ipv6", "1");
    for number in [1, 2, 1] {
        let report = lab.compare(number, true);
        lab.change(number, |node| node.annotations = report.announce.clone());
    }
    let report = lab.compare(1, true);
    let troubles: Vec<String> = report.troubles().collect();
    assert!(troubles.iter().any(|text| text.contains("fd44:0:0:2::")), "{troubles:?}");
    assert_eq!(report.reason(), None, "{troubles:?}");
    let routes = lab.node(1).cmd("ip route show proto 83");
    assert!(routes.contains("10.244.2.0/24 via"), "{routes}");
}

#[test]
fn another_programs_route_stays_and_is_reported() {
    let mut lab = Lab::new(2, TunnelMode::Auto);
    let foreign = "10.244.2.0/24 via 192.168.50.9 dev eth0 proto bird";
    lab.node(1).cmd(&format!("ip route add {foreign}"));
    let report = lab.compare(1, true);
    let troubles: Vec<String> = report.troubles().collect();
    assert_eq!(troubles, ["another program (protocol 12) has a route to 10.244.2.0/24; packets take it"]);
    let shown = |lab: &Lab| lab.node(1).cmd("ip route show 10.244.2.0/24 proto bird");
    let before = shown(&lab);
    assert!(before.contains("via 192.168.50.9"), "{before}");
    // The foreign route also stays when our route is replaced or deleted.
    lab.change(2, |node| node.addresses[0] = "192.168.50.77".parse().expect("an address"));
    lab.compare(1, true);
    lab.nodes.remove(&name(2));
    lab.compare(1, true);
    assert_eq!(shown(&lab), before);
}

#[test]
fn a_node_with_another_subnet_gives_new_pods_the_new_one() {
    let mut lab = Lab::new(2, TunnelMode::Auto);
    lab.settle();
    let (old, _) = lab.pod(1, "old");
    lab.change(1, |node| node.pod_cidrs[0] = "10.244.7.0/24".parse().expect("a prefix"));
    for number in [1, 2] {
        lab.compare(number, true);
    }
    let (_new, addresses) = lab.pod(1, "new");
    assert!(addresses[0].to_string().starts_with("10.244.7."), "{addresses:?}");
    // The running pod still has its gateway, and reaches the new pod.
    old.ping("10.244.1.1".parse().expect("an address")).expect("the gateway replies");
    old.ping(addresses[0]).expect("the new pod replies");
}
