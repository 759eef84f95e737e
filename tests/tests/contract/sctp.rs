// SPDX-License-Identifier: GPL-2.0-or-later

//! SCTP, on kernels that support it.

use std::net::IpAddr;

use nix::sys::socket::AddressFamily;
use serde_json::json;
use slipway_tests::{
    Attach, BridgeNetfilter, Network, Pod, SCTP, SctpProbe, Snapshot, Space, address_of, at, expect_sctp,
    has_ipv6, has_sctp, needs, peer_fails,
};

use crate::world::{PORT, SERVED, World};

fn published(world: &World) -> (slipway_tests::Pod, Attach, IpAddr) {
    let network = world.network(1);
    let pod = world.node.pod("web");
    let attach =
        Attach::new(&pod).mapping(json!({"hostPort": PORT, "containerPort": SERVED, "protocol": "sctp"}));
    let result = network.add(&attach).expect("ADD");
    (pod, attach, address_of(&result, 0))
}

/// Checks only that the ruleset contains the port. No packet is sent.
#[test]
fn the_port_is_in_the_ruleset() {
    let world = World::new(BridgeNetfilter::Off);
    let (pod, attach, ip) = published(&world);
    let network = world.network(1);
    let rules = world.node.ruleset();
    let line = rules.lines().find(|line| line.contains("sctp") && line.contains(&PORT.to_string()));
    assert!(line.is_some(), "{rules}");
    assert!(rules.contains(&format!("{ip}")), "{rules}");
    network.del(&attach).expect("DEL");
    let after = Snapshot::take(&world.node, &[&pod]);
    let left: Vec<_> =
        after.matching("nft element").into_iter().filter(|line| line.contains("sctp")).collect();
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn another_host_reaches_the_container() {
    needs!(has_sctp(), SCTP);
    let world = World::new(BridgeNetfilter::Off);
    let (pod, _attach, ip) = published(&world);
    expect_sctp(&world.client, at(world.client.node_v4, PORT), &pod, at(ip, SERVED));
}

/// Adds a pod with an SCTP port.
fn pod_with_port(world: &World, network: &Network<'_>, name: &str, port: u16) -> (Pod, Attach) {
    let pod = world.node.pod(name);
    let attach =
        Attach::new(&pod).mapping(json!({"hostPort": port, "containerPort": SERVED, "protocol": "sctp"}));
    network.add(&attach).expect("ADD");
    (pod, attach)
}

/// The kernel does not see the end of an association that just stops, so conntrack's entry must follow the port to its
/// new container, as with UDP flows.
#[test]
fn associations_follow_the_port_to_its_new_container() {
    peer_fails("associations keep their translation", || {
        let world = World::new(BridgeNetfilter::Off);
        let network = world.network(1);
        let (first, attach) = pod_with_port(&world, &network, "first", PORT);
        let (other, _) = pod_with_port(&world, &network, "other", PORT + 1);
        // conntrack keeps an unanswered association for some seconds, in the state closed or cookie_wait depending on
        // the kernel, and an answered one for days.
        for state in ["closed", "cookie_wait"] {
            world.node.sysctl(&format!("net/netfilter/nf_conntrack_sctp_timeout_{state}"), "600");
        }
        let mut families = vec![AddressFamily::Inet];
        families.extend(has_ipv6().then_some(AddressFamily::Inet6));
        let count = families.len();
        let probes = |space: &Space, port: u16| -> Vec<SctpProbe> {
            families.iter().map(|family| SctpProbe::new(space, *family, port)).collect()
        };
        let ears = |pod: &Pod| probes(pod, SERVED);
        let clients = probes(&world.client, 5000);
        let send = |port: u16, tag: u32| {
            for (client, ip) in clients.iter().zip(world.node_ips()) {
                client.send(at(ip, port), tag);
            }
        };
        let arrives =
            |ears: &[SctpProbe], tag: u32| ears.iter().map(|ear| ear.hears(tag)).collect::<Vec<_>>();
        let (at_first, at_other) = (ears(&first), ears(&other));
        send(PORT, 0x1111_0001);
        send(PORT + 1, 0x1111_0002);
        assert_eq!(arrives(&at_first, 0x1111_0001), vec![true; count], "the published port");
        assert_eq!(arrives(&at_other, 0x1111_0002), vec![true; count], "the other container's port");
        let tracked = || {
            let lines = world.node.cmd("conntrack -L -p sctp");
            let count = |port: u16| lines.matches(&format!("dport={port} ")).count();
            (count(PORT), count(PORT + 1))
        };
        assert_eq!(tracked(), (count, count));

        network.del(&attach).expect("DEL");
        assert_eq!(tracked(), (0, count), "DEL ends what led to its container, and nothing else");
        // The container still exists and could be reached, but later packets of the client must go to the node.
        send(PORT, 0x1111_0003);
        assert_eq!(arrives(&at_first, 0x1111_0003), vec![false; count], "after DEL");
        assert_eq!(tracked(), (count, count));
        let (second, _) = pod_with_port(&world, &network, "second", PORT);
        assert_eq!(tracked(), (0, count), "ADD ends what leads elsewhere, and nothing else");
        let at_second = ears(&second);
        send(PORT, 0x1111_0004);
        assert_eq!(arrives(&at_second, 0x1111_0004), vec![true; count], "after ADD");
    });
}
