// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Keys and values of the maps that user space writes (pods, ports, uplinks), and of the small maps that only
//! the BPF programs write.

use crate::address::{Addr4, Addr6, Port};

/// Value of map [`pods`](crate::maps::PODS). The key is the index of the pod's interface on the host.
///
/// An ADD writes it first once it owns the address and ports; a DEL removes it first. A flow with another
/// generation, or whose pod is not in the map, is dead.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// A random number other than 0: unlike interface indices, it is not reused.
    pub generation: u32,
    /// MTU of the pod's interface: the largest packet, from the IP header on.
    pub mtu: u32,
    /// [`LEFT`], [`HELD`].
    pub flags: u32,
    /// Zero.
    pub pad: u32,
}

/// [`Pod::flags`]: all traffic of the pod is left to the kernel's stack. The BPF programs would bypass what
/// limits its rate or isolates it.
pub const LEFT: u32 = 1;

/// [`Pod::flags`]: new flows are recorded and left to the kernel's stack; existing flows of the BPF programs
/// continue. Set while flows are moved between conntrack and the BPF programs, so that no flow begins unseen.
pub const HELD: u32 = 2;

/// Value of map [`routers`](crate::maps::ROUTERS): the destination of those frames of the pod that the node
/// is to forward. The key is the index of the pod's interface on the host. Flows that the pod begins with
/// other frames go to another router on its link, and are left alone. Without an element the destination is
/// not checked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Router {
    /// The pod's [`Pod::generation`]; an element of another generation is ignored.
    pub generation: u32,
    /// MAC address in network byte order.
    pub mac: [u16; 3],
    /// Zero.
    pub pad: u16,
}

/// Value of maps [`podaddrs4`](crate::maps::POD_ADDRESSES4) and [`podaddrs6`](crate::maps::POD_ADDRESSES6).
/// The key is a pod's address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodAddress {
    /// Index of the pod's interface on the host.
    pub pod: u32,
    /// The pod's [`Pod::generation`].
    pub generation: u32,
    /// [`MASQUERADED`]; from bit [`EXEMPT_SHIFT`] on the number of a list, see [`ExemptKey::list`].
    pub flags: u32,
    /// Prefix length of the pod's network: traffic inside of it is not masqueraded.
    pub prefix: u32,
}

/// [`PodAddress::flags`]: the BPF programs masquerade traffic from this address that leaves the pod's
/// network.
pub const MASQUERADED: u32 = 1;

/// [`PodAddress::flags`]: the position of the number of the list of networks that are exempt from masquerade;
/// 0: no list.
pub const EXEMPT_SHIFT: u32 = 16;

impl PodAddress {
    /// The number of the list of networks that are exempt from masquerade; 0: none.
    #[inline(always)]
    #[must_use]
    pub const fn exempt_list(&self) -> u32 {
        self.flags >> EXEMPT_SHIFT
    }
}

/// Data of the key of maps [`exempt4`](crate::maps::EXEMPT4) and [`exempt6`](crate::maps::EXEMPT6): a network
/// to which the pods with this list send with their own addresses. The prefix length of the key is
/// [`Self::LIST_BITS`] more than that of the network.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExemptKey<A> {
    /// The number of the list, from 1 on.
    pub list: u32,
    /// The network.
    pub address: A,
}

impl<A> ExemptKey<A> {
    /// The number of bits before the address.
    pub const LIST_BITS: u32 = 32;
}

/// [`ExemptKey`] of IPv4.
pub type ExemptKey4 = ExemptKey<Addr4>;
/// [`ExemptKey`] of IPv6.
pub type ExemptKey6 = ExemptKey<Addr6>;

/// Key of maps [`ports4`](crate::maps::PORTS4) and [`ports6`](crate::maps::PORTS6): a published port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey<A> {
    /// Address on the host; all zeros for any address of the node.
    pub address: A,
    /// Port on the host.
    pub port: Port,
    /// [`IPPROTO_TCP`](crate::IPPROTO_TCP) or [`IPPROTO_UDP`](crate::IPPROTO_UDP).
    pub protocol: u8,
    /// Zero.
    pub pad: u8,
}

/// [`PortKey`] of IPv4.
pub type PortKey4 = PortKey<Addr4>;
/// [`PortKey`] of IPv6.
pub type PortKey6 = PortKey<Addr6>;

/// Value of maps [`ports4`](crate::maps::PORTS4) and [`ports6`](crate::maps::PORTS6): the target of the port.
///
/// Pod 0 means no target: the port belongs to a container that the BPF programs do not serve, and the element
/// prevents that a mapping for all addresses matches.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTarget<A> {
    /// Index of the pod's interface on the host.
    pub pod: u32,
    /// The pod's [`Pod::generation`].
    pub generation: u32,
    /// The pod's address.
    pub address: A,
    /// The pod's port.
    pub port: Port,
    /// [`NOT_LOOPBACK`].
    pub flags: u16,
}

/// [`PortTarget::flags`]: a port of all addresses except the node's loopback (127/8 and `::1`).
pub const NOT_LOOPBACK: u16 = 1;

/// An interface index in [`LOCALS4`](crate::maps::LOCALS4) and [`LOCALS6`](crate::maps::LOCALS6) for an
/// address that more than one interface has.
pub const SEVERAL: u32 = 0;

/// [`PortTarget`] of IPv4.
pub type PortTarget4 = PortTarget<Addr4>;
/// [`PortTarget`] of IPv6.
pub type PortTarget6 = PortTarget<Addr6>;

/// Value of map [`uplinks`](crate::maps::UPLINKS). The key is the index of an interface for traffic with the
/// outside that has the BPF program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uplink {
    /// MTU: the largest packet, from the IP header on.
    pub mtu: u32,
    /// [`UPLINK_ETHERNET`].
    pub flags: u32,
    /// Source address of masqueraded IPv4 packets; zero: none.
    pub address4: Addr4,
    /// Source address of masqueraded IPv6 packets; zero: none.
    pub address6: Addr6,
}

/// [`Uplink::flags`]: packets begin with an Ethernet header; otherwise with the IP header.
pub const UPLINK_ETHERNET: u32 = 1;

/// Key of maps [`frags4`](crate::maps::FRAGMENTS4) and [`frags6`](crate::maps::FRAGMENTS6): a fragmented
/// packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey<A> {
    /// Source address.
    pub source: A,
    /// Destination address.
    pub destination: A,
    /// Identification in network byte order (16 bits in IPv4).
    pub id: u32,
    /// Index of the interface at which the packet arrived: a pod cannot forge fragments of another one.
    pub interface: u32,
    /// Protocol above IP.
    pub protocol: u32,
}

/// [`FragmentKey`] of IPv4.
pub type FragmentKey4 = FragmentKey<Addr4>;
/// [`FragmentKey`] of IPv6.
pub type FragmentKey6 = FragmentKey<Addr6>;

/// Value of maps [`frags4`](crate::maps::FRAGMENTS4) and [`frags6`](crate::maps::FRAGMENTS6): the ports,
/// which only the first fragment has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentPorts {
    /// Source port.
    pub source: Port,
    /// Destination port.
    pub destination: Port,
}

/// Key of maps [`socks4`](crate::maps::SOCKETS4) and [`socks6`](crate::maps::SOCKETS6): a socket of the node,
/// and the pod's address and port to which it was translated.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketKey<A> {
    /// Cookie of the socket, the lower 32 bits first.
    pub cookie: [u32; 2],
    /// The pod's address.
    pub address: A,
    /// The pod's port.
    pub port: Port,
    /// The protocol, [`IPPROTO_TCP`](crate::IPPROTO_TCP) or [`IPPROTO_UDP`](crate::IPPROTO_UDP).
    pub protocol: u16,
}

/// [`SocketKey`] of IPv4, also for IPv4 addresses of an IPv6 socket.
pub type SocketKey4 = SocketKey<Addr4>;
/// [`SocketKey`] of IPv6.
pub type SocketKey6 = SocketKey<Addr6>;

/// Value of maps [`socks4`](crate::maps::SOCKETS4) and [`socks6`](crate::maps::SOCKETS6): the original
/// destination, which the socket sees as its peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOrigin<A> {
    /// The address.
    pub address: A,
    /// The port.
    pub port: Port,
    /// Zero.
    pub pad: u16,
}

/// [`SocketOrigin`] of IPv4.
pub type SocketOrigin4 = SocketOrigin<Addr4>;
/// [`SocketOrigin`] of IPv6.
pub type SocketOrigin6 = SocketOrigin<Addr6>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_have_no_hidden_padding() {
        assert_eq!(size_of::<Pod>(), 16);
        assert_eq!(size_of::<PodAddress>(), 16);
        assert_eq!(size_of::<Router>(), 12);
        assert_eq!((size_of::<ExemptKey4>(), size_of::<ExemptKey6>()), (8, 20));
        assert_eq!((size_of::<PortKey4>(), size_of::<PortKey6>()), (8, 20));
        assert_eq!((size_of::<PortTarget4>(), size_of::<PortTarget6>()), (16, 28));
        assert_eq!(size_of::<Uplink>(), 28);
        assert_eq!((size_of::<FragmentKey4>(), size_of::<FragmentKey6>()), (20, 44));
        assert_eq!(size_of::<FragmentPorts>(), 4);
        assert_eq!((size_of::<SocketKey4>(), size_of::<SocketKey6>()), (16, 28));
        assert_eq!((size_of::<SocketOrigin4>(), size_of::<SocketOrigin6>()), (8, 20));
    }
}
