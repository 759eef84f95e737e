// SPDX-License-Identifier: GPL-2.0-or-later

//! Several kinds of flushes, after which everything of live containers is restored.

use serde_json::json;
use slipway_tests::{Network, Proto, at};

use crate::{LOOPBACK, LOOPBACK6, PORT, Web, World, count, each, line, silent};

/// Asserts the contract's promises for a pod with one port.
pub(crate) fn everything_works(world: &World, web: &Web, who: &str) {
    for (proto, to) in each(world.node_ips(), PORT) {
        let answer = world.client.expect(proto, to, who);
        assert!([world.client.v4.into(), world.client.v6.into()].contains(&answer.peer.ip()), "{answer:?}");
        world.node.expect(proto, to, who);
        web.expect(proto, to, who);
    }
    for (proto, to) in each([LOOPBACK, LOOPBACK6], PORT) {
        world.node.expect(proto, to, who);
    }
    is_masqueraded(world, web);
    assert!(!world.loopback_is_open(web));
}

fn is_masqueraded(world: &World, web: &Web) {
    let _outside = world.client.serve(Proto::Tcp, "[::]:9000", "outside");
    let answer = web.expect(Proto::Tcp, at(world.client.v6, 9000), "outside");
    assert_eq!(answer.peer.ip(), world.client.node_v6);
    let answer = web.expect(Proto::Tcp, at(world.client.v4, 9000), "outside");
    assert_eq!(answer.peer.ip().to_canonical(), world.client.node_v4);
}

/// The lines in sorted order, because maps are not ordered.
fn sorted(ruleset: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        ruleset.lines().map(|line| line.trim_matches([' ', '\t', ',']).to_owned()).collect();
    lines.sort();
    lines
}

fn everything_is_back(world: &World, network: &Network<'_>) {
    let web = Web::published(world, network, "web", PORT);
    everything_works(world, &web, "web");
    let before = world.node.ruleset();
    world.node.cmd("nft flush ruleset");
    silent(&world.client, at(world.client.node_v4, PORT));
    assert!(world.loopback_is_open(&web), "the guard is gone and route_localnet is on");

    let (report, code) = world.restore("--dry-run");
    assert_eq!((code, world.node.ruleset().as_str()), (3, ""), "{report:#}");
    assert_eq!(
        (count(&report, "restored"), line(&report, "web", "ports")["state"].as_str()),
        (0, Some("missing"))
    );
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(line(&report, "web", "published ports")["state"], "restored");
    assert_eq!(line(&report, "web", "masquerade")["state"], "restored");
    everything_works(world, &web, "web");
    network.check(&web.attach).expect("CHECK");
    assert_eq!(sorted(&world.node.ruleset()), sorted(&before));

    assert_eq!(world.restored(), 0, "everything is there");
    assert_eq!(sorted(&world.node.ruleset()), sorted(&before));
    web.leave(world, network);
    assert!(!world.node.ruleset().contains("slipway1"), "DEL takes all of it away");
}

#[test]
fn everything_of_a_bridge_is_restored() {
    let world = World::new();
    everything_is_back(&world, &world.bridge(1));
}

#[test]
fn everything_of_ptp_is_restored() {
    let world = World::new();
    everything_is_back(&world, &world.network(1, "ptp", [json!({}), json!({})]));
}

/// A container may send with the MAC address from its result, but not with one that it has set later.
#[test]
fn the_spoofing_guard_has_the_mac_address_of_the_result() {
    let world = World::new();
    let network = world.bridge(1);
    let web = Web::published(&world, &network, "web", PORT);
    let mac = web.mac("eth0");
    world.node.cmd("nft flush ruleset");
    web.cmd("ip link set eth0 address 02:00:00:00:00:99");
    world.restored();
    let guard = world.node.cmd("nft list table bridge slipway");
    assert!(guard.contains(&mac) && !guard.contains("02:00:00:00:00:99"), "{guard}");
}

/// The chains are flushed while the elements remain, so only the table is repaired.
#[test]
fn emptied_chains_are_restored() {
    let world = World::new();
    let network = world.bridge(1);
    let web = Web::published(&world, &network, "web", PORT);
    world.node.cmd("nft flush table inet slipway");
    silent(&world.client, at(world.client.node_v4, PORT));
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["items"][0]["item"], "table inet slipway");
    assert_eq!(report["items"][0]["state"], "restored");
    assert_eq!(count(&report, "restored"), 1, "{report:#}");
    everything_works(&world, &web, "web");
}

/// Some elements were deleted by hand.
#[test]
fn single_elements_are_restored() {
    let world = World::new();
    let network = world.bridge(1);
    let web = Web::published(&world, &network, "web", PORT);
    let lost = [
        ("map", "hostports4"),
        ("set", "published6"),
        ("map", "hairpin-networks4"),
        ("set", "masqueraded4"),
        ("map", "masquerade-networks6"),
    ];
    for (kind, name) in lost {
        world.node.cmd(&format!("nft flush {kind} inet slipway {name}"));
    }
    assert_eq!(world.restored(), 2);
    everything_works(&world, &web, "web");
}

/// `iptables -F` and `-X` in the table nat, with the iptables backend.
#[test]
fn chains_of_iptables_are_restored() {
    slipway_tests::needs_iptables!();
    for variant in ["nft", "legacy"] {
        let world = World::new();
        if world.node.try_cmd(&format!("iptables-{variant} -t nat -S")).code != Some(0) {
            slipway_tests::skip!("legacy iptables");
        }
        let keys = [json!({"ipMasqBackend": "iptables"}), json!({"backend": "iptables"})];
        let network = world.network(1, "bridge", keys);
        // The node already uses this variant.
        for family in ["iptables", "ip6tables"] {
            world.node.cmd(&format!("{family}-{variant} -t mangle -N KUBE-IPTABLES-HINT"));
        }
        let web = Web::published(&world, &network, "web", PORT);
        let saved = || {
            let of = |family| world.node.cmd(&format!("{family}-{variant}-save -t nat"));
            let all = of("iptables") + &of("ip6tables");
            let rules = all.lines().filter(|line| !line.starts_with(['#', ':'])).map(str::to_owned);
            rules.collect::<Vec<_>>()
        };
        let before = saved();
        assert!(before.iter().any(|rule| rule.contains("--to-destination")), "{before:#?}");
        for flush in ["-F", "-F -X"] {
            for family in ["iptables", "ip6tables"] {
                for flag in flush.split(' ') {
                    world.node.cmd(&format!("{family}-{variant} -t nat {flag}"));
                }
            }
            silent(&world.client, at(world.client.node_v4, PORT));
            assert_eq!(world.restored(), 2, "{variant} {flush}");
            assert_eq!(saved(), before, "{variant} {flush}");
            for (proto, to) in each(world.node_ips().into_iter().chain([LOOPBACK]), PORT) {
                world.node.expect(proto, to, "web");
            }
            for (proto, to) in each(world.node_ips(), PORT) {
                world.client.expect(proto, to, "web");
            }
            is_masqueraded(&world, &web);
            assert_eq!(world.restored(), 0, "{variant} {flush}");
        }
    }
}

/// With iptables-legacy, `nft flush ruleset` removes the guard but not the chains.
#[test]
fn the_loopback_guard_is_restored_even_without_missing_elements() {
    let world = World::new();
    let network = world.bridge(1);
    let web = Web::published(&world, &network, "web", PORT);
    world.node.cmd("nft flush ruleset");
    // Without the runtime's cache, only the guard can be restored.
    world.node.cmd("rm -r /var/lib/cni/results");
    assert!(world.loopback_is_open(&web));
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{report:#}");
    assert!(report.to_string().contains("no runtime's cache in"), "{report:#}");
    assert!(!world.loopback_is_open(&web));
    silent(&world.client, at(world.client.node_v4, PORT));
    drop(web);
}

/// The next ADD creates the tables, the chains and the guard, but only `restore` creates the elements of other
/// containers.
#[test]
fn the_next_add_creates_the_tables() {
    let world = World::new();
    let network = world.bridge(1);
    let old = Web::published(&world, &network, "old", PORT);
    world.node.cmd("nft flush ruleset");
    let new = Web::published(&world, &network, "new", PORT + 1);
    world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT + 1), "new");
    is_masqueraded(&world, &new);
    assert!(!world.loopback_is_open(&new));
    assert!(world.node.cmd("nft list table bridge slipway").contains("hook prerouting"));
    silent(&world.client, at(world.client.node_v4, PORT));
    assert_eq!(world.restored(), 3, "ports, masquerade and guard against spoofing of the old one");
    everything_works(&world, &old, "old");
    world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT + 1), "new");
}

/// Conditions, host addresses, port ranges and `masqAll` come from the configuration and the runtime's arguments.
#[test]
fn every_form_of_mapping_is_restored() {
    let world = World::new();
    let keys = [json!({}), json!({"conditionsV4": ["ip saddr 192.0.2.0/24"], "masqAll": true})];
    let network = world.network(1, "bridge", keys);
    let web = Web::new(&world, &network, "web", |attach| {
        let attach = attach.port_on("192.0.2.1", Proto::Tcp, PORT, crate::SERVED);
        (9000..9020).fold(attach, |attach, port| attach.port(Proto::Tcp, port, port))
    });
    let _served = web.serve(Proto::Tcp, "0.0.0.0:9007", "run");
    let before = world.node.ruleset();
    world.node.cmd("nft flush ruleset");
    world.restored();
    assert_eq!(sorted(&world.node.ruleset()), sorted(&before));
    world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT), "web");
    world.client.expect(Proto::Tcp, at(world.client.node_v4, 9007), "run");
    silent(&world.node, at(LOOPBACK, PORT));
}
