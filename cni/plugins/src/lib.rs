// SPDX-License-Identifier: GPL-2.0-or-later

//! The CNI plugins: a folder or file for each, and what they share.
//!
//! - [`interface`]: plugins that make a link or move one into the container
//! - [`ipam`]: plugins that assign addresses
//! - [`meta`]: plugins that come later in a chain and add to what an earlier one has made
//!
//! A call enters through [`registry`], which knows all plugins by name, and [`skel`], which speaks the protocol: it
//! reads the environment and the configuration, negotiates the version, and calls the plugin's [`plugin::Plugin`]
//! methods. If a step fails, [`undo`] reverts what the plugin has done so far. [`expected`] describes what must stay as
//! the ADD left it, [`deletion`] knows which attachments are being deleted, and [`capacity`] how many containers a
//! network has room for. The settings of the whole node are in [`node_defaults`], and [`keys`] lists each key that any
//! plugin decodes.
//!
//! Nothing here knows about commands for operators or about netavark: the binary `slipway` adds both.

pub mod capacity;
pub mod deletion;
pub mod expected;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod interface;
pub mod ipam;
pub mod keys;
pub mod logging;
pub mod meta;
pub mod node_defaults;
pub mod plugin;
pub mod registry;
mod settings_file;
pub mod skel;
#[cfg(test)]
mod test_configuration;
pub mod undo;
