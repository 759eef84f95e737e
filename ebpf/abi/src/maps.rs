//! Names and default sizes of the maps. Names are what the object file has, what the pins are called
//! (`/sys/fs/bpf/slipway/<version>/<name>`), and at most 15 bytes long, as the kernel wants it
//! (BPF_OBJ_NAME_LEN).

/// Array of one [`Config`](crate::Config).
pub const CONFIG: &str = "config";
/// Hash: index of an interface → [`Uplink`](crate::Uplink).
pub const UPLINKS: &str = "uplinks";
/// Hash: index of an interface → [`Pod`](crate::Pod).
pub const PODS: &str = "pods";
/// Hash: index of an interface → [`Router`](crate::Router).
pub const ROUTERS: &str = "routers";
/// Hash: [`Addr4`](crate::Addr4) → [`PodAddress`](crate::PodAddress).
pub const POD_ADDRESSES4: &str = "podaddrs4";
/// Hash: [`Addr6`](crate::Addr6) → [`PodAddress`](crate::PodAddress).
pub const POD_ADDRESSES6: &str = "podaddrs6";
/// Hash: [`PortKey4`](crate::PortKey4) → [`PortTarget4`](crate::PortTarget4).
pub const PORTS4: &str = "ports4";
/// Hash: [`PortKey6`](crate::PortKey6) → [`PortTarget6`](crate::PortTarget6).
pub const PORTS6: &str = "ports6";
/// Hash: [`Addr4`](crate::Addr4), an address of the node but those of 127/8 → `u32`, index of its interface, or
/// [`SEVERAL`](crate::SEVERAL).
///
/// A published port without a host address is served by the programs at these addresses, and left to nftables
/// at others: an address that is missing here costs speed, not reachability.
pub const LOCALS4: &str = "locals4";
/// Hash: [`Addr6`](crate::Addr6), an address of the node but `::1` and link-local ones → as [`LOCALS4`].
pub const LOCALS6: &str = "locals6";
/// LRU hash: [`FlowKey4`](crate::FlowKey4) → [`Flow4`](crate::Flow4): flows that both sides have taken part in.
pub const FLOWS4: &str = "flows4";
/// LRU hash: [`FlowKey6`](crate::FlowKey6) → [`Flow6`](crate::Flow6).
pub const FLOWS6: &str = "flows6";
/// LRU hash: [`FlowKey4`](crate::FlowKey4) → [`Flow4`](crate::Flow4): flows that only one side knows so far. A
/// flood of them evicts no flow that is established.
pub const EMBRYOS4: &str = "embryos4";
/// LRU hash: [`FlowKey6`](crate::FlowKey6) → [`Flow6`](crate::Flow6).
pub const EMBRYOS6: &str = "embryos6";
/// LRU hash: [`FragmentKey4`](crate::FragmentKey4) → [`FragmentPorts`](crate::FragmentPorts).
pub const FRAGMENTS4: &str = "frags4";
/// LRU hash: [`FragmentKey6`](crate::FragmentKey6) → [`FragmentPorts`](crate::FragmentPorts).
pub const FRAGMENTS6: &str = "frags6";
/// LRU hash: [`SocketKey4`](crate::SocketKey4) → [`SocketOrigin4`](crate::SocketOrigin4).
pub const SOCKETS4: &str = "socks4";
/// LRU hash: [`SocketKey6`](crate::SocketKey6) → [`SocketOrigin6`](crate::SocketOrigin6).
pub const SOCKETS6: &str = "socks6";
/// Per-CPU array of one [`Counters`](crate::Counters).
pub const COUNTERS: &str = "counters";

/// Each map.
pub const ALL: [&str; 19] = [
    CONFIG,
    UPLINKS,
    PODS,
    ROUTERS,
    POD_ADDRESSES4,
    POD_ADDRESSES6,
    PORTS4,
    PORTS6,
    LOCALS4,
    LOCALS6,
    FLOWS4,
    FLOWS6,
    EMBRYOS4,
    EMBRYOS6,
    FRAGMENTS4,
    FRAGMENTS6,
    SOCKETS4,
    SOCKETS6,
    COUNTERS,
];

/// The first [`VERSION`](crate::VERSION) of the layout whose map of this name is what today's is. A version after
/// that takes such a map over from it, with all that is in it.
#[must_use]
pub fn unchanged_since(name: &str) -> u32 {
    match name {
        // `Config::teacher` came with 2.
        CONFIG => 2,
        // A map that came later; a version that does not know it writes none of it.
        ROUTERS => 2,
        _ => 1,
    }
}

/// Default size of [`UPLINKS`].
pub const UPLINKS_SIZE: u32 = 1024;
/// Default size of [`PODS`]. Memory is taken as elements are added, as for all maps that user space writes.
pub const PODS_SIZE: u32 = 16_384;
/// Default size of [`POD_ADDRESSES4`] and [`POD_ADDRESSES6`].
pub const POD_ADDRESSES_SIZE: u32 = 32_768;
/// Default size of [`PORTS4`] and [`PORTS6`].
pub const PORTS_SIZE: u32 = 131_072;
/// Default size of [`LOCALS4`] and [`LOCALS6`].
pub const LOCALS_SIZE: u32 = 4096;
/// Default size of [`FLOWS4`] and [`FLOWS6`], in halves: two for each flow. LRU maps take their memory when
/// they are made: 16 MiB and 21 MiB for these.
pub const FLOWS_SIZE: u32 = 131_072;
/// Default size of [`EMBRYOS4`] and [`EMBRYOS6`], in halves.
pub const EMBRYOS_SIZE: u32 = 32_768;
/// Default size of [`FRAGMENTS4`] and [`FRAGMENTS6`].
pub const FRAGMENTS_SIZE: u32 = 8192;
/// Default size of [`SOCKETS4`] and [`SOCKETS6`].
pub const SOCKETS_SIZE: u32 = 32_768;

/// The programs, as the object file calls them, and how each is attached.
pub mod programs {
    /// tc, ingress of every uplink.
    pub const UPLINK_INGRESS: &str = "uplink_ingress";
    /// tc, ingress of uplinks whose packets have no Ethernet header.
    pub const UPLINK_L3: &str = "uplink_l3";
    /// tc, ingress of the host's end of a pod's veth.
    pub const POD_INGRESS: &str = "pod_ingress";
    /// cgroup: each is named after its attach type.
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
    fn names_fit_the_kernel_and_differ() {
        for (index, name) in ALL.iter().enumerate() {
            assert!(name.len() <= 15, "{name}");
            assert!(!ALL[..index].contains(name), "{name} twice");
            assert!((1..=crate::VERSION).contains(&unchanged_since(name)), "{name}");
        }
    }
}
