// SPDX-License-Identifier: GPL-2.0-or-later

//! Migrations to and from the eBPF backend.

use serde_json::json;
use slipway_tests::{Attach, Proto, has_programs, needs};

use crate::killed::killed_and_resumed;
use crate::moves::round_trip;
use crate::traffic::assert_no_connection_fails;
use crate::{LEGACY, Maker, NFT, PORT, PROGRAMS, TABLE, Web, World, count};

#[test]
fn from_the_table_to_the_programs_and_to_iptables() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    round_trip(&TABLE, "bridge", &["ebpf", "nftables", "ebpf", "iptables"]);
}

#[test]
fn from_the_programs_and_back() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    round_trip(&PROGRAMS, "ptp", &["nftables", "ebpf", "iptables", "ebpf"]);
}

#[test]
fn from_chains_to_the_programs() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    round_trip(&NFT, "bridge", &["ebpf", "iptables", "ebpf"]);
    round_trip(&LEGACY, "bridge", &["ebpf", "nftables"]);
}

#[test]
fn from_rules_of_the_reference_to_the_programs() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    let all = Maker::references();
    if all.is_empty() {
        slipway_tests::skip!(slipway_tests::REFERENCE);
    }
    for maker in &all {
        round_trip(maker, "bridge", &["ebpf", "nftables"]);
        assert_no_connection_fails(maker, &["ebpf"]);
    }
}

/// A DEL deletes the link before the elements of other plugins are gone, and a killed one leaves them. The other
/// containers move.
#[test]
fn a_container_whose_link_is_gone_keeps_no_other_from_moving() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    let world = World::new(TABLE.variant);
    let network = world.network(1, "bridge", "nftables", &json!({}));
    let webs = ["one", "two"]
        .map(|name| Web::new(&world, &TABLE, &network, name, if name == "one" { PORT } else { PORT + 1 }));
    world.migrated("ebpf", 4);
    world.migrated("nftables", 4);
    webs[0].pod.cmd("ip link del eth0");
    let (report, code) = world.migrate("--to ebpf");
    assert_eq!((code, count(&report, "moved")), (4, 2), "{report:#}");
    let text = report.to_string();
    assert!(text.contains("its interface cannot be found"), "{report:#}");
    world.client.expect(Proto::Tcp, (world.node_ips()[0], PORT + 1), "two");
    for web in &webs {
        network.del(&web.attach).expect("DEL");
    }
}

#[test]
fn no_connection_fails_on_a_migration_to_the_programs() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    assert_no_connection_fails(&TABLE, &["ebpf"]);
    assert_no_connection_fails(&NFT, &["ebpf"]);
}

#[test]
fn no_connection_fails_on_a_migration_from_the_programs() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    assert_no_connection_fails(&PROGRAMS, &["nftables"]);
    assert_no_connection_fails(&PROGRAMS, &["iptables"]);
}

#[test]
fn no_connection_fails_on_repeated_migrations() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    assert_no_connection_fails(&PROGRAMS, &["nftables", "ebpf", "iptables", "ebpf", "nftables"]);
}

#[test]
fn a_killed_migration_is_completed_by_the_next() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    killed_and_resumed(&TABLE, ("nftables", "ebpf"));
}

#[test]
fn containers_with_conditions_that_nftables_lacks_stay() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    let world = World::new("nft");
    let add = |name: &str, backend: &str, keys: serde_json::Value, port: u16| {
        let number = u8::try_from(port - 8000).expect("few");
        let network = world.network(number, "bridge", backend, &keys);
        let pod = world.node.pod(name);
        network.add(&Attach::new(&pod).port(Proto::Tcp, port, 80)).expect("ADD");
        pod
    };
    let _pods = [
        add("plain", "nftables", json!({}), 8001),
        add("all", "nftables", json!({"masqAll": true}), 8002),
        add("never", "iptables", json!({"snat": false}), 8003),
        add("limit", "iptables", json!({"conditionsV4": ["-m", "limit", "--limit", "5/min"]}), 8004),
    ];
    let before = world.everything();
    let (report, code) = world.migrate("--to ebpf --dry-run");
    assert_eq!((code, count(&report, "to_move")), (4, 6), "{report:#}");
    assert_eq!(world.everything(), before);
    let (report, code) = world.migrate("--to ebpf");
    assert_eq!((code, count(&report, "moved"), count(&report, "skipped")), (4, 6, 2), "{report:#}");
    assert!(report.to_string().contains("the condition \\\"-m\\\" of iptables"), "{report:#}");
    assert_eq!(world.backends(), ["ebpf", "iptables"]);
}

/// Packets to the container pass the queue of its link, because `flow_egress` does not redirect any to the peer.
#[test]
fn a_rate_limit_holds_after_the_migration() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    let world = World::new("nft");
    let network = world.network(1, "bridge", "nftables", &json!({}));
    let web = Web::new(&world, &TABLE, &network, "web", PORT);
    let links = world.node.cmd("ip -o link show master br1");
    let link = links.split(": ").nth(1).and_then(|name| name.split('@').next()).expect("a link");
    world.node.cmd(&format!("tc qdisc add dev {link} root tbf rate 100mbit burst 64kb latency 50ms"));
    world.migrated("ebpf", 2);
    let filters = world.node.cmd(&format!("tc filter show dev {link} egress"));
    assert!(filters.contains("flow_egress") && !filters.contains("flow_egress_pod"), "{filters}");
    network.del(&web.attach).expect("DEL");
    assert_eq!(world.node.programs()["containers"], 0);
}
