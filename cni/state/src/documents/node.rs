// SPDX-License-Identifier: MIT OR Apache-2.0

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `slipway node`: the BPF programs of the eBPF backend, UDP GRO forwarding, and the kernel's limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BpfNode {
    /// True if this binary contains the BPF programs.
    pub built_in: bool,
    /// True if programs are loaded.
    pub loaded: bool,
    /// True if the loaded programs are those of this binary.
    pub current: bool,
    /// The interfaces with traffic from outside.
    pub uplinks: Vec<String>,
    /// Uplinks that should have a program and have none.
    pub uplinks_left_to_nftables: Vec<LeftToNftables>,
    /// Filters of other programs that see packets before the BPF programs.
    pub earlier_filters: Vec<EarlierFilter>,
    /// Rules that decide about single packets: flows to which they can apply
    /// [are not carried](dataplane/ebpf.md#rules-that-keep-flows-with-netfilter).
    #[serde(default)]
    pub holding_rules: Vec<HoldingRule>,
    /// The containers whose links have programs.
    pub containers: u64,
    /// Containers' links that `slipway node setup` could not give the programs of this binary; empty with other
    /// commands.
    pub containers_left_to_nftables: Vec<LeftToNftables>,
    /// Containers whose packets all take the queue of their link, where another program has to see each.
    #[serde(default)]
    pub containers_with_queue: Vec<LeftToNftables>,
    /// The [counters](#counters) that are not zero.
    pub counters: BTreeMap<String, u64>,
    /// Dropped packets by [counter](#counters-of-dropped-packets), where not zero.
    pub dropped: BTreeMap<String, u64>,
    /// The BPF maps of flows.
    pub maps: Vec<BpfMap>,
    /// [UDP GRO forwarding](dataplane/udp-gro.md) at the uplinks' devices.
    pub udp_gro_forwarding: Vec<UdpGroForwarding>,
    /// The networks in `/etc/cni/net.d`.
    #[serde(default)]
    pub networks: Vec<NetworkRoom>,
    /// Limits of the kernel that depend on the number of containers.
    #[serde(default)]
    pub limits: Vec<KernelLimit>,
}

/// What bounds the number of a network's containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRoom {
    pub name: String,
    /// The number of containers for which it has addresses; null if the configuration does not tell.
    pub addresses: Option<u64>,
    /// The bridge that the containers join, which has 1023 ports for all its networks together; null if there is none.
    pub bridge: Option<String>,
}

/// A limit of the kernel, which belongs to the whole machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLimit {
    /// The setting's name, with dots.
    pub setting: String,
    pub value: u64,
    /// The value that is enough for all containers of the networks; the present one if that is enough.
    pub wanted: u64,
    /// The number of containers for which the value is enough; null if no packet is lost beyond it.
    pub enough_for: Option<u64>,
}

/// A link that should have a program and has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftToNftables {
    pub name: String,
    pub reason: String,
}

/// A rule that decides about single packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldingRule {
    /// The place of the rule.
    pub rule: String,
    /// The part of it that looks at each packet.
    pub what: String,
    /// The flows that are not carried.
    pub flows: String,
}

/// A filter of another program that sees packets before the BPF programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierFilter {
    pub interface: String,
    /// `ingress` or `egress`.
    pub hook: String,
    /// The kind as tc(8) prints it; `tcx` for a BPF program that comes before all filters.
    pub kind: String,
    /// Null with `tcx`.
    pub preference: Option<u16>,
}

/// A BPF map of flows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BpfMap {
    /// The map's name, as in [objects](dataplane/ebpf-reference.md#objects).
    pub name: String,
    /// Two for each flow.
    pub elements: u64,
    /// The most that the map holds; a full map evicts the oldest elements.
    pub max_elements: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpGroForwarding {
    pub interface: String,
    /// `on`, `off` or `unknown`.
    pub state: String,
    /// Why the state is unknown; else empty.
    pub reason: String,
}
