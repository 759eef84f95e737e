// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Flows: how packets of a known flow are translated.
//!
//! A flow is two elements in the same map, one for each direction: packets that arrive at an uplink
//! ([`SIDE_UPLINK`]) and packets that leave the pod ([`SIDE_POD`]). The key is the packet as it arrives, the
//! value is the translation. The key of the reverse direction follows from both: the translated packet,
//! reversed, on the other side ([`Flow::reverse_key`]).

use crate::address::{Addr4, Addr6, Port};

/// TCP, as in the IP header's protocol field (IANA protocol numbers).
pub const IPPROTO_TCP: u8 = 6;
/// UDP.
pub const IPPROTO_UDP: u8 = 17;
/// ICMP.
pub const IPPROTO_ICMP: u8 = 1;
/// ICMP for IPv6.
pub const IPPROTO_ICMPV6: u8 = 58;

/// [`FlowKey::side`]: a packet that arrives at an uplink.
pub const SIDE_UPLINK: u8 = 0;
/// [`FlowKey::side`]: a packet that leaves a pod.
pub const SIDE_POD: u8 = 1;

/// [`Flow::flags`]: this is the direction of the flow's first packet.
pub const ORIGINAL: u8 = 1;
/// [`Flow::flags`]: a flow to a published port. A translated flow without it is masqueraded.
pub const PUBLISHED: u8 = 2;
/// [`Flow::flags`]: a one-sided flow. The reverse direction is not recorded, as the translation by nftables
/// is unknown. With [`Action::Pass`] only.
pub const ONE_SIDED: u8 = 4;

/// Key of the maps [`flows4`](crate::maps::FLOWS4), [`flows6`](crate::maps::FLOWS6),
/// [`embryos4`](crate::maps::HALF_OPEN4) and [`embryos6`](crate::maps::HALF_OPEN6).
///
/// For an ICMP echo, the identifier is the port of the host that requests, and the other port is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey<A> {
    /// Source of the packet as it arrives.
    pub source: A,
    /// Destination.
    pub destination: A,
    /// Source port.
    pub source_port: Port,
    /// Destination port.
    pub destination_port: Port,
    /// [`IPPROTO_TCP`], [`IPPROTO_UDP`], [`IPPROTO_ICMP`] or [`IPPROTO_ICMPV6`].
    pub protocol: u8,
    /// [`SIDE_UPLINK`] or [`SIDE_POD`].
    pub side: u8,
    /// Zero.
    pub pad: u16,
}

/// [`FlowKey`] of IPv4.
pub type FlowKey4 = FlowKey<Addr4>;
/// [`FlowKey`] of IPv6.
pub type FlowKey6 = FlowKey<Addr6>;

/// One direction of a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow<A> {
    /// Packets of this direction; a packet merged by GRO counts as its segments.
    pub packets: u64,
    /// Bytes of this direction, from the link-layer header on.
    pub bytes: u64,
    /// Time of the last packet of either direction in [ticks](crate::TICK_SHIFT); 0: never.
    pub last_seen: u32,
    /// Index of the pod's interface on the host; 0: no pod ([`Action::Pass`] only).
    pub pod: u32,
    /// [`Pod::generation`](crate::Pod::generation) at the flow's beginning. If the pod has another one, the
    /// flow is dead.
    pub generation: u32,
    /// Translated source.
    pub source: A,
    /// Translated destination.
    pub destination: A,
    /// Translated source port.
    pub source_port: Port,
    /// Translated destination port.
    pub destination_port: Port,
    /// An [`Action`].
    pub action: u8,
    /// A [`State`].
    pub state: u8,
    /// [`ORIGINAL`], [`PUBLISHED`], [`ONE_SIDED`].
    pub flags: u8,
    /// A [`Reason`](crate::Reason), with [`Action::Pass`] only.
    pub reason: u8,
    /// TCP: sequence number of this direction's last packet, in host byte order. Others: time of the flow's
    /// first packet in ticks. 0: unknown.
    pub mark: u32,
}

/// [`Flow`] of IPv4.
pub type Flow4 = Flow<Addr4>;
/// [`Flow`] of IPv6.
pub type Flow6 = Flow<Addr6>;

impl<A> Flow<A> {
    /// The [`State`] whose timeout applies. Of a one-sided flow ([`ONE_SIDED`]) the BPF programs do not see the
    /// replies: conntrack may treat it as a stream, so the flow stays recorded until a stream's timeout.
    #[inline(always)]
    #[must_use]
    pub const fn timeout_state(&self) -> u8 {
        let is_one_sided = self.flags & ONE_SIDED != 0 && self.state == State::Unreplied as u8;
        if is_one_sided { State::Stream as u8 } else { self.state }
    }
}

impl<A: Copy> Flow<A> {
    /// The key of the reverse direction; `key` is the key of this one.
    #[inline(always)]
    #[must_use]
    pub fn reverse_key(&self, key: &FlowKey<A>) -> FlowKey<A> {
        FlowKey {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: key.protocol,
            side: key.side ^ 1,
            pad: 0,
        }
    }

    /// The reverse direction, without packets.
    #[inline(always)]
    #[must_use]
    pub fn reverse(&self, key: &FlowKey<A>) -> Self {
        Self {
            packets: 0,
            bytes: 0,
            mark: if key.protocol == IPPROTO_TCP { 0 } else { self.mark },
            source: key.destination,
            destination: key.source,
            source_port: key.destination_port,
            destination_port: key.source_port,
            action: match self.action {
                a if a == Action::ToPod as u8 => Action::ToUplink as u8,
                a if a == Action::ToUplink as u8 => Action::ToPod as u8,
                other => other,
            },
            flags: self.flags ^ ORIGINAL,
            ..*self
        }
    }
}

/// The action for packets of a flow.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Left to the kernel's stack for the flow's whole life: no translation is needed, or nftables
    /// translates.
    Pass = 0,
    /// Translated and redirected into the pod.
    ToPod = 1,
    /// Translated and sent by the route to its destination.
    ToUplink = 2,
}

/// State of a flow; those of TCP are conntrack's (net/netfilter/nf_conntrack_proto_tcp.c).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// TCP: SYN seen.
    SynSent = 1,
    /// TCP: SYN-ACK seen.
    SynReceived = 2,
    /// TCP: established.
    Established = 3,
    /// TCP: one FIN seen.
    FinWait = 4,
    /// TCP: that FIN acknowledged.
    CloseWait = 5,
    /// TCP: both FINs seen.
    LastAck = 6,
    /// TCP: both FINs acknowledged.
    TimeWait = 7,
    /// TCP: reset.
    Close = 8,
    /// UDP: no reply seen.
    Unreplied = 9,
    /// UDP: packets in both directions over more than two seconds.
    Stream = 10,
    /// ICMP echo.
    Echo = 11,
    /// UDP: a reply seen.
    Replied = 12,
}

/// Length of a table indexed by [`State`]: a power of two, so that the verifier accepts a masked index.
pub const STATES: usize = 16;

impl State {
    /// All states.
    pub const ALL: [Self; 12] = [
        Self::SynSent,
        Self::SynReceived,
        Self::Established,
        Self::FinWait,
        Self::CloseWait,
        Self::LastAck,
        Self::TimeWait,
        Self::Close,
        Self::Unreplied,
        Self::Stream,
        Self::Echo,
        Self::Replied,
    ];

    /// The state of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == number)
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn keys_and_values_have_no_hidden_padding() {
        assert_eq!(size_of::<FlowKey4>(), 16);
        assert_eq!(size_of::<FlowKey6>(), 40);
        assert_eq!(size_of::<Flow4>(), 48);
        assert_eq!(size_of::<Flow6>(), 72);
        assert_eq!(offset_of!(Flow4, source), 28);
        assert_eq!(offset_of!(Flow4, mark) + 4, 48);
        assert_eq!(offset_of!(Flow6, mark) + 4, 72);
        assert_eq!(offset_of!(FlowKey6, pad) + 2, 40);
    }

    fn address(last: u8) -> Addr4 {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    #[test]
    fn the_directions_of_a_published_port_are_each_others_reverse() {
        let (client, node, pod) = (address(1), address(2), address(3));
        let key = FlowKey4 {
            source: client,
            destination: node,
            source_port: Port::new(40000),
            destination_port: Port::new(8080),
            protocol: IPPROTO_TCP,
            side: SIDE_UPLINK,
            pad: 0,
        };
        let forward = Flow4 {
            source: client,
            destination: pod,
            source_port: Port::new(40001),
            destination_port: Port::new(80),
            action: Action::ToPod as u8,
            flags: ORIGINAL | PUBLISHED,
            pod: 5,
            generation: 6,
            packets: 9,
            ..Flow4::default()
        };
        let reverse_key = forward.reverse_key(&key);
        assert_eq!(reverse_key.source, pod);
        assert_eq!(reverse_key.destination_port, Port::new(40001));
        assert_eq!(reverse_key.side, SIDE_POD);
        let other = forward.reverse(&key);
        assert_eq!(other.action, Action::ToUplink as u8);
        assert_eq!((other.source, other.source_port), (node, Port::new(8080)));
        assert_eq!((other.destination, other.destination_port), (client, Port::new(40000)));
        assert_eq!((other.flags, other.packets, other.pod), (PUBLISHED, 0, 5));
        assert_eq!(other.reverse_key(&reverse_key), key);
        assert_eq!(other.reverse(&reverse_key), Flow4 { packets: 0, ..forward });
    }

    #[test]
    fn states_convert_to_numbers_and_back() {
        for state in State::ALL {
            assert_eq!(State::from_number(state as u8), Some(state));
            assert!((state as usize) < STATES);
        }
        assert_eq!(State::from_number(0), None);
    }
}
