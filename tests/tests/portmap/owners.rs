// SPDX-License-Identifier: GPL-2.0-or-later

//! Conflicts, in which two attachments request the same port or address.

use serde_json::json;
use slipway_tests::Node;

use crate::{Call, elements_of, listed, map, map_on, run_of};

/// Asserts that the call fails with "try again", names the owner, and leaves nothing behind.
#[track_caller]
fn refused(call: &Call<'_>, what: &str, owner: &str) {
    let error = call.call("ADD").run().error();
    let text = format!("network net, container {owner}, interface eth0");
    assert!(error.code == 11 && error.msg.contains(&text) && error.msg.contains(what), "{error:?}");
    assert_eq!(elements_of(call.node, &call.id), 0, "{}", call.node.ruleset());
}

#[test]
fn a_range_and_a_single_port_inside_it_exclude_each_other() {
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let run = Call::new(&node, &one, 2, &run_of(9000, 100));
    let single = Call::new(&node, &two, 3, &[map("tcp", 8999, 1), map("tcp", 9050, 1)]);
    run.add();
    refused(&single, "host port tcp/0.0.0.0:9000-9099", "one");
    // Another port, another protocol and a specific host address do not conflict.
    let free = [map("tcp", 8999, 1), map("udp", 9050, 1), map_on("192.0.2.1", "tcp", 9050, 1)];
    single.clone().ports(&free).add();
    single.clone().ports(&free).del();
    run.del();
    single.add();
    refused(&run, "host port tcp/0.0.0.0:9050", "two");
    refused(&run.clone().ports(&run_of(9040, 20)), "host port tcp/0.0.0.0:9050", "two");
    run.clone().ports(&run_of(9051, 20)).add();
    assert_eq!(elements_of(&node, "two"), 7, "{}", node.ruleset());
}

#[test]
fn overlapping_ranges_exclude_each_other() {
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    Call::new(&node, &one, 2, &run_of(9000, 100)).add();
    for (first, count) in [(8990, 20), (9090, 20), (9020, 20), (8990, 200), (9000, 100)] {
        refused(&Call::new(&node, &two, 3, &run_of(first, count)), "9000-9099", "one");
    }
    Call::new(&node, &two, 3, &run_of(9100, 20)).add();
    Call::new(&node, &two, 3, &run_of(9100, 20)).check();
}

#[test]
fn an_address_that_a_live_attachment_holds_is_refused() {
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    Call::new(&node, &one, 2, &[map("tcp", 80, 80)]).add();
    let same_address = Call::new(&node, &two, 2, &[map("tcp", 81, 80)]);
    refused(&same_address, "container address 10.77.0.2", "one");
    // Once its namespace is gone, the attachment owns nothing any more.
    one.remove();
    same_address.add();
    same_address.check();
    assert_eq!(elements_of(&node, "one"), 0, "{}", node.ruleset());
}

/// A runtime that joins a container to two networks requests its ports on both.
#[test]
fn a_container_on_two_networks_has_its_ports_on_the_first() {
    let node = Node::new();
    let (pod, other) = (node.pod("one"), node.pod("other"));
    let mut ports = run_of(9000, 100);
    ports.extend([map("tcp", 80, 80), map_on("192.0.2.1", "udp", 53, 53)]);
    let conditions = json!(["ip", "saddr", "!=", "192.0.2.0/24"]);
    let on = |pod, number, network: &str, ports: &[_]| {
        Call::new(&node, pod, number, ports)
            .key("name", json!(network))
            .key("conditionsV4", conditions.clone())
    };
    let (first, second) = (on(&pod, 2, "net", &ports), on(&pod, 3, "second", &ports));
    first.add();
    let published = listed(&node);
    for _ in 0..2 {
        second.add();
        for call in [&first, &second] {
            call.check();
        }
        assert_eq!(listed(&node), published);
    }
    second.del();
    assert_eq!(listed(&node), published);
    first.check();

    // Only equal mappings of the same container are shared.
    let error = second.clone().ports(&[map("tcp", 80, 81)]).call("ADD").run().error();
    assert!(error.code == 11 && error.msg.contains("host port tcp/0.0.0.0:80 "), "{error:?}");
    let mut same_id = on(&other, 4, "second", &ports);
    same_id.id = "one".to_owned();
    let error = same_id.call("ADD").run().error();
    assert!(error.code == 11 && error.msg.contains("network net, container one,"), "{error:?}");

    // DEL on the first network withdraws the ports. CHECK on the second network then fails, and the next ADD publishes
    // the ports again.
    second.add();
    first.del();
    assert!(listed(&node).is_empty(), "{}", node.ruleset());
    let error = second.call("CHECK").run().error();
    assert!(error.msg.contains("is missing"), "{error:?}");
    second.add();
    second.check();
    assert_eq!(listed(&node), published);
    second.del();
    assert_eq!(node.ruleset().matches("one\"").count(), 0, "{}", node.ruleset());
}

#[test]
fn a_mapping_that_is_listed_twice_is_one() {
    let node = Node::new();
    let pod = node.pod("one");
    let call = Call::new(
        &node,
        &pod,
        2,
        &[map("tcp", 80, 80), map("tcp", 80, 80), map_on("0.0.0.0", "tcp", 80, 80)],
    );
    call.add();
    assert_eq!(elements_of(&node, "one"), 5);
    call.check();
    call.del();
    assert_eq!(elements_of(&node, "one"), 0);
}

/// A ruleset saved by `nft list ruleset` has comments but no userdata, so no owner can be proved dead.
#[test]
fn a_reloaded_ruleset_serves_and_its_owners_count_as_live() {
    if !slipway_tests::nft_loads_ranges() {
        slipway_tests::skip!(slipway_tests::NFT_RANGES);
    }
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let mut ports = run_of(9000, 100);
    ports.extend([map("tcp", 80, 80), map_on("127.0.0.1", "udp", 53, 53)]);
    let call = Call::new(&node, &one, 2, &ports);
    let conditions = json!(["ip", "saddr", "!=", "192.0.2.0/24"]);
    let call = call.key("conditionsV4", conditions);
    call.add();
    let saved = node.ruleset();
    node.cmd("nft delete table inet slipway");
    node.cmd_input("nft -f -", &saved);
    assert_eq!(node.ruleset(), saved);
    call.check();
    one.remove();
    refused(&Call::new(&node, &two, 3, &[map("tcp", 80, 80)]), "host port tcp/0.0.0.0:80", "one");
    call.forgetful().del();
    assert_eq!(elements_of(&node, "one"), 0, "{}", node.ruleset());
}

#[test]
fn a_port_of_an_element_without_an_owner_is_refused() {
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    Call::new(&node, &one, 2, &[map("tcp", 80, 80)]).add();
    node.nft("add element inet slipway hostports4 { tcp . 81 : 10.0.0.9 . 81 }");
    let error = Call::new(&node, &two, 3, &[map("tcp", 81, 80)]).call("ADD").run().error();
    assert!(error.code == 11 && error.msg.contains("without an owner"), "{error:?}");
    assert!(listed(&node).contains(&"tcp 0.0.0.0 81-81 -".to_owned()), "{:?}", listed(&node));
}

#[test]
fn adding_again_replaces_what_the_same_attachment_had() {
    let node = Node::new();
    let pod = node.pod("one");
    let call = Call::new(&node, &pod, 2, &[map("tcp", 80, 80), map("tcp", 81, 81)]);
    call.add();
    let before = node.ruleset();
    call.add();
    assert_eq!(node.ruleset(), before, "nothing to change");
    let mut ports = run_of(9000, 100);
    ports.push(map("tcp", 81, 8181));
    let other = call.clone().ports(&ports);
    other.add();
    other.check();
    let wanted =
        ["tcp 0.0.0.0 81-81 one", "tcp 0.0.0.0 9000-9099 one", "tcp :: 81-81 one", "tcp :: 9000-9099 one"];
    assert_eq!(listed(&node), wanted);
    let error = call.call("CHECK").run().error();
    assert!(error.msg.contains("host port tcp/0.0.0.0:80"), "{error:?}");
    // DEL gets the mappings of the first ADD.
    call.del();
    assert_eq!(elements_of(&node, "one"), 0, "{}", node.ruleset());
}
