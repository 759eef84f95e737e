// SPDX-License-Identifier: MIT OR Apache-2.0

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `slipway node`: the BPF programs of the eBPF backend, and UDP GRO forwarding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BpfNode {
    /// True if the binary contains the programs.
    pub built_in: bool,
    pub loaded: bool,
    /// True if the loaded programs are those of the binary.
    pub current: bool,
    pub uplinks: Vec<String>,
    pub uplinks_left_to_nftables: Vec<LeftToNftables>,
    pub earlier_filters: Vec<EarlierFilter>,
    /// Containers whose links have programs.
    pub containers: u64,
    pub containers_left_to_nftables: Vec<LeftToNftables>,
    /// The counters that are not zero; `dropped` has those of dropped packets.
    pub counters: BTreeMap<String, u64>,
    pub dropped: BTreeMap<String, u64>,
    pub maps: Vec<BpfMap>,
    pub udp_gro_forwarding: Vec<UdpGroForwarding>,
}

/// A link that should have a program and has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftToNftables {
    pub name: String,
    pub reason: String,
}

/// A filter of another program that sees packets before the BPF programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierFilter {
    pub interface: String,
    pub hook: String,
    pub kind: String,
    pub preference: Option<u16>,
}

/// A BPF map of flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BpfMap {
    pub name: String,
    pub elements: u64,
    pub max_elements: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpGroForwarding {
    pub interface: String,
    pub state: String,
    pub reason: String,
}
