// SPDX-License-Identifier: MIT OR Apache-2.0

use serde::{Deserialize, Serialize};

/// `slipway detach`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detach {
    pub network: String,
    pub container: String,
    pub interface: String,
    pub state: DetachState,
    /// Why the attachment was kept.
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DetachState {
    Detached,
    /// The condition of `--only-if` does not hold.
    Kept,
}
