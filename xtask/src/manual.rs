// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask manual`: writes the manual pages and completions of `slipway` and `slipwayd`, for packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::Flavour;
use xtask_base::error::Result;
use xtask_base::run;

/// Write the manual pages and completions of `slipway` and `slipwayd`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The share directory: pages go to `man/man8` in it
    #[arg(long, value_name = "DIR", default_value = "target/manual")]
    to: PathBuf,
}

/// Builds the programs, which write the files from their own tables of commands.
pub fn run(args: &Args) -> Result<()> {
    let flavour = Flavour::Debug;
    run::show(&mut flavour.cargo_build()?)?;
    run::show(&mut flavour.cargo_build_agent()?)?;
    for program in [flavour.binary(), flavour.agent()] {
        run::show(&mut write(&program, &args.to))?;
    }
    Ok(())
}

/// The call of a program that writes its files.
pub fn write(program: &Path, share: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("manual").arg(share);
    command
}

/// The call of a program that removes its files.
pub fn remove(program: &Path, share: &Path) -> Command {
    let mut command = write(program, share);
    command.arg("--remove");
    command
}
