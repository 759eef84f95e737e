// SPDX-License-Identifier: GPL-3.0-or-later

//! The parsers of bytes that other programs, other hosts or the kernel write, each as a function that panics if an
//! assertion does not hold.
//!
//! [`TARGETS`] is the only list of these functions. Three programs use it: the test `replay`, with a number of mutated
//! inputs that suits every run; `cargo xtask fuzz`, with the [mutator](campaign) of this crate; and the libFuzzer
//! binary in `tests/fuzz`, which requires a nightly compiler.
//!
//! A crate offers its private parsers in a module `fuzzing`, which exists only with the feature of that name.

pub mod campaign;
pub mod corpus;
mod minimise;
mod mutation;
mod random;
mod run;
mod shape;
mod table;
mod target;
mod targets;

pub use run::{Problem, run};
pub use shape::Shape;
pub use table::{TARGETS, find};
pub use target::Target;
