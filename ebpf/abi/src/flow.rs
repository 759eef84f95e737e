// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Entries of flows that netfilter has checked and that the BPF programs carry past the kernel's stack.
//!
//! An entry stands for one direction of a flow. It has the addresses, ports and Ethernet addresses with which
//! a packet of that direction came out of the kernel's stack, so the BPF programs need not look up routes,
//! neighbours or translations for the packets that follow.

use crate::address::{Addr4, Addr6, Port};

pub const IPPROTO_TCP: u8 = 6;
pub const IPPROTO_UDP: u8 = 17;

/// The clock of the entries counts ticks of 2^28 ns (0.27 s) of CLOCK_MONOTONIC. Because the length of a tick
/// is a power of two, a shift replaces a division for every packet. 32 bits of ticks overflow only after 36
/// years.
pub const TICK_SHIFT: u32 = 28;

/// The key of an entry: one direction of a flow, and the interface on which its packets arrive.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey<A> {
    /// As in a packet that arrives, before translation; so are the next three fields.
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

/// How a packet left the kernel's stack. Later packets of the direction are sent in the same way.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way<A> {
    /// After translation; so are the next three fields.
    pub source: A,
    pub destination: A,
    pub source_port: Port,
    pub destination_port: Port,
    /// The interface through which the packet left.
    pub interface: u32,
    /// The firewall mark of the packet when it left (`skb->mark`).
    pub mark: u32,
    /// The priority of the packet when it left (`skb->priority`), which queueing disciplines read.
    pub priority: u32,
    /// The first 12 bytes of the Ethernet header, which are the destination and the source address.
    pub ethernet: [u32; 3],
    /// [`TO_PEER`] and [`HAS_ETHERNET`].
    pub flags: u32,
}

/// A flag of [`Way`]: the interface is the host's end of a pod's veth, and packets may be redirected straight
/// to its peer inside the pod. It is not set if a queueing discipline, program or filter of the link has to
/// see them.
pub const TO_PEER: u32 = 1;
/// A flag of [`Way`]: packets leave the interface with an Ethernet header.
pub const HAS_ETHERNET: u32 = 1 << 1;

/// What the BPF programs know about the container behind a link.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// The MAC address of the container's interface.
    pub address: [u8; 6],
    /// 1 if all packets to the container have to take the queue of the link, because a program or filter
    /// there has to see each of them.
    pub takes_queue: u16,
}

/// One direction of a flow. The functions that change its [state](crate::State) are in `life.rs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry<A> {
    /// The packets that the BPF programs have carried. A packet that GRO merged counts as the segments of
    /// which it consists.
    pub packets: u64,
    /// The bytes of these packets, from the link-layer header on.
    pub bytes: u64,
    /// The value of [`Entry::bytes`] at the beginning of the current second (four ticks).
    pub bytes_at_second: u64,
    /// The bytes of the previous second; 0 after a pause.
    pub bytes_before: u64,
    /// The number of the last packet that took the queue of the pod's link, or 0 if no packet of this
    /// direction is left in the queue. Packets are numbered whatever the way, but only ways with [`TO_PEER`]
    /// need the number.
    pub queued: u64,
    /// The [epoch](crate::maps::EPOCH) in which the packet arrived that netfilter checked last; 0 if
    /// netfilter has to decide again.
    pub epoch: u32,
    /// The [tick](TICK_SHIFT) in which a packet last came out of the kernel's stack.
    pub checked: u32,
    /// The [tick](TICK_SHIFT) in which the current sample period began. Its first packet, or a clone of that,
    /// passes the kernel's stack.
    pub asked: u32,
    /// The length, from the IP header on, of the longest packet that came out recently.
    pub fits: u32,
    /// The [tick](TICK_SHIFT) in which a packet of that length last came out. After
    /// [`CARRIED_FOR`](crate::CARRIED_FOR) ticks the length no longer counts, because the MTU may have shrunk
    /// since.
    pub fits_checked: u32,
    /// The length of the packet that came out last, in the tick [`Entry::checked`].
    pub last_length: u32,
    /// 1 after a second packet has come out in the same way as the first one, and neither of them twice;
    /// otherwise 0.
    pub is_trusted: u32,
    /// The [tick](TICK_SHIFT) in which the direction was last barred, because a packet came out twice or
    /// because a rule decides about each packet; 0 if it never was.
    pub copied: u32,
    /// The packets that arrived in the states Trial and Suspended since one came out as expected. The more
    /// there are, the smaller is the share of them that is noted.
    pub noted: u32,
    pub reserved: u32,
    /// The differentiated services code point of the packets that came out.
    pub dscp: u32,
    /// TCP: an acknowledgment number of this direction, in host byte order. If the packets come from a pod,
    /// it is the last one; otherwise it stays that of the packet from which the entry was learnt.
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
