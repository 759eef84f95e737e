// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ways of packets: that of an imagined packet, and those of real ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `slipway explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explain {
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Address and port.
    pub destination: String,
    /// The address, if one was given.
    pub source: Option<String>,
    /// True if the node itself sends the packet.
    pub sent_by_node: bool,
    /// The link that the packet arrives on, if it is known.
    pub link: Option<String>,
    /// The steps in the kernel, in order.
    pub steps: Vec<Step>,
    /// What becomes of the packet, for people.
    pub outcome: String,
}

/// A step of a packet in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// `guard`, `prerouting`, `output`, `lookup`, `conditions`, `translate`, `iptables`, `routing`, `bridge`, `forward`
    /// or `postrouting`.
    pub stage: String,
    /// What happens in this step, for people; may have several lines.
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
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Address and port.
    pub destination: String,
    /// The packets, in the order of their ends.
    pub packets: Vec<PacketTrace>,
    /// `time`, `count` or `signal`.
    pub ended: String,
    /// True if there were more events than could be read.
    pub events_lost: bool,
    /// Packets of the port's flows, both directions, that BPF programs carried past netfilter during the trace, but for
    /// the last ones of a flow that ended; null without the programs.
    pub carried_packets: Option<u64>,
    /// [counters](#counters) that grew during the trace, for all ports of the node.
    pub counters: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketTrace {
    /// Address and port, as the packet came.
    pub source: String,
    pub destination: String,
    /// The link by which the packet arrived; null if the node sent it.
    pub link: Option<String>,
    /// The chains that the packet passed, in order.
    pub steps: Vec<Step>,
    /// What becomes of the packet, for people.
    pub outcome: String,
    /// True if the packet was dropped, or not seen again.
    pub dropped: bool,
}
