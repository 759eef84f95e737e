// SPDX-License-Identifier: GPL-2.0-or-later

//! Settings below `/proc/sys/net`: names, and the list of allowed ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cni_kernel::sysctl::{NetSettings, SysctlError};
use cni_spec::{CniError, ErrorCode, text};
use regex_lite::Regex;
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The administrator's list. Without it all settings below `net` are allowed.
const ALLOWED: &str = "/etc/cni/tuning/allowlist.conf";
/// The largest list that is read, in bytes.
const ALLOWED_LIMIT: u64 = 1 << 20;

/// The placeholder for the container's interface in a key.
const IFNAME: &str = "IFNAME";

/// A setting and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sysctl {
    /// The key of the configuration, which the list refers to.
    pub(super) key: String,
    /// The name below `/proc/sys/net`, with slashes.
    pub(super) path: String,
    pub(super) value: String,
}

/// Resolves and sorts settings: those of a family first, then those of all links, then those of one link,
/// because some reset others (`ip_forward` resets those of links).
pub(super) fn resolve(keys: &BTreeMap<String, String>, ifname: &str) -> Result<Vec<Sysctl>, CniError> {
    let of = |(key, value): (&String, &String)| {
        let path = below_net(key, ifname)
            .ok_or_else(|| CniError::config(format!("invalid net sysctl key: {}", text::quote(key))))?;
        Ok(Sysctl { key: key.clone(), path, value: value.clone() })
    };
    let mut all = keys.iter().map(of).collect::<Result<Vec<_>, CniError>>()?;
    let general = |sysctl: &Sysctl| {
        let parts: Vec<&str> = sysctl.path.split('/').collect();
        (parts.len(), !parts.iter().any(|part| matches!(*part, "all" | "default")))
    };
    // The sort is stable, so that settings of the same rank stay in the order of their keys.
    all.sort_by_key(general);
    Ok(all)
}

/// The path below `net`; none if the key leads elsewhere. As in sysctl(8), whichever of `.` and `/` comes first is the
/// separator, so that names may have dots if slashes are used.
fn below_net(key: &str, ifname: &str) -> Option<String> {
    let path = match key.find(['.', '/']) {
        Some(first) if key[first..].starts_with('/') => key.to_owned(),
        _ => key.replace('.', "/"),
    };
    let path = path.replacen(IFNAME, ifname, 1);
    let below = path.strip_prefix("net/")?;
    let leads_away = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
    (!below.split('/').any(leads_away)).then(|| below.to_owned())
}

/// True if a `sysctl` object has a key twice. A decoder would take only one of the two values, and the other would
/// escape the check against the list.
pub(super) fn has_duplicates(config: &[u8]) -> bool {
    // Malformed JSON has been refused earlier.
    let Ok(tree) = serde_json::from_slice::<Tree>(config) else { return false };
    let twice = |tree: &Tree| {
        let mut seen = BTreeSet::new();
        tree.keys().any(|key| !seen.insert(key))
    };
    let own = tree.under("sysctl");
    let of_args = tree.under("args").flat_map(|args| args.under("cni")).flat_map(|cni| cni.under("sysctl"));
    own.chain(of_args).any(twice)
}

/// JSON with repeated keys. Only objects are kept.
enum Tree {
    Object(Vec<(String, Tree)>),
    Other,
}

impl Tree {
    fn keys(&self) -> impl Iterator<Item = &str> {
        let entries = if let Self::Object(entries) = self { entries.as_slice() } else { &[] };
        entries.iter().map(|(key, _)| key.as_str())
    }

    /// All values of a key, in any case.
    fn under<'a>(&'a self, wanted: &'a str) -> impl Iterator<Item = &'a Tree> {
        let entries = if let Self::Object(entries) = self { entries.as_slice() } else { &[] };
        entries.iter().filter(|(key, _)| key.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Nodes)
    }
}

struct Nodes;

impl<'de> Visitor<'de> for Nodes {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Object(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Tree::Other)
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Tree, E> {
        Ok(Tree::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Tree, E> {
        Ok(Tree::Other)
    }
}

/// The administrator's list.
#[derive(Debug)]
pub(super) struct Allowed {
    patterns: Vec<(String, Regex)>,
}

impl Allowed {
    /// Reads the list; none if missing.
    pub(super) fn read() -> Result<Option<Self>, CniError> {
        let unreadable = |error| CniError::new(ErrorCode::Io, format!("open {ALLOWED}: {error}"));
        match read_followed(Path::new(ALLOWED)).map_err(unreadable)? {
            Some(content) => Self::parse(&String::from_utf8_lossy(&content)).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn parse(content: &str) -> Result<Self, CniError> {
        let lines = content.lines().map(str::trim).filter(|line| !line.is_empty());
        let patterns = lines.map(|line| match Regex::new(line) {
            Ok(pattern) => Ok((line.to_owned(), pattern)),
            Err(error) => {
                Err(CniError::config(format!("{ALLOWED}: {} is not a pattern: {error}", text::quote(line))))
            }
        });
        Ok(Self { patterns: patterns.collect::<Result<_, _>>()? })
    }

    /// Checks that all settings are allowed. A pattern may match anywhere in the configuration's key.
    ///
    /// # Errors
    /// The first that is not allowed.
    pub(super) fn check(&self, sysctls: &[Sysctl]) -> Result<(), CniError> {
        let allowed =
            |sysctl: &&Sysctl| self.patterns.iter().any(|(_, pattern)| pattern.is_match(&sysctl.key));
        let Some(refused) = sysctls.iter().find(|sysctl| !allowed(sysctl)) else { return Ok(()) };
        let patterns: Vec<&str> = self.patterns.iter().map(|(line, _)| line.as_str()).collect();
        Err(CniError::config(format!(
            "Sysctl {} is not allowed. Only the following sysctls are allowed: [{}]",
            refused.key,
            patterns.join(" ")
        )))
    }
}

/// Reads a file. The file and its folder may be symbolic links, made by the administrator. None if there is neither a
/// file nor a link; a dangling link is an error.
fn read_followed(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // A FIFO without a writer would block.
    let file = match File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut named = path.ancestors().take(2);
            return if named.any(Path::is_symlink) { Err(error) } else { Ok(None) };
        }
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut content = Vec::new();
    if file.take(ALLOWED_LIMIT + 1).read_to_end(&mut content)? as u64 > ALLOWED_LIMIT {
        return Err(io::Error::other(format!("larger than {ALLOWED_LIMIT} bytes")));
    }
    Ok(Some(content))
}

/// The outcome of [`apply`].
pub(super) struct Applied {
    /// The former values, last to first.
    pub(super) before: Vec<Sysctl>,
    /// The first error. Later settings were not written.
    pub(super) result: Result<(), SysctlError>,
}

/// Writes the settings. Runs inside the namespace.
pub(super) fn apply(sysctls: &[Sysctl]) -> Applied {
    let mut before = Vec::new();
    let net = match NetSettings::open() {
        Ok(net) => net,
        Err(error) => return Applied { before, result: Err(error) },
    };
    for sysctl in sysctls {
        match net.get(&sysctl.path) {
            Ok(value) => before.insert(0, Sysctl { value, ..sysctl.clone() }),
            // A write-only setting (`route/flush`) has no former value.
            Err(error) => log::debug!("{error}"),
        }
        if let Err(error) = net.set(&sysctl.path, &sysctl.value) {
            return Applied { before, result: Err(error) };
        }
    }
    Applied { before, result: Ok(()) }
}

/// Writes the former values. Runs inside the namespace.
///
/// # Errors
/// The first that could not be written; all others were.
pub(super) fn put_back(sysctls: &[Sysctl]) -> Result<(), SysctlError> {
    let net = NetSettings::open()?;
    sysctls.iter().map(|sysctl| net.set(&sysctl.path, &sysctl.value)).fold(Ok(()), Result::and)
}

/// Compares the settings. Runs inside the namespace.
///
/// # Errors
/// The first difference.
pub(super) fn check(sysctls: &[Sysctl]) -> Result<(), CniError> {
    let failed = |error: SysctlError| CniError::internal(error.to_string());
    let net = NetSettings::open().map_err(failed)?;
    for Sysctl { path, value, .. } in sysctls {
        let current = net.get(path).map_err(failed)?;
        // The kernel separates numbers with tabs.
        if !current.split_whitespace().eq(value.split_whitespace()) {
            return Err(CniError::internal(format!(
                "Error: Tuning configured value of /proc/sys/net/{path} is {value}, current value is {current}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_below_net() {
        let rows = [
            ("net.core.somaxconn", Some("core/somaxconn")),
            ("net/core/somaxconn", Some("core/somaxconn")),
            ("net.ipv4.conf.IFNAME.arp_filter", Some("ipv4/conf/eth0.7/arp_filter")),
            ("net/ipv4/conf/a.b/arp_filter", Some("ipv4/conf/a.b/arp_filter")),
            ("net.ipv4.conf.a/b.arp_filter", Some("ipv4/conf/a/b/arp_filter")),
            ("net.IFNAME.IFNAME", Some("eth0.7/IFNAME")),
            ("kernel.hostname", None),
            ("net", None),
            ("net.", None),
            ("net..x", None),
            ("net.x.", None),
            ("net/../kernel/hostname", None),
            ("net/./x", None),
            ("/net/x", None),
            (".net.x", None),
            ("netx.y", None),
            ("net/x\0", None),
            ("", None),
            ("IFNAME", None),
        ];
        for (key, path) in rows {
            assert_eq!(below_net(key, "eth0.7").as_deref(), path, "{key:?}");
        }
        // An interface's name cannot lead elsewhere either.
        assert_eq!(below_net("net.IFNAME", ".."), None);
        assert_eq!(below_net("IFNAME.x", "net"), Some("x".to_owned()));
    }

    #[test]
    fn general_settings_come_first() {
        let keys = ["net.ipv4.conf.IFNAME.forwarding", "net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding"];
        let keys = keys.into_iter().map(|key| (key.to_owned(), "1".to_owned())).collect();
        let paths: Vec<_> = resolve(&keys, "a0").unwrap().into_iter().map(|sysctl| sysctl.path).collect();
        assert_eq!(paths, ["ipv4/ip_forward", "ipv4/conf/all/forwarding", "ipv4/conf/a0/forwarding"]);
    }

    #[test]
    fn repeated_keys_are_detected() {
        let yes = [
            r#"{"sysctl":{"a":"1","b":"2","a":"3"}}"#,
            r#"{"Sysctl":{"a":"1","\u0061":"3"}}"#,
            r#"{"args":{"cni":{"sysctl":{"a":"1","a":"1"}}}}"#,
        ];
        for json in yes {
            assert!(has_duplicates(json.as_bytes()), "{json}");
        }
        let no = [
            r#"{"x":{"a":"1","a":"3"},"sysctl":{"a":"1","A":"2"},"l":[1,-1,1.5,null,true,"x",{"a":1,"a":2}]}"#,
            r#"{"sysctl":null,"args":{"cni":[]}}"#,
            "[]",
            "x",
        ];
        for json in no {
            assert!(!has_duplicates(json.as_bytes()), "{json}");
        }
    }

    #[test]
    fn the_list_is_read_through_symbolic_links() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let read = |name: &str| read_followed(&at(name)).map_err(|error| error.to_string());
        assert_eq!((read("tuning/list"), read("none")), (Ok(None), Ok(None)));
        std::fs::create_dir(at("data")).unwrap();
        assert_eq!(read("data/list"), Ok(None));
        std::fs::write(at("data/list"), "core").unwrap();
        symlink("data", at("tuning")).unwrap();
        symlink("data/list", at("list")).unwrap();
        for name in ["data/list", "tuning/list", "list"] {
            assert_eq!(read(name), Ok(Some(b"core".to_vec())), "{name}");
        }
        std::fs::write(at("data/list"), vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(read("list").unwrap().unwrap().len(), 1 << 20);
        std::fs::write(at("data/list"), vec![b'x'; (1 << 20) + 1]).unwrap();
        assert_eq!(read("list"), Err("larger than 1048576 bytes".to_owned()));
        assert_eq!(read("data"), Err("not a regular file".to_owned()));
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read("fifo"), Err("not a regular file".to_owned()));
        // Dangling links.
        std::fs::remove_dir_all(at("data")).unwrap();
        for name in ["tuning/list", "list"] {
            assert!(read(name).unwrap_err().starts_with("No such file or directory"), "{name}");
        }
        symlink("circle", at("circle")).unwrap();
        assert!(read("circle").is_err());
    }

    #[test]
    fn patterns_of_the_list_match_anywhere() {
        let sysctl = |key: &str| Sysctl { key: key.to_owned(), path: String::new(), value: String::new() };
        let list = Allowed::parse("^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\r\n\n  core  \n").unwrap();
        list.check(&[sysctl("net.ipv4.conf.IFNAME.arp_filter"), sysctl("net.core.somaxconn")]).unwrap();
        let error = list.check(&[sysctl("net.core.a"), sysctl("net.ipv4.conf.all.x")]).unwrap_err();
        assert_eq!(
            error.msg,
            "Sysctl net.ipv4.conf.all.x is not allowed. Only the following sysctls are allowed: \
             [^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$ core]"
        );
        assert!(Allowed::parse("").unwrap().check(&[sysctl("net.a")]).is_err());
        Allowed::parse("").unwrap().check(&[]).unwrap();
        let error = Allowed::parse("ok\n(").unwrap_err();
        assert!(error.msg.starts_with("/etc/cni/tuning/allowlist.conf: \"(\" is not a pattern: "), "{error}");
    }
}
