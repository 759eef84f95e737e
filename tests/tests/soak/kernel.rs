// SPDX-License-Identifier: GPL-2.0-or-later

//! The kernel's own state: published ports, masqueraded addresses and links, wherever a backend puts them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;
use slipway_tests::{Node, Pod};

/// A published port.
pub(crate) type Published = (String, u64, IpAddr);

/// What the node's kernel has, each with the number of places that have it.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) ports: BTreeMap<Published, usize>,
    pub(crate) masqueraded: BTreeMap<IpAddr, usize>,
    /// The number of links by the container that their alias names.
    pub(crate) links: BTreeMap<String, usize>,
}

fn json(text: &str) -> Value {
    if text.trim().is_empty() { Value::Null } else { serde_json::from_str(text).expect("JSON") }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl Kernel {
    pub(crate) fn read(node: &Node, variant: &str) -> Self {
        let mut found = Self::default();
        found.table(&json(&node.cmd("nft -j list ruleset")));
        for family in ["iptables", "ip6tables"] {
            found.chains(&node.try_cmd(&format!("{family}-{variant}-save -t nat")).stdout);
        }
        for link in items(&json(&node.cmd("ip -j link"))) {
            let alias = link["ifalias"].as_str().unwrap_or_default();
            let owner = alias.strip_prefix("slipway1 ").and_then(|alias| alias.split(' ').next_back());
            if let Some(owner) = owner {
                *found.links.entry(owner.to_owned()).or_default() += 1;
            }
        }
        found
    }

    /// Reads the elements of the maps and sets of nftables.
    fn table(&mut self, ruleset: &Value) {
        for object in items(&ruleset["nftables"]).filter_map(|entry| entry.get("map").or(entry.get("set"))) {
            if object["table"] != "slipway" || object["family"] != "inet" {
                continue;
            }
            for element in items(&object["elem"]) {
                match object["name"].as_str().unwrap_or_default() {
                    "hostports4" | "hostports6" => {
                        let key = element[0].get("elem").map_or(&element[0], |elem| &elem["val"]);
                        let (key, to) = (&key["concat"], &element[1]["concat"]);
                        let parts = (key[0].as_str(), key[1].as_u64(), to[0].as_str());
                        let (Some(proto), Some(port), Some(ip)) = parts else { panic!("{element}") };
                        self.port(proto, port, ip);
                    }
                    "masqueraded4" | "masqueraded6" => {
                        let address = element.get("elem").map_or(element, |elem| &elem["val"]);
                        let ip = address.as_str().unwrap_or_else(|| panic!("{element}"));
                        self.masquerade(ip);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Reads the rules of iptables, as its programs print them.
    fn chains(&mut self, saved: &str) {
        for line in saved.lines().filter(|line| line.starts_with("-A ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let after = |option: &str| {
                words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1)).copied()
            };
            if let (Some(proto), Some(port), Some(to)) =
                (after("-p"), after("--dport"), after("--to-destination"))
            {
                let ip = to.rsplit_once(':').map_or(to, |(ip, _)| ip).trim_matches(['[', ']']);
                self.port(proto, port.parse().expect("a port"), ip);
            }
            let is_container = after("-j").is_some_and(|chain| chain.starts_with("CNI-"));
            if let (true, "POSTROUTING", Some(source)) = (is_container, words[1], after("-s")) {
                self.masquerade(source.split('/').next().unwrap_or(source));
            }
        }
    }

    fn port(&mut self, proto: &str, port: u64, ip: &str) {
        let ip = ip.parse().unwrap_or_else(|e| panic!("{ip}: {e}"));
        *self.ports.entry((proto.to_owned(), port, ip)).or_default() += 1;
    }

    fn masquerade(&mut self, ip: &str) {
        // A rule of an address may name its subnet.
        if let Ok(ip) = ip.parse() {
            *self.masqueraded.entry(ip).or_default() += 1;
        }
    }
}

/// The global addresses of a container's eth0, sorted; None if it has no such link.
pub(crate) fn addresses(pod: &Pod) -> Option<Vec<IpAddr>> {
    let output = pod.try_cmd("ip -j address show dev eth0");
    if output.code != Some(0) {
        return None;
    }
    let links = json(&output.stdout);
    let link = items(&links).find(|link| link["ifname"] == "eth0")?;
    let global = items(&link["addr_info"]).filter(|address| address["scope"] == "global");
    let mut all: Vec<IpAddr> =
        global.map(|address| address["local"].as_str().expect("text").parse().expect("an address")).collect();
    all.sort_unstable();
    Some(all)
}
