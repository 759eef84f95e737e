// SPDX-License-Identifier: GPL-3.0-or-later

//! The state of a node at one time.

use std::sync::Arc;
use std::time::Instant;

use cni_dataplane::{Listed, PublishedFlow, Traffic};
use cni_state::documents::{Activity, Conntrack, Pool};
use k8s_openapi::jiff::Timestamp;

use crate::agent_client::AgentError;

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
    /// None without conntrack.
    pub conntrack: Option<Conntrack>,
    /// The addresses of networks.
    pub pools: Vec<Pool>,
    /// The activity of the running agent; an error if none runs, or it does not tell.
    pub agent: Result<Activity, Arc<AgentError>>,
    /// The reasons why something is missing.
    pub troubles: Vec<String>,
}

/// Dropped packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drops {
    /// The part of the kernel: `bpf` or `conntrack`.
    pub by: &'static str,
    /// The reason, a name.
    pub reason: &'static str,
    /// The reason in words.
    pub about: &'static str,
    /// The number of packets.
    pub packets: u64,
}
