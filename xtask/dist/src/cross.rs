// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cross-compilation with Debian's packages, unpacked and not installed: a compiler with a standard library for
//! the target, a linker, static C libraries, and an emulator.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::build;
use xtask_base::apt_root::{AptRoot, debian_architecture};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, cargo};
use xtask_base::workspace;

/// The suite of the compiler. The machine must run the same suite, because the compiler uses the machine's C library.
const SUITE: &str = "bookworm";

/// The same with its security updates. `rustc-web`, the newer compiler that Debian keeps for building browsers in an
/// older release, comes with them.
pub const SUITES: [&str; 2] = [SUITE, "bookworm-security"];

/// The release after it.
const NEXT_SUITES: [&str; 1] = ["trixie"];

/// A processor that binaries are built for with fetched packages.
#[derive(Debug)]
pub(crate) struct Processor {
    /// As `--target` and QEMU call it.
    pub(super) name: &'static str,
    /// The target, as the compiler calls it.
    pub(super) triple: &'static str,
    /// Debian's architecture.
    pub(super) debian: &'static str,
    /// The beginning of the names of its linker and of its libraries' folder.
    gnu: &'static str,
    /// The libraries for the processor, each with its suites and its package. Debian 12 has no static libmnl.
    libraries: [(&'static [&'static str], &'static str); 3],
}

/// The processors that are not this machine's.
pub(crate) const PROCESSORS: [Processor; 2] = [
    Processor {
        name: "aarch64",
        triple: "aarch64-unknown-linux-gnu",
        debian: "arm64",
        gnu: "aarch64-linux-gnu",
        libraries: [
            (&SUITES, "libstd-rust-web-dev"),
            (&SUITES, "libnftnl-dev"),
            (&NEXT_SUITES, "libmnl-dev"),
        ],
    },
    // Debian 12 has a cross compiler for riscv64, but no such architecture. The standard library of the next release
    // fits while both have one version of the compiler; if not, rustc refuses it.
    Processor {
        name: "riscv64",
        triple: "riscv64gc-unknown-linux-gnu",
        debian: "riscv64",
        gnu: "riscv64-linux-gnu",
        libraries: [
            (&NEXT_SUITES, "libstd-rust-web-dev"),
            (&NEXT_SUITES, "libnftnl-dev"),
            (&NEXT_SUITES, "libmnl-dev"),
        ],
    },
];

/// The unpacked packages.
#[derive(Debug)]
pub struct Cross {
    processor: &'static Processor,
    root: PathBuf,
}

impl Cross {
    /// Fetches and unpacks the packages, once.
    pub(crate) fn fetch(processor: &'static Processor) -> Result<Self> {
        let Processor { name, triple, debian, gnu, libraries } = processor;
        let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
        if ARCH != "x86_64" || !system.lines().any(|line| line == format!("VERSION_CODENAME={SUITE}")) {
            return Err(Error::Failed(format!(
                "no compiler for {triple}: it needs Debian {SUITE} on x86-64"
            )));
        }
        let root = workspace::scratch("dist")?.join(format!("cross-{name}"));
        if !root.join("complete").is_file() {
            workspace::remove(&root)?;
            files::create_dir(&root)?;
            let linker = format!("gcc-{gnu}");
            let libc = format!("libc6-dev-{debian}-cross");
            let programs = ["rustc-web", &linker, &libc, "qemu-user-static"];
            AptRoot::open_of(&SUITES, debian_architecture())?.fetch_all(&programs, &root)?;
            for (suites, package) in libraries {
                AptRoot::open_of(suites, debian)?.fetch_only(&[package], &root)?;
            }
            let stamp = root.join("complete");
            files::write(&stamp, "")?;
        }
        Ok(Self { processor, root })
    }

    /// The target, as the compiler calls it.
    pub(crate) fn triple(&self) -> &'static str {
        self.processor.triple
    }

    /// A cargo command for the target.
    pub(crate) fn cargo(&self, words: &[&str]) -> Result<Command> {
        let mut command = cargo(words);
        command.args(["--target", self.triple()]);
        command.env("RUSTC", self.program("rustc"));
        for inherited in ["RUSTUP_TOOLCHAIN", "RUSTC_WRAPPER", "CARGO_ENCODED_RUSTFLAGS"] {
            command.env_remove(inherited);
        }
        // For the compiler's own shared libraries.
        command.env("LD_LIBRARY_PATH", self.libraries_here());
        command.env(self.variable("LINKER"), self.program(&format!("{}-gcc", self.processor.gnu)));
        command.env(self.variable("RUNNER"), self.emulator());
        command.env("RUSTFLAGS", build::STATIC_FLAGS);
        // Line numbers are big, and are stripped from what goes into VMs.
        command.env("CARGO_PROFILE_DEV_DEBUG", "none");
        let own = workspace::scratch(&format!("static-libs-{}", self.processor.name))?;
        let libraries = self.libraries();
        build::with_libraries(&mut command, &libraries, &libraries, &own)?;
        Ok(command)
    }

    /// The folder of the static libmnl and libnftnl.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.root.join("usr/lib").join(self.processor.gnu)
    }

    /// The C library's header with its version.
    pub(crate) fn features(&self) -> PathBuf {
        self.root.join("usr").join(self.processor.gnu).join("include/features.h")
    }

    /// The emulator, which runs programs of the target.
    pub(crate) fn emulator(&self) -> PathBuf {
        self.program(&format!("qemu-{}-static", self.processor.name))
    }

    /// strip(1) for programs of the target.
    pub(crate) fn strip(&self) -> Command {
        self.tool(&format!("{}-strip", self.processor.gnu))
    }

    pub(crate) fn version(&self) -> Result<String> {
        Ok(run::capture(self.tool("rustc").arg("--version"))?.trim().to_owned())
    }

    /// A program of the packages, with their shared libraries.
    fn tool(&self, name: &str) -> Command {
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

    /// Cargo's name for a setting of the target.
    fn variable(&self, name: &str) -> String {
        format!("CARGO_TARGET_{}_{name}", self.triple().replace('-', "_").to_uppercase())
    }
}

impl Processor {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        PROCESSORS.iter().find(|processor| processor.name == name)
    }
}
