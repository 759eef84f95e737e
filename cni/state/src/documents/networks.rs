// SPDX-License-Identifier: MIT OR Apache-2.0

use serde::{Deserialize, Serialize};

/// `slipwayd networks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Networks {
    /// The network of pods that name none; null if no network is valid.
    pub default_network: Option<String>,
    /// The configuration files, in the order of their names.
    pub files: Vec<NetworkFile>,
}

/// A configuration file: its network, or the reason why it is skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkFile {
    pub path: String,
    /// Null if the file is skipped.
    pub network: Option<String>,
    /// Why the file is skipped.
    pub skipped: Option<String>,
}
