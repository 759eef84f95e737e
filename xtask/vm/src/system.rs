// SPDX-License-Identifier: MIT OR Apache-2.0

//! The system whose programs and libraries go into a VM: this machine's, or Debian's packages for another processor.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::Arch;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, tool};
use xtask_base::workspace;
use xtask_dist::{SUITES, Toolchain};

/// The packages with the tools, and the reference plugins.
pub(super) const PACKAGES: [&str; 19] = [
    "conntrack",
    "containernetworking-plugins",
    "coreutils",
    "curl",
    "dash",
    "dnsmasq-base",
    "findutils",
    "grep",
    "iproute2",
    "iptables",
    "ipvsadm",
    "kmod",
    "mount",
    "nftables",
    "procps",
    "sed",
    "strace",
    "tar",
    "util-linux",
];

/// Folders that are one with a folder below /usr.
const MERGED: [&str; 3] = ["bin", "sbin", "lib"];

/// A system below a folder. Paths inside are absolute, as its programs see them.
#[derive(Debug)]
pub(crate) struct System {
    root: PathBuf,
    /// The emulator of its programs, if this processor cannot run them.
    emulator: Option<PathBuf>,
}

impl System {
    /// The system for a processor: this machine's, or the packages, which are fetched once.
    pub(crate) fn find(arch: Arch, toolchain: &Toolchain) -> Result<Self> {
        let emulator = toolchain.emulator();
        if arch.is_own() {
            return Ok(Self { root: PathBuf::from("/"), emulator });
        }
        let root = arch.cache()?.join("system");
        let stamp = root.with_extension("from");
        let wanted = PACKAGES.join(" ");
        if !fs::read_to_string(&stamp).is_ok_and(|from| from == wanted) {
            workspace::remove(&stamp)?;
            workspace::remove(&root)?;
            fetch(arch, &root)?;
            fs::write(&stamp, wanted).map_err(|e| Error::file("write", &stamp, e))?;
        }
        // Paths behind links begin with this one.
        let root = fs::canonicalize(&root).map_err(|e| Error::file("follow the links of", &root, e))?;
        Ok(Self { root, emulator })
    }

    /// The folder of its reference plugins; none if those of this machine's suites are to be fetched.
    pub(crate) fn reference(&self) -> Option<PathBuf> {
        self.emulator.as_ref().map(|_| self.here(Path::new("/usr/lib/cni")))
    }

    /// The message about tools that it lacks.
    pub(crate) fn lacks(&self, tools: &str) -> String {
        match &self.emulator {
            None => format!("not on this machine: {tools} (`cargo xtask setup --optional`)"),
            Some(_) => format!("not in the packages that were fetched for the VMs: {tools}"),
        }
    }

    /// The path of a file of the system on this machine.
    pub(crate) fn here(&self, inside: &Path) -> PathBuf {
        self.root.join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// The path of a file of this machine in the system.
    fn inside(&self, here: &Path) -> PathBuf {
        here.strip_prefix(&self.root).map_or_else(|_| here.to_owned(), |rest| Path::new("/").join(rest))
    }

    pub(crate) fn which(&self, program: &str) -> Option<PathBuf> {
        let here = run::search_path().into_iter().map(|dir| self.here(&dir).join(program));
        here.into_iter().find(|path| path.is_file()).map(|path| self.inside(&path))
    }

    /// The paths in a folder.
    pub(crate) fn list(&self, inside: &Path) -> Result<Vec<PathBuf>> {
        let here = self.here(inside);
        let entries = fs::read_dir(&here).map_err(|e| Error::file("list", &here, e))?;
        Ok(entries.filter_map(std::result::Result::ok).map(|entry| inside.join(entry.file_name())).collect())
    }

    /// The path behind the links of another one.
    pub(crate) fn follow(&self, inside: &Path) -> Result<PathBuf> {
        let here = self.here(inside);
        let real = fs::canonicalize(&here).map_err(|e| Error::file("follow the links of", &here, e))?;
        Ok(self.inside(&real))
    }

    /// The shared libraries of a program of this machine's files, and their loader. None of one that is linked
    /// statically.
    pub(crate) fn libraries(&self, program: &Path) -> Result<Vec<PathBuf>> {
        let mut lister = match &self.emulator {
            None => tool("ldd", &[]),
            Some(emulator) => {
                let mut lister = Command::new(emulator);
                lister
                    .arg("-L")
                    .arg(&self.root)
                    .arg(self.root.join("lib/ld-linux-aarch64.so.1"))
                    .arg("--list");
                lister
            }
        };
        // The command fails for a program that is linked statically.
        let Ok(printed) = run::capture(lister.arg(program)) else { return Ok(Vec::new()) };
        match printed.lines().find(|line| line.contains("not found")) {
            Some(line) => Err(Error::Failed(format!("{}: {}", program.display(), line.trim()))),
            None => Ok(libraries_in(&printed).map(|path| self.inside(&path)).collect()),
        }
    }
}

/// The paths in what ldd(1) prints.
fn libraries_in(printed: &str) -> impl Iterator<Item = PathBuf> {
    printed.lines().filter_map(|line| {
        let line = line.split_once("=> ").map_or(line, |(_, path)| path).trim();
        let path = line.split_once(" (").map_or(line, |(path, _)| path);
        path.starts_with('/').then(|| PathBuf::from(path))
    })
}

/// Unpacks the packages, and makes the links that their scripts would make.
fn fetch(arch: Arch, root: &Path) -> Result<()> {
    let link =
        |target: &str, path: &Path| symlink(target, path).map_err(|e| Error::file("make the link", path, e));
    for name in MERGED {
        let folder = root.join("usr").join(name);
        fs::create_dir_all(&folder).map_err(|e| Error::file("create the directory", &folder, e))?;
        link(&format!("usr/{name}"), &root.join(name))?;
    }
    arch.packages(&SUITES)?.fetch_all(&PACKAGES, root)?;
    for family in ["iptables", "ip6tables"] {
        for end in ["", "-save", "-restore"] {
            link(&format!("{family}-nft{end}"), &root.join(format!("usr/sbin/{family}{end}")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_prints() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                       \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found: Vec<PathBuf> = libraries_in(printed).collect();
        assert_eq!(
            found,
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from)
        );
    }

    #[test]
    fn paths_inside_do_not_begin_with_the_root() {
        let system = System { root: PathBuf::from("/t/system"), emulator: None };
        assert_eq!(system.here(Path::new("/usr/bin/nft")), Path::new("/t/system/usr/bin/nft"));
        assert_eq!(system.inside(Path::new("/t/system/usr/bin/nft")), Path::new("/usr/bin/nft"));
        // The loader prints libraries as the program sees them, and itself as it was called.
        assert_eq!(system.inside(Path::new("/lib/libc.so.6")), Path::new("/lib/libc.so.6"));
        let own = System { root: PathBuf::from("/"), emulator: None };
        assert_eq!(own.here(Path::new("/usr/bin/nft")), own.inside(Path::new("/usr/bin/nft")));
    }
}
