// SPDX-License-Identifier: GPL-2.0-or-later

//! Types the commands that the documentation shows on nodes as described there, and compares the output with that on
//! the pages.
//!
//! A page with commands has either a scene here, which runs them all in order, or lines in `not-run.txt`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod node;
mod outputs;
mod plugins;
mod questions;
mod reader;
mod tutorials;
mod world;

use std::path::Path;

use reader::{Reader, is_task, not_run, others, steps};
use slipway_tests::pages;
use world::World;

/// Generates a test for each page with a scene.
macro_rules! scenes {
    ($($test:ident: $page:literal in $scene:path;)*) => {
        const SCENES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                let mut page = Reader::new($page);
                $scene(&mut page);
                page.ends();
            }
        )*
    };
}

scenes! {
    back_to_the_reference_plugins: "docs/questions/back-to-the-reference-plugins.md" in node::back_to_the_reference_plugins;
    cluster_install: "docs/cluster/install.md" in node::cluster_install;
    cnitool: "docs/cnitool.md" in node::cnitool;
    installing: "docs/installing.md" in node::installing;
    migrating: "docs/migrating.md" in node::migrating;
    inspecting: "docs/inspecting.md" in node::inspecting;
    logs: "docs/logs.md" in node::logs;
    moving_to_ebpf: "docs/moving-to-ebpf.md" in node::moving_to_ebpf;
    removing: "docs/removing.md" in node::removing;
    second_network: "docs/second-network.md" in node::second_network;
    thousand_pods: "docs/thousand-pods.md" in node::thousand_pods;
    pods: "docs/pods.md" in node::pods;
    readme: "README.md" in node::readme;
    runtimes: "docs/runtimes.md" in node::runtimes;
    table: "docs/dataplane/table.md" in node::table;
    bandwidth: "docs/plugins/bandwidth.md" in plugins::by_hand;
    bridge: "docs/plugins/bridge.md" in plugins::by_hand;
    firewall: "docs/plugins/firewall.md" in plugins::by_hand;
    host_device: "docs/plugins/host-device.md" in plugins::by_hand;
    host_local: "docs/plugins/host-local.md" in plugins::by_hand;
    macvlan: "docs/plugins/macvlan.md" in plugins::by_hand;
    portmap: "docs/plugins/portmap.md" in plugins::by_hand;
    ptp: "docs/plugins/ptp.md" in plugins::by_hand;
    r#static: "docs/plugins/static.md" in plugins::by_hand;
    tap: "docs/plugins/tap.md" in plugins::by_hand;
    tuning: "docs/plugins/tuning.md" in plugins::by_hand;
    sbr: "docs/plugins/sbr.md" in node::sbr;
    add_fails_with_code_11: "docs/questions/add-fails-with-code-11.md" in questions::add_fails_with_code_11;
    after_a_reboot: "docs/questions/after-a-reboot.md" in questions::after_a_reboot;
    container_cannot_reach_outside: "docs/questions/container-cannot-reach-outside.md" in questions::container_cannot_reach_outside;
    ipv6_loopback_does_not_answer: "docs/questions/ipv6-loopback-does-not-answer.md" in questions::ipv6_loopback_does_not_answer;
    no_address_left: "docs/questions/no-address-left.md" in questions::no_address_left;
    port_does_not_answer: "docs/questions/port-does-not-answer.md" in questions::port_does_not_answer;
    ruleset_was_flushed: "docs/questions/ruleset-was-flushed.md" in questions::ruleset_was_flushed;
    tutorial_cluster: "docs/tutorials/cluster.md" in tutorials::cluster;
    tutorial_containerd: "docs/tutorials/containerd.md" in tutorials::containerd;
    tutorial_from_the_reference: "docs/tutorials/from-the-reference.md" in tutorials::from_the_reference;
    tutorial_kubernetes: "docs/tutorials/kubernetes.md" in tutorials::kubernetes;
    what_slipway_changes: "docs/questions/what-slipway-changes.md" in questions::what_slipway_changes;
}

/// Pages can be read wherever the checkout is, even in root's home, which a scene's node hides behind its own.
#[test]
fn a_page_is_read_from_a_checkout_in_a_concealed_folder() {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the checkout");
    let around = checkout.parent().and_then(Path::to_str).expect("a folder");
    if around == "/" {
        return;
    }
    let world = World::new();
    world.node.own_folder(around);
    // The harness writes only to folders that belong to a node, so this shows that the node has its own.
    world.node.write(&format!("{around}/file"), "");
    node::sbr_in(&world, &mut Reader::new("docs/plugins/sbr.md"));
}

#[test]
fn each_output_is_compared() {
    let is_output = |block: &pages::Block| block.words.iter().any(|word| word == "output");
    let shown = pages::names().into_iter().filter(|page| pages::blocks(page).iter().any(is_output));
    assert_eq!(shown.collect::<Vec<_>>(), outputs::PAGES);
}

#[test]
fn each_command_is_run_or_listed() {
    let listed = not_run();
    let mut wrong = Vec::new();
    for page in pages::names() {
        for step in steps(&page).into_iter().chain(others(&page)) {
            let of_list = listed.iter().filter(|one| one.is_for(&page, &step)).count();
            let is_run = (step.is_command() && SCENES.contains(&&*page)) || is_task(&step);
            if of_list == 0 && !is_run {
                wrong.push(format!("{}: neither run nor listed: {}", step.place, step.command));
            }
        }
    }
    for one in &listed {
        if !steps(one.page)
            .iter()
            .chain(&others(one.page))
            .any(|step| one.is_for(one.page, step) && !is_task(step))
        {
            wrong.push(format!(
                "not-run.txt: {} has no command {:?} that could be run",
                one.page, one.command
            ));
        }
        assert!(!one.reason.trim().is_empty(), "{one:?}");
    }
    assert_eq!(wrong, Vec::<String>::new());
}
