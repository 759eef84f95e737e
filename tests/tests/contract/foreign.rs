// SPDX-License-Identifier: GPL-2.0-or-later

//! Traffic that the plugins must not change: the node's own flows, other engines' rules, and foreign policies.

use std::net::IpAddr;

use serde_json::json;
use slipway_tests::{BridgeNetfilter, Proto, at, patience, peer_fails, usable};

use crate::world::{PORT, SERVED, Web, World, each, gateways, in_every_topology};

/// The client's port for flows that the node or a pod opens.
const OUTSIDE: u16 = 9000;

fn serve_outside(world: &World) -> Vec<slipway_tests::Server> {
    each(world.client_ips(), OUTSIDE)
        .map(|(proto, address)| world.client.serve(proto, &address.to_string(), "outside"))
        .collect()
}

/// Returns the client's and the node's address of each family.
fn pairs(world: &World) -> Vec<(IpAddr, IpAddr)> {
    world.client_ips().into_iter().zip(world.node_ips()).collect()
}

#[test]
fn flows_of_the_node_from_a_published_port_are_untouched() {
    in_every_topology(|world| {
        let _outside = serve_outside(world);
        let network = world.network(1);
        // These flows begin before the port is published. Those that begin after it follow below.
        let mut flows = Vec::new();
        for (client, node) in pairs(world) {
            for proto in Proto::ALL {
                let from = Some(at(node, PORT));
                let mut flow =
                    world.node.dial(proto, from, at(client, OUTSIDE), patience()).expect("a connection");
                assert_eq!(flow.request().expect("an answer").who, "outside");
                flows.push(flow);
            }
        }
        let _web = Web::published(world, &network, "web");
        for flow in &mut flows {
            let answer = flow.request().expect("an answer to the open flow");
            assert_eq!((answer.who.as_str(), answer.peer), ("outside", answer.own));
        }
        drop(flows);
        for (client, node) in pairs(world) {
            for proto in Proto::ALL {
                // Uses another server port, because the first TCP connection is still in TIME_WAIT.
                let address = at(client, OUTSIDE + 1);
                let _server = world.client.serve(proto, &address.to_string(), "outside");
                let answer = world
                    .node
                    .request_from(proto, Some(at(node, PORT)), address, patience())
                    .expect("an answer");
                assert_eq!((answer.who.as_str(), answer.peer), ("outside", at(node, PORT)));
            }
        }
    });
}

/// Masquerade may choose a source port that is published. Replies must still reach the flow.
#[test]
fn masqueraded_flows_from_a_published_port_are_untouched() {
    in_every_topology(|world| {
        let _outside = serve_outside(world);
        let network = world.network(1);
        let _web = Web::published(world, &network, "web");
        let other = Web::new(world, &network, "other", |a| a);
        for (index, (client, node)) in pairs(world).into_iter().enumerate() {
            for proto in Proto::ALL {
                let from = Some(at(other.ips()[index], PORT));
                let answer =
                    other.request_from(proto, from, at(client, OUTSIDE), patience()).expect("an answer");
                assert_eq!((answer.who.as_str(), answer.peer.ip()), ("outside", node));
            }
        }
    });
}

/// Another engine translates its Service to a pod in the client's subnet, and that pod also has a hostPort. The pod
/// must see the client pod's address, because the plugins masquerade only what they have translated.
#[test]
fn another_engines_dnat_keeps_its_source() {
    // Replies between pods of one bridge reach conntrack only if bridged packets pass netfilter.
    let world = World::new(BridgeNetfilter::On);
    if world.node.sysctl_get("net/bridge/bridge-nf-call-iptables").is_none() {
        slipway_tests::skip!("br_netfilter");
    }
    let network = world.network(1);
    let web = Web::published(&world, &network, "web");
    let other = Web::new(&world, &network, "other", |a| a);
    let services = usable([[10, 96, 0, 1].into(), "fd00:96::1".parse().expect("an address")]);
    world
        .node
        .nft("table inet services { chain prerouting { type nat hook prerouting priority dstnat - 10; }; }");
    for (service, pod) in services.iter().zip(web.ips()) {
        let (family, to) = (if service.is_ipv4() { "ip" } else { "ip6" }, at(pod, SERVED));
        world.node.nft(&format!(
            "add rule inet services prerouting {family} daddr {service} meta l4proto {{ tcp, udp }} \
             th dport 80 dnat {family} to {to}"
        ));
    }
    for (service, own) in services.into_iter().zip(other.ips()) {
        for proto in Proto::ALL {
            let answer = other.expect(proto, (service, 80), "web");
            assert_eq!(answer.peer.ip(), own, "{proto:?} {service}");
        }
    }
    // Hairpin connections to the published port still work.
    for (proto, to) in each(gateways(1), PORT) {
        web.expect(proto, to, "web");
    }
}

/// Other engines masquerade packets with a certain bit of the mark, and the reference plugin uses the same bit. A
/// packet must have lost the bit before it reaches other engines' chains.
#[test]
fn the_masquerade_mark_does_not_leave_the_plugins_chains() {
    for keys in [json!({}), json!({ "snat": false })] {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network_with(1, &keys);
        let _web = Web::published(&world, &network, "web");
        world.node.nft(
            "table inet other {
                chain post {
                    type nat hook postrouting priority srcnat;
                    meta mark & 0x2000 == 0x2000 masquerade
                }
            }",
        );
        for (client, node) in pairs(&world) {
            for proto in Proto::ALL {
                let answer = world.client.expect(proto, at(node, PORT), "web");
                assert_eq!(answer.peer.ip(), client, "{proto:?} {keys}");
            }
        }
    }
}

/// A drop policy at the forward hook (from Docker, ufw or an administrator's firewall) stays in force, and `check-node`
/// names the chain.
#[test]
fn a_forward_policy_of_drop_holds_and_is_named() {
    const NFT: &str = "add chain inet firewall gate { type filter hook forward priority 0; policy accept; }";
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let _web = Web::published(&world, &network, "web");
    let to = (world.client.node_v4, PORT);
    world.client.expect(Proto::Tcp, to, "web");
    let policy = |tool: &str, policy: &str| match tool {
        "nft" => {
            let chain = NFT.replace("accept", policy);
            world.node.nft(&format!("add table inet firewall\n{chain}\n"));
        }
        tool => drop(world.node.cmd(&format!("{tool} -P FORWARD {}", policy.to_uppercase()))),
    };
    for (tool, chain) in [("iptables", "FORWARD"), ("iptables-legacy", "FORWARD"), ("nft", "firewall gate")] {
        if world.node.try_run(&[tool, "--version"]).is_none() {
            // Newer distributions do not ship iptables-legacy, and some ship neither variant.
            continue;
        }
        if tool == "iptables-legacy" && world.node.try_cmd("iptables-legacy -S FORWARD").code != Some(0) {
            // Newer kernels lack the tables of iptables-legacy.
            continue;
        }
        policy(tool, "drop");
        for proto in Proto::ALL {
            world.client.expect_none(proto, to);
        }
        peer_fails("there is no check-node", || {
            let output = world.node.try_slipway("check-node");
            let line = output.stdout.lines().find(|line| line.contains(chain));
            let line = line.unwrap_or_else(|| panic!("{tool}: no line names the chain: {output}"));
            assert!(line.starts_with("warning") && line.to_lowercase().contains("drop"), "{line}");
        });
        policy(tool, "accept");
        world.client.expect(Proto::Tcp, to, "web");
        peer_fails("there is no check-node", || {
            let output = world.node.try_slipway("check-node");
            let warned = |line: &&str| line.starts_with("warning") && line.contains(chain);
            assert_eq!(output.stdout.lines().find(warned), None, "a warning without a dropping chain");
        });
    }
}

/// A service of the node listens on the same port. The published port takes precedence, as with every implementation,
/// and after DEL the service is reachable again.
#[test]
fn the_nodes_own_service_is_back_after_del() {
    let world = World::new(BridgeNetfilter::Off);
    let _own: Vec<_> = each(world.node_ips(), PORT)
        .map(|(proto, address)| world.node.serve(proto, &address.to_string(), "own"))
        .collect();
    let network = world.network(1);
    let web = Web::published(&world, &network, "web");
    for (proto, to) in each(world.node_ips(), PORT) {
        world.client.expect(proto, to, "web");
    }
    network.del(&web.attach).expect("DEL");
    for (proto, to) in each(world.node_ips(), PORT) {
        world.client.expect(proto, to, "own");
    }
}
