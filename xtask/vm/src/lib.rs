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

use clap::{CommandFactory as _, Parser as _};

#[derive(Debug, clap::Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

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

/// The tasks of this crate, with their options.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the task that the command line names.
pub fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::VmTest(args) => suites::run(&args),
        Task::Smoke(args) => suites::smoke(&args),
        Task::Marked => kernels::print_marked(),
        Task::Stale => report::print_stale(),
    };
    xtask_base::error::exit_code("xtask", result)
}
