// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Flows that netfilter has checked and the BPF programs carry.
//!
//! An entry is one direction of a flow. It describes a packet as it came out of the kernel's stack, so that the
//! BPF programs need not look up routes, neighbours or ports.

use crate::address::{Addr4, Addr6, Port};

pub const IPPROTO_TCP: u8 = 6;
pub const IPPROTO_UDP: u8 = 17;

/// The clock of the flows: ticks of 2^28 ns (0.27 s) of CLOCK_MONOTONIC. A shift replaces the division for
/// each packet, and 32 bits last for 36 years.
pub const TICK_SHIFT: u32 = 28;

/// The packets of one direction, by the interface on which they arrive.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey<A> {
    /// As the packet arrives, before a translation.
    pub source: A,
    pub destination: A,
    pub source_port: Port,
    pub destination_port: Port,
    pub interface: u32,
    /// [`IPPROTO_TCP`] or [`IPPROTO_UDP`].
    pub protocol: u32,
}

pub type FlowKey4 = FlowKey<Addr4>;
pub type FlowKey6 = FlowKey<Addr6>;

/// How a packet came out of the kernel's stack. Later packets of the direction are sent the same way.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way<A> {
    /// After translation.
    pub source: A,
    pub destination: A,
    pub source_port: Port,
    pub destination_port: Port,
    /// The interface by which the packet left.
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

/// A container at the other end of a link.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// The Ethernet address of the container's interface.
    pub address: [u8; 6],
    /// 1 if packets have to take the queue of the link, because programs or filters there have to see each.
    pub takes_queue: u16,
}

/// One direction of a flow. The functions that change its [state](crate::State) are in `life.rs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry<A> {
    /// Packets that the BPF programs carried; a packet merged by GRO counts as its segments.
    pub packets: u64,
    /// Their bytes, from the link-layer header on.
    pub bytes: u64,
    /// [`Entry::bytes`] at the beginning of the present second (four ticks).
    pub bytes_at_second: u64,
    /// Bytes of the second before.
    pub bytes_before: u64,
    /// The number of the last packet that took the queue between the ends of the pod's link; 0 if none of them is in it
    /// any more. Counted for every way, but only those with [`TO_PEER`] need it.
    pub queued: u64,
    /// [Epoch](crate::maps::EPOCH) when netfilter last checked a packet.
    pub epoch: u32,
    /// [Tick](TICK_SHIFT) of the last packet that came out of the kernel's stack.
    pub checked: u32,
    /// [Tick](TICK_SHIFT) of the last packet that was given to the kernel's stack because it was time to.
    pub asked: u32,
    /// Length of the longest packet that came out lately, from the IP header on.
    pub fits: u32,
    /// [Tick](TICK_SHIFT) in which a packet of that length came out. After [`CARRIED_FOR`](crate::CARRIED_FOR) ticks the
    /// length no longer counts: the MTU may have shrunk since.
    pub fits_checked: u32,
    /// Length of the last packet that came out, in the tick [`Entry::checked`].
    pub last_length: u32,
    /// 0 until a second packet has come out in the same way as the first one, and each alone.
    pub is_trusted: u32,
    /// [Tick](TICK_SHIFT) in which a packet last came out twice; 0 for never.
    pub copied: u32,
    /// Packets that were noted since one came out as expected.
    pub noted: u32,
    pub reserved: u32,
    /// Differentiated services code point of the packet that came out.
    pub dscp: u32,
    /// TCP: the last acknowledgment number of this direction, in host byte order. Only kept for packets of a pod.
    pub acknowledgment: u32,
    pub way: Way<A>,
}

pub type Entry4 = Entry<Addr4>;
pub type Entry6 = Entry<Addr6>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_have_no_hidden_padding() {
        assert_eq!((size_of::<FlowKey4>(), size_of::<FlowKey6>()), (20, 44));
        assert_eq!((size_of::<Way<Addr4>>(), size_of::<Way<Addr6>>()), (40, 64));
        assert_eq!((size_of::<Entry4>(), size_of::<Entry6>()), (128, 152));
    }
}
