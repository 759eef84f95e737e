// SPDX-License-Identifier: GPL-2.0-or-later

//! Migrations to the eBPF backend and from it.

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
fn containers_that_the_programs_cannot_serve_stay() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    let world = World::new("nft");
    // With the BPF programs loaded, nftables masquerades with other ports than they.
    world.node.slipway("node setup");
    let add = |name: &str, backend: &str, keys: serde_json::Value, port: u16| {
        let number = u8::try_from(port - 8000).expect("few");
        let network = world.network(number, "bridge", backend, &keys);
        let pod = world.node.pod(name);
        network.add(&Attach::new(&pod).port(Proto::Tcp, port, 80)).expect("ADD");
        pod
    };
    let _pods = [
        add("plain", "nftables", json!({}), 8001),
        add("conditions", "nftables", json!({"conditionsV4": ["ip", "ttl", "1-255"]}), 8002),
        add("all", "nftables", json!({"masqAll": true}), 8003),
        add("never", "iptables", json!({"snat": false}), 8004),
        add("limit", "iptables", json!({"conditionsV4": ["-m", "limit", "--limit", "5/min"]}), 8005),
    ];
    let before = world.everything();
    let (report, code) = world.migrate("--to ebpf --dry-run");
    assert_eq!((code, count(&report, "to_move")), (4, 2), "{report:#}");
    assert_eq!(world.everything(), before);
    let (report, code) = world.migrate("--to ebpf");
    assert_eq!((code, count(&report, "moved"), count(&report, "skipped")), (4, 2, 8), "{report:#}");
    let text = report.to_string();
    for why in
        ["it has conditions", "it has masqAll", "it has snat: false", "the condition \\\"-m\\\" of iptables"]
    {
        assert!(text.contains(why), "{why}: {report:#}");
    }
    assert_eq!(world.everything(), before, "an entry that stays has changed");
    assert_eq!(world.backends(), ["ebpf", "iptables", "nftables"]);
}

/// The BPF programs would bypass the rate limit or the isolation of such a container.
#[test]
fn containers_with_a_rate_limit_or_isolation_stay() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    let world = World::new("nft");
    let network = world.network(1, "bridge", "nftables", &json!({}));
    let web = Web::new(&world, &TABLE, &network, "web", PORT);
    let links = world.node.cmd("ip -o link show master br1");
    let link = links.split(": ").nth(1).and_then(|name| name.split('@').next()).expect("a link");
    world.node.cmd(&format!("tc qdisc add dev {link} root tbf rate 100mbit burst 64kb latency 50ms"));
    let (report, code) = world.migrate("--to ebpf");
    assert_eq!((code, count(&report, "skipped")), (4, 2), "{report:#}");
    assert!(report.to_string().contains("its rate is limited"), "{report:#}");
    world.node.cmd(&format!("tc qdisc del dev {link} root"));
    world.migrated("ebpf", 2);
    network.del(&web.attach).expect("DEL");
    assert_eq!(world.node.programs()["containers"], 0);
}
