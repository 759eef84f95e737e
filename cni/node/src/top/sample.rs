// SPDX-License-Identifier: GPL-3.0-or-later

//! The state of a node at one time.

use std::time::Instant;

use cni_dataplane::{Listed, PublishedFlow, Traffic};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A sample. Counters are those of the kernel, since a time that the sample does not know.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The time, for rates.
    pub at: Instant,
    /// The time, for people.
    pub time: Timestamp,
    /// The published ports, with their traffic if it could be read.
    pub ports: Vec<(Listed, Option<Traffic>)>,
    /// The flows to them, [`super::read::FLOWS`] at most.
    pub flows: Vec<PublishedFlow>,
    /// Number of flows beyond these.
    pub more_flows: usize,
    /// Dropped packets by reason.
    pub drops: Vec<Drops>,
    /// Flows in conntrack's table, and the most that it holds; none without conntrack.
    pub conntrack: Option<(u64, u64)>,
    /// The addresses of networks.
    pub pools: Vec<Pool>,
    /// The activity of the running agent.
    pub agent: Result<Activity, UnknownActivity>,
    /// The reasons why something is missing.
    pub troubles: Vec<String>,
}

/// No agent runs, or it does not tell: the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownActivity(pub String);

/// Dropped packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drops {
    /// The part of the kernel: `bpf` or `conntrack`.
    pub by: &'static str,
    /// The reason, a name.
    pub reason: &'static str,
    /// The reason in words.
    pub about: &'static str,
    /// Their number.
    pub packets: u64,
}

/// The addresses of a range of host-local.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The network.
    pub network: String,
    /// The range; none for reserved addresses outside the configuration.
    pub range: Option<String>,
    /// Reserved addresses.
    pub used: u64,
    /// Other addresses that a container can have, [`u64::MAX`] at most; none if the range is unknown.
    pub free: Option<u64>,
}

/// The recent activity on a node, as its agent has it: the newest is last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// The node's name.
    pub node: String,
    /// ADD and DEL that plugins reported.
    pub calls: Vec<Call>,
    /// Repairs that found something.
    pub repairs: Vec<RepairRecord>,
}

/// A call of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The time of its end, by RFC 3339.
    pub time: Timestamp,
    /// `ADD` or `DEL`.
    pub verb: String,
    /// The plugin's type.
    pub plugin: String,
    /// The network; empty if the configuration could not be read.
    pub network: String,
    /// The time that it took.
    pub microseconds: u64,
    /// The error's code; none after a success.
    pub code: Option<u32>,
}

/// A repair of the dataplane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairRecord {
    /// The time of its end, by RFC 3339.
    pub time: Timestamp,
    /// The damages that were reported before it.
    pub damages: Vec<String>,
    /// Number of restored objects.
    pub restored: usize,
    /// All that failed.
    pub failed: Vec<String>,
    /// The time that it took.
    pub microseconds: u64,
}
