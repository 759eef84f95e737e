// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Names and default sizes of the maps. A name is that of the map in the object file and of its pin
//! (`/sys/fs/bpf/slipway/<version>/<name>`); the kernel limits it to 15 bytes (BPF_OBJ_NAME_LEN).

/// Array: a single [`Config`](crate::Config).
pub const CONFIG: &str = "config";
/// Hash: interface index → [`Uplink`](crate::Uplink).
pub const UPLINKS: &str = "uplinks";
/// Hash: interface index → [`Pod`](crate::Pod).
pub const PODS: &str = "pods";
/// Hash: interface index → [`Router`](crate::Router).
pub const ROUTERS: &str = "routers";
/// Hash: [`Addr4`](crate::Addr4) → [`PodAddress`](crate::PodAddress).
pub const POD_ADDRESSES4: &str = "podaddrs4";
/// Hash: [`Addr6`](crate::Addr6) → [`PodAddress`](crate::PodAddress).
pub const POD_ADDRESSES6: &str = "podaddrs6";
/// LPM trie: [`ExemptKey4`](crate::ExemptKey4) → `u32`, 1.
pub const EXEMPT4: &str = "exempt4";
/// LPM trie: [`ExemptKey6`](crate::ExemptKey6) → `u32`, 1.
pub const EXEMPT6: &str = "exempt6";
/// Hash: [`PortKey4`](crate::PortKey4) → [`PortTarget4`](crate::PortTarget4).
pub const PORTS4: &str = "ports4";
/// Hash: [`PortKey6`](crate::PortKey6) → [`PortTarget6`](crate::PortTarget6).
pub const PORTS6: &str = "ports6";
/// Hash: [`Addr4`](crate::Addr4), an address of the node outside of 127/8 → `u32`, index of its interface, or
/// [`SEVERAL`](crate::SEVERAL).
///
/// The BPF programs serve a published port without a host address at these addresses, and nftables at others:
/// a missing address costs speed, not reachability.
pub const LOCALS4: &str = "locals4";
/// Hash: [`Addr6`](crate::Addr6), an address of the node except `::1` and link-local ones → as [`LOCALS4`].
pub const LOCALS6: &str = "locals6";
/// LRU hash: [`FlowKey4`](crate::FlowKey4) → [`Flow4`](crate::Flow4): established flows.
pub const FLOWS4: &str = "flows4";
/// LRU hash: [`FlowKey6`](crate::FlowKey6) → [`Flow6`](crate::Flow6).
pub const FLOWS6: &str = "flows6";
/// LRU hash: [`FlowKey4`](crate::FlowKey4) → [`Flow4`](crate::Flow4): half-open flows, apart from the
/// established ones so that a flood evicts none of these.
pub const HALF_OPEN4: &str = "embryos4";
/// LRU hash: [`FlowKey6`](crate::FlowKey6) → [`Flow6`](crate::Flow6).
pub const HALF_OPEN6: &str = "embryos6";
/// LRU hash: [`FragmentKey4`](crate::FragmentKey4) → [`FragmentPorts`](crate::FragmentPorts).
pub const FRAGMENTS4: &str = "frags4";
/// LRU hash: [`FragmentKey6`](crate::FragmentKey6) → [`FragmentPorts`](crate::FragmentPorts).
pub const FRAGMENTS6: &str = "frags6";
/// LRU hash: [`SocketKey4`](crate::SocketKey4) → [`SocketOrigin4`](crate::SocketOrigin4).
pub const SOCKETS4: &str = "socks4";
/// LRU hash: [`SocketKey6`](crate::SocketKey6) → [`SocketOrigin6`](crate::SocketOrigin6).
pub const SOCKETS6: &str = "socks6";
/// Per-CPU array: a single [`Counters`](crate::Counters).
pub const COUNTERS: &str = "counters";

/// All maps.
pub const ALL: [&str; 21] = [
    CONFIG,
    UPLINKS,
    PODS,
    ROUTERS,
    POD_ADDRESSES4,
    POD_ADDRESSES6,
    EXEMPT4,
    EXEMPT6,
    PORTS4,
    PORTS6,
    LOCALS4,
    LOCALS6,
    FLOWS4,
    FLOWS6,
    HALF_OPEN4,
    HALF_OPEN6,
    FRAGMENTS4,
    FRAGMENTS6,
    SOCKETS4,
    SOCKETS6,
    COUNTERS,
];

/// The first [`VERSION`](crate::VERSION) of the layout since which the map of this name is unchanged. A later
/// version takes over such a map with its content.
#[must_use]
pub fn unchanged_since(name: &str) -> u32 {
    match name {
        // 2 added `Config::probe_socket`.
        CONFIG => 2,
        // Newer than 1, which wrote no such map.
        ROUTERS => 2,
        // Newer than 2.
        EXEMPT4 | EXEMPT6 => 3,
        _ => 1,
    }
}

/// Default size of [`UPLINKS`].
pub const UPLINKS_SIZE: u32 = 1024;
/// Default size of [`PODS`]. Like all maps that user space writes, it allocates memory as elements are added.
pub const PODS_SIZE: u32 = 16_384;
/// Default size of [`POD_ADDRESSES4`] and [`POD_ADDRESSES6`].
pub const POD_ADDRESSES_SIZE: u32 = 32_768;
/// Default size of [`EXEMPT4`] and [`EXEMPT6`].
pub const EXEMPT_SIZE: u32 = 16_384;
/// Default size of [`PORTS4`] and [`PORTS6`].
pub const PORTS_SIZE: u32 = 131_072;
/// Default size of [`LOCALS4`] and [`LOCALS6`].
pub const LOCALS_SIZE: u32 = 4096;
/// Default size of [`FLOWS4`] and [`FLOWS6`] in elements, two for each flow. LRU maps allocate their memory
/// when they are created: 16 MiB and 21 MiB for these.
pub const FLOWS_SIZE: u32 = 131_072;
/// Default size of [`HALF_OPEN4`] and [`HALF_OPEN6`] in elements, two for each flow.
pub const HALF_OPEN_SIZE: u32 = 32_768;
/// Default size of [`FRAGMENTS4`] and [`FRAGMENTS6`].
pub const FRAGMENTS_SIZE: u32 = 8192;
/// Default size of [`SOCKETS4`] and [`SOCKETS6`].
pub const SOCKETS_SIZE: u32 = 32_768;

/// Names of the BPF programs in the object file.
pub mod programs {
    /// tc, ingress of an uplink.
    pub const UPLINK_INGRESS: &str = "uplink_ingress";
    /// tc, ingress of an uplink whose packets have no Ethernet header.
    pub const UPLINK_L3: &str = "uplink_l3";
    /// tc, ingress of the host's end of a pod's veth.
    pub const POD_INGRESS: &str = "pod_ingress";
    /// cgroup; each has the name of its attach type.
    pub const SOCKET: [&str; 8] = [
        "connect4",
        "connect6",
        "sendmsg4",
        "sendmsg6",
        "recvmsg4",
        "recvmsg6",
        "getpeername4",
        "getpeername6",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_enough_and_unique() {
        for (index, name) in ALL.iter().enumerate() {
            assert!(name.len() <= 15, "{name}");
            assert!(!ALL[..index].contains(name), "{name} twice");
            assert!((1..=crate::VERSION).contains(&unchanged_since(name)), "{name}");
        }
    }
}
