// SPDX-License-Identifier: GPL-2.0-or-later

//! The state of a node as sorted lines, to prove that an operation left nothing behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::Duration;

use cni_nftables::Socket as NfSocket;
use serde_json::Value;

use crate::concealment::is_kept;
use crate::family::has_ipv6;
use crate::node::Node;
use crate::space::Space;

/// Objects in nftables that the attachments of a node share. The first ADD makes them, and a GC or another ADD changes
/// them.
pub const SHARED_IN_NFTABLES: &[&str] =
    &["nft table", "nft chain", "nft rule", "nft map", "nft set", "-networks4 ", "-networks6 "];

/// The state of a node: links, addresses, routes, rules, neighbours that were added by hand, the nftables ruleset (each
/// element and rule on a separate line), iptables rules of both variants, and all files under the node's private /run
/// and /var/lib.
///
/// Left out are the record of UDP flows (`schema::udp_flows`), which follows the traffic; interface indexes, counters,
/// lifetimes, handles, learned neighbours and the times of lock files, which change by themselves; and the files that
/// any call may leave in /run/slipway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    lines: BTreeSet<String>,
}

/// The marks of DELs, of which one stays until the DEL of the link's plugin. The suite of restore looks at them.
const MARKS: &str = "/run/slipway/deleting";
/// Files that any call may leave on a node until the next boot: locks, the socket of the process that closes sockets,
/// the directory of host-device's records, and their directory.
const PASSING: [&str; 7] = [
    "/run/slipway",
    "/run/slipway/closing.sock",
    "/run/slipway/commits.lock",
    "/run/slipway/devices",
    "/run/slipway/firewall.lock",
    "/run/slipway/iptables-filter",
    "/run/slipway/iptables-nat",
];

impl Snapshot {
    /// The state of the node and of `spaces` (its pods, for instance) now.
    pub fn take(node: &Node, spaces: &[&Space]) -> Self {
        let mut lines = BTreeSet::new();
        for space in [&**node].iter().chain(spaces) {
            let mut found = Vec::new();
            links_and_addresses(space, &mut found);
            routes_rules_and_neighbours(space, &mut found);
            ruleset(space, &mut found);
            iptables(space, &mut found);
            lines.extend(found.into_iter().map(|line| format!("[{}] {line}", space.name())));
        }
        node.run(|| {
            for root in ["/run", "/var/lib"] {
                files(Path::new(root), &mut lines);
            }
        });
        Self { lines }
    }

    #[track_caller]
    pub fn assert_same(&self, later: &Self) {
        let changes = self.changes(later);
        assert!(changes.is_empty(), "the state changed:\n{}", changes.join("\n"));
    }

    /// The lines that only one of the two snapshots has, with `- ` before those of `self` and `+ ` before those of
    /// `later`.
    pub fn changes(&self, later: &Self) -> Vec<String> {
        let gone = self.lines.difference(&later.lines).map(|line| format!("- {line}"));
        gone.chain(later.lines.difference(&self.lines).map(|line| format!("+ {line}"))).collect()
    }

    /// The changes up to a later state, once there are none or after two seconds, because the kernel deletes the links
    /// of a namespace in the background.
    pub fn changes_in_the_end(&self, state: impl Fn() -> Self) -> Vec<String> {
        let mut changes = self.changes(&state());
        for _ in 0..50 {
            if changes.is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(40));
            changes = self.changes(&state());
        }
        changes
    }

    pub fn matching(&self, text: &str) -> Vec<&str> {
        self.lines.iter().map(String::as_str).filter(|line| line.contains(text)).collect()
    }

    /// The snapshot without the lines that contain any of `texts`, for what an operation may change, such as the tables
    /// of a bootstrap (`"table inet slipway"`) or host-local's `last_reserved_ip`.
    pub fn without(&self, texts: &[&str]) -> Self {
        let keep = |line: &&String| !texts.iter().any(|text| line.contains(text));
        Self { lines: self.lines.iter().filter(keep).cloned().collect() }
    }
}

/// True for a route that the kernel adds with a delay: routes of link-local addresses and for multicast after a link is
/// up, and the route of an IPv6 address in the table `local` after duplicate address detection has ended, even where
/// that is off.
fn is_added_later(route: &str) -> bool {
    let of_address = route.contains(" table local proto kernel ") && route.contains("::");
    of_address || route.contains("fe80:") || route.contains("multicast ff00::/8")
}

fn json(space: &Space, command: &str) -> Vec<Value> {
    let text = space.cmd(command);
    if text.trim().is_empty() {
        return Vec::new();
    }
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{command} prints no JSON ({e}): {text}"))
}

fn links_and_addresses(space: &Space, found: &mut Vec<String>) {
    for link in json(space, "ip -details -json address") {
        let get = |key: &str| link[key].to_string().replace('"', "");
        let flags = link["flags"].as_array().cloned().unwrap_or_default();
        // The carrier, and the flags that follow from it, change with the peer's state.
        let flags: Vec<_> = flags
            .iter()
            .filter_map(Value::as_str)
            .filter(|flag| !["LOWER_UP", "NO-CARRIER"].contains(flag))
            .collect();
        let kind = &link["linkinfo"]["info_kind"];
        let port = &link["linkinfo"]["info_slave_data"];
        found.push(format!(
            "link {} {kind} mac {} mtu {} master {} alias {} flags {} hairpin {} isolated {}",
            get("ifname"),
            get("address"),
            get("mtu"),
            get("master"),
            get("ifalias"),
            flags.join(","),
            port["hairpin"],
            port["isolated"]
        ));
        for address in link["addr_info"].as_array().into_iter().flatten() {
            let (local, length) = (&address["local"], &address["prefixlen"]);
            // The kernel adds a link-local address only some time after the link is up.
            if address["scope"] != "link" {
                found.push(format!("address {} {local}/{length} {}", link["ifname"], address["scope"]));
            }
        }
    }
}

/// Covers both families with two processes. Lines of rules begin with a priority, those of permanent neighbours end
/// with a state.
fn routes_rules_and_neighbours(space: &Space, found: &mut Vec<String>) {
    let text =
        space.cmd_input("ip -o -batch -", "route show table all\nrule\nneighbour show nud permanent\n");
    // The kernel's filter does not leave out entries that a program has introduced, although they come and go like
    // learned ones.
    let is_introduced = |line: &&str| line.contains(" extern_learn ");
    for line in text.lines().filter(|line| !is_added_later(line) && !is_introduced(line)) {
        let is_rule = line.split_once(':').is_some_and(|(first, _)| first.parse::<u32>().is_ok());
        let kind = if is_rule {
            "rule"
        } else if line.trim_end().ends_with("PERMANENT") {
            "neighbour"
        } else {
            "route"
        };
        found.push(format!("{kind} {}", tidy(line)));
    }
    if !has_ipv6() {
        return;
    }
    let rules = space.cmd("ip -o -6 rule");
    found.extend(rules.lines().map(|line| format!("rule6 {}", tidy(line))));
}

/// Adds each chain, rule, set and element as a separate line.
fn ruleset(space: &Space, found: &mut Vec<String>) {
    // Most pods have no table, and asking the kernel costs less than starting a process.
    if space.run(|| NfSocket::open().and_then(|socket| socket.tables())).is_ok_and(|tables| tables.is_empty())
    {
        return;
    }
    let text = space.cmd("nft -j list ruleset");
    let Ok(list) = serde_json::from_str::<Value>(&text) else { panic!("nft prints no JSON: {text}") };
    for entry in list["nftables"].as_array().into_iter().flatten() {
        let Some((kind, body)) = entry.as_object().and_then(|entry| entry.iter().next()) else { continue };
        if kind == "metainfo" {
            continue;
        }
        let mut body = body.clone();
        let place = format!("{} {}", plain(&body["family"]), plain(&body["table"]));
        let name = plain(if kind == "rule" { &body["chain"] } else { &body["name"] });
        let elements = body.as_object_mut().and_then(|body| {
            body.remove("handle");
            body.remove("elem")
        });
        strip_counters(&mut body);
        // The kernel adds elements for packets, and the set and the chains exist only after the first flow.
        if name.starts_with("udp-seen") {
            continue;
        }
        let place = if kind == "table" { plain(&body["family"]) } else { place };
        found.push(format!("nft {kind} {place} {name} {body}"));
        for element in elements.as_ref().and_then(Value::as_array).into_iter().flatten() {
            let mut element = element.clone();
            strip_counters(&mut element);
            found.push(format!("nft element {place} {name} {element}"));
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn strip_counters(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !["packets", "bytes", "expires"].contains(&key.as_str()));
            object.values_mut().for_each(strip_counters);
        }
        Value::Array(list) => list.iter_mut().for_each(strip_counters),
        _ => {}
    }
}

/// Adds the rules of the legacy variant. Those of the nft variant are part of the ruleset.
fn iptables(space: &Space, found: &mut Vec<String>) {
    for (tool, names) in
        [("iptables-legacy-save", "ip_tables_names"), ("ip6tables-legacy-save", "ip6_tables_names")]
    {
        // The kernel lists the namespace's tables in this file, and most namespaces have none.
        let names = Path::new("/proc/thread-self/net").join(names);
        if space.run(|| std::fs::read_to_string(&names)).is_ok_and(|names| !names.is_empty()) {
            let rules = space.try_run(&[tool]).map(|output| output.stdout).unwrap_or_default();
            let rules = rules.lines().filter(|line| line.starts_with("-A"));
            found.extend(rules.map(|line| format!("{tool} {line}")));
        }
    }
}

fn files(path: &Path, lines: &mut BTreeSet<String>) {
    let Ok(meta) = path.symlink_metadata() else { return };
    let shown = path.display();
    let is_passing = path.starts_with(MARKS) || PASSING.iter().any(|passing| path == Path::new(passing));
    if is_kept(path) {
        // The folder belongs to the machine, and other tests may change it meanwhile.
    } else if meta.is_dir() {
        if !is_passing {
            lines.insert(format!("folder {shown}"));
        }
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            files(&entry.path(), lines);
        }
    } else if is_passing {
        // The files are left out whether they are sockets or regular files.
    } else if path.starts_with("/run/netns") {
        lines.insert(format!("netns {shown}"));
    } else if !meta.is_file() {
        // Opening a pipe would wait for its other end.
        lines.insert(format!("special {shown} {:?}", meta.file_type()));
    } else {
        let content = std::fs::read(path).unwrap_or_default();
        lines.insert(format!("file {shown} {:?}", String::from_utf8_lossy(&content)));
    }
}

/// Leaves one blank between words, and removes the words that count up or down by themselves.
fn tidy(line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "expires" => drop(words.next()),
            "linkdown" => {}
            _ => kept.push(word),
        }
    }
    kept.join(" ")
}
