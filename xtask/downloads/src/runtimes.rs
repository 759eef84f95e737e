// SPDX-License-Identifier: MIT OR Apache-2.0

//! Container runtimes and engines for the tests, as Debian's suites have them: each suite's in folders that are whole
//! root file systems. Nothing is installed. cnitool, which no package has, is built from its source package.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::debian_root;
use xtask_base::apt_root::{self, AptRoot};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::{Log, Stages};
use xtask_base::run::{self, tool};
use xtask_base::workspace;

/// The version of the folders' layout. A change makes the folders again although the packages are the same.
const LAYOUT: u32 = 1;

/// The packages of every folder besides its runtimes: an init, the tools of a small system, the libraries of a
/// plugin binary that is not static, and programs that the reference plugins run.
const COMMON: [&str; 5] = ["busybox-static", "catatonit", "iptables", "libmnl0", "libnftnl11"];

/// The packages that build cnitool. The library's package has the suite's version of it.
const GO: [&str; 2] = ["golang-go", CNI_LIBRARY];
const CNI_LIBRARY: &str = "golang-github-appc-cni-dev";
const CNI_SOURCE: &str = "golang-github-appc-cni";

/// Go's path for cnitool's source in the suite's root, and its import path.
const GO_PATH: &str = "usr/src/cnitool";
const CNI_IMPORT: &str = "github.com/containernetworking/cni";

/// The suite of our image, and the last words of the skips of tests that need the image.
const IMAGE_SUITE: &str = "trixie";
const DEBOOTSTRAP: &str = "a system of debootstrap";
/// The last word of the skips of tests that need Prometheus.
const PROMETHEUS: &str = "Prometheus";

/// The program that is built.
const CNITOOL: &str = "usr/local/bin/cnitool";

/// The packages of one suite.
#[derive(Debug)]
struct Wanted {
    suite: &'static str,
    /// The folder's name.
    folder: &'static str,
    runtimes: &'static [&'static str],
    /// True for podman 5 besides.
    netavark: bool,
    cnitool: bool,
}

/// podman 5 with its networks' program, and what both need.
const PODMAN: [&str; 6] =
    ["podman", "netavark", "aardvark-dns", "conmon", "golang-github-containers-common", "nftables"];

/// Engines that translate and filter packets next to ours, with what they need.
const ENGINES: [&str; 9] = [
    "containerd",
    "dbus-daemon",
    "dnsmasq-base",
    "docker.io",
    "firewalld",
    "libvirt-clients",
    "libvirt-daemon",
    "nftables",
    "runc",
];

/// The same of a suite whose packages are smaller.
const NEWER_ENGINES: [&str; 11] = [
    "containerd",
    "dbus-daemon",
    "dnsmasq-base",
    "docker-cli",
    "docker.io",
    "firewalld",
    "libvirt-clients",
    "libvirt-daemon",
    "libvirt-daemon-driver-network",
    "nftables",
    "runc",
];

/// podman had CNI up to version 4, which Debian 12 has. The tests know the folders by these names.
const WANTED: [Wanted; 6] = [
    Wanted {
        suite: "bookworm",
        folder: "bookworm",
        runtimes: &["podman", "containerd", "runc", "conmon", "golang-github-containers-common"],
        netavark: false,
        cnitool: true,
    },
    Wanted {
        suite: "trixie",
        folder: "trixie",
        runtimes: &["containerd", "runc"],
        netavark: true,
        cnitool: false,
    },
    Wanted {
        suite: "bookworm",
        folder: "bookworm-engines",
        runtimes: &ENGINES,
        netavark: false,
        cnitool: false,
    },
    Wanted {
        suite: "trixie",
        folder: "trixie-engines",
        runtimes: &NEWER_ENGINES,
        netavark: true,
        cnitool: false,
    },
    Wanted {
        suite: "unstable",
        folder: "unstable",
        runtimes: &["containerd", "runc"],
        netavark: true,
        cnitool: true,
    },
    // podman 6 with netavark 2.
    Wanted { suite: EXPERIMENTAL, folder: EXPERIMENTAL, runtimes: &["runc"], netavark: true, cnitool: false },
];

/// The suite whose packages depend on those of unstable.
const EXPERIMENTAL: &str = "experimental";

/// The crate of netavark, and its newest version when this was written.
const NETAVARK: &str = "netavark";
const NETAVARK_VERSION: &str = "2.1.0";
/// The suite whose compiler of protocol buffers builds it.
const PROTOC_SUITE: &str = "bookworm";

/// The variable with the root file system of a cluster's nodes, for the tests.
pub const NODE_VARIABLE: &str = "SLIPWAY_NODE_PACKAGES";

/// A folder without this program is not a node's root file system.
const NODE_PROGRAM: &str = "usr/bin/containerd";

/// The root file system of a cluster's nodes: Debian 12's, whose containerd has the interface that kubelet 1.20 knows. None
/// if it was not fetched before; it is now if `asked`.
pub fn for_nodes(asked: bool, stages: &Stages, require: bool) -> Result<Option<PathBuf>> {
    let [wanted, ..] = &WANTED;
    let root = workspace::scratch("runtimes")?.join(wanted.folder);
    let is_whole = || root.join(NODE_PROGRAM).is_file();
    if asked && !is_whole() {
        stages.run("containerd", |log| match wanted.fetch(&root, log) {
            Ok((versions, _)) => Ok(versions),
            Err(e) if require => Err(e),
            Err(e) => Ok(format!("SKIP: the tests with kubelets, for it could not be fetched: {e}")),
        })?;
    }
    Ok(is_whole().then_some(root))
}

/// The fetched runtimes.
#[derive(Debug, Default)]
pub struct Runtimes {
    dir: PathBuf,
    versions: Vec<String>,
    /// The last words of the skips of tests that need what is missing, and why it is missing.
    missing: Vec<(String, Error)>,
}

impl Runtimes {
    /// Fetches packages of which the suite has another version. A suite that cannot be fetched is left out.
    pub fn fetch(log: &Log) -> Result<Self> {
        let dir = workspace::scratch("runtimes")?;
        let mut all = Self { dir: dir.clone(), versions: Vec::new(), missing: Vec::new() };
        for wanted in &WANTED {
            match wanted.fetch(&dir.join(wanted.folder), log) {
                Ok((versions, without)) => {
                    all.versions.push(versions);
                    let what = format!("cnitool of Debian {}", wanted.suite);
                    all.missing.extend(without.map(|e| (what, e)));
                }
                Err(e) => all.missing.push((format!("of Debian {}", wanted.suite), e)),
            }
        }
        let netavark = netavark(&dir, log);
        if netavark.is_ok() {
            all.versions.push(format!("netavark {NETAVARK_VERSION} (crates.io)"));
        }
        let made = [
            (image(&dir, log), DEBOOTSTRAP),
            (prometheus(&dir), PROMETHEUS),
            (netavark, "netavark of crates.io"),
        ];
        for (made, what) in made {
            all.missing.extend(made.err().map(|e| (what.to_owned(), e)));
        }
        if all.versions.is_empty() {
            let reasons: Vec<String> = all.missing().map(|reason| format!("\n    {reason}")).collect();
            return Err(Error::Failed(format!("no runtime could be fetched:{}", reasons.concat())));
        }
        Ok(all)
    }

    /// The folder with one root for each suite.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The runtimes and their versions, for people.
    pub fn versions(&self) -> String {
        self.versions.join("; ")
    }

    /// The suites that could not be fetched, and why.
    pub fn missing(&self) -> impl Iterator<Item = String> + '_ {
        self.missing.iter().map(|(what, e)| format!("{what} could not be fetched: {e}"))
    }

    /// True if a test was skipped for a suite that could not be fetched.
    pub fn explains(&self, skip: &str) -> bool {
        self.missing.iter().any(|(what, _)| skip.ends_with(&format!(" {what}")))
    }
}

/// The reference's cnitool of the newest suite, and its version. One that was built before serves, so that a
/// measurement needs no network.
pub fn cnitool(log: &Log) -> Result<(PathBuf, String)> {
    let wanted = WANTED.iter().rfind(|wanted| wanted.cnitool);
    let wanted = wanted.ok_or_else(|| Error::Failed("no suite has cnitool".to_owned()))?;
    let root = workspace::scratch("runtimes")?.join(wanted.folder);
    let (program, stamp) = (root.join(CNITOOL), root.with_extension("from"));
    let text = || fs::read_to_string(&stamp).ok().filter(|text| text.starts_with(&layout()));
    let plan = match text() {
        Some(plan) if program.is_file() => plan,
        _ => {
            if let (_, Some(error)) = wanted.fetch(&root, log)? {
                return Err(error);
            }
            text().unwrap_or_default()
        }
    };
    let version = version(&plan, CNI_LIBRARY).unwrap_or("of an unknown version");
    Ok((program, format!("cnitool {version} (Debian {})", wanted.suite)))
}

impl Wanted {
    /// Returns what there is, for people, and why cnitool is not.
    fn fetch(&self, root: &Path, log: &Log) -> Result<(String, Option<Error>)> {
        let stamp = root.with_extension("from");
        let there = fs::read_to_string(&stamp).ok();
        let apt =
            if self.suite == EXPERIMENTAL { AptRoot::open_experimental() } else { AptRoot::open(self.suite) };
        let planned = apt.and_then(|apt| Ok((apt.plan(&self.packages())?, apt)));
        let (plan, apt) = match (planned, there) {
            (Ok((plan, apt)), there) => {
                let text = text_of(&plan);
                if there.as_deref() == Some(&*text) {
                    return Ok((self.versions(&text), None));
                }
                (text, apt)
            }
            // Without a network, the folder that was fetched before remains in use.
            (Err(_), Some(there)) if there.starts_with(&layout()) => {
                return Ok((self.versions(&there), None));
            }
            (Err(e), _) => return Err(e),
        };
        let fresh = root.with_extension("new");
        workspace::remove(&fresh)?;
        apt_root::merged_usr(&fresh)?;
        apt.fetch_all(&self.packages(), &fresh)?;
        let source = self.cnitool.then(|| apt.fetch_source(CNI_SOURCE)).transpose();
        let built =
            source.and_then(|source| source.map_or(Ok(()), |source| build_cnitool(&source, &fresh, log)));
        // The old folder is removed only now, because it remains in use if there is no network.
        for old in [&stamp, root] {
            workspace::remove(old)?;
        }
        files::rename(&fresh, root)?;
        let versions = self.versions(&plan);
        if let Err(e) = built {
            // There is no stamp yet, so the next run tries again.
            return Ok((versions, Some(e)));
        }
        files::write(&stamp, &plan)?;
        Ok((versions, None))
    }

    fn packages(&self) -> Vec<&'static str> {
        let go: &[&str] = if self.cnitool { &GO } else { &[] };
        let podman: &[&str] = if self.netavark { &PODMAN } else { &[] };
        [self.runtimes, podman, &COMMON, go].concat()
    }

    /// `podman 4.3.1, containerd 1.6.20, cnitool 1.1.2 (bookworm)`
    fn versions(&self, plan: &str) -> String {
        let names = [
            ("podman", "podman"),
            ("netavark", "netavark"),
            ("containerd", "containerd"),
            ("runc", "runc"),
            ("docker.io", "docker"),
            ("firewalld", "firewalld"),
            ("libvirt-daemon", "libvirt"),
            (CNI_LIBRARY, "cnitool"),
        ];
        let known =
            names.iter().filter_map(|(package, name)| Some(format!("{name} {}", version(plan, package)?)));
        format!("{} ({})", known.collect::<Vec<_>>().join(", "), self.suite)
    }
}

/// The version of a package in a plan, without what Debian adds.
fn version<'a>(plan: &'a str, package: &str) -> Option<&'a str> {
    let line = plan.lines().find_map(|line| line.strip_prefix(package)?.strip_prefix(' '))?;
    line.split(['~', '+', '-']).next()
}

fn layout() -> String {
    format!("layout {LAYOUT}\n")
}

/// The system that our container file begins with, as a folder next to those of the suites.
fn image(dir: &Path, log: &Log) -> Result<()> {
    link(&dir.join("image"), &debian_root::minimal(IMAGE_SUITE, log)?)
}

/// Prometheus and its tool, which has a package of its own since Debian 13.
fn prometheus(dir: &Path) -> Result<()> {
    let apt = AptRoot::open(IMAGE_SUITE)?;
    ["prometheus", "promtool"]
        .into_iter()
        .try_for_each(|package| link(&dir.join(package), &apt.fetch(package)?))
}

/// Builds the newest netavark from its crate, as `netavark-VERSION/bin/netavark`, with Debian's compiler of protocol buffers.
fn netavark(dir: &Path, log: &Log) -> Result<()> {
    let root = dir.join(NETAVARK_FOLDER);
    let stamp = root.with_extension("from");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == NETAVARK_VERSION) {
        return Ok(());
    }
    let fresh = root.with_extension("new");
    let protoc = dir.join("protoc");
    for old in [&fresh, &protoc] {
        workspace::remove(old)?;
    }
    AptRoot::open(PROTOC_SUITE)?
        .fetch_only(&["protobuf-compiler", "libprotoc32", "libprotobuf32"], &protoc)?;
    let mut cargo = tool("cargo", &["install", "--locked", "--quiet", "--no-track", NETAVARK]);
    cargo.args(["--bin", NETAVARK, "--version", NETAVARK_VERSION, "--root"]).arg(&fresh);
    // As on the builder's own system: without the workspace's settings.
    cargo.current_dir(dir).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo.env("CARGO_TARGET_DIR", dir.join("netavark-target")).env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    let libraries = protoc.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    // The protocol buffers' own includes are not fetched: netavark uses none, and with any its own is not found.
    cargo.env("PROTOC", protoc.join("usr/bin/protoc")).env("LD_LIBRARY_PATH", libraries);
    run::log(&mut cargo, &log.file)?;
    workspace::remove(&root)?;
    files::rename(&fresh, &root)?;
    files::write(&stamp, NETAVARK_VERSION)
}

/// The folder of that netavark.
const NETAVARK_FOLDER: &str = "netavark";

fn link(path: &Path, to: &Path) -> Result<()> {
    workspace::remove(path)?;
    symlink(to, path).map_err(|e| Error::file("link", path, e))
}

/// The text that changes when a root must be made again.
fn text_of(plan: &[(String, String)]) -> String {
    layout() + &plan.iter().map(|(name, version)| format!("{name} {version}\n")).collect::<String>()
}

/// Builds cnitool with the suite's Go, inside the suite's root and without a network: all that it needs is
/// in the source and in the library's dependencies.
fn build_cnitool(source: &Path, root: &Path, log: &Log) -> Result<()> {
    let unpacked = root.join(GO_PATH).join("src").join(CNI_IMPORT);
    let cache = root.join("tmp/go");
    for dir in [&*unpacked, &*cache, &root.join("dev")] {
        files::create_dir(dir)?;
    }
    null_device(&root.join("dev/null"))?;
    let mut tar = tool("tar", &["--extract", "--strip-components=1", "--file"]);
    run::capture(tar.arg(source).arg("--directory").arg(&unpacked))?;
    let mut go = Command::new(run::which("unshare").unwrap_or_else(|| PathBuf::from("unshare")));
    go.env_clear().arg("--net").arg(format!("--root={}", root.display()));
    go.args(["/usr/lib/go/bin/go", "build", "-trimpath", "-o"]).arg(Path::new("/").join(CNITOOL));
    go.arg(format!("{CNI_IMPORT}/cnitool"));
    go.env("GOPATH", format!("/{GO_PATH}:/usr/share/gocode")).env("GO111MODULE", "off");
    go.env("GOROOT", "/usr/lib/go").env("GOTELEMETRY", "off").env("CGO_ENABLED", "0");
    go.env("GOCACHE", "/tmp/go").env("HOME", "/tmp").env("PATH", "/usr/bin:/bin");
    run::log(&mut go, &log.file)?;
    workspace::remove(&cache)
}

/// `/dev/null`: Documentation/admin-guide/devices.txt of the kernel.
pub fn null_device(path: &Path) -> Result<()> {
    if fs::metadata(path).is_ok_and(|meta| meta.file_type().is_char_device()) {
        return Ok(());
    }
    let mode = Mode::from_bits_truncate(0o666);
    mknod(path, SFlag::S_IFCHR, mode, makedev(1, 3)).map_err(|e| Error::file("make the device", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_printed_without_debians_part() {
        let plan = [
            ("containerd", "1.6.20~ds1-1+deb12u3"),
            (CNI_LIBRARY, "1.1.2-1"),
            ("podman", "4.3.1+ds1-8+deb12u1+b3"),
            ("podman-docker", "5.0"),
        ];
        let plan = text_of(&plan.map(|(name, version)| (name.to_owned(), version.to_owned())));
        assert_eq!(WANTED[0].versions(&plan), "podman 4.3.1, containerd 1.6.20, cnitool 1.1.2 (bookworm)");
        let plan = text_of(&[
            ("netavark".to_owned(), "1.14.0-2".to_owned()),
            ("podman".to_owned(), "5.4.2+ds1-2+b2".to_owned()),
        ]);
        assert_eq!(WANTED[1].versions(&plan), "podman 5.4.2, netavark 1.14.0 (trixie)");
        let plan = text_of(&[("docker.io".to_owned(), "26.1.5+dfsg1-9+b1".to_owned())]);
        assert_eq!(WANTED[3].versions(&plan), "docker 26.1.5 (trixie)");
        assert!(WANTED[1].packages().contains(&"netavark") && !WANTED[0].packages().contains(&"netavark"));
    }

    #[test]
    fn only_tests_of_missing_runtimes_may_be_skipped() {
        let missing = vec![("of Debian unstable".to_owned(), Error::Failed("no network".to_owned()))];
        let runtimes = Runtimes { missing, ..Runtimes::default() };
        assert!(
            runtimes.explains("containerd::unstable::status: skipped: needs containerd of Debian unstable")
        );
        assert!(!runtimes.explains("podman::a_reboot: skipped: needs podman of Debian bookworm"));
        assert!(!runtimes.explains("x::y: skipped: needs vrf"));
    }
}
