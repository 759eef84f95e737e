// SPDX-License-Identifier: MIT OR Apache-2.0

use serde::{Deserialize, Serialize};

/// `slipwayd networks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Networks {
    /// The network of pods that name none; none if no network is valid.
    pub default_network: Option<String>,
    /// In the order of their names.
    pub files: Vec<NetworkFile>,
}

/// A configuration file: its network, or the reason why it is skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkFile {
    pub path: String,
    pub network: Option<String>,
    pub skipped: Option<String>,
}
