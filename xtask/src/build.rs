// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask build`.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ebpf;
use crate::setup;
use crate::setup::{static_libmnl, static_libnftnl};
use xtask_base::error::{Error, Result};
use xtask_base::run;
use xtask_base::workspace;

/// Build slipway and slipwayd.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Optimized for size and speed, as it is installed
    #[arg(long)]
    release: bool,
    /// Without any shared library, for nodes that lack libnftnl and libmnl (implies --release)
    #[arg(long = "static")]
    static_: bool,
}

/// A way to build the binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// Quick, with line numbers in backtraces.
    Debug,
    /// As installed, with the machine's shared libraries.
    Release,
    /// As installed, without shared libraries.
    Static,
}

/// Compiler flags for a binary without shared libraries and loader.
pub const STATIC_FLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// Runs the task.
pub fn run(args: &Args) -> Result<()> {
    let flavour = match args {
        Args { static_: true, .. } => Flavour::Static,
        Args { release: true, .. } => Flavour::Release,
        _ => Flavour::Debug,
    };
    setup::ensure()?;
    let programs = ebpf::if_possible(run::show)?;
    println!("BPF programs: {}", programs.summary());
    run::show(&mut flavour.cargo_build()?)?;
    run::show(&mut flavour.cargo_build_agent()?)?;
    for binary in [flavour.binary(), flavour.agent()] {
        println!("{} ({})", binary.display(), size(&binary)?);
    }
    if let Some(left_out) = programs.left_out() {
        println!("{left_out}");
    }
    Ok(())
}

impl Flavour {
    /// The cargo command that builds the binary.
    pub(crate) fn cargo_build(self) -> Result<Command> {
        match self {
            Self::Debug => Ok(run::cargo(&["build", "--package", "slipway"])),
            Self::Release => Ok(run::cargo(&["build", "--package", "slipway", "--release"])),
            Self::Static => static_build(&["slipway"], Profile::Release),
        }
    }

    /// The cargo command that builds `slipwayd`. In one build with `slipway`, the features of its dependencies would
    /// be those of `slipway`, too.
    pub(crate) fn cargo_build_agent(self) -> Result<Command> {
        match self {
            Self::Debug => Ok(run::cargo(&["build", "--package", "slipwayd"])),
            Self::Release => Ok(run::cargo(&["build", "--package", "slipwayd", "--release"])),
            Self::Static => static_build(&["slipwayd"], Profile::Release),
        }
    }

    /// The path at which that command puts it.
    pub fn agent(self) -> PathBuf {
        self.binary().with_file_name("slipwayd")
    }

    /// The cargo command that builds the runtime library's example `calls`, which the benchmarks measure.
    pub(crate) fn cargo_build_calls(self) -> Result<Command> {
        let mut command = match self {
            Self::Debug => run::cargo(&["build", "--package", "cni-runtime"]),
            Self::Release => run::cargo(&["build", "--package", "cni-runtime", "--release"]),
            Self::Static => static_build(&["cni-runtime"], Profile::Release)?,
        };
        command.args(["--features", "pods", "--example", "calls"]);
        Ok(command)
    }

    /// The path at which that command puts it.
    pub fn calls(self) -> PathBuf {
        self.binary().with_file_name("examples").join("calls")
    }

    /// The path of `slipway`.
    pub fn binary(self) -> PathBuf {
        let dir = match self {
            Self::Debug => workspace::target().join("debug"),
            Self::Release => workspace::target().join("release"),
            Self::Static => workspace::target().join(static_target()).join("release"),
        };
        dir.join("slipway")
    }
}

/// The optimization of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// As it is installed.
    Release,
    /// Less optimized, and built in a fraction of the time.
    Quick,
}

impl Profile {
    /// The name for `--profile`, and of the folder below the target folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Quick => "quick",
        }
    }
}

/// The cargo command that builds packages without shared libraries.
pub fn static_build(packages: &[&str], profile: Profile) -> Result<Command> {
    let mut command = run::cargo(&["build", "--profile", profile.name()]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    // With a named target, the flags do not apply to build scripts and procedural macros, which cannot be
    // static.
    command.args(["--target", &static_target()]);
    command.env("RUSTFLAGS", STATIC_FLAGS);
    let own = workspace::scratch("static-libs")?;
    with_libraries(&mut command, &static_libmnl()?, &static_libnftnl()?, &own)?;
    Ok(command)
}

/// Makes a build link the static libmnl and libnftnl of these folders. They are copied to the folder `own`,
/// which holds nothing else: the linker prefers a shared library in the same folder.
pub fn with_libraries(command: &mut Command, libmnl: &Path, libnftnl: &Path, own: &Path) -> Result<()> {
    for (name, dir, key) in
        [("libmnl.a", libmnl, "LIBMNL_LIB_DIR"), ("libnftnl.a", libnftnl, "LIBNFTNL_LIB_DIR")]
    {
        let (from, to) = (dir.join(name), own.join(name));
        fs::copy(&from, &to).map_err(|e| Error::file("copy", &from, e))?;
        command.env(key, own);
    }
    Ok(())
}

/// The target's name where cargo wants one.
pub fn static_target() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}

/// A file's size for people, in MB (10^6 bytes).
pub fn size(path: &Path) -> Result<String> {
    let bytes = fs::metadata(path).map_err(|e| Error::file("read the size of", path, e))?.len();
    Ok(format!("{}.{:02} MB", bytes / 1_000_000, bytes % 1_000_000 / 10_000))
}
