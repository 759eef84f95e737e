// SPDX-License-Identifier: GPL-2.0-or-later

//! Containers whose flows the BPF programs decide about: a flush of the ruleset removes their elements, not the BPF maps.

use serde_json::{Value, json};
use slipway_tests::{Network, PROGRAMS, Proto, at, has_programs, needs};

use crate::flushed::everything_works;
use crate::{LOOPBACK, PORT, Web, World, count, line, silent};

fn fast(world: &World) -> Network<'_> {
    world.node.let_programs_decide();
    world.network(1, "bridge", [json!({"ipMasqBackend": "ebpf"}), json!({"backend": "ebpf"})])
}

/// The BPF programs' counters for hosts outside and for pods.
fn carried(world: &World) -> [u64; 2] {
    ["published_flows", "masqueraded_flows"].map(|name| world.node.counted(name))
}

fn is_back(world: &World, network: &Network<'_>, web: &Web) {
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(line(&report, "web", "published ports")["state"], "restored");
    assert_eq!(line(&report, "web", "masquerade")["state"], "restored");
    let before = carried(world);
    everything_works(world, web, "web");
    let after = carried(world);
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?} {}", world.node.programs());
    network.check(&web.attach).expect("CHECK");
    assert_eq!(world.restored(), 0, "everything is there");
}

fn nothing_is_left(world: &World, network: &Network<'_>, web: &Web) {
    web.leave(world, network);
    assert!(!world.node.ruleset().contains("slipway1"), "{}", world.node.ruleset());
    let Value::Object(status) = world.node.programs() else { panic!("no status") };
    assert_eq!((&status["containers"], &status["ports"]), (&json!(0), &json!(0)));
}

#[test]
fn the_nftables_elements_are_restored() {
    needs!(has_programs(), PROGRAMS);
    let world = World::new();
    let network = fast(&world);
    let web = Web::published(&world, &network, "web", PORT);
    everything_works(&world, &web, "web");
    world.node.cmd("nft flush ruleset");
    // The BPF programs still translate; flows left to nftables fail.
    world.client.expect(Proto::Tcp, at(world.client.node_v4, PORT), "web");
    silent(&world.node, at(LOOPBACK, PORT));
    network.check(&web.attach).expect_err("CHECK should notice");
    is_back(&world, &network, &web);
    nothing_is_left(&world, &network, &web);
}

#[test]
fn the_bpf_programs_are_restored() {
    needs!(has_programs(), PROGRAMS);
    let world = World::new();
    let network = fast(&world);
    let web = Web::published(&world, &network, "web", PORT);
    world.node.slipway("node teardown");
    world.node.cmd("nft flush ruleset");
    silent(&world.client, at(world.client.node_v4, PORT));
    let (report, code) = world.restore("--dry-run");
    assert_eq!((code, count(&report, "restored")), (3, 0), "{report:#}");
    assert_eq!(world.node.programs()["loaded"], false);
    is_back(&world, &network, &web);
    nothing_is_left(&world, &network, &web);
}
