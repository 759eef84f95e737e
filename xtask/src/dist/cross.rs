// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cross-compilation for aarch64 with Debian's packages, unpacked and not installed: a compiler with a
//! standard library for aarch64, a linker, static C libraries, and an emulator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt_root::AptRoot;
use crate::build;
use crate::error::{Error, Result};
use crate::run::{self, cargo};
use crate::workspace;

/// The target, as the compiler calls it.
pub(crate) const TRIPLE: &str = "aarch64-unknown-linux-gnu";

/// The suite of the compiler. The machine must be of the same one: the compiler runs with the machine's C
/// library.
const SUITE: &str = "bookworm";

/// `rustc-web` is the newer compiler that Debian keeps for building browsers in an older release.
const PACKAGES: [&str; 6] = [
    "rustc-web",
    "libstd-rust-web-dev:arm64",
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "libnftnl-dev:arm64",
    "qemu-user-static",
];

/// The suite with a static libmnl.
const LIBMNL_SUITE: &str = "trixie";

/// The unpacked packages.
#[derive(Debug)]
pub(crate) struct Cross {
    root: PathBuf,
    libmnl: PathBuf,
}

impl Cross {
    /// Fetches and unpacks the packages, once.
    ///
    /// # Errors
    /// The machine is of another suite, or a package cannot be fetched.
    pub(crate) fn fetch() -> Result<Self> {
        let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
        if !system.lines().any(|line| line == format!("VERSION_CODENAME={SUITE}")) {
            return Err(Error::Failed(format!("no compiler for {TRIPLE}: it needs Debian {SUITE}")));
        }
        let root = workspace::scratch("dist")?.join("cross");
        if !root.join("complete").is_file() {
            if root.exists() {
                fs::remove_dir_all(&root).map_err(|e| Error::file("remove", &root, e))?;
            }
            fs::create_dir_all(&root).map_err(|e| Error::file("create the directory", &root, e))?;
            let suites = [SUITE, &format!("{SUITE}-security")];
            AptRoot::open_foreign(&suites, "arm64")?.fetch_all(&PACKAGES, &root)?;
            let stamp = root.join("complete");
            fs::write(&stamp, "").map_err(|e| Error::file("write", &stamp, e))?;
        }
        let libmnl = AptRoot::open_foreign(&[LIBMNL_SUITE], "arm64")?.fetch("libmnl-dev:arm64")?;
        Ok(Self { root, libmnl: libmnl.join("usr/lib/aarch64-linux-gnu") })
    }

    /// A cargo command for the target.
    ///
    /// # Errors
    /// A static library is missing.
    pub(crate) fn cargo(&self, words: &[&str]) -> Result<Command> {
        let mut command = cargo(words);
        command.args(["--target", TRIPLE]);
        command.env("RUSTC", self.program("rustc"));
        for inherited in ["RUSTUP_TOOLCHAIN", "RUSTC_WRAPPER", "CARGO_ENCODED_RUSTFLAGS"] {
            command.env_remove(inherited);
        }
        // For the compiler's own shared libraries.
        command.env("LD_LIBRARY_PATH", self.libraries_here());
        command.env(variable("LINKER"), self.program("aarch64-linux-gnu-gcc"));
        command.env(variable("RUNNER"), self.emulator());
        command.env("RUSTFLAGS", build::STATIC_FLAGS);
        // Line numbers are big, and are stripped from what goes into VMs.
        command.env("CARGO_PROFILE_DEV_DEBUG", "none");
        let own = workspace::scratch("static-libs-aarch64")?;
        let libnftnl = self.root.join("usr/lib/aarch64-linux-gnu");
        build::with_libraries(&mut command, &self.libmnl, &libnftnl, &own)?;
        Ok(command)
    }

    /// The folders of the static libmnl and libnftnl, and the C library's header with its version.
    pub(crate) fn libraries(&self) -> (PathBuf, PathBuf, PathBuf) {
        let header = self.root.join("usr/aarch64-linux-gnu/include/features.h");
        (self.libmnl.clone(), self.root.join("usr/lib/aarch64-linux-gnu"), header)
    }

    /// The emulator, which runs programs of the target.
    pub(crate) fn emulator(&self) -> PathBuf {
        self.program("qemu-aarch64-static")
    }

    /// The compiler's version.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn version(&self) -> Result<String> {
        Ok(run::capture(self.tool("rustc").arg("--version"))?.trim().to_owned())
    }

    /// A program of the packages, with their shared libraries.
    pub(crate) fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(self.program(name));
        command.env("LD_LIBRARY_PATH", self.libraries_here());
        command
    }

    fn libraries_here(&self) -> PathBuf {
        self.root.join("usr/lib/x86_64-linux-gnu")
    }

    fn program(&self, name: &str) -> PathBuf {
        self.root.join(Path::new("usr/bin")).join(name)
    }
}

/// Cargo's name for a setting of the target.
fn variable(name: &str) -> String {
    format!("CARGO_TARGET_{}_{name}", TRIPLE.replace('-', "_").to_uppercase())
}
