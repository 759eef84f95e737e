// SPDX-License-Identifier: GPL-2.0-or-later

//! Command lines described by tables.
//!
//! A [`Program`] has [`Command`]s. The reader of arguments ([`parse`]), help, manual pages and completions are
//! made from the same description.

#[cfg(any(test, feature = "checks"))]
pub mod checks;
pub mod columns;
mod completions;
mod execute;
mod help;
pub mod json;
mod manual;
mod own;
mod read;
mod share;
mod table;
#[cfg(test)]
mod tests;

pub use execute::{Code, execute, exit_code, run};
pub use own::{completions, help, manual, version};
pub use read::{Failure, Given, Stop, USAGE_ERROR, by_table, did_you_mean, parse};
pub use share::{Plan as SharePlan, ShareError};
pub use table::{Argument, Command, Need, OUTPUT, Opt, Program, Reader, Value};
