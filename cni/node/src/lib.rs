// SPDX-License-Identifier: GPL-3.0-or-later

//! The node agent's library.

mod bridge;
pub mod cluster;
pub mod garbage;
pub mod host_mounts;
pub mod kubelet_command;
pub mod kubenet;
pub mod observe;
pub mod render;
mod renewed;
pub mod repair;
pub mod reservations;
pub mod run_dir;
pub mod top;
