// SPDX-License-Identifier: GPL-2.0-or-later

//! A node with thousands of links and containers, on which others start and remove containers all the time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use slipway_tests::{Attach, FLANNEL_ENV, Node, Proto, lacks, limited};

/// Lists of plugins, by the one that has a way of its own to list links.
fn listing() -> Vec<(&'static str, Value)> {
    let ipam = slipway_tests::host_local("10.88.0.0/24", "fd00:88::/64");
    let bridge = json!({"type": "bridge", "isGateway": true, "ipMasq": true, "ipam": ipam});
    let published = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let firewall = json!({"type": "firewall", "backend": "nftables", "ingressPolicy": "same-bridge"});
    let alone = |plugin: &str, key: &str, value: &str| json!([{"type": plugin, key: value, "ipam": ipam}]);
    vec![
        ("bandwidth", json!([bridge, published, limited()])),
        ("firewall", json!([bridge, published, firewall])),
        ("flannel", json!([{"type": "flannel", "delegate": {"isDefaultGateway": true}}, published])),
        ("host-device", alone("host-device", "device", "dev0")),
        ("ptp", json!([{"type": "ptp", "ipMasq": true, "ipam": ipam}, published])),
        ("macvlan", alone("macvlan", "master", "out0")),
    ]
}

/// Pairs of links on a node, whose list then takes the kernel many messages.
const MANY_PAIRS: usize = 1500;

/// While links come and go, the kernel marks each long list of links as inconsistent. Every call works nevertheless.
#[test]
fn every_call_works_on_a_node_with_many_links_that_come_and_go() {
    let lines = |line: fn(usize) -> String, times: usize| (0..times).map(line).collect::<String>();
    let node = Node::new();
    node.cmd_input(
        "ip -batch -",
        &lines(|n| format!("link add many{n} type veth peer name peer{n}\n"), MANY_PAIRS),
    );
    node.cmd("ip link add dev0 type veth peer name wire0");
    node.cmd("ip link add out0 type veth peer name wire1");
    node.write("/run/flannel/subnet.env", FLANNEL_ENV);
    let changes = lines(|n| format!("link add churn{n} group 7 type veth peer name other{n} group 7\n"), 100);
    let changes = changes + "link del group 7\n";
    let mut failed = Vec::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                node.cmd_input("ip -batch -", &changes);
            }
        });
        for (plugin, plugins) in listing().into_iter().filter(|(plugin, _)| lacks(plugin).is_none()) {
            let network = node.network(json!({"name": format!("with-{plugin}"), "plugins": plugins}));
            let pods = [8080, 8081].map(|port| (node.pod(&format!("{plugin}-{port}")), port));
            let [kept, gone] = [0, 1].map(|nth| Attach::new(&pods[nth].0).port(Proto::Tcp, pods[nth].1, 80));
            let mut call = |verb: &str, outcome: Result<(), String>| {
                failed.extend(outcome.err().map(|error| format!("{plugin} {verb}: {error}")));
            };
            let text = |error| format!("{error:?}");
            call("STATUS", network.status().map_err(text));
            call("ADD", network.add(&kept).map(drop).map_err(text));
            // There is one device to move.
            if plugin != "host-device" {
                call("second ADD", network.add(&gone).map(drop).map_err(text));
                call("DEL of the second", network.del(&gone).map_err(text));
            }
            call("CHECK", network.check(&kept).map_err(text));
            call("GC", network.gc(&[&kept]).map_err(|errors| format!("{errors:?}")));
            call("CHECK after GC", network.check(&kept).map_err(text));
            call("DEL", network.del(&kept).map_err(text));
        }
        over.store(true, Ordering::Relaxed);
        changing.join().expect("links that come and go");
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Containers of another network, each with three ports.
const MANY_CONTAINERS: usize = 3000;

/// What these containers have in our tables, as commands of nft.
fn many_containers() -> String {
    let mut commands = String::new();
    let mut add = |table: &str, set: &str, elements: Vec<String>| {
        for some in elements.chunks(500) {
            writeln!(commands, "add element inet {table} {set} {{ {} }}", some.join(", ")).expect("a string");
        }
    };
    let hash = |number: usize| format!("{number:032x}");
    let comment = |number: usize| {
        format!("comment \"slipway1 0123456789abcdef-{} other eth0 c{number}\"", hash(number))
    };
    let address = |number: usize| format!("10.99.{}.{}", number / 250, number % 250 + 1);
    let key = |number: usize| {
        let digits = hash(number);
        (0..8).map(|group| &digits[4 * group..4 * group + 4]).collect::<Vec<_>>().join(":")
    };
    let all = || 1..=MANY_CONTAINERS;
    let port = |number: usize, nth: usize| {
        format!("tcp . {} {} : {} . 80", 20_000 + 3 * number + nth, comment(number), address(number))
    };
    let with_comment = |number: usize| format!("{} {}", address(number), comment(number));
    let owner = |number: usize, kind: u8, count: u8| {
        format!("{} . {kind:#x} {} : {count:#x}", key(number), comment(number))
    };
    add("slipway", "hostports4", all().flat_map(|number| (0..3).map(move |nth| port(number, nth))).collect());
    add("slipway", "published4", all().map(with_comment).collect());
    add("slipway", "masqueraded4", all().map(with_comment).collect());
    add("slipway", "owners", all().flat_map(|number| [owner(number, 1, 4), owner(number, 2, 1)]).collect());
    // Such an entry of the bridge's own container asks for the same isolation.
    let recorded = |number: usize| format!("{} {} : \"cni0\" . 0x101", key(number), comment(number));
    add("slipway-firewall", "attachments", all().map(recorded).collect());
    commands
}

/// Listing thousands of elements takes the time of many commits, so no list of one generation of the ruleset is
/// complete while others commit all the time. Calls for which lists are needed work nevertheless.
#[test]
fn calls_that_list_elements_work_while_others_change_the_ruleset_all_the_time() {
    let node = Node::new();
    let ipam = slipway_tests::host_local("10.88.0.0/24", "fd00:88::/64");
    let network = node.network(json!({"name": "crowd", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall", "backend": "nftables", "ingressPolicy": "same-bridge"},
    ]}));
    let pods: Vec<_> = (0..4).map(|number| node.pod(&format!("pod{number}"))).collect();
    let attached: Vec<_> =
        pods.iter().zip(8080..).map(|(pod, port)| Attach::new(pod).port(Proto::Tcp, port, 80)).collect();
    for one in &attached {
        network.add(one).unwrap();
    }
    node.cmd_input("nft -f -", &many_containers());
    let change = |number: usize| {
        let (map, key) = ("inet slipway hostips4", format!("192.0.2.1 . tcp . {}", number + 1));
        format!("add element {map} {{ {key} : 10.9.9.9 . 80 }}\ndelete element {map} {{ {key} }}\n")
    };
    let changes: String = (0..200).map(change).collect();
    let mut failed = Vec::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // In the interactive mode, each line is a commit of its own.
        let changing = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                node.try_cmd_input("nft -i", &changes);
            }
        });
        // The third one's DEL was lost.
        let [first, second, _, kept] = attached.as_slice() else { unreachable!() };
        let mut call = |name: &str, outcome: Result<(), String>| {
            failed.extend(outcome.err().map(|error| format!("{name}: {error}")));
        };
        let text = |error| format!("{error:?}");
        call("DEL", network.del(first).map_err(text));
        // bridge refuses a repeated ADD, as the link exists, but portmap takes its ports over.
        let result = network.cached(second).expect("a result");
        let again = network.call_one(1, "ADD", second, &result).result();
        call("repeated ADD of portmap", again.map(drop).map_err(|error| format!("{error:?}")));
        call("DEL of the second", network.del(second).map_err(text));
        call("GC", network.gc(&[kept]).map_err(|errors| format!("{errors:?}")));
        call("CHECK after GC", network.check(kept).map_err(text));
        let listed = node.try_slipway("ports --output json");
        over.store(true, Ordering::Relaxed);
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
        let count = listed["ports"].as_array().map_or(0, Vec::len);
        call("ports", if count > 3 * MANY_CONTAINERS { Ok(()) } else { Err(format!("{count} listed")) });
        changing.join().expect("changes of the ruleset");
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
