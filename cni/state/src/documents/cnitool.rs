// SPDX-License-Identifier: MIT OR Apache-2.0

use serde::{Deserialize, Serialize};

/// `slipway cnitool`, where the specification has no result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CnitoolOutcome {
    pub network: String,
    /// The version that the configuration declares.
    pub cni_version: String,
    pub command: String,
    pub ok: bool,
    pub errors: Vec<String>,
    /// Of `validate` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugins: Option<Vec<PluginVerdict>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginVerdict {
    #[serde(rename = "type")]
    pub kind: String,
    /// None if the plugin could not be asked.
    pub supported_versions: Option<Vec<String>>,
    pub error: Option<String>,
}
