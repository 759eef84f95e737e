//! `cargo xtask build`.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::setup::{static_libmnl, static_libnftnl};
use crate::{run, setup, workspace};

/// Build the slipway binary.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Optimized for size and speed, as it is installed
    #[arg(long)]
    release: bool,
    /// Without any shared library, for nodes that lack libnftnl and libmnl (implies --release)
    #[arg(long = "static")]
    static_: bool,
}

/// How the binary is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Quick to build, with line numbers in backtraces.
    Debug,
    /// As it is installed, with the machine's shared libraries.
    Release,
    /// As it is installed, without shared libraries.
    Static,
}

/// Runs the task.
///
/// # Errors
/// The build's own.
pub(crate) fn run(args: &Args) -> Result<()> {
    let flavour = match args {
        Args { static_: true, .. } => Flavour::Static,
        Args { release: true, .. } => Flavour::Release,
        _ => Flavour::Debug,
    };
    setup::ensure()?;
    run::show(&mut flavour.cargo_build()?)?;
    let binary = flavour.binary();
    println!("{} ({})", binary.display(), size(&binary)?);
    Ok(())
}

impl Flavour {
    /// The cargo command that builds the binary.
    ///
    /// # Errors
    /// The static libraries cannot be had.
    pub(crate) fn cargo_build(self) -> Result<Command> {
        let mut command = run::cargo(&["build", "--package", "slipway"]);
        if self != Self::Debug {
            command.arg("--release");
        }
        if self == Self::Static {
            // Naming the target keeps the flags from build scripts and procedural macros, which
            // cannot be static.
            command.args(["--target", &static_target()]);
            let flags = "-C target-feature=+crt-static -C relocation-model=static";
            command.env("RUSTFLAGS", flags);
            command.env("LIBMNL_LIB_DIR", only_static("libmnl", &static_libmnl()?)?);
            command.env("LIBNFTNL_LIB_DIR", only_static("libnftnl", &static_libnftnl()?)?);
        }
        Ok(command)
    }

    /// Where that command puts it.
    pub(crate) fn binary(self) -> PathBuf {
        let dir = match self {
            Self::Debug => workspace::target().join("debug"),
            Self::Release => workspace::target().join("release"),
            Self::Static => workspace::target().join(static_target()).join("release"),
        };
        dir.join("slipway")
    }
}

fn static_target() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}

/// A folder that holds the static library alone: the linker would take a shared one beside it.
fn only_static(name: &str, dir: &Path) -> Result<PathBuf> {
    let own = workspace::scratch("static-libs")?;
    let file = format!("{name}.a");
    let (from, to) = (dir.join(&file), own.join(&file));
    fs::copy(&from, &to).map_err(|e| Error::file("copy", &from, e))?;
    Ok(own)
}

/// A file's size for people, in MB (10^6 bytes).
///
/// # Errors
/// The file is not there.
pub(crate) fn size(path: &Path) -> Result<String> {
    let bytes = fs::metadata(path).map_err(|e| Error::file("look at", path, e))?.len();
    Ok(format!("{}.{:02} MB", bytes / 1_000_000, bytes % 1_000_000 / 10_000))
}
