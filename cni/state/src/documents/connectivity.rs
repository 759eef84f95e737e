// SPDX-License-Identifier: MIT OR Apache-2.0

use serde::{Deserialize, Serialize};

/// `slipway connectivity-test`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectivityTest {
    pub network: String,
    /// The backend that served the published ports; none for that of another plugin set.
    pub backend: Option<String>,
    pub ok: bool,
    pub checks: Vec<ConnectivityCheck>,
    pub not_shown: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectivityCheck {
    pub from: String,
    pub to: String,
    /// None for a check without packets.
    pub protocol: Option<String>,
    pub destination: Option<String>,
    pub state: String,
    pub saw: String,
    /// The difference from the promise.
    pub why: Option<String>,
    pub cause: Option<String>,
    /// The page with the promise.
    pub page: String,
}
