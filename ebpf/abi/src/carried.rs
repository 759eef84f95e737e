// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Flows that netfilter has checked and the BPF programs carry: the maps and their names.
//!
//! An entry is one direction of a flow. It describes a packet as it came out of the kernel's stack, so the
//! BPF programs look up no routes, neighbours or ports.

use crate::address::{Addr4, Addr6, Port};

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
    /// [`IPPROTO_TCP`](crate::IPPROTO_TCP) or [`IPPROTO_UDP`](crate::IPPROTO_UDP).
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
    /// [`EPOCH`] when netfilter last checked a packet.
    pub epoch: u32,
    /// [Tick](crate::TICK_SHIFT) of the last packet that came out of the kernel's stack.
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

/// A packet that passes through the kernel's stack. `__sk_buff::tc_index` has the index of its record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending<A> {
    /// The packet as it arrived.
    pub key: CarriedKey<A>,
    /// [`EPOCH`] at its arrival.
    pub epoch: u32,
    /// Tick of its arrival.
    pub tick: u32,
    /// Fields that the kernel's stack does not change. TCP: sequence and acknowledgment number, and the word with the
    /// flags. UDP: the beginning of the payload.
    pub proof: [u32; 3],
    /// Length from the header above IP on.
    pub length: u32,
    /// Time to live or hop limit.
    pub ttl: u32,
    /// Type of service or traffic class.
    pub tos: u32,
    /// [`ORIGINAL`], [`CLONE`], [`CLONE_SEEN`].
    pub kind: u32,
}

/// [`Pending::kind`]: the packet itself.
pub const ORIGINAL: u32 = 0;
/// [`Pending::kind`]: a clone, which is dropped when it has come out, as the packet itself was carried.
pub const CLONE: u32 = 1;
/// [`Pending::kind`]: a clone that has passed the ingress.
pub const CLONE_SEEN: u32 = 2;

/// [`Pending`] of IPv4.
pub type Pending4 = Pending<Addr4>;
/// [`Pending`] of IPv6.
pub type Pending6 = Pending<Addr6>;

/// Counters of the BPF programs that carry flows.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedCounter {
    /// Packets that the BPF programs carried.
    Carried = 0,
    /// Packets that were given to the kernel's stack to be checked.
    Asked = 1,
    /// Checked packets that came out.
    Checked = 2,
    /// Checked packets that came out changed in a way that the BPF programs do not reproduce.
    Unlike = 3,
    /// FIN and RST whose sequence number was far from the connection's.
    DroppedFar = 4,
    /// Packets that could be written only in part.
    DroppedWrite = 5,
}

impl CarriedCounter {
    /// All, in the order of their numbers.
    pub const ALL: [Self; CARRIED_COUNTERS] =
        [Self::Carried, Self::Asked, Self::Checked, Self::Unlike, Self::DroppedFar, Self::DroppedWrite];

    /// True if it counts dropped packets.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        matches!(self, Self::DroppedFar | Self::DroppedWrite)
    }
}

/// Number of [`CarriedCounter`]s.
pub const CARRIED_COUNTERS: usize = 6;

/// Array: a single `u32`, the epoch. User space increments it when the rules may have changed: netfilter then
/// checks each flow again.
pub const EPOCH: &str = "epoch";
/// LRU hash: [`CarriedKey4`] → [`Carried4`].
pub const CARRIED4: &str = "carried4";
/// LRU hash: [`CarriedKey6`] → [`Carried6`].
pub const CARRIED6: &str = "carried6";
/// Per-CPU array: a single `[u64; CARRIED_COUNTERS]`.
pub const COUNTS: &str = "carriedcounts";
/// Hash: index of an uplink → 1. For user space, which looks there for uplinks without programs.
pub const UPLINKS: &str = "flowuplinks";
/// Array: a single `u64`, the cookie of the network namespace that the programs serve; 0 if the kernel does not return
/// it. For user space.
pub const HOME: &str = "flowhome";
/// Array: the records of pending packets, [`Pending4`].
pub const PENDING4: &str = "pending4";
/// Array: [`Pending6`].
pub const PENDING6: &str = "pending6";
/// Per-CPU array: a single `u32`, the number of the last record.
pub const CURSORS: &str = "cursors";
/// Array: packets of flows without an entry. The upper 24 bits are a hash of the key, the lower 8 a number.
pub const YOUNG: &str = "young";
/// The pinned maps: programs that were loaded one after the other, by processes of which one was killed, share them.
pub const ALL: [&str; 10] =
    [EPOCH, CARRIED4, CARRIED6, COUNTS, UPLINKS, HOME, PENDING4, PENDING6, CURSORS, YOUNG];

/// Default size of [`CARRIED4`] and [`CARRIED6`], two elements for each flow.
pub const CARRIED_SIZE: u32 = 131_072;
/// Records of pending packets of each processor; a power of two. A packet usually passes the kernel's stack in the
/// softirq in which it arrived, so the records of few packets are in use.
pub const PENDING_EACH: u32 = 1024;
/// Processors with records of their own; a power of two. `tc_index` has 16 bits for both.
pub const PENDING_CPUS: u32 = 64;
/// Most uplinks.
pub const UPLINKS_SIZE: u32 = 1024;
/// Slots that count the packets of flows without an entry; a power of two.
pub const YOUNG_SIZE: u32 = 16_384;

/// tc, ingress of uplinks.
pub const INGRESS: &str = "flow_ingress";
/// tc, ingress of pods' host ends.
pub const INGRESS_POD: &str = "flow_ingress_pod";
/// tc, egress of uplinks, and of pods' host ends whose queueing discipline must see all packets.
pub const EGRESS: &str = "flow_egress";
/// tc, egress of pods' host ends.
pub const EGRESS_POD: &str = "flow_egress_pod";
/// tc, ingress of uplinks whose packets begin with the IP header.
pub const INGRESS_L3: &str = "flow_ingress_l3";
/// tc, egress of such uplinks.
pub const EGRESS_L3: &str = "flow_egress_l3";
/// The BPF programs.
pub const PROGRAMS: [&str; 6] = [INGRESS, INGRESS_POD, EGRESS, EGRESS_POD, INGRESS_L3, EGRESS_L3];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_have_no_hidden_padding() {
        assert_eq!((size_of::<CarriedKey4>(), size_of::<CarriedKey6>()), (20, 44));
        assert_eq!((size_of::<Way<Addr4>>(), size_of::<Way<Addr6>>()), (40, 64));
        assert_eq!((size_of::<Carried4>(), size_of::<Carried6>()), (96, 120));
        assert_eq!((size_of::<Pending4>(), size_of::<Pending6>()), (56, 80));
    }
}
