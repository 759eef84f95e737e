// SPDX-License-Identifier: MIT OR Apache-2.0

//! The formats in which the plugins, the commands of `slipway` and the node's agent exchange data. Each is declared
//! only here, as the type that both the writer and the reader use.
//!
//! - [`subnet_file`] and [`subnet_env`]: the node's subnets, which the agent writes and host-local and flannel read;
//! - [`host_local`]: the ranges of a configuration of host-local, from which the agent's overview counts addresses;
//! - [`documents`]: what the commands of `slipway` and `slipwayd` print as JSON, and what the agent replies to them;
//! - [`report`]: the datagram that a plugin sends to the agent at the end of a call;
//! - [`agent`]: the names and numbers of what the agent makes in the kernel.
//!
//! Configurations and results of the specification are in `cni_spec`, and libcni's cache is in `cni_runtime`.

pub mod agent;
#[cfg(test)]
mod damaged;
pub mod documents;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod host_local;
pub mod report;
pub mod subnet_env;
pub mod subnet_file;
