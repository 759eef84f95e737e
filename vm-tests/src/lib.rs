//! What `cargo xtask vm-test` and the first process of its virtual machines say to each other.
//!
//! The host puts a [`Plan`] into the machine's root file system. The machine answers with lines on its
//! second serial port, one [`Event`] each. Events about the run carry the plan's nonce; whatever a test
//! prints comes as [`Event::Output`] and so cannot be taken for one of them. A run counts only with its
//! closing line, [`Event::End`]: a machine that stops before has failed, however it stopped.

mod event;
mod plan;

pub use event::{Ending, Event};
pub use plan::{PLAN, Plan, SKIPS, Suite};
