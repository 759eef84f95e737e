// SPDX-License-Identifier: MIT OR Apache-2.0

//! The protocol between `cargo xtask vm-test` and the first process of its VMs.
//!
//! The host puts a [`Plan`] into the root file system. The guest writes lines to its second serial port, one [`Event`]
//! each. Events about the run carry the plan's nonce; the output of a test comes as [`Event::Output`] and so cannot be
//! taken for one of them. A run counts only with its closing line, [`Event::End`]: a guest that stops before has failed.

mod event;
mod plan;

pub use event::{Ending, Event};
pub use plan::{DISK_DRIVERS, PLAN, Plan, SKIPS, Suite};
