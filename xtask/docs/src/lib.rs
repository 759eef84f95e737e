// SPDX-License-Identifier: MIT OR Apache-2.0

//! The documentation: checks of its links and its statements, and the pages as a site.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod generated;
mod links;
mod site;
mod spelling;
mod statements;

use std::process::ExitCode;

use xtask::task::{self, Tasks};
use xtask_base::error::Result;

#[derive(Debug, clap::Subcommand)]
enum Task {
    /// Render the documentation as a site with search, which needs no server
    Docs(site::Args),
    /// Check the pages against the tree and the built programs
    #[command(hide = true)]
    Pages(statements::Args),
}

impl Tasks for Task {
    fn run(self) -> Result<()> {
        match self {
            Self::Docs(args) => site::run(&args),
            Self::Pages(args) => statements::run(&args),
        }
    }
}

pub fn command() -> clap::Command {
    task::command::<Task>()
}

pub fn main() -> ExitCode {
    task::main::<Task>("xtask")
}
