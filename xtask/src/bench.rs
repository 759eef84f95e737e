// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask bench`: runs the benchmarks, which are a crate of their own: they alone need a plotting
//! library.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use crate::error::{Error, Result};
use crate::run;

/// Measure against other plugin sets.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The benchmark and its options; `--help` explains them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Builds the benchmarks and becomes them.
///
/// # Errors
/// Cargo cannot be started.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut command = run::cargo(&["run", "--quiet", "--package", "xtask-bench", "--"]);
    command.args(&args.arguments);
    Err(Error::system(run::line(&command), command.exec()))
}
