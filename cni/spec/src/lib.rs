// SPDX-License-Identifier: MIT OR Apache-2.0

//! The CNI specification as plain data: configurations, results, errors and arguments. The crate does no input or
//! output.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod address;
mod args;
mod attachment;
mod config;
mod error;
mod field;
pub mod fold;
mod list;
mod result;
mod runtime_config;
pub mod text;
mod version;
mod wire;

pub use args::{Args, ArgsError};
pub use attachment::{
    Attachment, AttachmentError, check_container_id, check_ifname, check_link_name, check_network,
};
pub use config::{Draft, NetConf, Purpose, incompatible};
pub use error::{CniError, ErrorCode, ParseError};
pub use list::{ListError, NetConfList};
pub use result::{AddResult, Dns, Interface, IpConfig, Route};
pub use runtime_config::{Bandwidth, IpRange, PortMapping, RuntimeConfig, RuntimeDns};
pub use version::{Declared, Version, VersionError};
pub use wire::ResultError;

/// Tests the example in the package's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
