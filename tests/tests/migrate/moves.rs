// SPDX-License-Identifier: GPL-2.0-or-later

//! Migrations from every backend to the other and back.

use serde_json::json;
use slipway_tests::{Attach, Proto};

use crate::{LEGACY, Maker, NFT, PORT, TABLE, Web, World, count, shown};

/// Migrates to the other backend, back, and to the other one again.
fn there_and_back(maker: &Maker, interface: &str) {
    let steps = if maker.backend == "nftables" && maker.directory.is_none() {
        ["iptables", "nftables", "iptables"]
    } else {
        ["nftables", "iptables", "nftables"]
    };
    round_trip(maker, interface, &steps);
}

/// Migrates to each of these backends in turn, after which DEL must leave nothing.
pub(super) fn round_trip(maker: &Maker, interface: &str, steps: &[&str]) {
    eprintln!("{} {interface}: {steps:?}", shown(maker));
    let world = World::new(maker.variant);
    let network = world.network(1, interface, maker.backend, &json!({}));
    let web = Web::new(&world, maker, &network, "web", PORT);
    let answers = || {
        for ip in world.node_ips() {
            for proto in Proto::ALL {
                let answer = world.client.expect(proto, (ip, PORT), "web");
                assert_eq!(answer.peer.ip(), answer.own.ip(), "{answer:?}");
                web.pod.expect(proto, (ip, PORT), "web");
            }
            world.node.expect(Proto::Tcp, (ip, PORT), "web");
        }
        world.client.expect(Proto::Tcp, (world.client.node_v4, PORT + 1000), "web");
        world.node.expect(Proto::Tcp, ([127, 0, 0, 1], PORT), "web");
    };
    for &to in steps {
        let before = world.everything();
        let (report, code) = world.migrate(&format!("--to {to} --dry-run"));
        assert_eq!((code, count(&report, "to_move")), (3, 2), "{report:#}");
        assert_eq!(world.everything(), before, "a dry run changes nothing");
        world.migrated(to, 2);
        world.assert_is_in(to);
        answers();
        // CHECK gets the configuration of the ADD, as a runtime would call it.
        if maker.directory.is_none() {
            network.check(&web.attach).unwrap_or_else(|e| panic!("CHECK in {to}: {e}"));
        }
        world.migrated(to, 0);
    }
    network.del(&web.attach).expect("DEL");
    let all = world.everything();
    assert!(!all.contains("10.88.1.2") && !all.contains("slipway1") && !all.contains("CNI-DN"), "{all}");
}

#[test]
fn a_node_migrates_from_the_table_and_back() {
    there_and_back(&TABLE, "bridge");
}

#[test]
fn a_node_migrates_from_chains_of_iptables_nft_and_back() {
    there_and_back(&NFT, "ptp");
}

#[test]
fn a_node_migrates_from_chains_of_iptables_legacy_and_back() {
    there_and_back(&LEGACY, "bridge");
}

#[test]
fn from_rules_of_the_reference() {
    let all = Maker::references();
    if all.is_empty() {
        slipway_tests::skip!(slipway_tests::REFERENCE);
    }
    all.iter().for_each(|maker| there_and_back(maker, "bridge"));
}

/// Keys that both backends support keep their effect.
#[test]
fn keys_keep_their_effect() {
    for keys in [
        json!({"snat": false}),
        json!({"masqAll": true}),
        json!({"markMasqBit": 20}),
        json!({"excludeLoopback": true}),
    ] {
        let world = World::new("nft");
        let network = world.network(1, "bridge", "nftables", &keys);
        let web = Web::new(&world, &TABLE, &network, "web", PORT);
        for to in ["iptables", "nftables"] {
            world.migrated(to, 2);
            world.assert_is_in(to);
            network.check(&web.attach).unwrap_or_else(|e| panic!("{keys}: CHECK in {to}: {e}"));
            world.client.expect(Proto::Tcp, (world.client.node_v4, PORT), "web");
        }
    }
}

/// Conditions that both backends support are moved. Other conditions and chains of other programs are reported and left
/// alone.
#[test]
fn unsupported_conditions_and_foreign_chains_are_left_alone() {
    let world = World::new("nft");
    let add = |name: &str, keys: serde_json::Value, port: u16| {
        let number = u8::try_from(port - 8000).expect("few");
        let network = world.network(number, "bridge", "iptables", &keys);
        let pod = world.node.pod(name);
        network.add(&Attach::new(&pod).port(Proto::Tcp, port, 80)).expect("ADD");
        pod
    };
    let _plain = add("plain", json!({"conditionsV4": ["!", "-i", "eth9", "-d", "192.0.2.0/24"]}), 8001);
    let _limit = add("limit", json!({"conditionsV4": ["-m", "limit", "--limit", "5/min"]}), 8002);
    world.node.cmd("iptables-nft -t nat -N MARK-MASQ");
    world.node.cmd("ip6tables-nft -t nat -N MARK-MASQ");
    let _external = add("external", json!({"externalSetMarkChain": "MARK-MASQ"}), 8003);
    let (report, code) = world.migrate("--to nftables");
    assert_eq!((code, count(&report, "moved"), count(&report, "skipped")), (4, 4, 2), "{report:#}");
    let text = report.to_string();
    assert!(
        text.contains("the condition \\\"-m\\\" of iptables") && text.contains("MARK-MASQ"),
        "{report:#}"
    );
    let all = world.everything();
    assert!(all.contains("8002") && all.contains("8003"), "{all}");
    let own = world.node.cmd("nft list table inet slipway");
    for words in ["iifname != \"eth9\"", "ip daddr 192.0.2.0/24", "tcp . 8001"] {
        assert!(own.contains(words), "{words}: {own}");
    }
    assert!(!own.contains("tcp . 8002") && !own.contains("tcp . 8003"), "{own}");
    let (report, code) = world.migrate("--to iptables --network net1");
    assert_eq!((code, count(&report, "moved")), (0, 2), "{report:#}");
    let saved = world.node.cmd("iptables-nft-save -t nat");
    assert!(saved.contains("! -i eth9") && saved.contains("-d 192.0.2.0/24"), "{saved}");
}
