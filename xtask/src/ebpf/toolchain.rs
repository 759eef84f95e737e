// SPDX-License-Identifier: MIT OR Apache-2.0

//! The compiler for BPF.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Uid;
use sha2::{Digest, Sha256};

use super::TARGET;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, cargo, tool};

/// Debian's compiler and its core library for BPF.
const PACKAGES: [&str; 2] = ["rustc-web", "libstd-rust-web-dev-bpf"];
/// The path of that compiler: rustup's comes first in `PATH`.
const PACKAGED: &str = "/usr/bin/rustc";

/// A compiler that can build for BPF.
#[derive(Debug)]
pub(super) struct Toolchain {
    kind: Kind,
    /// The output of `rustc -vV`.
    about: String,
    /// The root of its libraries.
    sysroot: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Debian's, with a core library for BPF.
    Packaged,
    /// rustup's `nightly`, which builds the core library from its sources.
    Nightly,
}

impl Toolchain {
    /// The installed one.
    pub(super) fn find() -> Option<Self> {
        Self::packaged().or_else(Self::nightly)
    }

    /// The installed one, or one that it installs.
    ///
    /// # Errors
    /// None can be installed; the message explains how to install one.
    pub(super) fn require(execute: &impl Fn(&mut Command) -> Result<()>) -> Result<Self> {
        if let Some(toolchain) = Self::find() {
            return Ok(toolchain);
        }
        let reason = install(execute).err().map_or_else(String::new, |e| format!(": {e}"));
        Self::find().ok_or_else(|| {
            Error::Failed(format!(
                "no compiler for BPF{reason}\nEither of these gives one:\n\n    apt-get install \
                 --no-install-recommends {}\n    rustup toolchain install nightly --profile minimal \
                 --component rust-src\n",
                PACKAGES.join(" ")
            ))
        })
    }

    fn packaged() -> Option<Self> {
        if !Path::new(PACKAGED).is_file() {
            return None;
        }
        let printed = |words: &[&str]| run::capture(clean(&mut tool(PACKAGED, words))).ok();
        let core = printed(&["--print", "target-libdir", "--target", TARGET])?;
        let libraries = fs::read_dir(core.trim()).ok()?;
        let has_core = libraries
            .filter_map(std::result::Result::ok)
            .any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"));
        let (about, sysroot) = (printed(&["-vV"])?, printed(&["--print", "sysroot"])?);
        has_core.then(|| Self { kind: Kind::Packaged, about, sysroot: PathBuf::from(sysroot.trim()) })
    }

    fn nightly() -> Option<Self> {
        let printed = |words: &[&str]| {
            let words = [&["run", "nightly", "rustc"][..], words].concat();
            run::capture(clean(&mut tool("rustup", &words))).ok()
        };
        let sysroot = PathBuf::from(printed(&["--print", "sysroot"])?.trim());
        let has_sources = sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file();
        let about = printed(&["-vV"])?;
        has_sources.then_some(Self { kind: Kind::Nightly, about, sysroot })
    }

    /// A cargo command that builds with it.
    pub(super) fn cargo(&self, words: &[&str]) -> Command {
        let mut command = match self.kind {
            Kind::Packaged => {
                let mut command = cargo(words);
                // A released compiler accepts the core library's unstable attributes only with this.
                command.env("RUSTC", PACKAGED).env("RUSTC_BOOTSTRAP", "1");
                command
            }
            Kind::Nightly => {
                let mut command = tool("rustup", &["run", "nightly", "cargo"]);
                command.args(words).args(["-Z", "build-std=core"]);
                command.env("LD_LIBRARY_PATH", self.sysroot.join("lib"));
                command
            }
        };
        if self.kind == Kind::Nightly {
            command.env_remove("RUSTC");
        }
        for name in [
            "RUSTFLAGS",
            "RUSTUP_TOOLCHAIN",
            "RUSTC_WRAPPER",
            "RUSTC_WORKSPACE_WRAPPER",
            "CARGO_BUILD_TARGET",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// `22`, of `LLVM version: 22.1.8`.
    pub(super) fn llvm_major(&self) -> Result<String> {
        let version = self.about.lines().find_map(|line| line.strip_prefix("LLVM version: "));
        let major = version.and_then(|version| version.split('.').next()).map(str::to_owned);
        major.ok_or_else(|| Error::Failed(format!("{self} prints no LLVM version")))
    }

    /// The LLVM library that the compiler itself uses.
    pub(super) fn libllvm(&self) -> Result<PathBuf> {
        let prefix = format!("libLLVM.so.{}", self.llvm_major()?);
        let lib = self.sysroot.join("lib");
        let multiarch = fs::read_dir(&lib).into_iter().flatten().filter_map(std::result::Result::ok);
        let folders = multiarch.map(|entry| entry.path()).filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().ends_with("-linux-gnu"))
        });
        std::iter::once(lib.clone())
            .chain(folders)
            .filter_map(|folder| fs::read_dir(folder).ok())
            .flat_map(|entries| entries.filter_map(std::result::Result::ok))
            .map(|entry| entry.path())
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
            .ok_or_else(|| Error::Failed(format!("no {prefix} below {}", lib.display())))
    }

    /// The versions that decide about the bytes of an object, with that of the linker.
    pub(super) fn identity(&self, linker: &str) -> String {
        let rustc = self.about.lines().next().unwrap_or("rustc");
        let llvm = self.about.lines().find(|line| line.starts_with("LLVM version: ")).unwrap_or_default();
        let kind = match self.kind {
            Kind::Packaged => "Debian's rustc-web",
            Kind::Nightly => "rustup, with -Z build-std",
        };
        let llvm = llvm.replace(" version:", "");
        format!("{rustc} of {kind} ({llvm}), bpf-linker {linker}")
    }

    /// The cache's key of an object that this compiler and the later steps, given by their versions, build from
    /// these sources.
    pub(super) fn key(&self, sources: &str, [linker, slim]: [&str; 2]) -> String {
        let mut hash = Sha256::new();
        for part in [sources, &self.about, linker, slim] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.about.lines().next().unwrap_or("rustc").split(" (").next().unwrap_or("rustc");
        match self.kind {
            Kind::Packaged => write!(f, "{version} of Debian's rustc-web ({PACKAGED})"),
            Kind::Nightly => write!(f, "{version} of rustup, with -Z build-std"),
        }
    }
}

/// Removes what the cargo that runs this task has put into the environment.
fn clean(command: &mut Command) -> &mut Command {
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTFLAGS")
}

fn install(execute: &impl Fn(&mut Command) -> Result<()>) -> Result<()> {
    let has_packages = || {
        let known = run::capture(tool("apt-cache", &["policy"]).args(PACKAGES)).unwrap_or_default();
        known.lines().filter(|line| line.starts_with("  Candidate: ") && !line.ends_with("(none)")).count()
            == PACKAGES.len()
    };
    if run::which("apt-get").is_some() && Uid::effective().is_root() {
        if !has_packages() {
            execute(&mut tool("apt-get", &["-q", "update"]))?;
        }
        if has_packages() {
            let mut command = tool("apt-get", &["-q", "install", "-y", "--no-install-recommends"]);
            let installed = execute(command.args(PACKAGES).env("DEBIAN_FRONTEND", "noninteractive"));
            // The core library for BPF of an older suite may be of no use.
            if installed.is_ok() && Toolchain::packaged().is_some() {
                return Ok(());
            }
        }
    }
    if run::which("rustup").is_none() {
        return Err(Error::Failed("neither apt-get (as root) nor rustup can install one".to_owned()));
    }
    let words = ["toolchain", "install", "nightly", "--profile", "minimal", "--component", "rust-src"];
    execute(clean(&mut tool("rustup", &words)))
}
