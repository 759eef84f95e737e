// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd top`: a live view of a node.
//!
//! [`read`] takes a [`sample`] of the kernel, host-local's reservations ([`pools`]) and the agent. [`model`] compares it
//! with the one before, [`table`] makes sorted and filtered rows of that, and [`screen`] draws them. [`state`] has what the
//! keys change. [`text`] prints a sample without a terminal.

pub mod model;
pub mod pools;
pub mod read;
pub mod sample;
pub mod screen;
pub mod state;
pub mod table;
#[cfg(test)]
mod tests;
pub mod text;
