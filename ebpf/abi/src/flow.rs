//! Flows: what is done with a packet of a conversation that is known.
//!
//! A flow is two elements, its *halves*, in the same map: one for the packets that arrive at an uplink
//! ([`SIDE_UPLINK`]), one for those that leave the pod ([`SIDE_POD`]). A half's key is the packet as it
//! arrives, its value says what the packet becomes. The key of the other half is not stored, it follows: the
//! translated packet turned round, on the other side ([`Flow::other_key`]).

use crate::address::{Addr4, Addr6, Port};

/// TCP, as in the IP header's protocol field (IANA protocol numbers).
pub const IPPROTO_TCP: u8 = 6;
/// UDP.
pub const IPPROTO_UDP: u8 = 17;
/// ICMP.
pub const IPPROTO_ICMP: u8 = 1;
/// ICMP for IPv6.
pub const IPPROTO_ICMPV6: u8 = 58;

/// [`FlowKey::side`]: as seen arriving at an uplink.
pub const SIDE_UPLINK: u8 = 0;
/// [`FlowKey::side`]: as seen leaving a pod.
pub const SIDE_POD: u8 = 1;

/// [`Flow::flags`]: this half's packets go in the direction of the first packet of the flow.
pub const ORIGINAL: u8 = 1;
/// [`Flow::flags`]: a conversation with a published port; without it and with an action that translates, one
/// that a pod began and that is masqueraded.
pub const PUBLISHED: u8 = 2;
/// [`Flow::flags`]: there is no other half, because nobody knows what nftables will make of the packet. With
/// [`Action::Pass`] only.
pub const LONE: u8 = 4;

/// Key of the maps [`flows4`](crate::maps::FLOWS4), [`flows6`](crate::maps::FLOWS6),
/// [`embryos4`](crate::maps::EMBRYOS4) and [`embryos6`](crate::maps::EMBRYOS6).
///
/// An ICMP echo has its identifier as the port of the side that asks, and port 0 on the other.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey<A> {
    /// Source of the packet as it arrives.
    pub source: A,
    /// Its destination.
    pub destination: A,
    /// Its source port.
    pub source_port: Port,
    /// Its destination port.
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

/// One half of a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow<A> {
    /// Packets that this half has seen; a packet that was merged of several (GRO) counts as these.
    pub packets: u64,
    /// Their bytes, from the link layer's header on.
    pub bytes: u64,
    /// When the last packet of either half was seen, in [ticks](crate::TICK_SHIFT); 0 never.
    pub last_seen: u32,
    /// The pod's end: index of its interface on the host's side. 0: no pod is needed ([`Action::Pass`] only).
    pub pod: u32,
    /// [`Pod::generation`](crate::Pod::generation) that the flow began with; another one now: the flow is dead.
    pub generation: u32,
    /// What the packet's source becomes.
    pub source: A,
    /// What its destination becomes.
    pub destination: A,
    /// What its source port becomes.
    pub source_port: Port,
    /// What its destination port becomes.
    pub destination_port: Port,
    /// An [`Action`].
    pub action: u8,
    /// A [`State`].
    pub state: u8,
    /// [`ORIGINAL`], [`PUBLISHED`].
    pub flags: u8,
    /// Why the flow was left to others: a [`Reason`](crate::Reason), with [`Action::Pass`] only.
    pub reason: u8,
    /// TCP: the sequence number of the last packet of this half, a number of the host. Others: when the flow began, in
    /// ticks. 0: unknown.
    pub mark: u32,
}

/// [`Flow`] of IPv4.
pub type Flow4 = Flow<Addr4>;
/// [`Flow`] of IPv6.
pub type Flow6 = Flow<Addr6>;

impl<A> Flow<A> {
    /// The [`State`] whose timeout counts. Of a conversation of which the programs see one side only ([`LONE`]), they
    /// cannot tell whether the other one has spoken: conntrack may have a stream there, and it must not be ours before
    /// that has ended.
    #[inline(always)]
    #[must_use]
    pub const fn timed_as(&self) -> u8 {
        let is_lone = self.flags & LONE != 0 && self.state == State::Unreplied as u8;
        if is_lone { State::Stream as u8 } else { self.state }
    }
}

impl<A: Copy> Flow<A> {
    /// The key of the other half, `key` being the key of this one.
    #[inline(always)]
    #[must_use]
    pub fn other_key(&self, key: &FlowKey<A>) -> FlowKey<A> {
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

    /// The other half, which has seen no packet of its own yet.
    #[inline(always)]
    #[must_use]
    pub fn other_half(&self, key: &FlowKey<A>) -> Self {
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

/// What is done with a packet of a flow.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Left to the kernel's stack, for the whole life of the flow: it needs no translation, or nftables does it.
    Pass = 0,
    /// Translated and put into the pod.
    ToPod = 1,
    /// Translated and sent out by the route to its destination.
    ToUplink = 2,
}

/// States of TCP are those of conntrack (net/netfilter/nf_conntrack_proto_tcp.c).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// TCP: the first SYN was seen.
    SynSent = 1,
    /// TCP: the answer to it was seen.
    SynReceived = 2,
    /// TCP: open.
    Established = 3,
    /// TCP: one side is done.
    FinWait = 4,
    /// TCP: that was acknowledged.
    CloseWait = 5,
    /// TCP: both sides are done.
    LastAck = 6,
    /// TCP: that was acknowledged.
    TimeWait = 7,
    /// TCP: reset.
    Close = 8,
    /// UDP, nothing came back yet.
    Unreplied = 9,
    /// UDP, both have spoken for two seconds and more.
    Stream = 10,
    /// ICMP echo.
    Echo = 11,
    /// UDP, both have spoken.
    Replied = 12,
}

/// Length of a table indexed by [`State`]: a power of two, so that the verifier is content with a masked index.
pub const STATES: usize = 16;

impl State {
    /// Each state.
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

    /// The state with this number.
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
    fn the_halves_of_a_published_port_lead_to_each_other() {
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
        let half = Flow4 {
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
        let other_key = half.other_key(&key);
        assert_eq!(other_key.source, pod);
        assert_eq!(other_key.destination_port, Port::new(40001));
        assert_eq!(other_key.side, SIDE_POD);
        let other = half.other_half(&key);
        assert_eq!(other.action, Action::ToUplink as u8);
        assert_eq!((other.source, other.source_port), (node, Port::new(8080)));
        assert_eq!((other.destination, other.destination_port), (client, Port::new(40000)));
        assert_eq!((other.flags, other.packets, other.pod), (PUBLISHED, 0, 5));
        assert_eq!(other.other_key(&other_key), key);
        assert_eq!(other.other_half(&other_key), Flow4 { packets: 0, ..half });
    }

    #[test]
    fn states_have_the_numbers_of_the_table() {
        for state in State::ALL {
            assert_eq!(State::from_number(state as u8), Some(state));
            assert!((state as usize) < STATES);
        }
        assert_eq!(State::from_number(0), None);
    }
}
