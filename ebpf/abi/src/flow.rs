// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Flows that netfilter has checked and the BPF programs carry.
//!
//! An entry is one direction of a flow. It describes a packet as it came out of the kernel's stack, so the
//! BPF programs look up no routes, neighbours or ports.

use crate::address::{Addr4, Addr6, Port};

/// IP protocol number of TCP.
pub const IPPROTO_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const IPPROTO_UDP: u8 = 17;

/// The clock of the flows: ticks of 2^30 ns (1.07 s) of CLOCK_MONOTONIC. A shift replaces the division for
/// each packet, and 32 bits last for 146 years.
pub const TICK_SHIFT: u32 = 30;

/// The packets of one direction, by the interface on which they arrive.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CarriedKey<A> {
    /// Source of the packet as it arrives.
    pub source: A,
    /// Destination.
    pub destination: A,
    /// Source port.
    pub source_port: Port,
    /// Destination port.
    pub destination_port: Port,
    /// Index of the interface.
    pub interface: u32,
    /// [`IPPROTO_TCP`] or [`IPPROTO_UDP`].
    pub protocol: u32,
}

/// [`CarriedKey`] of IPv4.
pub type CarriedKey4 = CarriedKey<Addr4>;
/// [`CarriedKey`] of IPv6.
pub type CarriedKey6 = CarriedKey<Addr6>;

/// The way of a packet that came out of the kernel's stack. A later packet of the direction gets the same.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way<A> {
    /// Translated source.
    pub source: A,
    /// Translated destination.
    pub destination: A,
    /// Translated source port.
    pub source_port: Port,
    /// Translated destination port.
    pub destination_port: Port,
    /// Index of the interface by which the packet left.
    pub interface: u32,
    /// Firewall mark with which it left.
    pub mark: u32,
    /// Priority with which it left, which queueing disciplines read.
    pub priority: u32,
    /// Link-layer addresses: destination, source.
    pub ethernet: [u32; 3],
    /// [`TO_PEER`], [`HAS_ETHERNET`].
    pub flags: u32,
}

/// A flag of [`Way`]: the interface is a pod's host end. The packet goes to the peer, inside the pod.
pub const TO_PEER: u32 = 1;
/// A flag of [`Way`]: the interface's packets have an Ethernet header.
pub const HAS_ETHERNET: u32 = 1 << 1;

/// One direction of a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried<A> {
    /// Packets that the BPF programs carried; a packet merged by GRO counts as its segments.
    pub packets: u64,
    /// Their bytes, from the link-layer header on.
    pub bytes: u64,
    /// [`Carried::bytes`] at the beginning of the present tick.
    pub bytes_at_tick: u64,
    /// Bytes of the tick before.
    pub bytes_before: u64,
    /// Packets that may be in the queue between the ends of the pod's link, and those before them; 0 when the last has left
    /// it. Counted for every way, of use for those with [`TO_PEER`].
    pub queued: u64,
    /// [Epoch](crate::maps::EPOCH) when netfilter last checked a packet.
    pub epoch: u32,
    /// [Tick](TICK_SHIFT) of the last packet that came out of the kernel's stack.
    pub checked: u32,
    /// Tick of the last packet that was given to the kernel's stack to be checked.
    pub asked: u32,
    /// Length of the longest packet that came out, from the IP header on.
    pub fits: u32,
    /// Differentiated services code point of the packet that came out.
    pub dscp: u32,
    /// TCP: the last acknowledgment number of this direction, in host byte order. Valid if it is a pod's.
    pub acknowledgment: u32,
    /// The way of its packets.
    pub way: Way<A>,
}

/// [`Carried`] of IPv4.
pub type Carried4 = Carried<Addr4>;
/// [`Carried`] of IPv6.
pub type Carried6 = Carried<Addr6>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_have_no_hidden_padding() {
        assert_eq!((size_of::<CarriedKey4>(), size_of::<CarriedKey6>()), (20, 44));
        assert_eq!((size_of::<Way<Addr4>>(), size_of::<Way<Addr6>>()), (40, 64));
        assert_eq!((size_of::<Carried4>(), size_of::<Carried6>()), (104, 128));
    }
}
