// SPDX-License-Identifier: GPL-2.0-or-later

//! Containers of the eBPF backend. Netfilter decides about their packets, so a flush of the ruleset closes their ports.

use serde_json::{Value, json};
use slipway_tests::{Network, PROGRAMS, at, has_programs, needs};

use crate::flushed::everything_works;
use crate::{PORT, Web, World, count, line, silent};

fn network(world: &World) -> Network<'_> {
    world.network(1, "bridge", [json!({"ipMasqBackend": "ebpf"}), json!({"backend": "ebpf"})])
}

fn is_back(world: &World, network: &Network<'_>, web: &Web) {
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(line(&report, "web", "published ports")["state"], "restored");
    assert_eq!(line(&report, "web", "masquerade")["state"], "restored");
    everything_works(world, web, "web");
    assert_eq!(world.node.programs()["containers"], 1, "{}", world.node.programs());
    network.check(&web.attach).expect("CHECK");
    assert_eq!(world.restored(), 0, "everything is there");
}

fn nothing_is_left(world: &World, network: &Network<'_>, web: &Web) {
    web.leave(world, network);
    assert!(!world.node.ruleset().contains("slipway1"), "{}", world.node.ruleset());
    let Value::Object(status) = world.node.programs() else { panic!("no status") };
    assert_eq!(status["containers"], 0);
}

#[test]
fn the_nftables_elements_are_restored() {
    needs!(has_programs(), PROGRAMS);
    let world = World::new();
    let network = network(&world);
    let web = Web::published(&world, &network, "web", PORT);
    everything_works(&world, &web, "web");
    world.node.cmd("nft flush ruleset");
    silent(&world.client, at(world.client.node_v4, PORT));
    network.check(&web.attach).expect_err("CHECK should notice");
    is_back(&world, &network, &web);
    nothing_is_left(&world, &network, &web);
}

#[test]
fn the_bpf_programs_are_restored() {
    needs!(has_programs(), PROGRAMS);
    let world = World::new();
    let network = network(&world);
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
