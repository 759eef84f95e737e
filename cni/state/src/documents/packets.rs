// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ways of packets: that of an imagined packet, and those of real ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `slipway explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explain {
    pub protocol: String,
    pub destination: String,
    pub source: Option<String>,
    pub sent_by_node: bool,
    pub link: Option<String>,
    pub steps: Vec<Step>,
    pub outcome: String,
}

/// A step of a packet in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub stage: String,
    pub text: String,
}

impl From<&(&'static str, String)> for Step {
    fn from((stage, text): &(&'static str, String)) -> Self {
        Self { stage: (*stage).to_owned(), text: text.clone() }
    }
}

/// `slipway trace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    pub protocol: String,
    pub destination: String,
    pub packets: Vec<PacketTrace>,
    pub ended: String,
    pub events_lost: bool,
    /// None without the BPF programs.
    pub carried_packets: Option<u64>,
    pub counters: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketTrace {
    pub source: String,
    pub destination: String,
    /// None if the node sent it.
    pub link: Option<String>,
    pub steps: Vec<Step>,
    pub outcome: String,
    pub dropped: bool,
}
