//! Keys and values of what user space writes (pods, ports, uplinks), and of the small maps that the programs
//! keep for themselves.

use crate::address::{Addr4, Addr6, Port};

/// Value of map [`pods`](crate::maps::PODS), whose key is the index of the pod's interface on the host's side.
///
/// Written first after ownership is won, removed first of all by DEL: flows that were made with another
/// generation, or whose pod is not in the map, are dead.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// A random number, not 0: interface indices are used again, this is not.
    pub generation: u32,
    /// Largest packet (IP header and what follows) that the pod's interface takes.
    pub mtu: u32,
    /// [`LEFT`], [`HELD`].
    pub flags: u32,
    /// Zero.
    pub pad: u32,
}

/// [`Pod::flags`]: the pod is left to the kernel's stack as a whole. A program would put packets past what limits
/// its rate or keeps others from it.
pub const LEFT: u32 = 1;

/// [`Pod::flags`]: conversations that begin now are noted and left to the kernel's stack; those that the programs
/// have go on. So nothing begins unseen while it is looked for what conntrack already has with the pod, or what
/// the programs have.
pub const HELD: u32 = 2;

/// Value of map [`routers`](crate::maps::ROUTERS), whose key is the index of the pod's interface on the host's side: to
/// whom frames of the pod are addressed that the node is to forward. What the pod begins with other frames is for
/// another router on its link, and none of the programs' business. A pod without such an element is not asked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Router {
    /// The pod's [`Pod::generation`]: what is here of another one does not count.
    pub generation: u32,
    /// The MAC address, as a frame has it.
    pub mac: [u16; 3],
    /// Zero.
    pub pad: u16,
}

/// Value of maps [`podaddrs4`](crate::maps::POD_ADDRESSES4) and [`podaddrs6`](crate::maps::POD_ADDRESSES6),
/// whose key is a pod's address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodAddress {
    /// Index of the pod's interface on the host's side.
    pub pod: u32,
    /// Its [`Pod::generation`].
    pub generation: u32,
    /// [`MASQUERADED`].
    pub flags: u32,
    /// Length of the prefix of the pod's own network: what goes there is not masqueraded.
    pub prefix: u32,
}

/// [`PodAddress::flags`]: what leaves the pod's network from this address is masqueraded by the programs.
pub const MASQUERADED: u32 = 1;

/// Key of maps [`ports4`](crate::maps::PORTS4) and [`ports6`](crate::maps::PORTS6): a published port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey<A> {
    /// The host's address; all zeros: any address of the node in this family.
    pub address: A,
    /// The host's port.
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

/// Value of maps [`ports4`](crate::maps::PORTS4) and [`ports6`](crate::maps::PORTS6): where the port leads.
///
/// An element with pod 0 leads nowhere: the port belongs to a container that the programs do not serve, and the
/// element keeps a mapping for all addresses from taking what is meant for this one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTarget<A> {
    /// Index of the pod's interface on the host's side.
    pub pod: u32,
    /// Its [`Pod::generation`].
    pub generation: u32,
    /// The pod's address.
    pub address: A,
    /// The pod's port.
    pub port: Port,
    /// [`SPARES_LOOPBACK`].
    pub flags: u16,
}

/// [`PortTarget::flags`]: a port of all addresses, but not of the node's loopback (127/8 and `::1`).
pub const SPARES_LOOPBACK: u16 = 1;

/// In place of an interface's index in [`LOCALS4`](crate::maps::LOCALS4) and
/// [`LOCALS6`](crate::maps::LOCALS6): more than one interface has the address.
pub const SEVERAL: u32 = 0;

/// [`PortTarget`] of IPv4.
pub type PortTarget4 = PortTarget<Addr4>;
/// [`PortTarget`] of IPv6.
pub type PortTarget6 = PortTarget<Addr6>;

/// Value of map [`uplinks`](crate::maps::UPLINKS), whose key is the index of an interface that carries traffic
/// from outside and has the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uplink {
    /// Largest packet (IP header and what follows) that the interface takes.
    pub mtu: u32,
    /// [`UPLINK_ETHERNET`].
    pub flags: u32,
    /// The address that masquerade gives to IPv4 packets that leave here; zero: it does not.
    pub address4: Addr4,
    /// The same for IPv6.
    pub address6: Addr6,
}

/// [`Uplink::flags`]: packets begin with an Ethernet header; without it, with the IP header.
pub const UPLINK_ETHERNET: u32 = 1;

/// Key of maps [`frags4`](crate::maps::FRAGMENTS4) and [`frags6`](crate::maps::FRAGMENTS6): a packet in pieces.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey<A> {
    /// The packet's source.
    pub source: A,
    /// Its destination.
    pub destination: A,
    /// Its identification, as the packet has it (16 bits in IPv4).
    pub id: u32,
    /// Index of the interface at which it arrived: one pod cannot speak for another.
    pub interface: u32,
    /// The protocol above IP.
    pub protocol: u32,
}

/// [`FragmentKey`] of IPv4.
pub type FragmentKey4 = FragmentKey<Addr4>;
/// [`FragmentKey`] of IPv6.
pub type FragmentKey6 = FragmentKey<Addr6>;

/// Value of maps [`frags4`](crate::maps::FRAGMENTS4) and [`frags6`](crate::maps::FRAGMENTS6): what only the
/// first piece says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentPorts {
    /// Source port.
    pub source: Port,
    /// Destination port.
    pub destination: Port,
}

/// Key of maps [`socks4`](crate::maps::SOCKETS4) and [`socks6`](crate::maps::SOCKETS6): a socket of the node and
/// the pod's end that it was led to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketKey<A> {
    /// The socket's cookie, its lower half first.
    pub cookie: [u32; 2],
    /// The pod's address.
    pub address: A,
    /// The pod's port.
    pub port: Port,
    /// The protocol, [`IPPROTO_TCP`](crate::IPPROTO_TCP) or [`IPPROTO_UDP`](crate::IPPROTO_UDP).
    pub protocol: u16,
}

/// [`SocketKey`] of IPv4, also for addresses of IPv4 on a socket of IPv6.
pub type SocketKey4 = SocketKey<Addr4>;
/// [`SocketKey`] of IPv6.
pub type SocketKey6 = SocketKey<Addr6>;

/// Value of maps [`socks4`](crate::maps::SOCKETS4) and [`socks6`](crate::maps::SOCKETS6): what the socket asked
/// for, and is told that it talks to.
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
        assert_eq!((size_of::<PortKey4>(), size_of::<PortKey6>()), (8, 20));
        assert_eq!((size_of::<PortTarget4>(), size_of::<PortTarget6>()), (16, 28));
        assert_eq!(size_of::<Uplink>(), 28);
        assert_eq!((size_of::<FragmentKey4>(), size_of::<FragmentKey6>()), (20, 44));
        assert_eq!(size_of::<FragmentPorts>(), 4);
        assert_eq!((size_of::<SocketKey4>(), size_of::<SocketKey6>()), (16, 28));
        assert_eq!((size_of::<SocketOrigin4>(), size_of::<SocketOrigin6>()), (8, 20));
    }
}
