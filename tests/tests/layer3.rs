// SPDX-License-Identifier: GPL-2.0-or-later

//! Routes and resolver settings from IPAM and from the configuration, in every plugin that creates or moves a link,
//! compared with the reference plugins.

use std::path::Path;

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Output, Pod, Reference, is_peer, lacks, slipway_only, with_keys};

const PLUGINS: &[&str] = &["bridge", "dummy", "host-device", "ipvlan", "macvlan", "ptp", "tap", "vlan"];

/// The configuration of a plugin with addresses of both families and these routes.
fn config(plugin: &str, routes: &Value) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": plugin, "device": "dev0", "master": "out0", "vlanId": 5,
        "ipam": {
            "type": "static", "routes": routes,
            "addresses": [
                {"address": "10.1.2.5/24", "gateway": "10.1.2.1"},
                {"address": "fd00:1::5/64", "gateway": "fd00:1::1"},
            ],
            "dns": {"domain": "ipam.test", "nameservers": ["192.0.2.53"]},
        },
    })
}

struct World {
    node: Node,
    pod: Pod,
}

impl World {
    fn new() -> Self {
        let node = Node::new();
        for (name, peer) in [("dev0", "wire0"), ("out0", "wire1")] {
            node.cmd(&format!("ip link add {name} type veth peer name {peer}"));
            node.cmd(&format!("ip link set {peer} up"));
        }
        node.cmd("ip link set out0 up");
        let pod = node.pod("pod");
        Self { node, pod }
    }

    fn call(&self, verb: &str, config: &Value, reference: Option<&Reference>) -> Output {
        let plugin = config["type"].as_str().expect("a type");
        let call = self.node.plugin(plugin).command(verb).for_pod(&self.pod).config(config);
        match reference {
            Some(theirs) => call.instead(&theirs.plugin(plugin)).env("CNI_PATH", theirs.dir()).run(),
            None => call.run(),
        }
    }

    /// The container's routes with this prefix, in the kernel's lookup order, without flags.
    fn routes(&self, family: &str, prefix: &str) -> Vec<String> {
        let text = self.pod.cmd(&format!("ip -o {family} route show table all"));
        let lines = text.lines().filter(|line| line.starts_with(prefix));
        let words = lines.map(|line| {
            let words = line.split([' ', '\t', '\\']).filter(|word| !word.is_empty());
            words.filter(|word| !["onlink", "linkdown"].contains(word)).collect::<Vec<_>>().join(" ")
        });
        words.collect()
    }
}

/// The plugins whose links this kernel supports, each as Slipway's and as that of every reference version that has it.
fn sides() -> impl Iterator<Item = (&'static str, Option<Reference>)> {
    PLUGINS.iter().filter(|plugin| lacks(plugin).is_none()).flat_map(|plugin| {
        let theirs = Reference::all().into_iter().filter(|one| Path::new(&one.plugin(plugin)).is_file());
        theirs.map(Some).chain([None]).map(move |side| (*plugin, side))
    })
}

#[test]
fn the_last_of_several_routes_to_one_destination_is_used() {
    let routes = json!([
        {"dst": "10.9.0.0/16", "gw": "10.1.2.7"}, {"dst": "10.9.0.0/16", "gw": "10.1.2.8"},
        {"dst": "fd09::/48", "gw": "fd00:1::7"}, {"dst": "fd09::/48", "gw": "fd00:1::8"},
    ]);
    for (plugin, side) in sides() {
        let world = World::new();
        let config = config(plugin, &routes);
        let result = world.call("ADD", &config, side.as_ref()).ok();
        let v4 = ["10.9.0.0/16 via 10.1.2.8 dev eth0", "10.9.0.0/16 via 10.1.2.7 dev eth0"];
        assert_eq!(world.routes("-4", "10.9."), v4, "{plugin} of {side:?}");
        let v6 = world.routes("-6", "fd09:").join(" ");
        let both = ["via fd00:1::7", "via fd00:1::8"].iter().all(|via| v6.contains(via));
        assert!(both && v6.matches("weight 1").count() == 2, "{plugin} of {side:?}: {v6}");
        if side.is_none() && !is_peer() {
            let mut check = config.clone();
            check["prevResult"] = result;
            if !["dummy", "tap"].contains(&plugin) {
                let _ = world.call("CHECK", &check, None).ok();
            }
        }
        let _ = world.call("DEL", &config, side.as_ref()).ok();
    }
}

/// Routes with different metrics or tables coexist. Among equal routes, the last one is used.
#[test]
fn routes_with_different_metrics_and_tables_coexist() {
    let routes = json!([
        {"dst": "10.9.0.0/16", "gw": "10.1.2.7", "priority": 50},
        {"dst": "10.9.0.0/16", "gw": "10.1.2.8", "priority": 60},
        {"dst": "10.9.0.0/16", "gw": "10.1.2.9", "priority": 60},
        {"dst": "10.9.0.0/16", "gw": "10.1.2.6", "table": 100},
        {"dst": "10.9.0.0/16", "gw": "10.1.2.4", "table": 100},
    ]);
    let expected = [
        "10.9.0.0/16 via 10.1.2.7 dev eth0 metric 50",
        "10.9.0.0/16 via 10.1.2.9 dev eth0 metric 60",
        "10.9.0.0/16 via 10.1.2.8 dev eth0 metric 60",
        "10.9.0.0/16 via 10.1.2.4 dev eth0 table 100",
        "10.9.0.0/16 via 10.1.2.6 dev eth0 table 100",
    ];
    let newer = Reference::with_nftables();
    for (plugin, side) in sides().filter(|(_, side)| side.as_ref().is_none_or(|one| newer.contains(one))) {
        let world = World::new();
        let _ = world.call("ADD", &config(plugin, &routes), side.as_ref()).ok();
        let mut seen = world.routes("-4", "10.9.");
        // The kernel lists the tables in the order of their hashes, so the lines are sorted.
        seen.sort_by_key(|line| line.contains("table 100"));
        assert_eq!(seen, expected, "{plugin} of {side:?}");
    }
}

#[test]
fn a_next_hop_may_be_anywhere_in_the_subnet() {
    let routes = json!([{"dst": "10.9.0.0/16", "gw": "10.1.2.7"}, {"dst": "fd09::/48", "gw": "fd00:1::7"}]);
    for (plugin, side) in sides() {
        let world = World::new();
        let config = config(plugin, &routes);
        let result = world.call("ADD", &config, side.as_ref()).ok();
        let seen = [world.routes("-4", "10.9."), world.routes("-6", "fd09:")].concat();
        assert!(seen.len() == 2 && seen[0].contains("via 10.1.2.7"), "{plugin} of {side:?}: {seen:?}");
        assert!(seen[1].contains("via fd00:1::7"), "{plugin} of {side:?}: {seen:?}");
        if !["bridge", "ptp"].contains(&plugin) {
            continue;
        }
        // The next hop is an address of the node's end of the container's link.
        let bits = if plugin == "ptp" { [32, 128] } else { [24, 64] };
        let link = result["interfaces"][0]["name"].as_str().expect("a name");
        for (address, bits) in ["10.1.2.7", "fd00:1::7"].into_iter().zip(bits) {
            world.node.cmd(&format!("ip address add {address}/{bits} dev {link} nodad"));
        }
        for address in ["10.9.0.1/32", "fd09::1/128"] {
            world.node.cmd(&format!("ip address add {address} dev lo"));
        }
        for address in ["10.9.0.1", "fd09::1"] {
            let address = address.parse().expect("an address");
            // Duplicate address detection may still run for the link-local address of the host's end.
            let answered = (0..5).any(|_| world.pod.ping(address).is_ok());
            assert!(answered, "{plugin} of {side:?}: {address}");
        }
    }
}

/// When a chained plugin moves or restores the routes, it keeps the flag `onlink`, without which the kernel refuses
/// them.
#[test]
fn the_next_hop_stays_when_the_routes_are_made_again() {
    slipway_only!();
    let routes = json!([{"dst": "10.9.0.0/16", "gw": "10.1.2.7"}, {"dst": "fd09::/48", "gw": "fd00:1::7"}]);
    for next in [json!({"type": "tuning", "mac": "02:00:00:00:00:07"}), json!({"type": "sbr"})] {
        let (node, pod) = Node::with_pod();
        let mut ptp = config("ptp", &routes);
        ptp.as_object_mut().expect("an object").retain(|key, _| ["type", "ipam"].contains(&key.as_str()));
        let network = node.network(json!({"name": "net", "plugins": [ptp, next]}));
        let attach = Attach::new(&pod);
        network.add(&attach).expect("ADD");
        network.check(&attach).unwrap_or_else(|error| assert_eq!(next["type"], "sbr", "{error}"));
        for (family, via) in [("-4", "10.9.0.0/16 via 10.1.2.7"), ("-6", "fd09::/48 via fd00:1::7")] {
            let table = pod.cmd(&format!("ip {family} route show table all"));
            assert!(table.contains(via), "{next}: {table}");
        }
        network.del(&attach).expect("DEL");
    }
}

#[test]
fn an_empty_list_switches_the_dns_of_ipam_off() {
    let ipam = json!({"domain": "ipam.test", "nameservers": ["192.0.2.53"]});
    let off = Value::Null;
    let rows = [
        (json!({"other": 1}), &ipam),
        (json!({"dns": null}), &ipam),
        (json!({"dns": {}}), &ipam),
        (json!({"dns": {"domain": ""}}), &ipam),
        (json!({"dns": {"nameservers": null, "search": null, "options": null}}), &ipam),
        (json!({"dns": {"nameservers": []}}), &off),
        (json!({"DNS": {"Search": []}}), &off),
        (json!({"dns": {"options": []}}), &off),
        (json!({"dns": {"domain": "own.test"}}), &json!({"domain": "own.test"})),
    ];
    for (plugin, side) in sides() {
        let old = side.as_ref().is_some_and(|theirs| !theirs.has_nftables());
        if plugin == "bridge" && old {
            continue; // It drops IPAM's DNS settings in every case.
        }
        let world = World::new();
        for (keys, chosen) in &rows {
            let mut config = config(plugin, &json!([]));
            // The case uses only IPv4, to avoid the wait for duplicate address detection.
            config["ipam"]["addresses"].as_array_mut().expect("a list").truncate(1);
            let config = with_keys(config, keys);
            let result = world.call("ADD", &config, side.as_ref()).ok();
            let _ = world.call("DEL", &config, side.as_ref()).ok();
            let expected = match plugin {
                "bridge" | "ptp" => (*chosen).clone(),
                "dummy" => ipam.clone(),
                // IPAM's settings are ignored.
                _ if *chosen == &ipam => Value::Null,
                _ => (*chosen).clone(),
            };
            // The older version of the reference plugins prints an empty `dns`.
            let seen = if result["dns"] == json!({}) { Value::Null } else { result["dns"].clone() };
            assert_eq!(seen, expected, "{plugin} of {side:?} with {keys}");
        }
    }
}
