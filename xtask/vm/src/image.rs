// SPDX-License-Identifier: MIT OR Apache-2.0

//! The root file system of a VM: the first process, the tests, the plugins, the system's tools that the tests call,
//! and the kernel's modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use slipway_vm::{PLAN, Plan};

use crate::cpio::Archive;
use crate::fetch::{Ready, matches};
use crate::parts::Part;
use crate::programs::Programs;
use crate::system::System;
use xtask_base::error::{Error, Result};
use xtask_base::workspace;

/// The system's programs that tests and plugins' callers use, and that the kernel calls.
const TOOLS: &[&str] = &[
    "basename",
    "bridge",
    "cat",
    "chmod",
    "chown",
    "chroot",
    "conntrack",
    "cp",
    "curl",
    "cut",
    "dd",
    "dnsmasq",
    "env",
    "false",
    "find",
    "flock",
    "grep",
    "head",
    "id",
    "ip",
    "ip6tables",
    "ip6tables-legacy",
    "ip6tables-legacy-restore",
    "ip6tables-legacy-save",
    "ip6tables-nft",
    "ip6tables-nft-restore",
    "ip6tables-nft-save",
    "ip6tables-restore",
    "ip6tables-save",
    "iptables",
    "iptables-legacy",
    "iptables-legacy-restore",
    "iptables-legacy-save",
    "iptables-nft",
    "iptables-nft-restore",
    "iptables-nft-save",
    "iptables-restore",
    "iptables-save",
    "ipvsadm",
    "kill",
    "kmod",
    "ln",
    "losetup",
    "ls",
    "lsmod",
    "mkdir",
    "mkfifo",
    "mknod",
    "modprobe",
    "mount",
    "mountpoint",
    "mv",
    "nft",
    "nsenter",
    "pkill",
    "ps",
    "readlink",
    "realpath",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "setpriv",
    "sh",
    "sleep",
    "sort",
    "ss",
    "stat",
    "strace",
    "sync",
    "sysctl",
    "tail",
    "tar",
    "tc",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "truncate",
    "umount",
    "uname",
    "unshare",
    "wc",
];

/// The beginnings of the names of tools that a system may lack. A test that needs such a tool is skipped.
const OPTIONAL: &[&str] =
    &["ip6tables-legacy", "ip6tables-nft", "iptables-legacy", "iptables-nft", "ss", "strace", "sysctl", "tc"];

/// Reference plugins that some tests compare with ours, or call together with ours.
const REFERENCE: &[&str] = &[
    "bridge",
    "firewall",
    "host-device",
    "host-local",
    "ipvlan",
    "loopback",
    "macvlan",
    "portmap",
    "ptp",
    "static",
    "vlan",
];

/// Tables of names for `ip` and `nft`.
const DATA: &[&str] = &["/etc/protocols", "/etc/services", "/etc/iproute2", "/usr/share/iproute2"];

/// Folders and files of the checkout in which tests find expected output and the like, at the paths that were
/// compiled into them.
const SOURCES: &[&str] = &["README.md", "cni", "docs", "tests"];

/// Folders in the guest.
pub(crate) const TESTS: &str = "/vm/tests";
pub(crate) const PLUGINS: &str = "/vm/bin";
pub(crate) const PEER: &str = "/vm/peer";
pub(crate) const KUBERNETES: &str = "/vm/kubernetes";

/// The part that is the same for every kernel.
#[derive(Debug)]
pub(crate) struct Userland {
    /// The path in the guest, and the file here.
    files: BTreeMap<PathBuf, PathBuf>,
    /// Links to those.
    links: BTreeMap<PathBuf, PathBuf>,
}

/// Fails if a system lacks a tool that every VM must have.
pub(crate) fn need_tools(system: &System) -> Result<()> {
    let missing: Vec<&str> = needed_tools().filter(|name| system.which(name).is_none()).collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::Failed(system.lacks(&missing.join(", ")))) }
}

/// The tools that are not optional.
fn needed_tools() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().copied().filter(|name| !OPTIONAL.iter().any(|optional| name.starts_with(optional)))
}

impl Userland {
    /// Finds the tools, of the reference plugins in a directory those that tests need, and the shared
    /// libraries of all of them and of `programs`.
    pub(crate) fn find(system: &System, programs: &[&Path], reference: Option<&Path>) -> Result<Self> {
        let mut own = Self { files: BTreeMap::new(), links: BTreeMap::new() };
        for path in TOOLS.iter().filter_map(|name| system.which(name)) {
            own.program(system, &path)?;
        }
        if let Some(dir) = reference {
            let folder = Path::new("/usr/lib/cni");
            own.files.extend(REFERENCE.iter().map(|name| (folder.join(name), dir.join(name))));
        }
        own.extensions(system)?;
        let mut linked: BTreeSet<PathBuf> = own.files.values().cloned().collect();
        linked.extend(programs.iter().map(|path| (*path).to_owned()));
        for program in linked {
            let libraries = system.libraries(&program)?.into_iter();
            own.files.extend(libraries.map(|library| (library.clone(), system.here(&library))));
        }
        Ok(own)
    }

    /// A program under the name that it is called by, and under its own.
    fn program(&mut self, system: &System, path: &Path) -> Result<()> {
        let real = system.follow(path)?;
        if real != path {
            self.links.insert(path.to_owned(), real.clone());
        }
        let here = system.here(&real);
        self.files.insert(real, here);
        Ok(())
    }

    /// iptables loads a library per match and target.
    fn extensions(&mut self, system: &System) -> Result<()> {
        let inside = Path::new("/usr/lib");
        for folder in system.list(inside)?.into_iter().map(|folder| folder.join("xtables")) {
            if system.here(&folder).is_dir() {
                system.list(&folder)?.iter().try_for_each(|path| self.program(system, path))?;
            }
        }
        Ok(())
    }
}

/// Files below /etc that every system has.
const ETC: &[(&str, &str)] = &[
    ("/etc/hostname", "vm\n"),
    ("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
    ("/etc/resolv.conf", ""),
];

/// Writes the root file system.
pub(crate) fn write(
    path: &Path,
    userland: &Userland,
    programs: &Programs,
    part: &Part<'_>,
    kernel: &Ready,
    modules: &BTreeSet<PathBuf>,
    plan: &Plan,
) -> Result<u64> {
    let mut archive = Archive::create(path)?;
    archive.file(Path::new("/init"), &programs.init)?;
    for folder in ["/proc", "/sys", "/dev", "/run", "/mnt", "/tmp", "/root", "/var/lib", "/var/run", "/etc"] {
        archive.folder(Path::new(folder))?;
    }
    for (path, content) in ETC {
        archive.bytes(Path::new(path), content.as_bytes(), 0o644)?;
    }
    for (inside, file) in &userland.files {
        archive.file(inside, file)?;
    }
    for (inside, target) in &userland.links {
        archive.symlink(inside, target)?;
    }
    for path in DATA.iter().map(Path::new) {
        match () {
            () if path.is_dir() => archive.tree(path, path, |_| true)?,
            () if path.is_file() => archive.file(path, path)?,
            () => {}
        }
    }
    for path in SOURCES.iter().map(|name| workspace::root().join(name)) {
        match path.is_dir() {
            true => archive.tree(&path, &path, |path| !path.ends_with("target"))?,
            false => archive.file(&path, &path)?,
        }
    }
    archive.tree(Path::new(PLUGINS), &programs.plugins, |_| true)?;
    if let Some(peer) = &programs.peer {
        archive.tree(Path::new(PEER), peer, |_| true)?;
    }
    for test in &part.tests {
        archive.file(&Path::new(TESTS).join(&test.name), &test.path)?;
    }
    let inside = Path::new("/usr/lib/modules").join(&kernel.release);
    for module in modules {
        archive.file(&inside.join(module), &kernel.modules.join(module))?;
    }
    let text = serde_json::to_vec(plan).map_err(|e| Error::Failed(format!("write the plan: {e}")))?;
    archive.bytes(Path::new(PLAN), &text, 0o644)?;
    archive.finish()
}

/// The files of a kernel's modules that match the patterns, of those that they need, and depmod's
/// lists; all below [`Ready::modules`]. Without those that match the patterns of `without`: what needs one cannot be loaded.
///
/// # Errors
/// A pattern of `without` matches none: the module is built into the kernel, or the kernel lacks it anyway.
pub(crate) fn modules(kernel: &Ready, patterns: &[String], without: &[String]) -> Result<BTreeSet<PathBuf>> {
    let read = |name: &str| {
        let path = kernel.modules.join(name);
        fs::read_to_string(&path).map_err(|e| Error::file("read", &path, e))
    };
    let mut files = closure(&read("modules.dep")?, &read("modules.softdep").unwrap_or_default(), patterns);
    leave_out(&mut files, without).map_err(|pattern| {
        Error::Failed(format!("{} has no module {pattern} to be left out", kernel.release))
    })?;
    let entries = fs::read_dir(&kernel.modules).map_err(|e| Error::file("list", &kernel.modules, e))?;
    let lists = entries.filter_map(std::result::Result::ok).map(|entry| PathBuf::from(entry.file_name()));
    files.extend(lists.filter(|name| name.to_string_lossy().starts_with("modules.")));
    Ok(files)
}

/// Removes the modules that match one of the patterns. Fails with a pattern that matches none.
fn leave_out(files: &mut BTreeSet<PathBuf>, without: &[String]) -> Result<(), String> {
    for pattern in without {
        let before = files.len();
        files.retain(|path| !matches(&pattern.replace('-', "_"), &module_name(&path.to_string_lossy())));
        if files.len() == before {
            return Err(pattern.clone());
        }
    }
    Ok(())
}

/// The name of a module by its file.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

/// `modules.dep` has lines `path: path path`; `modules.softdep` has `softdep name pre: name … post: …`.
fn closure(dep: &str, softdep: &str, patterns: &[String]) -> BTreeSet<PathBuf> {
    let lines: Vec<(&str, Vec<&str>)> = dep
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, needs)| (path, needs.split_whitespace().collect()))
        .collect();
    let by_name: BTreeMap<String, usize> =
        lines.iter().enumerate().map(|(i, (path, _))| (module_name(path), i)).collect();
    let mut soft: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for line in softdep.lines().filter_map(|line| line.strip_prefix("softdep ")) {
        let mut words = line.split_whitespace();
        let entry = soft.entry(words.next().unwrap_or_default()).or_default();
        entry.extend(words.filter(|word| !word.ends_with(':')).map(|word| word.replace('-', "_")));
    }
    let wanted = |module: &str| patterns.iter().any(|pattern| matches(&pattern.replace('-', "_"), module));
    let mut open: Vec<usize> = by_name.iter().filter(|(module, _)| wanted(module)).map(|(_, i)| *i).collect();
    let mut files = BTreeSet::new();
    while let Some(index) = open.pop() {
        let (path, needs) = &lines[index];
        if files.insert(PathBuf::from(path)) {
            let soft = soft.get(module_name(path).as_str()).into_iter().flatten();
            let needs = needs.iter().map(|path| module_name(path)).chain(soft.cloned());
            open.extend(needs.filter_map(|module| by_name.get(&module)));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::kernels::Kernels;
    use crate::system::PACKAGES;

    /// The programs that tests start by name, as the first word of a command.
    fn started(path: &Path, found: &mut BTreeSet<String>) {
        let text = match fs::read_dir(path) {
            Ok(entries) => return entries.for_each(|entry| started(&entry.unwrap().path(), found)),
            Err(_) => fs::read_to_string(path).unwrap(),
        };
        for call in ["cmd(", "cmd_input("] {
            for (at, _) in text.match_indices(call) {
                let rest = text[at + call.len()..]
                    .trim_start()
                    .trim_start_matches('&')
                    .trim_start_matches("format!(");
                let Some(command) = rest.trim_start().strip_prefix('"') else { continue };
                let word = command.split(['"', ' ', '\n']).next().unwrap();
                // A word with a placeholder is not known here.
                if !word.contains(['{', '/', '\\']) && !word.is_empty() {
                    found.insert(word.to_owned());
                }
            }
        }
    }

    #[test]
    fn the_programs_that_tests_start_are_in_the_vms() {
        let mut found = BTreeSet::new();
        started(&workspace::root().join("tests/src"), &mut found);
        let list = Kernels::load().unwrap();
        for entry in fs::read_dir(workspace::root().join("tests/tests")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if list.left_out.iter().all(|one| one.suite != name) {
                started(&path, &mut found);
            }
        }
        let missing: Vec<&String> = found.iter().filter(|name| !TOOLS.contains(&name.as_str())).collect();
        assert!(found.len() > 20 && missing.is_empty(), "{missing:?}");
    }

    /// Debian 12 knows which package a tool is of; elsewhere it may be another one.
    #[test]
    fn the_packages_for_another_processor_have_the_tools() {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        if !release.lines().any(|line| line == "VERSION_CODENAME=bookworm") {
            return;
        }
        let mut known = 0;
        for name in needed_tools() {
            let places = ["/bin", "/sbin", "/usr/bin", "/usr/sbin"].map(|dir| format!("{dir}/{name}"));
            // dpkg-query fails if a path does not belong to a package, such as a link of update-alternatives.
            let found = Command::new("dpkg-query").arg("--search").args(places).output().unwrap().stdout;
            let found = String::from_utf8(found).unwrap();
            let owners: Vec<&str> =
                found.lines().filter_map(|line| line.split_once(": ")).map(|(one, _)| one).collect();
            assert!(
                owners.is_empty() || owners.iter().any(|one| PACKAGES.contains(one)),
                "{name} is of {owners:?}"
            );
            known += usize::from(!owners.is_empty());
        }
        assert!(known > 40, "{known} tools are of a package");
    }

    #[test]
    fn a_module_that_cannot_be_left_out_is_named() {
        let all =
            ["net/ipv4/netfilter/ip_tables.ko", "net/netfilter/x_tables.ko", "net/netfilter/xt_mark.ko"];
        let mut files: BTreeSet<PathBuf> = all.map(PathBuf::from).into();
        leave_out(&mut files, &["ip_tables".to_owned(), "xt_*".to_owned()]).unwrap();
        assert_eq!(files, [PathBuf::from(all[1])].into());
        assert_eq!(leave_out(&mut files, &["ip6-tables".to_owned()]), Err("ip6-tables".to_owned()));
    }

    #[test]
    fn what_a_module_needs_comes_with_it() {
        let dep = "kernel/net/sctp/sctp.ko: kernel/lib/libcrc32c.ko\n\
                   kernel/lib/libcrc32c.ko:\n\
                   kernel/arch/x86/crypto/crc32c-intel.ko:\n\
                   kernel/drivers/net/wireless/other.ko: kernel/net/wireless/cfg.ko\n\
                   kernel/net/wireless/cfg.ko:\n";
        let files = closure(dep, "softdep libcrc32c pre: crc32c-intel\n", &["sctp".to_owned()]);
        let expected =
            ["kernel/arch/x86/crypto/crc32c-intel.ko", "kernel/lib/libcrc32c.ko", "kernel/net/sctp/sctp.ko"];
        assert_eq!(files, expected.map(PathBuf::from).into());
    }
}
