// SPDX-License-Identifier: MIT OR Apache-2.0

//! Network namespaces, routing netlink, sysctls, locks, and files that survive a power cut.
//!
//! All calls block. The crate knows nothing about CNI and keeps only open descriptors between calls, because the
//! state is in the kernel.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod activation;
pub mod boot;
pub mod bounded;
pub mod bpf_elements;
pub mod dbus;
pub mod dir;
pub mod ethtool;
mod family;
pub mod forwarding;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod grace;
pub mod lock;
pub mod mac;
pub mod named_netns;
pub mod netns;
pub mod netns_search;
pub mod packet;
pub mod process;
mod procfs;
pub mod route;
pub mod sysctl;
pub mod tables;
pub mod tap;
mod transient;
pub mod unix;
pub mod xattr;
pub mod xtables;

pub use family::AddressFamily;
pub use transient::{is_transient, is_transient_io};
