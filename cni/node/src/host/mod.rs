// SPDX-License-Identifier: GPL-3.0-or-later

//! The agent's own host, as several parts of the agent use it: the mounts of the node outside of the agent's container
//! ([`mounts`]), the agent's directory with its lock and its sockets ([`run_dir`]), the pods' `bridge`, the addresses
//! that host-local reserved ([`reservations`]), and what the kernel last reported about addresses (`address_reports`).

pub(crate) mod address_reports;
pub(crate) mod bridge;
pub mod mounts;
pub mod reservations;
pub mod run_dir;
