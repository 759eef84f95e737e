//! Who comes while another one goes: what was decided must still be so when it is made.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Running, is_peer, within};

use super::{filter, network};

/// Stands in for the programs of iptables: the first of them to be run takes its time, and says so.
const SLOW: &str = r#"#!/bin/sh
if mkdir /run/at-work 2>/dev/null; then sleep 3; fi
exec "/usr/sbin/${0##*/}" "$@"
"#;

/// DEL of firewall alone, which is in the middle of its work when this returns.
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
    let begun = Instant::now();
    while node.list("/run").iter().all(|name| name != "at-work") {
        assert!(begun.elapsed() < within(Duration::from_secs(30)), "the DEL runs no program");
        std::thread::sleep(Duration::from_millis(10));
    }
    del
}

fn isolated() -> Value {
    json!({"backend": "iptables", "ingressPolicy": "isolated"})
}

/// The last container leaves, and the next one comes before what keeps the bridge apart is gone.
#[test]
fn who_comes_while_the_last_one_leaves_is_apart() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    let (old, new) = (node.pod("old"), node.pod("new"));
    let (old, new) = (Attach::new(&old), Attach::new(&new));
    let network = network(&node, 1, &isolated());
    let previous = network.add(&old).expect("ADD");
    let del = slow_del(&node, &network, &old, &previous);
    network.add(&new).expect("ADD of the next one");
    assert!(del.wait().ok().is_null());
    network.check(&new).expect("CHECK");
}

/// Neither leaves it to the other.
#[test]
fn the_last_two_at_the_same_moment_leave_nothing() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    let (gone, last) = (node.pod("gone"), node.pod("last"));
    let (one, two) = (Attach::new(&gone).netns(""), Attach::new(&last));
    let network = network(&node, 1, &isolated());
    let previous = network.add(&Attach::new(&gone)).expect("ADD");
    network.add(&two).expect("ADD");
    // Its link is no reason to leave anything.
    gone.remove();
    let ports = || node.cmd("ip -o link show master br1").lines().count();
    let begun = Instant::now();
    while ports() > 1 {
        assert!(begun.elapsed() < within(Duration::from_secs(30)), "its link stays");
        std::thread::sleep(Duration::from_millis(10));
    }
    let del = slow_del(&node, &network, &one, &previous);
    network.del(&two).expect("DEL of the other one");
    assert!(del.wait().ok().is_null());
    let left = filter(&node, "iptables-save");
    assert!(!left.contains("ISOLATION"), "{left}");
}

/// A DEL of one of whom nothing is recorded, by addresses that it is told, and an ADD of the next holder.
#[test]
fn the_next_holder_of_an_address_keeps_its_rules() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    let (old, new) = (node.pod("old"), node.pod("new"));
    let (old, new) = (Attach::new(&old), Attach::new(&new));
    let network = network(&node, 1, &json!({"backend": "iptables"}));
    let previous = network.add_first(&new);
    // As the reference leaves it: rules, and no record.
    let _ = network.call_one(1, "ADD", &old, &previous).ok();
    node.cmd("nft flush map inet slipway-firewall attachments");
    node.cmd("nft flush set inet slipway-firewall pods4");
    node.cmd("nft flush set inet slipway-firewall pods6");
    let del = slow_del(&node, &network, &old, &previous);
    let _ = network.call_one(1, "ADD", &new, &previous).ok();
    assert!(del.wait().ok().is_null());
    assert!(network.call_one(1, "CHECK", &new, &previous).ok().is_null());
}
