//! The settings below `/proc/sys/net`: names, and the list of those that are allowed.

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

/// Where an administrator's list of what is allowed lies. Without it everything in `net` is.
const ALLOWED: &str = "/etc/cni/tuning/allowlist.conf";
/// More than any list has, in bytes.
const ALLOWED_LIMIT: u64 = 1 << 20;

/// What the container's interface is called in a key.
const IFNAME: &str = "IFNAME";

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sysctl {
    /// The key as it was written, which the list of what is allowed is about.
    pub(super) key: String,
    /// The name below `/proc/sys/net`, with slashes.
    pub(super) path: String,
    /// What it is to be.
    pub(super) value: String,
}

/// The settings in the order in which they are made: those of a whole family before those of all links,
/// these before one link's, because some set others (`ip_forward` resets a link's).
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
    // Those that are alike stay in the order of their keys.
    all.sort_by_key(general);
    Ok(all)
}

/// The name below `net`; none if it leads elsewhere. As sysctl(8) has it, what comes first of `.` and `/`
/// separates: with slashes a name may have dots in it.
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

/// Whether a `sysctl` says a key twice. A decoder would take the last one, and the list of what is allowed
/// would be asked about less than is written.
pub(super) fn has_duplicates(config: &[u8]) -> bool {
    // What does not decode was refused before.
    let Ok(tree) = serde_json::from_slice::<Tree>(config) else { return false };
    let twice = |tree: &Tree| {
        let mut seen = BTreeSet::new();
        tree.keys().any(|key| !seen.insert(key))
    };
    let own = tree.under("sysctl");
    let of_args = tree.under("args").flat_map(|args| args.under("cni")).flat_map(|cni| cni.under("sysctl"));
    own.chain(of_args).any(twice)
}

/// JSON with each key as often as it is written. Only objects count.
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
    /// Reads the list; none if there is none, and everything is allowed.
    ///
    /// # Errors
    /// A list that cannot be read, or a line that is no pattern: nothing is allowed then.
    pub(super) fn read() -> Result<Option<Self>, CniError> {
        let unreadable = |error| CniError::new(ErrorCode::Io, format!("open {ALLOWED}: {error}"));
        match administrators(Path::new(ALLOWED)).map_err(unreadable)? {
            Some(content) => Self::parse(&String::from_utf8_lossy(&content)).map(Some),
            None => Ok(None),
        }
    }

    fn parse(content: &str) -> Result<Self, CniError> {
        let lines = content.lines().map(str::trim).filter(|line| !line.is_empty());
        let patterns = lines.map(|line| match Regex::new(line) {
            Ok(pattern) => Ok((line.to_owned(), pattern)),
            Err(error) => {
                Err(CniError::config(format!("{ALLOWED}: {} is no pattern: {error}", text::quote(line))))
            }
        });
        Ok(Self { patterns: patterns.collect::<Result<_, _>>()? })
    }

    /// Tells whether all of them are allowed. A pattern may match anywhere in the key as it was written.
    ///
    /// # Errors
    /// The first that is not.
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

/// Reads a file of the administrator's, who may have put a symbolic link in its place or in its folder's; none if
/// there is neither. A link that leads nowhere is an error: something was meant to be there.
fn administrators(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // A FIFO without a writer would keep us.
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

/// Makes the settings, and gives what was there before, last to first. Runs inside the namespace.
///
/// # Errors
/// The one that could not be made, with those that were.
pub(super) fn apply(sysctls: &[Sysctl]) -> Result<Vec<Sysctl>, (Vec<Sysctl>, SysctlError)> {
    let mut before = Vec::new();
    let net = NetSettings::open().map_err(|error| (Vec::new(), error))?;
    for sysctl in sysctls {
        match net.get(&sysctl.path) {
            Ok(value) => before.insert(0, Sysctl { value, ..sysctl.clone() }),
            // One that can only be written (`route/flush`) has nothing to go back to.
            Err(error) => log::debug!("{error}"),
        }
        if let Err(error) = net.set(&sysctl.path, &sysctl.value) {
            return Err((before, error));
        }
    }
    Ok(before)
}

/// Makes the settings as far as they can be made. Runs inside the namespace.
///
/// # Errors
/// The last that could not.
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
        // The kernel prints tabs between the numbers that were written with blanks.
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
        // An interface's name is no way out either.
        assert_eq!(below_net("net.IFNAME", ".."), None);
        assert_eq!(below_net("IFNAME.x", "net"), Some("x".to_owned()));
    }

    #[test]
    fn the_general_ones_come_first() {
        let keys = ["net.ipv4.conf.IFNAME.forwarding", "net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding"];
        let keys = keys.into_iter().map(|key| (key.to_owned(), "1".to_owned())).collect();
        let paths: Vec<_> = resolve(&keys, "a0").unwrap().into_iter().map(|sysctl| sysctl.path).collect();
        assert_eq!(paths, ["ipv4/ip_forward", "ipv4/conf/all/forwarding", "ipv4/conf/a0/forwarding"]);
    }

    #[test]
    fn a_key_that_is_there_twice_is_seen() {
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
    fn the_administrators_file_is_read_where_links_lead() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let read = |name: &str| administrators(&at(name)).map_err(|error| error.to_string());
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
        // Something was meant to be there.
        std::fs::remove_dir_all(at("data")).unwrap();
        for name in ["tuning/list", "list"] {
            assert!(read(name).unwrap_err().starts_with("No such file or directory"), "{name}");
        }
        symlink("circle", at("circle")).unwrap();
        assert!(read("circle").is_err());
    }

    #[test]
    fn the_list_is_of_patterns_that_match_anywhere() {
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
        assert!(error.msg.starts_with("/etc/cni/tuning/allowlist.conf: \"(\" is no pattern: "), "{error}");
    }
}
