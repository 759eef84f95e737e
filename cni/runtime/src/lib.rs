//! The runtime's side of CNI: what a runtime remembers of the attachments it has made.
//!
//! Nothing here knows of any plugin or of the dataplane.

pub mod cache;

pub use cache::{Cache, CacheError, Cached, Fault};
