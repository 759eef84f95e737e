// SPDX-License-Identifier: MIT OR Apache-2.0

use serde::{Deserialize, Serialize};

/// `slipway cnitool`, where the specification has no result.
///
/// `check`, `del`, `gc`, `status` and `validate` print it. `add` prints the result of the CNI specification, without
/// `schema`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CnitoolOutcome {
    /// The network's name.
    pub network: String,
    /// The version that the configuration declares.
    pub cni_version: String,
    /// `check`, `del`, `gc`, `status` or `validate`.
    pub command: String,
    /// True if the command succeeded; otherwise the exit code is 1.
    pub ok: bool,
    /// The errors, as printed on standard error without `--output json`.
    pub errors: Vec<String>,
    /// The plugins in the order of the list; of `validate` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugins: Option<Vec<PluginVerdict>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginVerdict {
    /// The plugin's type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The supported versions of the specification; null if the plugin could not be asked.
    pub supported_versions: Option<Vec<String>>,
    /// Why the plugin cannot be used.
    pub error: Option<String>,
}
