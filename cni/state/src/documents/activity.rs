// SPDX-License-Identifier: MIT OR Apache-2.0

use serde::{Deserialize, Serialize};

/// The last events on a node, which `slipwayd top` asks the running agent for: the newest is last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// The node's name in Kubernetes.
    pub node: String,
    /// ADD and DEL that plugins reported.
    pub calls: Vec<Call>,
    /// Repairs that had a reason or found something.
    pub repairs: Vec<RepairRecord>,
}

/// A call of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// When the call or repair ended, by RFC 3339.
    pub time: String,
    /// `ADD` or `DEL`.
    pub verb: String,
    /// The plugin's type.
    pub plugin: String,
    /// Empty if the configuration could not be read.
    pub network: String,
    pub microseconds: u64,
    /// The [error's code](protocol.md#errors); null after a success.
    pub code: Option<u32>,
}

/// A repair of the dataplane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairRecord {
    /// When the call or repair ended, by RFC 3339.
    pub time: String,
    /// The damages that were reported before it.
    pub damages: Vec<String>,
    /// The number of restored objects.
    pub restored: usize,
    /// What failed.
    pub failed: Vec<String>,
    pub microseconds: u64,
}
