// SPDX-License-Identifier: GPL-2.0-or-later

//! A DEL that runs concurrently with an ADD or a DEL of another container.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Running, slipway_only, until};

use super::{filter, network};

/// A script that replaces the iptables programs. The first one that is executed creates a folder as a mark and waits 3
/// s.
const SLOW: &str = r#"#!/bin/sh
if mkdir /run/started 2>/dev/null; then sleep 3; fi
exec "/usr/sbin/${0##*/}" "$@"
"#;

/// Starts firewall's DEL, and returns once the DEL executes its first program.
fn slow_del(node: &Node, network: &Network<'_>, attach: &Attach, previous: &Value) -> Running {
    for family in ["iptables", "ip6tables"] {
        for program in ["nft-restore", "legacy-restore", "nft-save", "legacy-save"] {
            node.write(&format!("/run/slow/{family}-{program}"), SLOW);
        }
    }
    node.cmd("chmod -R 755 /run/slow");
    let mut config = network.configs(Some(attach)).swap_remove(1);
    if !previous.is_null() {
        config["prevResult"] = previous.clone();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let del = network.prepare("DEL", &config, Some(attach)).env("PATH", format!("/run/slow:{path}")).spawn();
    let started = || node.list("/run").iter().any(|name| name == "started");
    until(Duration::from_secs(30), "DEL executes iptables", started);
    del
}

fn isolated() -> Value {
    json!({"backend": "iptables", "ingressPolicy": "isolated"})
}

/// An ADD during the last container's DEL keeps the bridge isolated.
#[test]
fn a_container_added_during_the_last_del_is_isolated() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    let node = Node::new();
    let (old, new) = (node.pod("old"), node.pod("new"));
    let (old, new) = (Attach::new(&old), Attach::new(&new));
    let network = network(&node, 1, &isolated());
    let previous = network.add(&old).expect("ADD");
    let del = slow_del(&node, &network, &old, &previous);
    network.add(&new).expect("ADD of the next container");
    assert!(del.wait().ok().is_null());
    network.check(&new).expect("CHECK");
}

/// Concurrent DELs of the last two containers remove the rules.
#[test]
fn concurrent_dels_of_the_last_two_leave_nothing() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    let node = Node::new();
    let (gone, last) = (node.pod("gone"), node.pod("last"));
    let (one, two) = (Attach::new(&gone).netns(""), Attach::new(&last));
    let network = network(&node, 1, &isolated());
    let previous = network.add(&Attach::new(&gone)).expect("ADD");
    network.add(&two).expect("ADD");
    // After its link is gone, the removed container does not keep the rules.
    gone.remove();
    let ports = || node.cmd("ip -o link show master br1").lines().count();
    until(Duration::from_secs(30), "the removed container's link is gone", || ports() <= 1);
    let del = slow_del(&node, &network, &one, &previous);
    network.del(&two).expect("DEL of the second container");
    assert!(del.wait().ok().is_null());
    let left = filter(&node, "iptables-save");
    assert!(!left.contains("ISOLATION"), "{left}");
}

/// DEL of an attachment without a record uses the addresses in `prevResult`. It runs during an ADD with the same
/// addresses.
#[test]
fn the_next_holder_of_an_address_keeps_its_rules() {
    slipway_tests::needs_iptables!();
    slipway_only!();
    let node = Node::new();
    let (old, new) = (node.pod("old"), node.pod("new"));
    let (old, new) = (Attach::new(&old), Attach::new(&new));
    let network = network(&node, 1, &json!({"backend": "iptables"}));
    let previous = network.add_first(&new);
    // The state after the reference plugin: rules, but no record.
    let _ = network.call_one(1, "ADD", &old, &previous).ok();
    node.cmd("nft flush map inet slipway-firewall attachments");
    node.cmd("nft flush set inet slipway-firewall pods4");
    node.cmd("nft flush set inet slipway-firewall pods6");
    let del = slow_del(&node, &network, &old, &previous);
    let _ = network.call_one(1, "ADD", &new, &previous).ok();
    assert!(del.wait().ok().is_null());
    assert!(network.call_one(1, "CHECK", &new, &previous).ok().is_null());
}
