// SPDX-License-Identifier: GPL-2.0-or-later

//! One call sequence of one implementation on a separate node, and the state that it leaves.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use slipway_tests::{Node, Output, Pod, Reference, Space};

use crate::cases::{Case, Needs, Subject};

/// Settings of links that plugins write, below `net/ipv{4,6}/conf/LINK`.
const SETTINGS: &[(&str, &[&str])] = &[
    ("ipv4", &["arp_notify", "route_localnet", "arp_filter", "proxy_arp"]),
    (
        "ipv6",
        &["accept_ra", "accept_dad", "enhanced_dad", "disable_ipv6", "keep_addr_on_down", "ndisc_notify"],
    ),
];

/// Settings of a namespace that plugins write.
const SWITCHES: &[&str] = &["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/core/somaxconn"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side<'a> {
    Ours,
    Reference(&'a Reference),
}

/// The answer to one call. Messages are kept, but only exit codes are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The call succeeded with this result.
    Done(Value),
    /// The call failed with a CNI error, given by code and message.
    Refused(u64, String),
    /// Neither of these: a crash, or output that is not JSON.
    Broken(String),
}

/// Everything about a case that is compared.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// The answers to ADD, to CHECK if ADD succeeded, and to two DELs.
    pub(crate) calls: Vec<(&'static str, Answer)>,
    /// The state after ADD, if that succeeded.
    pub(crate) made: BTreeSet<String>,
    /// The changes of the state by the whole sequence.
    pub(crate) left: BTreeSet<String>,
}

impl Answer {
    fn new(output: &Output) -> Self {
        let text = &output.process.stdout;
        let parsed = if text.trim().is_empty() { Ok(Value::Null) } else { serde_json::from_str(text) };
        match (output.process.code, parsed) {
            (Some(0), Ok(result)) => Self::Done(result),
            (Some(1), Ok(error)) if error["code"].is_u64() => Self::Refused(
                error["code"].as_u64().unwrap_or_default(),
                format!("{} {}", error["msg"], error["details"]),
            ),
            (code, _) => Self::Broken(format!("{code:?} {text} {}", output.process.stderr)),
        }
    }

    /// True if the configuration could not be decoded, so that the plugin did nothing.
    fn is_decoding(&self) -> bool {
        matches!(self, Self::Refused(code, text) if *code == 7 || text.contains("json: cannot unmarshal"))
    }

    /// The exit code as text, with 0 for success.
    pub(crate) fn code(&self) -> String {
        match self {
            Self::Done(_) => "0".to_owned(),
            Self::Refused(code, _) => code.to_string(),
            Self::Broken(_) => "crash".to_owned(),
        }
    }
}

/// A node and a pod that are prepared as the subject needs them.
#[derive(Debug)]
pub(crate) struct Stage {
    node: Node,
    pod: Pod,
    needs: Needs,
    before: BTreeSet<String>,
    trace: BTreeSet<String>,
}

impl Stage {
    pub(crate) fn new(subject: &Subject) -> Self {
        let node = Node::new();
        node.sysctl("net/ipv6/conf/default/accept_dad", "0");
        let pod = node.pod("pod");
        pod.sysctl("net/ipv6/conf/default/accept_dad", "0");
        let uplink = "link add up0 address 02:11:22:33:00:01 type veth peer name up1 address 02:11:22:33:00:02\n\
             link set up1 up\nlink set up0 up\naddress add 192.0.2.1/24 dev up0\n\
             route add default via 192.0.2.2\n";
        let link = "link add vhost0 address 02:11:22:33:00:03 type veth \
             peer name eth0 address 02:11:22:33:00:04 netns pod\n\
             link set vhost0 up\naddress add 10.22.0.1/24 dev vhost0\n";
        let inside = "link set lo up\nlink set eth0 up\naddress add 10.22.0.5/24 dev eth0\n\
             address add fd00:22::5/64 dev eth0 nodad\nroute add default via 10.22.0.1\n\
             route add default via fd00:22::1\n";
        node.cmd_input("ip -batch -", uplink);
        match subject.needs {
            Needs::Link | Needs::Limits => {
                node.cmd_input("ip -batch -", link);
                pod.cmd_input("ip -batch -", inside);
            }
            _ => {}
        }
        let mut stage =
            Self { node, pod, needs: subject.needs, before: BTreeSet::new(), trace: BTreeSet::new() };
        stage.before = stage.state();
        stage.trace = stage.trace();
        stage
    }

    /// Runs the sequence. The second value is true if the state of the node is unchanged.
    pub(crate) fn play(&self, subject: &Subject, case: &Case, side: Side<'_>) -> (Record, bool) {
        let call = |verb: &'static str, previous: Option<&Value>, netns: &Path| {
            let mut call = self.node.plugin(subject.plugin);
            if let Side::Reference(reference) = side {
                call = call.instead(&reference.plugin(subject.plugin)).env("CNI_PATH", reference.dir());
            }
            call = call.command(verb).container("pod").netns(netns).ifname("eth0");
            if !case.args.is_empty() {
                call = call.args(&case.args);
            }
            Answer::new(&call.stdin(case.text(previous)).run())
        };
        let mut calls = vec![("add", call("ADD", None, self.pod.path()))];
        let mut made = BTreeSet::new();
        let mut result = None;
        if let Answer::Done(value) = calls[0].1.clone() {
            made = self.state();
            calls.push(("check", call("CHECK", Some(&value), self.pod.path())));
            result = Some(value);
        }
        calls.push(("del", call("DEL", result.as_ref(), self.pod.path())));
        calls.push(("del again", call("DEL", None, Path::new(""))));
        // If the configuration was not decoded, a full comparison is not needed.
        if calls[0].1.is_decoding() && self.trace() == self.trace {
            return (Record { calls, made, left: BTreeSet::new() }, true);
        }
        let after = self.state();
        let gone = self.before.difference(&after).map(|line| format!("gone {line}"));
        let left = after.difference(&self.before).cloned().chain(gone).collect::<BTreeSet<_>>();
        let clean = left.is_empty();
        (Record { calls, made, left }, clean)
    }

    /// Links, IPv4 routes and files, which is the state that can be read without a child process.
    fn trace(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        for space in [&*self.node as &Space, &*self.pod] {
            let found = space.run(|| {
                let read = |name| std::fs::read_to_string(Path::new("/proc/thread-self/net").join(name));
                let links = read("dev").unwrap_or_default();
                let links = links.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
                let routes = read("fib_trie").unwrap_or_default();
                links.chain([routes]).collect::<Vec<_>>()
            });
            lines.extend(found.into_iter().map(|line| format!("{} {line}", space.name())));
        }
        self.node.run(|| {
            for root in ["/run", "/var/lib"] {
                files(Path::new(root), &mut lines);
            }
        });
        lines
    }

    fn state(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        let spaces: &[(&str, &Space)] =
            if self.needs == Needs::Files { &[] } else { &[("node", &self.node), ("pod", &self.pod)] };
        for &(name, space) in spaces {
            let mut found = Vec::new();
            let links = links(space, &mut found);
            routes(space, &mut found);
            settings(space, &links, &mut found);
            if self.needs == Needs::Limits {
                for line in ["tc qdisc show".to_owned(), "tc filter show dev vhost0 ingress".to_owned()] {
                    found.extend(
                        space.try_cmd(&line).stdout.lines().map(|text| format!("tc {}", text.trim())),
                    );
                }
            }
            lines.extend(found.into_iter().map(|line| format!("{name} {line}")));
        }
        if self.needs == Needs::Bridge {
            let text = self.node.cmd("bridge -o vlan show");
            lines.extend(text.lines().map(|line| format!("node vlan {}", words(line))));
        }
        let tools: &[&str] =
            if self.needs == Needs::Files { &[] } else { &["iptables-save", "ip6tables-save"] };
        for tool in tools {
            let rules = self.node.try_cmd(tool).stdout;
            let kept = rules.lines().filter(|line| line.starts_with('-'));
            lines.extend(kept.map(|line| format!("node {tool} {line}")));
        }
        self.node.run(|| {
            for root in ["/run", "/var/lib"] {
                files(Path::new(root), &mut lines);
            }
        });
        lines
    }
}

/// Adds links and addresses, and returns the links' names.
fn links(space: &Space, found: &mut Vec<String>) -> Vec<String> {
    let text = space.cmd("ip -details -json address");
    let list: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
    let mut names = Vec::new();
    for link in &list {
        let name = link["ifname"].as_str().unwrap_or_default();
        let up = link["flags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let up: Vec<_> = up.filter(|flag| ["UP", "PROMISC", "ALLMULTI", "NOARP"].contains(flag)).collect();
        let info = &link["linkinfo"];
        let (data, port) = (&info["info_data"], &info["info_slave_data"]);
        found.push(format!(
            "link {name} kind {} mac {} mtu {} master {} txqlen {} flags {}",
            info["info_kind"],
            link["address"],
            link["mtu"],
            link["master"],
            link["txqlen"],
            up.join(",")
        ));
        for key in
            ["mode", "vlan_filtering", "vlan_default_pvid", "id", "table", "user", "group", "multi_queue"]
        {
            if !data[key].is_null() {
                found.push(format!("link {name} {key} {}", data[key]));
            }
        }
        for key in ["hairpin", "isolated"] {
            if !port[key].is_null() {
                found.push(format!("link {name} port {key} {}", port[key]));
            }
        }
        for address in link["addr_info"].as_array().into_iter().flatten() {
            if address["scope"] != "link" || address["family"] == "inet" {
                let (local, length) = (&address["local"], &address["prefixlen"]);
                found.push(format!("address {name} {local}/{length} {}", address["scope"]));
            }
        }
        names.push(name.to_owned());
    }
    names
}

fn routes(space: &Space, found: &mut Vec<String>) {
    for family in ["-4", "-6"] {
        let list = space.cmd_input(&format!("ip -o {family} -batch -"), "route show table all\nrule show\n");
        // Routes of addresses and for multicast are left out, because the kernel adds them itself with a delay.
        let kept = list.lines().filter(|line| {
            !line.starts_with("local ")
                && !line.contains("fe80:")
                && !line.contains("ff00::/8")
                && !line.starts_with("broadcast ")
                && !line.starts_with("anycast ")
        });
        found.extend(kept.map(|line| format!("route {family} {}", words(line))));
    }
}

fn settings(space: &Space, links: &[String], found: &mut Vec<String>) {
    let mut read = space.run(|| {
        let value = |path: &str| std::fs::read_to_string(Path::new("/proc/sys").join(path)).ok();
        let mut lines = Vec::new();
        for (family, keys) in SETTINGS {
            for (link, key) in links.iter().flat_map(|link| keys.iter().map(move |key| (link, key))) {
                if let Some(value) = value(&format!("net/{family}/conf/{link}/{key}")) {
                    lines.push(format!("sysctl {family} {link} {key} {}", value.trim()));
                }
            }
        }
        for switch in SWITCHES {
            lines.extend(value(switch).map(|value| format!("sysctl {switch} {}", value.trim())));
        }
        lines
    });
    found.append(&mut read);
}

fn files(path: &Path, lines: &mut BTreeSet<String>) {
    let Ok(meta) = path.symlink_metadata() else { return };
    if meta.is_dir() {
        if path == Path::new("/run/netns") {
            return;
        }
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            files(&entry.path(), lines);
        }
    } else if meta.is_file() {
        let content = std::fs::read(path).unwrap_or_default();
        lines.insert(format!("file {} {:?}", path.display(), String::from_utf8_lossy(&content)));
    }
}

/// Normalises blanks, and removes words that change by themselves.
fn words(line: &str) -> String {
    let mut kept = Vec::new();
    let mut words = line.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "expires" => drop(words.next()),
            "linkdown" | "pref" | "medium" => {}
            _ => kept.push(word),
        }
    }
    kept.join(" ")
}
