// SPDX-License-Identifier: MIT OR Apache-2.0

//! The documentation: checks of its links and its statements, and the pages as a site.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod links;
mod site;
mod statements;

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
    /// Render the documentation as a site with search, which needs no server
    Docs(site::Args),
    /// Check the pages against the tree and the built programs
    #[command(hide = true)]
    Pages(statements::Args),
}

/// The tasks of this crate, with their options.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the task that the command line names.
pub fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Docs(args) => site::run(&args),
        Task::Pages(args) => statements::run(&args),
    };
    xtask_base::error::exit_code("xtask", result)
}
