// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway detach` without a cache and a configuration: what it may free, and the command that messages recommend.

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Proto, address_of, slipway_only};

use super::{ID, PORT, attach, ipam, list};

/// A network name that is too long for a comment.
const LONG: &str =
    "a-network-with-a-name-that-is-far-longer-than-the-comment-of-an-element-has-room-for-on-this-node";

fn single() -> Value {
    json!({"name": "net", "plugins": [{"type": "macvlan", "master": "up0", "ipam": ipam()}]})
}

#[test]
fn no_address_of_a_running_container_is_freed_while_its_link_has_it() {
    slipway_only!();
    let node = Node::new();
    node.cmd("ip link add up0 up type veth peer name up1");
    let network = node.network(single());
    let (pod, other) = (node.pod("web"), node.pod("other"));
    let first = address_of(&network.add(&Attach::new(&pod)).expect("ADD"), 0);
    // The namespace's path is known, so the link is removed with the address.
    let kept = node.try_slipway("detach net web eth0 --only-if gone");
    assert_eq!(kept.code, Some(3), "{kept}");
    assert!(kept.stdout.contains("its namespace /run/netns/web exists"), "{kept}");
    assert!(pod.has_link("eth0"));
    let _done = node.slipway("detach net web eth0");
    assert!(!pod.has_link("eth0") && node.reserved("net").is_empty());
    // A link that somebody has renamed is not found, and may still have the address.
    network.add(&Attach::new(&pod)).expect("ADD");
    pod.cmd("ip link set eth0 down name eth7");
    refused(&node, "nothing shows that the container is gone");
    pod.cmd("ip link set eth7 name eth0 up");
    // A container that is gone has no link any more.
    pod.remove();
    assert!(slipway_tests::comes(|| node.try_slipway("detach net web eth0").code == Some(0)));
    assert!(node.reserved("net").is_empty());
    let second = address_of(&network.add(&Attach::new(&other)).expect("ADD"), 0);
    assert_ne!(first, second, "round robin");
}

#[track_caller]
fn refused(node: &Node, text: &str) {
    let before = node.reserved("net");
    let output = node.try_slipway("detach net web eth0");
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stderr.contains(text), "{output}");
    assert_eq!(node.reserved("net"), before);
}

/// Reservations as the reference plugin makes them, in which nothing proves that the owner is gone.
#[test]
fn a_reservation_without_a_record_is_not_freed_without_a_configuration() {
    slipway_only!();
    let node = Node::new();
    node.write("/var/lib/cni/networks/net/10.22.0.2", "web\r\neth0");
    refused(&node, "name the network's configuration with --conflist");
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "ptp", "ipam": ipam()}]});
    node.write("/run/net.conflist", list.to_string());
    let directory = node.bin().display().to_string();
    let _done =
        node.slipway(&format!("detach net web eth0 --conflist /run/net.conflist --plugin-dir {directory}"));
    assert!(node.reserved("net").is_empty());
}

/// With the configuration, the link is also removed first.
#[test]
fn with_the_configuration_the_link_of_a_running_container_goes_with_its_address() {
    slipway_only!();
    let node = Node::new();
    node.cmd("ip link add up0 up type veth peer name up1");
    let mut list = single();
    let network = node.network(list.clone());
    let pod = node.pod("web");
    network.add(&Attach::new(&pod)).expect("ADD");
    list["cniVersion"] = json!("1.0.0");
    node.write("/run/net.conflist", list.to_string());
    let directory = node.bin().display().to_string();
    let _done =
        node.slipway(&format!("detach net web eth0 --conflist /run/net.conflist --plugin-dir {directory}"));
    assert!(!pod.has_link("eth0") && node.reserved("net").is_empty());
}

#[test]
fn the_command_in_the_error_works_for_a_network_with_a_long_name() {
    slipway_only!();
    let node = Node::new();
    let network = node.network(list(LONG, "bridge", "nftables", true));
    let pod = node.pod("web");
    network.add(&attach(&pod)).expect("ADD");
    let other = node.pod("other");
    let wanted = Attach::new(&other).port(Proto::Tcp, PORT, 80);
    let error = network.add(&wanted).expect_err("the port is taken").error;
    network.del(&wanted).expect("DEL of the failed ADD");
    let text = format!("{}; {}", error.msg, error.details);
    let command = text.split('`').nth(1).unwrap_or_else(|| panic!("no command in {text}")).to_owned();
    assert!(command.contains("~ ") && !command.contains(LONG) && !command.contains(ID), "{command}");
    let done = node.slipway(command.strip_prefix("slipway ").expect("a command of slipway"));
    assert_eq!(done.trim_end(), format!("detached {LONG} {ID} eth0"));
    assert!(node.reserved(LONG).is_empty());
    network.add(&wanted).expect("the port is free");
}
