// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs and libraries of the system that the tasks need.

use std::path::{Path, PathBuf};

use xtask_base::run::{self, tool};

/// A program or library that must, or may, be on the machine. The packages have the same names in Debian 12
/// and 13 and in Ubuntu 22.04 and 24.04.
#[derive(Debug)]
pub(crate) struct Need {
    pub(crate) name: &'static str,
    /// The tasks that need it, and what for.
    pub(crate) purpose: &'static str,
    /// The packages that contain it.
    pub(crate) packages: &'static [&'static str],
    grade: Grade,
    probe: Probe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grade {
    Required,
    Optional,
}

#[derive(Debug)]
enum Probe {
    /// Any of these programs.
    Program(&'static [&'static str]),
    /// A library that pkg-config knows in at least this version.
    Library(&'static str, &'static str),
    File(&'static str),
}

/// All needs, in the order of the report.
pub(crate) const NEEDS: &[Need] = &[
    required(
        "C compiler and linker",
        "build: links the binary",
        &["gcc", "libc6-dev"],
        Probe::Program(&["cc"]),
    ),
    required("pkg-config", "build: finds the C libraries", &["pkg-config"], Probe::Program(&["pkg-config"])),
    required("libmnl headers", "build: netlink messages", &["libmnl-dev"], Probe::Library("libmnl", "1.0.3")),
    required(
        "libnftnl headers",
        "build: nf_tables messages",
        &["libnftnl-dev"],
        Probe::Library("libnftnl", "1.0.6"),
    ),
    required("ip", "tests, demo: namespaces and links", &["iproute2"], Probe::Program(&["ip"])),
    required("nft", "tests, demo: shows the rules", &["nftables"], Probe::Program(&["nft"])),
    required("iptables", "tests: rules of other engines", &["iptables"], Probe::Program(&["iptables"])),
    required("conntrack", "tests: shows connections", &["conntrack"], Probe::Program(&["conntrack"])),
    required("strace", "tests: kill plugins at each system call", &["strace"], Probe::Program(&["strace"])),
    required("dnsmasq", "tests: a DHCP server", &["dnsmasq-base"], Probe::Program(&["dnsmasq"])),
    required("ipvsadm", "tests: a proxy of Services", &["ipvsadm"], Probe::Program(&["ipvsadm"])),
    required("tmux", "tests: a terminal", &["tmux"], Probe::Program(&["tmux"])),
    required("curl", "demo: the requests it shows", &["curl"], Probe::Program(&["curl"])),
    required("openssl", "tests: tokens that end soon", &["openssl"], Probe::Program(&["openssl"])),
    required("nsenter and unshare", "tests, demo: namespaces", &["util-linux"], Probe::Program(&["nsenter"])),
    required(
        "ps and pkill",
        "tests: ends programs that they started",
        &["procps"],
        Probe::Program(&["pkill"]),
    ),
    required(
        "modprobe and depmod",
        "tests: kernel modules, also in virtual machines",
        &["kmod"],
        Probe::Program(&["depmod"]),
    ),
    required("xz", "tests: modules of other kernels", &["xz-utils"], Probe::Program(&["xz"])),
    optional(
        "reference plugins",
        "bench: the peer to measure against (also `bench control --fetch-peer`)",
        &["containernetworking-plugins"],
        Probe::File("/usr/lib/cni/bridge"),
    ),
    optional("tcpdump", "looking at packets", &["tcpdump"], Probe::Program(&["tcpdump"])),
];

const fn required(
    name: &'static str,
    purpose: &'static str,
    packages: &'static [&'static str],
    probe: Probe,
) -> Need {
    Need { name, purpose, packages, grade: Grade::Required, probe }
}

const fn optional(
    name: &'static str,
    purpose: &'static str,
    packages: &'static [&'static str],
    probe: Probe,
) -> Need {
    Need { name, purpose, packages, grade: Grade::Optional, probe }
}

impl Need {
    pub(crate) fn required(&self) -> bool {
        self.grade == Grade::Required
    }

    pub(crate) fn is_there(&self) -> bool {
        match self.probe {
            Probe::Program(names) => names.iter().any(|name| run::which(name).is_some()),
            Probe::Library(name, version) => {
                let at_least = format!("{name} >= {version}");
                run::which("pkg-config").is_some()
                    && run::capture(&mut tool("pkg-config", &["--exists", &at_least])).is_ok()
            }
            Probe::File(path) => Path::new(path).exists(),
        }
    }
}

/// The folder that pkg-config names for a library.
pub(crate) fn library_dir(name: &str) -> Option<PathBuf> {
    let dir = run::capture(&mut tool("pkg-config", &["--variable=libdir", name])).ok()?;
    Some(PathBuf::from(dir.trim())).filter(|dir| dir.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_need_has_a_purpose_and_a_package() {
        for need in NEEDS {
            assert!(!need.purpose.is_empty() && !need.packages.is_empty(), "{}", need.name);
        }
    }

    #[test]
    fn probes_find_what_is_installed_and_nothing_else() {
        assert!(required("sh", "", &[], Probe::Program(&["sh"])).is_there());
        assert!(!required("x", "", &[], Probe::Program(&["no-such-program"])).is_there());
        assert!(!required("x", "", &[], Probe::Library("no-such-library", "1")).is_there());
        assert!(!required("x", "", &[], Probe::File("/no/such/file")).is_there());
    }
}
