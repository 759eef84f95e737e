// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask manual`: writes the manual pages and completions of `slipway`, for packages.

use std::path::PathBuf;
use std::process::Command;

use crate::build::Flavour;
use crate::error::Result;
use crate::run;

/// Write the manual pages and completions of `slipway`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The share directory: pages go to `man/man8` in it
    #[arg(long, value_name = "DIR", default_value = "target/manual")]
    to: PathBuf,
}

/// Builds the binary, which writes the files from its own table of commands.
///
/// # Errors
/// The build failed, or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    run::show(&mut Flavour::Debug.cargo_build()?)?;
    run::show(Command::new(Flavour::Debug.binary()).arg("manual").arg(&args.to))
}
