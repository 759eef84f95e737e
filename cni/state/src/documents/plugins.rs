// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plugins and the version of a binary.

use serde::{Deserialize, Serialize};

/// `slipway plugins`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plugins {
    /// The plugins of this binary.
    pub plugins: Vec<PluginVersions>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginVersions {
    /// The plugin's `type`.
    pub name: String,
    /// The versions of the CNI specification that the plugin supports.
    pub versions: Vec<String>,
    /// One line about the plugin.
    pub summary: String,
}

/// `slipway version` and `slipwayd version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    pub version: String,
}
