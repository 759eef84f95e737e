// SPDX-License-Identifier: MIT OR Apache-2.0

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{Call, Port, PortOwner, RepairRecord};

/// `slipwayd top`: one sample.
///
/// Rates are since the sample before; they are null with `--once` alone, and for more than 65,536 flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Top {
    /// The time of the sample, by RFC 3339.
    pub time: String,
    /// The owners of the ports, as in [slipway ports](#slipway-ports).
    pub attachments: Vec<PortOwner>,
    pub ports: Vec<PortTraffic>,
    /// Flows to published ports, as conntrack has them.
    pub flows: Vec<FlowTraffic>,
    /// Flows beyond the first 65,536.
    pub more_flows: usize,
    /// Dropped packets by reason.
    pub drops: Vec<DroppedPackets>,
    /// Null without conntrack.
    pub conntrack: Option<Conntrack>,
    /// The addresses of networks with host-local.
    pub pools: Vec<Pool>,
    /// The last 200 ADD and DEL that plugins [reported](metrics.md#reports-of-plugins), the newest last; null if no
    /// agent runs.
    pub calls: Option<Vec<Call>>,
    /// The last 20 repairs that had a reason or found something; null if no agent runs.
    pub repairs: Option<Vec<RepairRecord>>,
    /// Why `calls` and `repairs` are missing.
    pub agent_error: Option<String>,
    /// Why something else is missing.
    pub troubles: Vec<String>,
}

/// A published port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PortTraffic {
    #[serde(flatten)]
    pub port: Port,
    /// New flows.
    pub connections_per_second: Option<f64>,
    #[serde(flatten)]
    pub rates: PacketRates,
}

/// A flow to a published port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowTraffic {
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The client's address and port.
    pub client: SocketAddr,
    /// The address and port of the node that the client sends to.
    pub host: SocketAddr,
    /// The container ID.
    pub container: Option<String>,
    /// The container's address.
    pub container_ip: IpAddr,
    /// True if the BPF programs carry packets of it.
    pub carried: bool,
    /// In both directions; null if nothing counts them.
    pub packets: Option<u64>,
    pub bytes: Option<u64>,
    #[serde(flatten)]
    pub rates: PacketRates,
}

/// In both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PacketRates {
    /// In both directions.
    pub packets_per_second: Option<f64>,
    pub bytes_per_second: Option<f64>,
}

/// The packets that were dropped for a reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DroppedPackets {
    /// `bpf`, or `conntrack`.
    pub by: String,
    /// A [counter](#counters-of-dropped-packets) of the BPF programs, or conntrack's `drop`, `early_drop` (flows that
    /// were evicted) or `insert_failed`.
    pub reason: String,
    /// Since the programs were loaded, or the namespace was made.
    pub packets: u64,
    pub packets_per_second: Option<f64>,
}

/// The flows in conntrack's table, and the most that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conntrack {
    /// The flows in conntrack's table, of all protocols.
    pub count: u64,
    /// The most that conntrack's table holds.
    pub max: u64,
}

/// The addresses of a range of host-local.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    pub network: String,
    /// The subnet, or `FIRST-LAST of SUBNET`; null for addresses outside the configuration, as of a network that is
    /// gone.
    pub range: Option<String>,
    /// Reserved addresses.
    pub used: u64,
    /// Other addresses that a container can have, 2^64 - 1 at most; null without a range.
    pub free: Option<u64>,
}
