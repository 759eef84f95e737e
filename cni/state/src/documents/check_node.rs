// SPDX-License-Identifier: MIT OR Apache-2.0

use serde::{Deserialize, Serialize};

/// `slipway check-node`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckNode {
    /// False if something required is missing.
    pub ok: bool,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was checked.
    pub subject: String,
    /// `ok`, `note`, `warning` or `missing`.
    pub state: String,
    /// What was found.
    pub found: String,
    /// What the subject is needed for, or what its state leads to; may be empty.
    pub reason: String,
    /// The remedy; empty if there is nothing to do.
    pub fix: String,
}
