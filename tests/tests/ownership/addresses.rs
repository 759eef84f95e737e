// SPDX-License-Identifier: GPL-2.0-or-later

//! Addresses that two networks of a node reserve, as after a network has been renamed: which container gets them, and
//! when one is free again.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Network, Node, Output, Pod, Running, Space, address_of, host_local, slipway_only, until,
};

/// A network on a bridge, with room for 13 containers besides the gateway.
fn bridged<'a>(node: &'a Node, name: &str, keys: &Value) -> Network<'a> {
    let ipam = json!({"type": "host-local", "subnet": "10.23.0.0/28"});
    let mut plugin = json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": ipam,
        "capabilities": {"ips": true}});
    for (key, value) in keys.as_object().expect("an object") {
        plugin[key] = value.clone();
    }
    node.network(json!({"name": name, "plugins": [plugin]}))
}

fn add(network: &Network<'_>, pod: &Pod) -> IpAddr {
    address_of(&network.add(&Attach::new(pod)).unwrap_or_else(|failure| panic!("ADD: {failure:?}")), 0)
}

fn pods(node: &Node, prefix: &str, count: usize) -> Vec<Pod> {
    (0..count).map(|number| node.pod(&format!("{prefix}{number}"))).collect()
}

/// How often an ADD opens files of the other network.
fn looks(node: &Node, network: &Network<'_>, pod: &Pod) -> usize {
    let config = network.configs(Some(&Attach::new(pod))).remove(0);
    let trace = "/run/trace";
    let call = network.prepare("ADD", &config, Some(&Attach::new(pod)));
    let strace = ["strace", "-f", "-o", trace, "-e", "trace=openat"];
    let _result = call.through(&strace).run().ok();
    let text = node.read(trace).expect("a trace");
    text.lines().filter(|line| line.contains("/old/10.23.")).count()
}

#[test]
fn an_add_under_the_new_name_passes_over_the_addresses_of_living_containers() {
    slipway_only!();
    for masquerade in [false, true] {
        let node = Node::new();
        let of = |name| bridged(&node, name, &json!({"ipMasq": masquerade}));
        let (old, new) = (of("old"), of("new"));
        let (living, fresh) = (pods(&node, "old", 6), pods(&node, "new", 7));
        let mut all: BTreeSet<IpAddr> = living.iter().map(|pod| add(&old, pod)).collect();
        for pod in &fresh {
            assert!(all.insert(add(&new, pod)), "{all:?}");
        }
        assert_eq!(all.len(), 13);
        // The range is full now. None of the addresses that this network has not reserved is free, and the error names
        // the owner.
        let one_more = node.pod("more");
        let refused = new.add(&Attach::new(&one_more)).expect_err("no address is left").error;
        assert_eq!(refused.code, 11, "{refused:?}");
        assert!(refused.msg.contains("is taken by network old, container old0"), "{refused:?}");
        // As the control, an address that a DEL has freed is found.
        old.del(&Attach::new(&living[3])).expect("DEL");
        assert!(all.contains(&add(&new, &one_more)));
    }
}

/// When the search meets the second address that is in use, the other network's index shows all of them.
#[test]
fn the_search_does_not_grow_with_the_reservations_of_the_other_network() {
    slipway_only!();
    let counted = |count: usize| {
        let node = Node::new();
        let (old, new) = (bridged(&node, "old", &json!({})), bridged(&node, "new", &json!({})));
        let living = pods(&node, "old", count);
        for pod in &living {
            add(&old, pod);
        }
        looks(&node, &new, &node.pod("new"))
    };
    let (few, many) = (counted(2), counted(10));
    assert_eq!(few, many);
    assert!(few > 0);
}

#[test]
fn addresses_of_containers_that_are_gone_and_of_another_bridge_are_given_out() {
    slipway_only!();
    let node = Node::new();
    let old = bridged(&node, "old", &json!({}));
    let (new, other) =
        (bridged(&node, "new", &json!({})), bridged(&node, "other", &json!({"bridge": "br1"})));
    let (one, two, three) = (node.pod("one"), node.pod("two"), node.pod("three"));
    let address = add(&old, &one);
    assert_eq!(add(&other, &two), address, "another bridge is another network");
    one.remove();
    // The kernel removes the link some time after the path is gone.
    until(Duration::from_secs(10), "the link is gone", || {
        !node.cmd("ip link show type veth").contains(" master br0 ")
    });
    assert_eq!(add(&new, &three), address, "the container is gone");
    // Nothing is removed for a container without a DEL, so its network still has the reservation.
    assert_eq!(node.reserved("old"), [address.to_string()]);
}

#[test]
fn a_macvlan_under_the_new_name_gets_an_address_of_its_own() {
    slipway_only!();
    let node = Node::new();
    node.cmd("ip link add up0 up type veth peer name up1");
    let of = |name: &str| {
        let ipam = host_local("10.22.0.0/24", "fd00:22::/64");
        node.network(json!({"name": name, "plugins": [{"type": "macvlan", "master": "up0", "ipam": ipam}]}))
    };
    let (old, new) = (of("old"), of("new"));
    let (one, two) = (node.pod("one"), node.pod("two"));
    let (first, second) = (old.add(&Attach::new(&one)), new.add(&Attach::new(&two)));
    let (first, second) = (first.expect("ADD"), second.expect("ADD"));
    for family in 0..2 {
        assert_ne!(address_of(&first, family), address_of(&second, family));
    }
}

/// Runs ADDs under two names of a network at the same time.
fn at_once(networks: [&Network<'_>; 2], attach: [&Attach; 2]) -> [Output; 2] {
    let running = [0, 1].map(|at| {
        let config = networks[at].configs(Some(attach[at])).remove(0);
        networks[at].prepare("ADD", &config, Some(attach[at])).spawn()
    });
    running.map(Running::wait)
}

#[test]
fn two_concurrent_adds_under_two_names_get_two_addresses() {
    slipway_only!();
    let node = Node::new();
    let (old, new) = (bridged(&node, "old", &json!({})), bridged(&node, "new", &json!({})));
    for round in 0..12 {
        let (one, two) = (node.pod("one"), node.pod("two"));
        let attach = [Attach::new(&one), Attach::new(&two)];
        let outputs = at_once([&old, &new], [&attach[0], &attach[1]]);
        let addresses = outputs.map(|output| address_of(&output.ok(), 0));
        assert_ne!(addresses[0], addresses[1], "round {round}");
        for (network, attach) in [&old, &new].into_iter().zip(&attach) {
            network.del(attach).expect("DEL");
        }
        one.remove();
        two.remove();
    }
}

/// A runtime may request a certain address. host-local then reserves it under both names, and the bridge decides which
/// ADD succeeds.
#[test]
fn of_two_concurrent_adds_for_one_address_exactly_one_succeeds() {
    slipway_only!();
    // The test includes bridges to which the port is joined before the container is set up.
    for keys in [json!({}), json!({"hairpinMode": true}), json!({"ipMasq": true})] {
        let node = Node::new();
        let (old, new) = (bridged(&node, "old", &keys), bridged(&node, "new", &keys));
        for round in 0..12 {
            let (one, two) = (node.pod("one"), node.pod("two"));
            let wish = json!(["10.23.0.9/28"]);
            let attach = [&one, &two].map(|pod| Attach::new(pod).capability("ips", wish.clone()));
            let outputs = at_once([&old, &new], [&attach[0], &attach[1]]);
            let admitted = outputs.iter().filter(|output| output.result().is_ok()).count();
            assert_eq!(admitted, 1, "round {round} with {keys}: {outputs:?}");
            let refused = outputs.iter().find_map(|output| output.result().err()).expect("one is refused");
            assert_eq!(refused.code, 11, "{refused:?}");
            let holders: usize = [&one, &two]
                .iter()
                .filter(|pod| pod.has_link("eth0") && pod.cmd("ip -4 address").contains("10.23.0.9"))
                .count();
            assert_eq!(holders, 1);
            for (network, attach) in [&old, &new].into_iter().zip(&attach) {
                network.del(attach).expect("DEL");
            }
            one.remove();
            two.remove();
        }
    }
}

/// The folder may belong to another program, or its owner may hold the lock.
#[test]
fn the_look_into_other_networks_takes_no_lock_and_makes_no_file() {
    slipway_only!();
    let node = Node::new();
    let new = bridged(&node, "new", &json!({}));
    let pod = node.pod("web");
    // The folder of the reference plugin, which has no index.
    node.write("/var/lib/cni/networks/old/10.23.0.2", "web\r\neth0");
    node.write("/var/lib/cni/networks/old/last_reserved_ip.0", "10.23.0.2");
    node.write("/var/lib/cni/networks/cache/old-web-eth0", "{}");
    let files = || {
        let folders = ["old", "cache"].map(|folder| node.list(&format!("/var/lib/cni/networks/{folder}")));
        (folders, node.list("/var/lib/cni/networks/.slipway"))
    };
    let before = files().0;
    new.add(&Attach::new(&pod)).expect("ADD");
    new.del(&Attach::new(&pod)).expect("DEL");
    new.del(&Attach::new(&pod)).expect("a repeated DEL");
    assert_eq!(files(), (before, vec!["new".to_owned()]));
    // A lock that somebody holds delays nobody.
    node.write("/var/lib/cni/networks/old/lock", "");
    let lock = node.run(|| File::open("/var/lib/cni/networks/old/lock").expect("the lock's file"));
    lock.try_lock().expect("nobody holds it");
    let start = Instant::now();
    new.del(&Attach::new(&pod)).expect("DEL");
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// A runtime may lose the path of a namespace in which processes continue to run.
#[test]
fn the_address_of_a_namespace_without_a_path_is_not_freed() {
    slipway_only!();
    for plugin in [json!({"type": "bridge"}), json!({"type": "macvlan", "master": "up0"})] {
        let node = Node::new();
        node.cmd("ip link add up0 up type veth peer name up1");
        let mut plugin = plugin.clone();
        plugin["ipam"] = json!({"type": "host-local", "subnet": "10.24.0.0/30"});
        let network = node.network(json!({"name": "net", "plugins": [plugin]}));
        let (lost, next) = (node.pod("lost"), node.pod("next"));
        network.add(&Attach::new(&lost)).expect("ADD");
        // The clone keeps the namespace open.
        let inside: Space = (*lost).clone();
        lost.remove();
        let refused = network.add(&Attach::new(&next)).expect_err("the only address is in use").error;
        assert!(refused.msg.contains("no IP addresses available"), "{refused:?}");
        assert!(network.status().is_err());
        assert_eq!(node.reserved("net"), ["10.24.0.2"]);
        // Once the namespace has no such address, or no longer exists, nothing uses the address.
        inside.cmd("ip address flush dev eth0");
        if plugin["type"] == "bridge" {
            network.add(&Attach::new(&next)).expect_err("the node's end of the pair exists");
        } else {
            network.add(&Attach::new(&next)).expect("the namespace has no such address");
            network.del(&Attach::new(&next)).expect("DEL");
            continue;
        }
        drop(inside);
        let mut tries = 0;
        // The kernel removes the namespace some time after the last reference to it is gone.
        while network.add(&Attach::new(&next)).is_err() {
            tries += 1;
            assert!(tries < 100, "the address is never freed");
            sleep(Duration::from_millis(50));
        }
    }
}
