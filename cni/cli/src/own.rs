// SPDX-License-Identifier: GPL-2.0-or-later

//! The commands that every program has.

use std::io::Write;
use std::path::PathBuf;

use clap::Parser;
use cni_state::documents::Version;

use crate::completions::{self, Shell};
use crate::error::Failure;
use crate::output::Output;
use crate::share::Plan;
use crate::{json as document, program};

/// Completions, manual pages and the version.
#[derive(Debug, clap::Subcommand)]
pub enum Own {
    /// Print the completions of a shell
    ///
    /// To be read by `source <(PROGRAM completions bash)`, for instance.
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write manual pages and completions below a directory, for a package
    #[command(hide = true)]
    Manual {
        /// The directory, such as /usr/share
        #[arg(value_name = "DIR")]
        share: PathBuf,
        /// Remove them from there
        #[arg(long)]
        remove: bool,
    },
    /// Print the version
    Version {
        #[command(flatten)]
        output: Output,
    },
}

impl Own {
    /// Runs the command of a program.
    ///
    /// # Errors
    /// A file or the output cannot be written.
    pub fn run<P: Parser>(self, out: &mut dyn Write) -> Result<u8, Failure> {
        let command = program::command::<P>();
        match self {
            Self::Completions { shell } => out.write_all(completions::script(shell, &command).as_bytes())?,
            Self::Manual { share, remove } => {
                let plan = match remove {
                    true => Plan::uninstall(&command, Some(&share)),
                    false => Plan::install(&command, Some(&share), None),
                };
                let plan = plan.map_err(Failure::failed)?;
                plan.apply().map_err(Failure::failed)?;
                plan.report(out)?;
            }
            Self::Version { output } => {
                let (name, version) = (command.get_name(), command.get_version().unwrap_or_default());
                match output.json() {
                    true => document::print(Version { version: version.to_owned() }, out)?,
                    false => writeln!(out, "{name} {version}")?,
                }
            }
        }
        Ok(0)
    }
}
