// SPDX-License-Identifier: MIT OR Apache-2.0

//! Software of others that runs next to Slipway in tests and benchmarks: the reference plugins, container runtimes,
//! Kubernetes, shells. It is fetched from Debian, or built from Debian's source packages, below the target folder;
//! nothing is installed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "programs for the terminal")]

pub mod debian_root;
pub mod kube;
pub mod reference;
pub mod runtimes;
pub mod shells;
