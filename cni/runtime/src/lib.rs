// SPDX-License-Identifier: MIT OR Apache-2.0

//! The runtime's side of CNI: finding networks and plugins, calling plugins in order, and caching attachments.
//!
//! [`asynchronous::Runtime`] is the driver, which runs the state machines of [`verbs`] on a [`Network`]. [`Runtime`]
//! has the same calls for programs that block. [`exec::Fake`] replaces plugins in unit tests.
//!
//! The crate knows nothing about particular plugins or the dataplane.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod asynchronous;
pub mod cache;
pub mod config;
mod container;
pub mod delegate;
mod error;
mod event_loop;
pub mod exec;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod invoke;
#[cfg(feature = "kubelet")]
pub mod kubelet;
pub mod lock;
pub mod network;
#[cfg(feature = "pods")]
pub mod pods;
#[cfg(any(feature = "kubelet", feature = "pods"))]
pub mod quantity;
#[cfg(any(feature = "kubelet", feature = "pods"))]
pub mod rates;
pub mod runtime;
mod store;
pub mod verbs;

pub use cache::{Cache, Cached, Fault};
pub use container::Container;
pub use error::{CacheError, CallError, NetworkError, StoreError};
pub use exec::{CallOptions, Cancel, Trace};
pub use network::Network;
pub use runtime::Runtime;
pub use verbs::GcScope;

/// The example of the package's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The examples of the library's page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/runtime.md")]
struct Page;
