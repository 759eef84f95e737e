// SPDX-License-Identifier: GPL-2.0-or-later

//! The parts of a bug report, each a file. A part that cannot be read has the error in its place.

use std::ffi::OsStr;
use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use cni_dataplane::dump;
use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::netns::Netns;
use cni_runtime::{Cache, CacheError, cache};
use cni_spec::{check_container_id, check_ifname};
use cni_state::subnet_file::{self, InvalidSubnets, SubnetFile, SubnetFileError};
use ipnet::IpNet;
use slipway_cli::Failure;

use super::redact::{Rule, is_address, is_name, is_path, length};
use super::system::{about, legacy_chains, links, modules, settings};
use crate::operator::{check_node, directories, ports, restore};

/// The largest configuration, in bytes.
const CONFIG_MAX: usize = 1 << 20;
/// The most names of a directory that are listed.
const NAMES_MAX: usize = 5000;
/// The directory of host-local's reservations, without `dataDir`.
const RESERVATIONS: &str = "/var/lib/cni/networks";
/// The directory of its index, among the networks.
const OURS: &str = ".slipway";
/// The directory of the node's settings.
const DEFAULTS: &str = "/etc/cni";

/// The rule of each file. A file without a rule has no content.
const RULES: [(&str, Rule); 15] = [
    ("about.txt", Rule::Text),
    ("check-node.txt", Rule::Text),
    ("ports.txt", Rule::Text),
    ("restore.txt", Rule::Outcomes),
    ("nftables.txt", Rule::Text),
    ("iptables.txt", Rule::Text),
    ("links.txt", Rule::Text),
    ("sysctl.txt", Rule::Text),
    ("modules.txt", Rule::Text),
    ("plugins.txt", Rule::Text),
    ("reservations.txt", Rule::Text),
    ("subnets.txt", Rule::Text),
    ("cache.txt", Rule::Text),
    ("networks", Rule::Network),
    ("defaults", Rule::Node),
];

/// The rule of a file, or of the folder that it is in.
fn rule(name: &str) -> Option<Rule> {
    let first = name.split('/').next().unwrap_or_default();
    RULES.iter().find(|(known, _)| *known == first).map(|(_, rule)| *rule)
}

/// A file of the bundle.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    /// A description for people who review the bundle before they share it.
    pub(super) about: &'static str,
    pub(super) content: Vec<u8>,
}

impl Part {
    fn new(name: &str, about: &'static str, content: &str) -> Self {
        Self::by_rule(rule(name), name, about, content)
    }

    /// The content, or the error of its source.
    fn read(name: &str, about: &'static str, content: Result<String, impl Display>) -> Self {
        match content {
            Ok(content) => Self::new(name, about, &content),
            Err(error) => Self::failed(name, about, error),
        }
    }

    fn failed(name: &str, about: &'static str, error: impl Display) -> Self {
        let error = format!("cannot be read: {error}\n");
        Self::by_rule(rule(name).map(|_| Rule::Text), name, about, &error)
    }

    fn by_rule(rule: Option<Rule>, name: &str, about: &'static str, content: &str) -> Self {
        let content = match rule {
            None => "left out: no rule for its contents\n".to_owned(),
            Some(rule) => rule.apply(content),
        };
        Self { name: name.to_owned(), about, content: content.into_bytes() }
    }
}

/// The directories to read.
#[derive(Debug)]
pub(super) struct Places<'a> {
    /// The networks' configurations.
    pub(super) configurations: &'a Path,
    /// The directories of plugins.
    pub(super) plugins: &'a [PathBuf],
}

/// Collects all parts.
pub(super) fn all(places: &Places<'_>) -> Vec<Part> {
    let mut parts = vec![
        Part::new("about.txt", "versions of slipway, kernel and distribution", &about()),
        Part::new(
            "check-node.txt",
            "output of check-node",
            &printed("check-node", |out, _| check_node::run(&check_node::Args::default(), out)),
        ),
        Part::new(
            "ports.txt",
            "published ports: names of networks, container IDs, addresses",
            &printed("ports", |out, err| ports::run(&ports::Args::default(), out, err)),
        ),
        Part::new(
            "restore.txt",
            "output of restore --dry-run: container IDs, addresses, paths",
            &printed("restore", |out, _| restore::run(&restore::Args::dry_run(), out)),
        ),
        Part::read("nftables.txt", "our tables; names of other tables", dump::own_tables()),
        Part::new("iptables.txt", "names of the chains of legacy iptables", &legacy_chains()),
        Part::read("links.txt", "links, addresses and routes of this node", links()),
        Part::new("sysctl.txt", "settings of the kernel", &settings()),
        Part::read(
            "modules.txt",
            "modules of the kernel",
            fs::read_to_string("/proc/modules").map(|text| modules(&text)),
        ),
        Part::read("plugins.txt", "names in the plugin directories", listings(places.plugins)),
        Part::read(
            "reservations.txt",
            "reservations of host-local: addresses, container IDs",
            reservations(Path::new(RESERVATIONS)),
        ),
        Part::new("subnets.txt", "this node's subnets", &subnets(Path::new(subnet_file::PATH))),
        Part::read(
            "cache.txt",
            "containers in the runtime's cache and pending ones: names, IDs, namespaces",
            cached(),
        ),
    ];
    parts.extend(configurations(places.configurations, "networks"));
    parts.extend(
        configurations(Path::new(DEFAULTS), "defaults")
            .into_iter()
            .filter(|part| part.name == "defaults/slipway.json"),
    );
    parts
}

/// The output of a command of this binary, and its exit code.
fn printed(
    name: &str,
    run: impl FnOnce(&mut dyn io::Write, &mut dyn io::Write) -> Result<u8, Failure>,
) -> String {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let done = run(&mut out, &mut err);
    let code = slipway_cli::report(&format!("slipway {name}"), done, &mut err);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}exit code {code}\n", text(&out), text(&err))
}

fn listings(directories: &[PathBuf]) -> Result<String, DirError> {
    directories.iter().map(|directory| listing(directory)).collect()
}

/// Names, sizes and the targets of links.
fn listing(directory: &Path) -> Result<String, DirError> {
    let opened = DurableDir::open(directory)?;
    let mut names = opened.list()?;
    names.sort();
    let mut text = format!("{}\n", directory.display());
    for name in names.iter().take(NAMES_MAX) {
        let path = directory.join(name);
        let size = fs::symlink_metadata(&path).map(|data| data.len()).unwrap_or_default();
        let target =
            |to: &Path| format!(" -> {}", only(&to.to_string_lossy(), |to| is_path(to) || is_name(to)));
        let link = fs::read_link(&path).map(|to| target(&to)).unwrap_or_default();
        let _written = writeln!(text, "    {} {size}{link}", only(&name.to_string_lossy(), is_name));
    }
    if names.len() > NAMES_MAX {
        let _written = writeln!(text, "    and {} more", names.len() - NAMES_MAX);
    }
    Ok(text)
}

/// Each reservation with its owner.
fn reservations(directory: &Path) -> Result<String, DirError> {
    let mut networks = DurableDir::open(directory).and_then(|all| all.list())?;
    networks.sort();
    let mut text = String::new();
    for network in networks {
        let path = directory.join(&network);
        let Ok(opened) = DurableDir::open(&path) else { continue };
        let mut names = opened.list()?;
        names.sort();
        let network = only(&network.to_string_lossy(), is_name);
        let _written = writeln!(text, "{}/{network} ({} files)", directory.display(), names.len());
        for name in names.iter().take(NAMES_MAX) {
            let name = name.to_string_lossy();
            let line = match is_address(&name) {
                true => {
                    format!("{name} {}", owner(&opened.read(&*name, 4096).ok().flatten().unwrap_or_default()))
                }
                false => only(&name, is_bookkeeping),
            };
            let _written = writeln!(text, "    {line}");
        }
    }
    Ok(text)
}

/// A text of the expected form, or its length.
fn only(text: &str, expected: impl Fn(&str) -> bool) -> String {
    if expected(text) { text.to_owned() } else { length(text) }
}

/// True for the names of other files than reservations, the reference's and ours.
fn is_bookkeeping(name: &str) -> bool {
    let rest = name.strip_prefix("last_reserved_ip.");
    name == "lock" || name == OURS || rest.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The owner in a reservation: the container's ID and its interface.
fn owner(content: &[u8]) -> String {
    let text = String::from_utf8_lossy(content);
    let words: Vec<&str> = text.split_whitespace().collect();
    let valid = match words[..] {
        [id] => check_container_id(id).is_ok(),
        [id, ifname] => check_container_id(id).is_ok() && check_ifname(ifname).is_ok(),
        _ => false,
    };
    // The longest IDs have 64 characters.
    if valid && text.len() <= 100 { words.join(" ") } else { length(&text) }
}

fn cached() -> Result<String, DirError> {
    let mut text = String::new();
    for directory in directories::CACHES {
        text.push_str(&pending(Path::new(directory))?);
        let Some(cache) = Cache::open(Path::new(directory))? else { continue };
        let (all, faults) = cache.read()?;
        let _written = writeln!(text, "{}: {} containers", cache.path().display(), all.len());
        for one in all.iter().take(NAMES_MAX) {
            let path = one.netns.clone().unwrap_or_default();
            let netns = match Netns::open(&path) {
                Ok(netns) => format!("namespace {}", netns.id().ino),
                Err(error) if error.is_gone() => "no namespace".to_owned(),
                Err(_) => "cannot be opened".to_owned(),
            };
            let plugins = one.list.plugins.iter().filter_map(|plugin| plugin.get("type")?.as_str());
            let plugins = plugins.map(|plugin| only(plugin, is_name)).collect::<Vec<_>>().join(" ");
            let path = only(&path.to_string_lossy(), is_path);
            let _written = writeln!(text, "    {} ({plugins}): {path} {netns}", one.attachment);
        }
        for fault in faults {
            let name = fault.path.file_name().unwrap_or_default().to_string_lossy();
            let _written = writeln!(text, "    {}: {}", only(&name, is_name), why(&fault.error));
        }
    }
    if text.is_empty() { Ok("no cache\n".to_owned()) } else { Ok(text) }
}

/// The sandboxes with pending attachments, of which the files have the configurations: names and sizes alone.
fn pending(cache: &Path) -> Result<String, DirError> {
    let path = cache.join(cache::PENDING);
    let opened = match DurableDir::open(&path) {
        Err(error) if error.is_not_found() => return Ok(String::new()),
        opened => opened?,
    };
    let mut names = opened.list()?;
    names.sort();
    let mut text = format!("{}: {} pending sandboxes\n", path.display(), names.len());
    // The longest IDs have 64 characters.
    let is_id = |name: &str| name.len() <= 64 && check_container_id(name).is_ok();
    for name in names.iter().take(NAMES_MAX) {
        let size = fs::symlink_metadata(path.join(name)).map(|data| data.len()).unwrap_or_default();
        let _written = writeln!(text, "    {} {size} bytes", only(&name.to_string_lossy(), is_id));
    }
    Ok(text)
}

/// The file of the node's subnets. Nothing is quoted from an invalid file.
fn subnets(path: &Path) -> String {
    match SubnetFile::read(path) {
        Ok(SubnetFile { subnets, cluster_cidrs, mtu }) => {
            let shown = |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            format!("subnets {}\ncluster {}\nmtu {mtu}\n", shown(&subnets), shown(&cluster_cidrs))
        }
        Err(SubnetFileError::Missing(_)) => "no file\n".to_owned(),
        Err(SubnetFileError::Content { error, .. }) => match error {
            InvalidSubnets::Form(why) => format!("not a file of subnets, {}\n", length(&why.to_string())),
            InvalidSubnets::Cidr { key, value } => {
                format!("{key}: invalid CIDR address, {}\n", length(&value))
            }
            error => format!("{error}\n"),
        },
        Err(error) => format!("cannot be read: {error}\n"),
    }
}

/// The error of a file in the cache, without quoting the file.
fn why(error: &CacheError) -> String {
    match error {
        CacheError::Form(why) => format!("not a cached attachment, {}", length(why)),
        CacheError::Kind(kind) => format!("of an unknown kind, {}", length(kind)),
        CacheError::Name(_) => "file name does not match the attachment inside".to_owned(),
        CacheError::Directory(error) => error.errno().map_or_else(|| "no file".to_owned(), |e| e.to_string()),
        CacheError::TooLarge(_) | CacheError::BareResult => error.to_string(),
    }
}

/// The configurations of a directory.
fn configurations(directory: &Path, folder: &str) -> Vec<Part> {
    const ABOUT: &str = "configuration; of unknown keys and of texts only the length";
    let listed = DurableDir::open(directory).and_then(|opened| opened.list().map(|names| (opened, names)));
    let (opened, mut names) = match listed {
        Ok(listed) => listed,
        Err(error) => return vec![Part::failed(&format!("{folder}/none.txt"), ABOUT, error)],
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
        let file = format!("{folder}/{}", entry_name(name, number));
        parts.push(match opened.read(name, CONFIG_MAX) {
            Ok(Some(bytes)) => Part::new(&file, ABOUT, &String::from_utf8_lossy(&bytes)),
            Ok(None) => Part::failed(&file, ABOUT, "it was removed concurrently"),
            Err(error) => Part::failed(&file, ABOUT, error),
        });
    }
    parts
}

/// A name that is safe in an archive.
fn entry_name(name: &OsStr, number: usize) -> String {
    let text = name.to_string_lossy();
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if plain && text.len() <= 40 && !text.starts_with('.') {
        text.into_owned()
    } else {
        format!("file-{number}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_have_no_secrets() {
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
        assert!(all.contains("not JSON, 7 bytes") && all.contains("\"name\": \"a\""), "{all}");
        let none = configurations(&dir.path().join("none"), "networks");
        assert!(String::from_utf8_lossy(&none[0].content).contains("cannot be read"));
    }

    #[test]
    fn reservations_are_listed_with_their_owners() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pods")).unwrap();
        std::fs::write(dir.path().join("pods/10.22.0.2"), "c1\r\neth0").unwrap();
        let text = reservations(dir.path()).unwrap();
        assert!(text.contains("10.22.0.2 c1 eth0"), "{text}");
        for (name, content) in [
            ("10.22.0.3", "hunter2!"),
            ("10.22.0.4", "a b hunter2"),
            ("10.22.0.5", &"hunter2".repeat(20)),
            ("hunter2", "c1"),
            ("notes", "hunter2"),
        ] {
            std::fs::write(dir.path().join("pods").join(name), content).unwrap();
        }
        std::fs::create_dir(dir.path().join("x hunter2")).unwrap();
        let text = reservations(dir.path()).unwrap();
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("10.22.0.3 (text of 8 characters)"), "{text}");
    }

    #[test]
    fn pending_sandboxes_are_listed_by_name() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(pending(dir.path()).unwrap(), "");
        let folder = dir.path().join("pending");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("8f3b"), "hunter2").unwrap();
        std::fs::write(folder.join("x hunter2"), "hunter2").unwrap();
        let expected = "pending: 2 pending sandboxes\n    8f3b 7 bytes\n    (text of 9 characters) 7 bytes\n";
        assert!(pending(dir.path()).unwrap().ends_with(expected));
    }

    #[test]
    fn subnets_are_shown_and_invalid_ones_are_not_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("subnet.json");
        assert_eq!(subnets(&path), "no file\n");
        let net = |text: &str| text.parse().unwrap();
        let (own, cluster) = (vec![net("10.1.2.0/24"), net("fd00::/64")], vec![net("10.1.0.0/16")]);
        SubnetFile { subnets: own, cluster_cidrs: cluster, mtu: 1450 }.write(&path).unwrap();
        assert_eq!(subnets(&path), "subnets 10.1.2.0/24 fd00::/64\ncluster 10.1.0.0/16\nmtu 1450\n");
        for content in [
            "hunter2",
            r#"{"schema": 1, "subnets": "hunter2", "mtu": 1500}"#,
            r#"{"schema": 1, "subnets": ["hunter2"], "mtu": 1500}"#,
            r#"{"schema": 1, "subnets": ["10.1.2.0/24"], "mtu": "hunter2"}"#,
            "",
        ] {
            std::fs::write(&path, content).unwrap();
            let text = subnets(&path);
            assert!(!text.contains("hunter2") && !text.is_empty(), "{text}");
        }
    }

    /// A new file needs a rule; without one nothing of it is written.
    #[test]
    fn each_file_has_a_rule_and_one_without_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.conf"), "{}").unwrap();
        let parts = all(&Places { configurations: dir.path(), plugins: &[dir.path().to_owned()] });
        for part in &parts {
            assert!(rule(&part.name).is_some(), "{} has no rule", part.name);
        }
        let first = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
        let mut collected: Vec<String> = parts.iter().map(|part| first(&part.name)).collect();
        collected.extend(["defaults".to_owned()]);
        for (name, _) in RULES {
            assert!(collected.contains(&name.to_owned()), "nothing is collected as {name}");
        }
        let part = Part::new("new.txt", "", "hunter2");
        assert!(!String::from_utf8_lossy(&part.content).contains("hunter2"));
    }

    #[test]
    fn a_fault_of_the_cache_quotes_nothing() {
        let faults = [CacheError::Form("hunter2".to_owned()), CacheError::Kind("hunter2".to_owned())];
        for fault in &faults {
            assert!(!why(fault).contains("hunter2"));
        }
    }
}
