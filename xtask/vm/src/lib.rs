// SPDX-License-Identifier: MIT OR Apache-2.0

//! The test suites on other kernels, in virtual machines.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod arch;
mod cpio;
mod disk;
mod fetch;
mod image;
mod kernels;
mod outcome;
mod parts;
mod programs;
mod qemu;
mod record;
mod report;
mod suites;
mod system;

use std::process::ExitCode;

use xtask::task::{self, Tasks};
use xtask_base::error::Result;

#[derive(Debug, clap::Subcommand)]
enum Task {
    /// Run the test suites on other kernels, in virtual machines
    VmTest(suites::Args),
    /// The part of `cargo xtask test`: the kernels and suites that the list marks for every run
    #[command(hide = true)]
    Smoke(suites::SmokeArgs),
    /// Print which kernels `cargo xtask test --full` adds
    #[command(hide = true)]
    Marked,
    /// Print the kernels whose results are of an older product; fails if there is one
    #[command(hide = true)]
    Stale,
}

impl Tasks for Task {
    fn run(self) -> Result<()> {
        match self {
            Self::VmTest(args) => suites::run(&args),
            Self::Smoke(args) => suites::smoke(&args),
            Self::Marked => kernels::print_marked(),
            Self::Stale => report::print_stale(),
        }
    }
}

/// The tasks of this crate, with their options.
pub fn command() -> clap::Command {
    task::command::<Task>()
}

/// Runs the task that the command line names.
pub fn main() -> ExitCode {
    task::main::<Task>("xtask")
}
