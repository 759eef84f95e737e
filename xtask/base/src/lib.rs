// SPDX-License-Identifier: MIT OR Apache-2.0

//! The parts that every task needs: starting programs, a line per stage, paths in the checkout, packages of Debian that
//! are unpacked below the target folder.
//!
//! Every task waits until this crate is compiled, so it has few dependencies.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "programs for the terminal")]

pub mod apt_root;
pub mod checkout;
pub mod error;
pub mod files;
pub mod progress;
pub mod run;
pub mod test_programs;
pub mod tools;
pub mod workspace;
