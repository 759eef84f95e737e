// SPDX-License-Identifier: GPL-2.0-or-later

//! Published ports pass chains that drop and chains that isolate, because a published port is meant for everybody.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, Host, Network, Node, Pod, Proto, at, has_iptables, host_local, is_peer,
    peer_fails, usable,
};

const PORT: u16 = 8080;

/// Combinations of a portmap backend with a firewall backend.
fn backends() -> Vec<[&'static str; 2]> {
    let all = [
        ["nftables", "iptables"],
        ["iptables", "iptables"],
        ["nftables", "nftables"],
        ["iptables", "nftables"],
    ];
    let has_iptables = has_iptables();
    all.into_iter().filter(|names| has_iptables || !names.contains(&"iptables")).collect()
}

/// Returns a network with a bridge of this number, in which `firewall` is the configuration of that plugin, if any.
fn network<'a>(node: &'a Node, number: u8, portmap: &str, firewall: Option<Value>) -> Network<'a> {
    let ipam = host_local(format!("10.1.{number}.0/24"), format!("fd00:{number}::/64"));
    let mut plugins = vec![
        json!({"type": "bridge", "bridge": format!("br{number}"), "isGateway": true, "ipMasq": true, "ipam": ipam}),
        json!({"type": "portmap", "backend": portmap, "capabilities": {"portMappings": true}}),
    ];
    if let Some(mut keys) = firewall {
        keys["type"] = json!("firewall");
        plugins.push(keys);
    }
    node.network(json!({"name": format!("net{number}"), "plugins": plugins}))
}

fn attach(pod: &Pod) -> Attach {
    Proto::ALL.into_iter().fold(Attach::new(pod), |attach, proto| attach.port(proto, PORT, 80))
}

/// Serves port 80 and another port in both families.
fn serve(pod: &Pod) -> Vec<slipway_tests::Server> {
    let each = Proto::ALL.into_iter().flat_map(|proto| [(proto, "[::]:80"), (proto, "[::]:81")]);
    each.map(|(proto, address)| pod.serve(proto, address, pod.name())).collect()
}

fn node_addresses(client: &Host) -> Vec<IpAddr> {
    usable([client.node_v4.into(), client.node_v6.into()])
}

/// Each of these addresses with each protocol.
fn all(addresses: Vec<IpAddr>, port: u16) -> impl Iterator<Item = (Proto, SocketAddr)> + Clone {
    addresses.into_iter().flat_map(move |ip| Proto::ALL.into_iter().map(move |proto| (proto, at(ip, port))))
}

fn pod_addresses(number: u8, last: u8) -> Vec<IpAddr> {
    usable([[10, 1, number, last].into(), format!("fd00:{number}::{last}").parse().expect("an address")])
}

/// Creates Docker's chains. Docker restricts its own containers in DOCKER-USER, and drops what none of its rules
/// accepts.
fn docker(node: &Node, variant: &str) {
    for family in ["iptables", "ip6tables"] {
        node.cmd_input(
            &format!("{family}-{variant}-restore --noflush"),
            "*filter\n:FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n:DOCKER-FORWARD - [0:0]\n\
             -I FORWARD 1 -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\nCOMMIT\n",
        );
    }
}

/// The plugin firewall lets published ports through, whichever came first. Direct traffic is still dropped.
#[test]
fn they_pass_a_forward_chain_that_drops() {
    slipway_tests::needs_iptables!();
    peer_fails("its rules accept no connection from outside", || {
        for (portmap, docker_first) in [("nftables", true), ("nftables", false), ("iptables", true)] {
            let (node, client) = Node::with_client();
            if docker_first {
                docker(&node, "nft");
            }
            let (web, plain) = (node.pod("web"), node.pod("plain"));
            let network = network(&node, 1, portmap, Some(json!({"backend": "iptables"})));
            network.add(&attach(&web)).expect("ADD");
            // As the control, the same container runs without the plugin.
            let without = super::published::network(&node, 2, portmap, None);
            without.add(&Attach::new(&plain).port(Proto::Tcp, PORT + 1, 80)).expect("ADD");
            if !docker_first {
                docker(&node, "nft");
            }
            let _servers = [serve(&web), serve(&plain)];
            for (proto, to) in all(node_addresses(&client), PORT) {
                client.expect(proto, to, "web");
            }
            client
                .expect_none_of(node_addresses(&client).into_iter().map(|ip| (Proto::Tcp, at(ip, PORT + 1))));
            client.expect_none_of(all(pod_addresses(1, 2), 80));
            network.check(&attach(&web)).expect("CHECK");
            network.del(&attach(&web)).expect("DEL");
            let left = [super::filter(&node, "iptables-save"), super::filter(&node, "ip6tables-save")];
            assert!(!left.concat().contains("DNAT"), "{left:?}");
        }
    });
}

/// What an administrator forbids for another engine's containers stays forbidden.
#[test]
fn rules_for_them_open_no_port_of_another_engine() {
    slipway_tests::needs_iptables!();
    let (node, client) = Node::with_client();
    let (web, guest) = (node.pod("web"), node.pod("guest"));
    let network = network(&node, 1, "nftables", Some(json!({"backend": "iptables"})));
    let theirs = super::published::network(&node, 2, "nftables", None);
    theirs
        .add(&attach(&guest).mapping(json!({"hostPort": 9090, "containerPort": 80, "protocol": "tcp"})))
        .expect("ADD");
    docker(&node, "nft");
    // The plugin's jump comes before Docker's.
    network.add(&Attach::new(&web)).expect("ADD");
    let _servers = serve(&guest);
    client.expect_none_of(node_addresses(&client).into_iter().map(|ip| (Proto::Tcp, at(ip, 9090))));
    for family in ["iptables", "ip6tables"] {
        node.cmd(&format!("{family} -P FORWARD ACCEPT"));
        node.cmd(&format!("{family} -A DOCKER-USER -o br2 -j DROP"));
    }
    client.expect_none_of(node_addresses(&client).into_iter().map(|ip| (Proto::Tcp, at(ip, 9090))));
    for family in ["iptables", "ip6tables"] {
        node.cmd(&format!("{family} -F DOCKER-USER"));
    }
    client.expect(Proto::Tcp, (client.node_v4, 9090), "guest");
}

/// Isolation forbids only direct traffic.
#[test]
fn isolated_containers_publish_to_everybody() {
    peer_fails("its chains drop translated packets, too", || {
        for [portmap, firewall] in backends() {
            let (node, client) = Node::with_client();
            let keys = json!({"backend": firewall, "ingressPolicy": "same-bridge"});
            let pods = [1, 2].map(|number| {
                let pod = node.pod(&format!("pod{number}"));
                let network = network(&node, number, portmap, Some(keys.clone()));
                let wanted = if number == 1 { attach(&pod) } else { Attach::new(&pod) };
                network.add(&wanted).expect("ADD");
                network.check(&wanted).expect("CHECK");
                pod
            });
            let _servers: Vec<_> = pods.iter().map(serve).collect();
            for (proto, to) in all(node_addresses(&client), PORT) {
                client.expect(proto, to, "pod1");
                pods[1].expect(proto, to, "pod1");
            }
            // Requests go to each address of the node, including those of the bridges.
            for (proto, to) in all(pod_addresses(1, 1), PORT).chain(all(pod_addresses(2, 1), PORT)) {
                pods[1].expect(proto, to, "pod1");
            }
            pods[1].expect_none_of(all(pod_addresses(1, 2), 80));
            pods[1].expect_none_of(all(pod_addresses(1, 2), 81));
            pods[0].expect_none_of(all(pod_addresses(2, 2), 80));
            // A container that is added later changes nothing, nor does one that is removed.
            let late = node.pod("late");
            let third = network(&node, 3, portmap, Some(keys.clone()));
            third.add(&Attach::new(&late)).expect("ADD");
            for (proto, to) in all(node_addresses(&client), PORT) {
                late.expect(proto, to, "pod1");
            }
            third.del(&Attach::new(&late)).expect("DEL");
            for (proto, to) in all(node_addresses(&client), PORT) {
                pods[1].expect(proto, to, "pod1");
            }
            pods[1].expect_none_of(all(pod_addresses(1, 2), 80));
        }
    });
}

/// Neighbours on one bridge that do not reach each other directly reach the ports that the other publishes.
#[test]
fn isolated_neighbours_reach_published_ports() {
    peer_fails("its chains drop translated packets, too", || {
        for [portmap, firewall] in backends() {
            let (node, client) = Node::with_client();
            if !node.bridge_netfilter(BridgeNetfilter::On) {
                slipway_tests::skip!("br_netfilter");
            }
            let network =
                network(&node, 1, portmap, Some(json!({"backend": firewall, "ingressPolicy": "isolated"})));
            let (web, other) = (node.pod("web"), node.pod("other"));
            network.add(&attach(&web)).expect("ADD");
            network.add(&Attach::new(&other)).expect("ADD");
            let _servers = serve(&web);
            other.expect_none_of(all(pod_addresses(1, 2), 80));
            for (proto, to) in all(node_addresses(&client), PORT) {
                other.expect(proto, to, "web");
            }
        }
    });
}

/// The reference plugin puts its rules before ours, and the next container of ours repairs the order.
#[test]
fn the_order_of_the_chains_is_repaired() {
    slipway_tests::needs_iptables!();
    if is_peer() {
        return;
    }
    let (node, client) = Node::with_client();
    let keys = json!({"backend": "iptables", "ingressPolicy": "same-bridge"});
    let (web, other) = (node.pod("web"), node.pod("other"));
    network(&node, 1, "nftables", Some(keys.clone())).add(&attach(&web)).expect("ADD");
    let second = network(&node, 2, "nftables", Some(keys.clone()));
    second.add(&Attach::new(&other)).expect("ADD");
    let _servers = serve(&web);
    let to = (client.node_v4, PORT);
    other.expect(Proto::Tcp, to, "web");
    node.cmd("iptables -I CNI-ISOLATION-STAGE-1 1 -i br2 ! -o br2 -j CNI-ISOLATION-STAGE-2");
    other.expect_none(Proto::Tcp, to);
    let third = node.pod("third");
    second.add(&Attach::new(&third)).expect("ADD");
    other.expect(Proto::Tcp, to, "web");
}
