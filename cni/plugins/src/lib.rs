// SPDX-License-Identifier: GPL-2.0-or-later

//! The multi-call plugin binary: one registry, one protocol front, many plugins.

pub mod interface;
pub mod ipam;
mod keys;
pub mod logging;
pub mod meta;
pub mod netavark;
mod node_defaults;
mod non_masquerade;
pub mod operator;
pub mod plugin;
pub mod registry;
mod settings_file;
pub mod skel;
pub mod undo;
