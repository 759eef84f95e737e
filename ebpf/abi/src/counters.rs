// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Counters of the BPF programs, and the reasons for which they leave a flow to the kernel's stack.

/// Length of [`Counters`].
pub const COUNTERS: usize = 64;

/// The only element of map [`counters`](crate::maps::COUNTERS), per processor; indexed by [`Counter`] and
/// [`Reason::fallback`].
pub type Counters = [u64; COUNTERS];

/// Index of the first fallback.
const FALLBACKS: usize = 32;

/// Counters, with their indices.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Packets redirected into pods.
    ToPodPackets = 0,
    /// Bytes redirected into pods, from the link-layer header on.
    ToPodBytes = 1,
    /// Packets of pods translated and sent.
    FromPodPackets = 2,
    /// Bytes of pods translated and sent, from the link-layer header on.
    FromPodBytes = 3,
    /// New flows of published ports.
    Published = 4,
    /// New masqueraded flows.
    Masqueraded = 5,
    /// New flows recorded and left to the kernel's stack, for any reason.
    Passed = 6,
    /// Flows that became established.
    Established = 7,
    /// Evicted directions of flows that were restored.
    Restored = 8,
    /// Translated ICMP errors about translated packets.
    Errors = 9,
    /// Flows that got another source port because of a source port collision at the pod.
    PortChanged = 10,
    /// Destinations of the node's sockets translated to a pod: TCP connections, UDP messages.
    Sockets = 11,
    /// Dropped: a packet too large for the route whose sender allows fragmenting, so that no ICMP error may
    /// be sent. Translated packets cannot be left to the kernel's stack.
    DropTooBig = 16,
    /// Dropped: the kernel refused a write to a packet after the first one.
    DropWrite = 17,
    /// Dropped: no free port for a flow that only the BPF programs can serve.
    DropNoPort = 18,
}

impl Counter {
    /// All counters.
    pub const ALL: [Self; 15] = [
        Self::ToPodPackets,
        Self::ToPodBytes,
        Self::FromPodPackets,
        Self::FromPodBytes,
        Self::Published,
        Self::Masqueraded,
        Self::Passed,
        Self::Established,
        Self::Restored,
        Self::Errors,
        Self::PortChanged,
        Self::Sockets,
        Self::DropTooBig,
        Self::DropWrite,
        Self::DropNoPort,
    ];

    /// True if it counts dropped packets.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        matches!(self, Self::DropTooBig | Self::DropWrite | Self::DropNoPort)
    }
}

/// The reason for which a packet was left to the kernel's stack instead of being translated.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The destination is the pod's own address: no translation.
    Direct = 1,
    /// The pod's MTU is smaller than the uplink's: the kernel's stack reports it to senders, or fragments.
    Mtu = 2,
    /// The map of flows is full.
    Full = 3,
    /// Source port collision: no free port at the pod.
    PortCollision = 4,
    /// No free port of masquerade for this destination.
    NoPort = 5,
    /// The node has a UDP socket for the packet.
    NodeSocket = 6,
    /// An address of the node that is missing in the map of its addresses.
    UnknownAddress = 7,
    /// Forwarding is off at the interface.
    NotForwarding = 8,
    /// The target of the published port is a deleted pod.
    PodGone = 9,
    /// No address for masquerade: the uplink has none, or several, of which the kernel's stack chooses, or
    /// has lost the one in the map.
    NoAddress = 10,
    /// The route no longer leads to an uplink.
    Route = 11,
    /// Larger than the route's MTU: the kernel's stack reports it to the sender.
    TooBig = 12,
    /// The time to live expires: the kernel's stack reports it to the sender.
    Ttl = 13,
    /// A fragment whose first fragment was not seen.
    Fragment = 14,
    /// Too many extension headers, or a routing header with segments left.
    Headers = 15,
    /// All traffic of the pod is left to the kernel's stack: its rate is limited, or it is isolated.
    Pod = 16,
    /// conntrack had the flow before the BPF programs served the pod, or it began during the move.
    Earlier = 17,
    /// The pod sent it to another router on its link.
    Router = 18,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 18] = [
        Self::Direct,
        Self::Mtu,
        Self::Full,
        Self::PortCollision,
        Self::NoPort,
        Self::NodeSocket,
        Self::UnknownAddress,
        Self::NotForwarding,
        Self::PodGone,
        Self::NoAddress,
        Self::Route,
        Self::TooBig,
        Self::Ttl,
        Self::Fragment,
        Self::Headers,
        Self::Pod,
        Self::Earlier,
        Self::Router,
    ];

    /// Index in [`Counters`] of the packets left to the kernel's stack for this reason: the first packets of
    /// flows, and all packets without a flow.
    #[inline(always)]
    #[must_use]
    pub const fn fallback(self) -> usize {
        FALLBACKS + self as usize
    }

    /// The reason of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_is_used_once() {
        let mut used = [false; COUNTERS];
        let indices =
            Counter::ALL.iter().map(|c| *c as usize).chain(Reason::ALL.iter().map(|r| r.fallback()));
        for index in indices {
            assert!(!core::mem::replace(&mut used[index], true), "{index} twice");
        }
    }

    #[test]
    fn reasons_convert_to_numbers_and_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_number(reason as u8), Some(reason));
        }
        assert_eq!(Reason::from_number(0), None);
    }
}
