// SPDX-License-Identifier: MIT OR Apache-2.0

//! Everything that is shipped: the binaries, their packages for Debian and rpm, a release with its bill of materials, and
//! the licences of all that is in them.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod binaries;
mod built;
mod crates;
mod cross;
mod deny;
mod licenses;
mod package;
mod packages;
mod release;
mod toolchain;

pub use cross::SUITES;
pub use toolchain::Toolchain;

use std::process::ExitCode;

use xtask::task::{self, Tasks};
use xtask_base::error::Result;

#[derive(Debug, clap::Subcommand)]
enum Task {
    /// Build the binary that is shipped and check its properties
    Dist(binaries::Args),
    /// Build and check what is published for a version; tagging and signing are left to the releaser
    Release(release::Args),
    /// Check the dependencies against deny.toml
    #[command(hide = true)]
    Dependencies(deny::Args),
    /// Check the licences of the sources, and the packages that crates.io gets
    #[command(hide = true)]
    Sources,
    /// Make the packages of the tests, each in two versions
    #[command(hide = true)]
    TestPackages,
}

impl Tasks for Task {
    fn run(self) -> Result<()> {
        match self {
            Self::Dist(args) => binaries::run(&args),
            Self::Release(args) => release::run(&args),
            Self::Dependencies(args) => deny::run(&args),
            Self::Sources => sources(),
            Self::TestPackages => package::fixture::run(),
        }
    }
}

pub fn command() -> clap::Command {
    task::command::<Task>()
}

pub fn main() -> ExitCode {
    task::main::<Task>("xtask")
}

fn sources() -> Result<()> {
    let sources = licenses::check(xtask_base::workspace::root())?;
    let packages = packages::check()?.join(", ");
    println!("{sources} sources name their licence; {packages} can be published");
    Ok(())
}
