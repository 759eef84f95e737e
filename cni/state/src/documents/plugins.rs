// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plugins and the version of a binary.

use serde::{Deserialize, Serialize};

/// `slipway plugins`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plugins {
    pub plugins: Vec<PluginVersions>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginVersions {
    pub name: String,
    /// The versions of the specification that it speaks.
    pub versions: Vec<String>,
    pub summary: String,
}

/// `slipway version` and `slipwayd version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    pub version: String,
}
