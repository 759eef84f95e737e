//! What a report of a bug needs, each part as a file. A part that cannot be had says why in its place.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use cni_dataplane::dump;
use cni_kernel::dir::DurableDir;
use cni_kernel::netns::Netns;
use cni_kernel::route::{Family, LOCAL_TABLE, MAIN_TABLE, RouteSocket};
use cni_kernel::{sysctl, xtables};
use cni_runtime::{Cache, cache};
use nix::sys::utsname::uname;
use serde_json::Value;

use super::super::{Run, check_node, ports, restore};
use super::redact::redact;
use crate::registry;

/// The largest configuration that is taken, in bytes.
const CONFIG_MAX: usize = 1 << 20;
/// The most names that are listed of one directory.
const NAMES_MAX: usize = 5000;
/// Where host-local keeps its reservations unless `dataDir` says otherwise.
const RESERVATIONS: &str = "/var/lib/cni/networks";
/// Where the node's own defaults are.
const DEFAULTS: &str = "/etc/cni";

/// A file of the bundle.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    /// What it is, for whoever looks it over.
    pub(super) about: &'static str,
    pub(super) content: Vec<u8>,
}

impl Part {
    fn new(name: &str, about: &'static str, content: Result<String, String>) -> Self {
        let content = content.unwrap_or_else(|error| format!("could not be had: {error}\n"));
        Self { name: name.to_owned(), about, content: content.into_bytes() }
    }
}

/// Where to look.
#[derive(Debug)]
pub(super) struct Places<'a> {
    /// The networks.
    pub(super) configurations: &'a Path,
    /// The plugins.
    pub(super) plugins: &'a Path,
}

/// Everything.
pub(super) fn all(places: &Places<'_>) -> Vec<Part> {
    let mut parts = vec![
        Part::new("about.txt", "versions of slipway, kernel and distribution", Ok(about())),
        Part::new("check-node.txt", "what check-node says", Ok(said(check_node::check_node_command, &[]))),
        Part::new(
            "ports.txt",
            "published ports: names of networks, container IDs, addresses",
            Ok(said(ports::ports_command, &[])),
        ),
        Part::new(
            "restore.txt",
            "what restore would do: container IDs, addresses, paths",
            Ok(said(restore::restore_command, &["--dry-run"])),
        ),
        Part::new(
            "nftables.txt",
            "our tables; names of the tables of others",
            dump::own_tables().map_err(|e| e.to_string()),
        ),
        Part::new("iptables.txt", "names of the chains of legacy iptables", Ok(legacy_chains())),
        Part::new("links.txt", "links, addresses and routes of this node", links()),
        Part::new("sysctl.txt", "settings of the kernel", Ok(settings())),
        Part::new(
            "modules.txt",
            "modules of the kernel",
            fs::read_to_string("/proc/modules").map_err(|e| e.to_string()),
        ),
        Part::new("plugins.txt", "names in the plugin directory", listing(places.plugins)),
        Part::new(
            "reservations.txt",
            "reservations of host-local: addresses, container IDs",
            reservations(Path::new(RESERVATIONS)),
        ),
        Part::new("cache.txt", "containers that the runtime remembers: names, IDs, namespaces", remembered()),
    ];
    parts.extend(configurations(places.configurations, "networks"));
    parts.extend(
        configurations(Path::new(DEFAULTS), "defaults")
            .into_iter()
            .filter(|part| part.name == "defaults/slipway.json"),
    );
    parts
}

/// What a command of ours prints.
fn said(run: Run, args: &[&str]) -> String {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(&args, &mut out, &mut err);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}exit code {code}\n", text(&out), text(&err))
}

fn about() -> String {
    let mut text =
        format!("slipway {}, plugins {}\n", env!("CARGO_PKG_VERSION"), registry::names().join(" "));
    if let Ok(names) = uname() {
        let word = |word: &OsStr| word.to_string_lossy().into_owned();
        let words = [names.sysname(), names.release(), names.version(), names.machine()].map(word);
        let _written = writeln!(text, "{}", words.join(" "));
    }
    for file in ["/etc/os-release", "/proc/uptime"] {
        let content = fs::read_to_string(file).unwrap_or_else(|error| format!("{error}\n"));
        let _written = writeln!(text, "\n{file}:\n{content}");
    }
    for kind in ["net", "mnt", "pid", "user"] {
        let link = fs::read_link(Path::new("/proc/self/ns").join(kind));
        let _written =
            writeln!(text, "namespace {}", link.map_or_else(|e| e.to_string(), |l| l.display().to_string()));
    }
    text
}

fn legacy_chains() -> String {
    let mut text = String::new();
    for (family, name) in [(Family::V4, "iptables-legacy"), (Family::V6, "ip6tables-legacy")] {
        for table in ["nat", "filter", "mangle", "raw"] {
            // Looking at a table that is not there would load it.
            if !xtables::has_table(family, table) {
                continue;
            }
            let chains =
                xtables::chains(family, table).map_or_else(|e| e.to_string(), |chains| chains.join(" "));
            let _written = writeln!(text, "{name} -t {table}: {chains}");
        }
    }
    if text.is_empty() { "no table\n".to_owned() } else { text }
}

fn links() -> Result<String, String> {
    let failed = |error: cni_kernel::route::RouteError| error.to_string();
    let route = RouteSocket::open().map_err(failed)?;
    let mut text = String::new();
    let all = route.links().map_err(failed)?;
    for link in &all {
        let master = link.master.map(|index| format!(", part of {index}")).unwrap_or_default();
        let alias = if link.alias.is_empty() { String::new() } else { format!(", alias {:?}", link.alias) };
        let localnet = if link.route_localnet { ", route_localnet" } else { "" };
        let (index, name, kind, mtu, state) = (link.index, &link.name, &link.kind, link.mtu, link.state);
        let _written =
            writeln!(text, "{index}: {name}: {kind:?}, mtu {mtu}, {state}{master}{localnet}{alias}");
        for address in route.addresses(link).map_err(failed)? {
            let _written = writeln!(text, "    {}", address.net);
        }
    }
    for (family, table, title) in [
        (Family::V4, MAIN_TABLE, "routes, IPv4"),
        (Family::V6, MAIN_TABLE, "routes, IPv6"),
        (Family::V6, LOCAL_TABLE, "routes to this node, IPv6"),
    ] {
        let _written = writeln!(text, "\n{title}:");
        for one in route.routes(family, table).map_err(failed)? {
            let link = one.link.and_then(|index| all.iter().find(|link| link.index == index));
            let link = link.map_or("-", |link| link.name.as_str());
            let _written = writeln!(text, "    {one} dev {link}");
        }
    }
    Ok(text)
}

fn settings() -> String {
    const NAMES: [&str; 14] = [
        "net/ipv4/ip_forward",
        "net/ipv4/conf/all/forwarding",
        "net/ipv4/conf/all/route_localnet",
        "net/ipv4/conf/default/route_localnet",
        "net/ipv4/conf/all/rp_filter",
        "net/ipv4/ip_local_port_range",
        "net/ipv4/ip_local_reserved_ports",
        "net/ipv6/conf/all/forwarding",
        "net/ipv6/conf/all/disable_ipv6",
        "net/bridge/bridge-nf-call-iptables",
        "net/bridge/bridge-nf-call-ip6tables",
        "net/netfilter/nf_conntrack_count",
        "net/netfilter/nf_conntrack_max",
        "kernel/unprivileged_userns_clone",
    ];
    let line = |name: &&str| {
        let value = sysctl::get(name).unwrap_or_else(|error| format!("({error})"));
        format!("{name} = {value}\n")
    };
    NAMES.iter().map(line).collect()
}

/// Names, sizes and what links lead to.
fn listing(directory: &Path) -> Result<String, String> {
    let opened = DurableDir::open(directory).map_err(|e| e.to_string())?;
    let mut names = opened.list().map_err(|e| e.to_string())?;
    names.sort();
    let mut text = format!("{}\n", directory.display());
    for name in names.iter().take(NAMES_MAX) {
        let path = directory.join(name);
        let size = fs::symlink_metadata(&path).map(|data| data.len()).unwrap_or_default();
        let link = fs::read_link(&path).map(|to| format!(" -> {}", to.display())).unwrap_or_default();
        let _written = writeln!(text, "    {} {size}{link}", name.to_string_lossy());
    }
    if names.len() > NAMES_MAX {
        let _written = writeln!(text, "    and {} more", names.len() - NAMES_MAX);
    }
    Ok(text)
}

/// Each reservation with its owner.
fn reservations(directory: &Path) -> Result<String, String> {
    let mut networks = DurableDir::open(directory).and_then(|all| all.list()).map_err(|e| e.to_string())?;
    networks.sort();
    let mut text = String::new();
    for network in networks {
        let path = directory.join(&network);
        let Ok(opened) = DurableDir::open(&path) else { continue };
        let mut names = opened.list().map_err(|e| e.to_string())?;
        names.sort();
        let _written = writeln!(text, "{} ({} files)", path.display(), names.len());
        for name in names.iter().take(NAMES_MAX) {
            let content = opened.read(name, 4096).ok().flatten().unwrap_or_default();
            let words = String::from_utf8_lossy(&content).split_whitespace().collect::<Vec<_>>().join(" ");
            let _written = writeln!(text, "    {} {words:?}", name.to_string_lossy());
        }
    }
    Ok(text)
}

fn remembered() -> Result<String, String> {
    let mut text = String::new();
    for directory in cache::DIRECTORIES {
        let Some(cache) = Cache::open(Path::new(directory)).map_err(|e| e.to_string())? else { continue };
        let (all, faults) = cache.read().map_err(|e| e.to_string())?;
        let _written = writeln!(text, "{}: {} containers", cache.path().display(), all.len());
        for one in all.iter().take(NAMES_MAX) {
            let path = one.netns.clone().unwrap_or_default();
            let netns = match Netns::open(&path) {
                Ok(netns) => format!("namespace {}", netns.id().ino),
                Err(error) => error.to_string(),
            };
            let plugins = one.list.plugins.iter().filter_map(|plugin| plugin.get("type")?.as_str());
            let plugins = plugins.collect::<Vec<_>>().join(" ");
            let _written = writeln!(text, "    {} ({plugins}): {} {netns}", one.attachment, path.display());
        }
        for fault in faults {
            let _written = writeln!(text, "    {}: {}", fault.path.display(), fault.error);
        }
    }
    if text.is_empty() { Ok("no cache\n".to_owned()) } else { Ok(text) }
}

/// The configurations of a directory, without secrets. What is not JSON is named and left out.
fn configurations(directory: &Path, folder: &str) -> Vec<Part> {
    const ABOUT: &str = "configuration; values of keys that sound like secrets are replaced";
    let listed = DurableDir::open(directory).and_then(|opened| opened.list().map(|names| (opened, names)));
    let (opened, mut names) = match listed {
        Ok(listed) => listed,
        Err(error) => return vec![Part::new(&format!("{folder}/none.txt"), ABOUT, Err(error.to_string()))],
    };
    names.sort();
    let is_network = |name: &OsStr| {
        Path::new(name)
            .extension()
            .and_then(OsStr::to_str)
            .is_some_and(|e| ["conf", "conflist", "json"].contains(&e))
    };
    let mut parts = Vec::new();
    for (number, name) in names.iter().filter(|name| is_network(name)).enumerate() {
        let content = match opened.read(name, CONFIG_MAX) {
            Ok(Some(bytes)) => {
                serde_json::from_slice(&bytes).map_err(|e| format!("no JSON: {e}")).map(|mut value: Value| {
                    redact(&mut value);
                    format!("{value:#}\n")
                })
            }
            Ok(None) => Err("it went while it was looked at".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        parts.push(Part::new(&format!("{folder}/{}", entry_name(name, number)), ABOUT, content));
    }
    parts
}

/// A name that fits into an archive and leads nowhere else.
fn entry_name(name: &OsStr, number: usize) -> String {
    let text = name.to_string_lossy();
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if plain && text.len() <= 60 && !text.starts_with('.') {
        text.into_owned()
    } else {
        format!("file-{number}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_taken_without_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("10-a.conflist", r#"{"name":"a","password":"hunter2"}"#);
        write("b.conf", "hunter2");
        write("kubeconfig", "hunter2");
        write("c d.json", "{}");
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("e.json")).unwrap();
        let parts = configurations(dir.path(), "networks");
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(
            names,
            ["networks/10-a.conflist", "networks/b.conf", "networks/file-2", "networks/e.json"]
        );
        let all: String =
            parts.iter().map(|part| String::from_utf8_lossy(&part.content).into_owned()).collect();
        assert!(!all.contains("hunter2") && !all.contains("root:"), "{all}");
        assert!(all.contains("no JSON") && all.contains("\"name\": \"a\""), "{all}");
        let none = configurations(&dir.path().join("none"), "networks");
        assert!(String::from_utf8_lossy(&none[0].content).contains("could not be had"));
    }

    #[test]
    fn reservations_are_told_with_their_owners() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pods")).unwrap();
        std::fs::write(dir.path().join("pods/10.22.0.2"), "c1\r\neth0").unwrap();
        let text = reservations(dir.path()).unwrap();
        assert!(text.contains("10.22.0.2 \"c1 eth0\""), "{text}");
    }
}
