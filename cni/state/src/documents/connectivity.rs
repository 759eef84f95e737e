// SPDX-License-Identifier: MIT OR Apache-2.0

use serde::{Deserialize, Serialize};

/// `slipway connectivity-test`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectivityTest {
    pub network: String,
    /// The backend that served the published ports; null for that of another plugin set.
    pub backend: Option<String>,
    /// False if a check failed.
    pub ok: bool,
    /// In the order in which they ran.
    pub checks: Vec<ConnectivityCheck>,
    /// What the test cannot show.
    pub not_shown: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectivityCheck {
    /// The sender, for people.
    pub from: String,
    /// The receiver as the contract names it, for people.
    pub to: String,
    /// `tcp` or `udp`; null for a check without packets.
    pub protocol: Option<String>,
    /// Address and port.
    pub destination: Option<String>,
    /// `passed`, `failed` or `skipped`.
    pub state: String,
    /// The reply, for people; may be empty.
    pub saw: String,
    /// The difference from the promise.
    pub why: Option<String>,
    /// The reason for the difference, in the words of `explain` and `trace`.
    pub cause: Option<String>,
    /// The page with the promise.
    pub page: String,
}
