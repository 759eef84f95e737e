// SPDX-License-Identifier: MIT OR Apache-2.0

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// `slipwayd status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The node's name in Kubernetes.
    pub node: String,
    /// The version of the running agent.
    pub version: String,
    /// The agent's start, by RFC 3339.
    pub since: String,
    pub node_list_complete: bool,
    pub ready: bool,
    /// The reason why the node is not ready.
    pub reason: Option<String>,
    pub nodes: usize,
    #[serde(flatten)]
    pub network: NodeNetwork,
    pub addresses: Vec<AddressRange>,
    /// The first of `former_address_count`.
    pub former_addresses: Vec<FormerAddress>,
    pub former_address_count: usize,
    /// None before the first sweep.
    pub garbage: Option<Garbage>,
}

/// What the last comparison with the desired state has found and made. Before the first one, and if the last one failed,
/// it is empty but for the trouble.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeNetwork {
    pub subnets: Vec<IpNet>,
    /// None without an uplink.
    pub mtu: Option<u32>,
    pub routes: usize,
    /// The prefixes to which packets are refused.
    pub refused: Vec<IpNet>,
    pub tunnel: Option<VxlanDevice>,
    pub wireguard: Option<WireGuardDevice>,
    /// The number of all troubles, of which `troubles` has the first ones.
    pub trouble_count: usize,
    pub troubles: Vec<String>,
    pub last_comparison: Option<Comparison>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VxlanDevice {
    pub device: String,
    /// The VXLAN network identifier.
    pub vni: u32,
    pub port: u16,
    /// The source of its packets.
    pub local: IpAddr,
    pub peers: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireGuardDevice {
    pub device: String,
    pub port: u16,
    /// In base64; none if the device does not exist.
    pub public_key: Option<String>,
    pub peers: usize,
}

/// A subnet of the node, by the reservations of host-local.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRange {
    pub range: IpNet,
    /// Reserved addresses.
    pub used: u64,
    /// Other addresses that a pod can have, [`u64::MAX`] at most.
    pub free: u64,
}

/// An address of a pod outside the node's subnets, from a former pod CIDR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerAddress {
    pub address: IpAddr,
    /// None if the reservation has no owner.
    pub container: Option<String>,
    pub interface: Option<String>,
}

/// Attachments that a container runtime has left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Garbage {
    /// Missing in the last list of the runtime.
    pub suspected: usize,
    /// Since the agent's start, as those that failed.
    pub deleted: u64,
    pub failed: u64,
    pub troubles: Vec<String>,
}

/// A comparison of the node with its desired state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Its end, by RFC 3339.
    pub time: String,
    /// The time that it took, with its changes.
    pub seconds: f64,
    pub changes: usize,
}
