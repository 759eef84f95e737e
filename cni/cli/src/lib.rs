// SPDX-License-Identifier: GPL-2.0-or-later

//! The parts of the command lines of `slipway` and `slipwayd` that both share, on top of clap.
//!
//! A program derives its commands, and calls [`run`]:
//!
//! ```
//! use std::io::Write;
//!
//! use slipway_cli::{Failure, Output, Own};
//!
//! /// Lists things
//! #[derive(clap::Parser)]
//! #[command(name = "lister", version)]
//! struct Cli {
//!     #[command(subcommand)]
//!     command: Command,
//! }
//!
//! #[derive(clap::Subcommand)]
//! enum Command {
//!     List(ListArgs),
//!     /// The commands that each program has: completions, manual, version. `help` is clap's.
//!     #[command(flatten)]
//!     Own(Own),
//! }
//!
//! /// List the first things
//! ///
//! /// What is below the first paragraph is printed by `lister list --help` and in the manual page only.
//! #[derive(clap::Args)]
//! #[command(after_help = "Exit codes:\n  3  there are none\n\nExamples:\n  lister list --first 5 -o json")]
//! struct ListArgs {
//!     /// How many of them
//!     #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = slipway_cli::number(1..=9_u32))]
//!     first: u32,
//!     #[command(flatten)]
//!     output: Output,
//! }
//!
//! fn main() {
//!     let (mut out, mut err) = (Vec::new(), Vec::new());
//!     let args = ["list", "--first", "10"].map(str::to_owned);
//!     let code = slipway_cli::run::<Cli>(&args, &mut out, &mut err, |cli, out, _err| match cli.command {
//!         Command::List(args) if args.output.json() => Err(Failure::failed("no JSON yet")),
//!         Command::List(args) => Ok(writeln!(out, "{}", args.first).map(|()| 0)?),
//!         Command::Own(own) => own.run::<Cli>(out),
//!     });
//!     let line = "lister list: --first must be a number between 1 and 9, not \"10\" (see `lister list --help`)\n";
//!     assert_eq!((code, String::from_utf8(err).unwrap().as_str()), (2, line));
//! }
//! ```
//!
//! The name, default, range and help of an option are declared at the field that it fills; the bounds of a range have the
//! field's type. Arguments that cannot be used end the program with exit code 2 and one line on standard error, before
//! anything is done.

#[cfg(any(test, feature = "checks"))]
pub mod checks;
pub mod columns;
mod completions;
mod error;
pub mod json;
mod manual;
mod output;
mod own;
mod program;
mod share;
mod sibling;
#[cfg(test)]
mod tests;
mod visible;

pub use error::Failure;
pub use output::{Format, OutOfRange, Output, UnlessClosed, number};
pub use own::Own;
pub use program::{command, report, run, utf8};
pub use share::{Plan as SharePlan, ShareError};
pub use visible::Visible;
