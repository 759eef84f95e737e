// SPDX-License-Identifier: MIT OR Apache-2.0

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{Call, Port, PortOwner, RepairRecord};

/// `slipwayd top`: one sample. Rates are none without a sample before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Top {
    /// By RFC 3339.
    pub time: String,
    /// The owners of the ports.
    pub attachments: Vec<PortOwner>,
    pub ports: Vec<PortTraffic>,
    /// The first flows; `more_flows` is the number of others.
    pub flows: Vec<FlowTraffic>,
    pub more_flows: usize,
    pub drops: Vec<DroppedPackets>,
    /// None without conntrack.
    pub conntrack: Option<Conntrack>,
    pub pools: Vec<Pool>,
    /// None if no agent runs, as `repairs`.
    pub calls: Option<Vec<Call>>,
    pub repairs: Option<Vec<RepairRecord>>,
    /// The reason why the agent does not reply.
    pub agent_error: Option<String>,
    /// The reasons why something else is missing.
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
    pub protocol: String,
    pub client: SocketAddr,
    /// The end that the client sends to.
    pub host: SocketAddr,
    pub container: Option<String>,
    pub container_ip: IpAddr,
    /// True if the BPF programs carry packets of it.
    pub carried: bool,
    /// None if nothing counts packets and bytes.
    pub packets: Option<u64>,
    pub bytes: Option<u64>,
    #[serde(flatten)]
    pub rates: PacketRates,
}

/// In both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PacketRates {
    pub packets_per_second: Option<f64>,
    pub bytes_per_second: Option<f64>,
}

/// The packets that were dropped for a reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DroppedPackets {
    /// `bpf` or `conntrack`.
    pub by: String,
    pub reason: String,
    pub packets: u64,
    pub packets_per_second: Option<f64>,
}

/// The flows in conntrack's table, and the most that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conntrack {
    pub count: u64,
    pub max: u64,
}

/// The addresses of a range of host-local.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    pub network: String,
    /// None for reserved addresses outside the configuration.
    pub range: Option<String>,
    /// Reserved addresses.
    pub used: u64,
    /// Other addresses that a container can have, [`u64::MAX`] at most; none without a range.
    pub free: Option<u64>,
}
