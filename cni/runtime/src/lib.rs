//! The runtime's side of CNI: finding networks and plugins, calling them in order, and what a runtime
//! remembers of the attachments it has made.
//!
//! Nothing here knows of any plugin or of the dataplane.

pub mod cache;
pub mod config;
pub mod invoke;
pub mod network;

pub use cache::{Cache, CacheError, Cached, Fault};
