// SPDX-License-Identifier: MIT OR Apache-2.0

//! The dependencies between the crates and files of the workspace, read from its sources and manifests.
//!
//! [`crates`] reads which crate uses which, [`modules`] finds the modules of a crate and the file of each item,
//! [`imports`] draws an arrow from each file to the files whose items its code names, and [`circles`] finds files that
//! import each other in a loop. The tests in `floors.rs` compare all of this with docs/ARCHITECTURE.md.

pub mod circles;
pub mod crates;
pub mod error;
#[cfg(test)]
mod floors;
pub mod imports;
pub mod modules;
