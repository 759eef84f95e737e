// SPDX-License-Identifier: MIT OR Apache-2.0

//! Everything that is shipped: the binaries, their packages for Debian and of rpm, a release with its list of parts, and the
//! licences of all that is in them.
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

use clap::{CommandFactory as _, Parser as _};

#[derive(Debug, clap::Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

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

/// The tasks of this crate, with their options.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the task that the command line names.
pub fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Dist(args) => binaries::run(&args),
        Task::Release(args) => release::run(&args),
        Task::Dependencies(args) => deny::run(&args),
        Task::Sources => sources(),
        Task::TestPackages => package::fixture::run(),
    };
    xtask_base::error::exit_code("xtask", result)
}

fn sources() -> xtask_base::error::Result<()> {
    let sources = licenses::check(xtask_base::workspace::root())?;
    let packages = packages::check()?.join(", ");
    println!("{sources} sources name their licence; {packages} can be published");
    Ok(())
}
