// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line of a crate with tasks.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use xtask_base::error::Result;

/// The tasks of a crate, of which the command line names one.
pub trait Tasks: clap::Subcommand {
    fn run(self) -> Result<()>;
}

/// Builds, tests, shows, measures and installs Slipway.
#[derive(clap::Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli<T: Tasks> {
    #[command(subcommand)]
    task: T,
}

/// The tasks with their options.
pub fn command<T: Tasks>() -> clap::Command {
    Cli::<T>::command()
}

/// Runs the task that the command line names, and prints its error under the name of the program.
pub fn main<T: Tasks>(program: &str) -> ExitCode {
    match Cli::<T>::parse().task.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{program}: {e}");
            ExitCode::FAILURE
        }
    }
}
