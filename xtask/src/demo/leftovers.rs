// SPDX-License-Identifier: MIT OR Apache-2.0

//! Looks for anything of a pod that a DEL has left on the node.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::screen::Screen;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, tool};

/// The bridge belongs to the network and stays, with the reference plugins as with ours.
const NETWORK_LINKS: [&str; 1] = ["cni0"];
/// The maps that lead the addresses of a network to its chains. Like the bridge, their elements belong to the network and
/// stay for its next pod, until a GC.
const NETWORK_MAPS: [&str; 4] =
    ["hairpin-networks4", "hairpin-networks6", "masquerade-networks4", "masquerade-networks6"];
/// The folder of `host-local`'s reservations.
const RESERVATIONS: &str = "/var/lib/cni/networks";

/// The node's links before the first pod.
#[derive(Debug)]
pub(super) struct Snapshot {
    links: BTreeSet<String>,
}

/// The names and addresses that must not be found any more.
#[derive(Debug)]
pub(super) struct Gone {
    /// The binary that lists published ports, if the plugins have one.
    pub(super) slipway: Option<PathBuf>,
    pub(super) network: String,
    /// The containers' IDs.
    pub(super) names: Vec<String>,
    /// The pods' addresses.
    pub(super) addresses: Vec<String>,
}

impl Snapshot {
    /// Lists the node's links.
    pub(super) fn take() -> Result<Self> {
        let links: Value = json(&run::capture(&mut tool("ip", &["-json", "link"]))?)?;
        let names = links.as_array().into_iter().flatten().filter_map(|link| link["ifname"].as_str());
        Ok(Self { links: names.map(str::to_owned).collect() })
    }
}

/// Searches published ports, ruleset, links, routes and reservations. Returns the number of failed claims.
pub(super) fn prove(screen: &Screen, before: &Snapshot, gone: &Gone) -> Result<u32> {
    screen.title("Nothing of them is left");
    let mut failed = 0;
    if let Some(slipway) = &gone.slipway {
        let table = run::capture(Command::new(slipway).arg("ports"))?;
        screen.shown("slipway ports", &table);
        failed += screen.verdict("no published port", !table.lines().any(|line| names(line, gone)));
    }
    let ruleset = run::capture(&mut tool("nft", &["list", "ruleset"]))?;
    let elements = elements_of_pods(&json(&run::capture(&mut tool("nft", &["-json", "list", "ruleset"]))?)?);
    screen.note(&format!(
        "{} lines in the ruleset, {elements} elements of pods in its maps",
        ruleset.lines().count()
    ));
    let clean = elements == 0 && !ruleset.lines().any(|line| names(line, gone));
    failed += screen.verdict("no element, no rule", clean);
    if !clean {
        screen.shown("nft list ruleset", &ruleset);
    }
    let links: Vec<String> = Snapshot::take()?
        .links
        .difference(&before.links)
        .filter(|name| !NETWORK_LINKS.contains(&name.as_str()))
        .cloned()
        .collect();
    failed += screen.verdict("no interface", shown_if_any(screen, &links));
    let routes = run::capture(&mut tool("ip", &["route", "show", "table", "all"]))?
        + &run::capture(&mut tool("ip", &["-6", "route", "show", "table", "all"]))?;
    let routes: Vec<String> = routes.lines().filter(|line| names(line, gone)).map(str::to_owned).collect();
    failed += screen.verdict("no route", shown_if_any(screen, &routes));
    let reserved = reservations(&Path::new(RESERVATIONS).join(&gone.network))?;
    failed += screen.verdict("no address reservation", shown_if_any(screen, &reserved));
    Ok(failed)
}

/// True if a line has a pod's ID or address as a word.
fn names(line: &str, gone: &Gone) -> bool {
    line.split(|c: char| !(c.is_ascii_alphanumeric() || ".:-_".contains(c)))
        .any(|word| gone.names.iter().chain(&gone.addresses).any(|name| name == word))
}

fn shown_if_any(screen: &Screen, left: &[String]) -> bool {
    for line in left {
        screen.note(line);
    }
    left.is_empty()
}

/// The number of elements in all maps and sets of a ruleset in nft's JSON (libnftables-json(5)), except in
/// [`NETWORK_MAPS`].
fn elements_of_pods(ruleset: &Value) -> usize {
    let objects = ruleset["nftables"].as_array().into_iter().flatten();
    objects
        .flat_map(|object| ["map", "set"].map(|kind| &object[kind]))
        .filter(|set| !set["name"].as_str().is_some_and(|name| NETWORK_MAPS.contains(&name)))
        .map(|set| set["elem"].as_array().map_or(0, Vec::len))
        .sum()
}

/// The files that are named after an address. The rest of the folder belongs to the network: a lock
/// and the last address given out.
fn reservations(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::file("list", dir, e)),
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.parse::<IpAddr>().is_ok()).collect())
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|e| Error::Failed(format!("no JSON ({e}): {text}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_whole_names_count() {
        let gone = Gone {
            slipway: None,
            network: "demo".into(),
            names: vec!["web".into()],
            addresses: vec!["10.88.0.2".into(), "fd00:88::2".into()],
        };
        assert!(names("tcp . 8080 comment \"demo/web/eth0\" : 10.88.0.9", &gone));
        assert!(names("ip saddr 10.88.0.2 masquerade", &gone));
        assert!(names("local fd00:88::2 dev cni0", &gone));
        assert!(!names("ip saddr 10.88.0.0/24 goto website", &gone));
        assert!(!names("10.88.0.20", &gone));
    }

    #[test]
    fn the_elements_of_networks_are_not_counted_as_those_of_pods() {
        let ruleset = json!({"nftables": [
            {"map": {"name": "hostports4", "elem": [1, 2]}},
            {"set": {"name": "published4", "elem": [1]}},
            {"map": {"name": "hairpin-networks4", "elem": [1]}},
            {"map": {"name": "hostports6"}},
            {"rule": {}}
        ]});
        assert_eq!(elements_of_pods(&ruleset), 3);
    }
}
