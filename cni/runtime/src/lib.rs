// SPDX-License-Identifier: MIT OR Apache-2.0

//! The runtime's side of CNI: finding networks and plugins, calling plugins in order, and the cache of
//! attachments.
//!
//! Knows nothing of the plugins and the dataplane.

pub mod cache;
pub mod config;
mod container;
pub mod invoke;
pub mod network;

pub use cache::{Cache, CacheError, Cached, Fault};
pub use container::Container;
