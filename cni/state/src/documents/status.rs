// SPDX-License-Identifier: MIT OR Apache-2.0

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// `slipwayd status`.
///
/// The state of the agent that runs on the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The node's name in Kubernetes.
    pub node: String,
    /// The version of the running agent.
    pub version: String,
    /// The agent's start, as `2026-11-23T11:50:15Z`.
    pub since: String,
    /// True if a list of Nodes was complete.
    pub node_list_complete: bool,
    /// True if the list is complete, and routes, tunnel and configuration are in place.
    pub ready: bool,
    /// Why the node is not ready; null if it is.
    pub reason: Option<String>,
    /// The Nodes of the cluster, this one included.
    pub nodes: usize,
    #[serde(flatten)]
    pub network: NodeNetwork,
    /// The subnets with the reservations of host-local.
    pub addresses: Vec<AddressRange>,
    /// Addresses of pods outside the subnets, from a former pod CIDR; the first 100.
    pub former_addresses: Vec<FormerAddress>,
    /// The number of all, of which the list has the first 100.
    pub former_address_count: usize,
    /// What container runtimes have left; null before the first look, and with `--cri-socket none`.
    pub garbage: Option<Garbage>,
}

/// What the last comparison with the desired state has found and made. Before the first one, and if the last one failed,
/// it is empty but for the trouble.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeNetwork {
    /// The subnets of the node's pods.
    pub subnets: Vec<IpNet>,
    /// The MTU of pods; null without an uplink.
    pub mtu: Option<u32>,
    /// The desired routes to other nodes' pods.
    pub routes: usize,
    /// The prefixes to which packets are refused: with encryption, those without an encrypted path.
    pub refused: Vec<IpNet>,
    /// The VXLAN device; null if this node needs none.
    pub tunnel: Option<VxlanDevice>,
    /// The WireGuard device; null without encryption.
    pub wireguard: Option<WireGuardDevice>,
    /// The number of all, of which the list has the first 100.
    pub trouble_count: usize,
    /// Unusable parts of Nodes, routes of other programs and failed changes; the first 100.
    pub troubles: Vec<String>,
    /// The last comparison with the desired state; null before the first, or if it failed.
    pub last_comparison: Option<Comparison>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VxlanDevice {
    pub device: String,
    /// The VXLAN network identifier.
    pub vni: u32,
    /// The UDP port on which this node receives.
    pub port: u16,
    /// The source address of its packets.
    pub local: IpAddr,
    /// The number of nodes at the other ends.
    pub peers: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireGuardDevice {
    pub device: String,
    /// The UDP port on which this node receives.
    pub port: u16,
    /// This node's public key in base64; null if the device does not exist.
    pub public_key: Option<String>,
    /// The number of nodes at the other ends.
    pub peers: usize,
}

/// A subnet of the node, by the reservations of host-local.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRange {
    pub range: IpNet,
    /// Reserved addresses.
    pub used: u64,
    /// Other addresses that a pod can have, 2^64 - 1 at most.
    pub free: u64,
}

/// An address of a pod outside the node's subnets, from a former pod CIDR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerAddress {
    pub address: IpAddr,
    /// The owner's container ID; null if the reservation names none.
    pub container: Option<String>,
    /// The interface in the container.
    pub interface: Option<String>,
}

/// Attachments that a container runtime has left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Garbage {
    /// Attachments that were missing in the last list of the runtime.
    pub suspected: usize,
    /// Attachments that were deleted since the agent's start.
    pub deleted: u64,
    /// Deletions that failed, counted each time they were tried.
    pub failed: u64,
    /// The reasons why garbage is not looked for or was not deleted; the first 100.
    pub troubles: Vec<String>,
}

/// A comparison of the node with its desired state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// When the comparison ended, by RFC 3339.
    pub time: String,
    /// How long the comparison took, with its changes.
    pub seconds: f64,
    /// The number of changes that the comparison made.
    pub changes: usize,
}
