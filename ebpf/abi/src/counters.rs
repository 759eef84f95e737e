//! What the programs count, and why they leave a flow to others.

/// Length of [`Counters`].
pub const COUNTERS: usize = 64;

/// The only element of map [`counters`](crate::maps::COUNTERS), one for each processor: indexed by [`Counter`],
/// and by [`Reason::fallback`].
pub type Counters = [u64; COUNTERS];

/// First index of the fallbacks.
const FALLBACKS: usize = 32;

/// What is counted, and its index.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Packets put into pods.
    ToPodPackets = 0,
    /// Their bytes, from the link layer's header on.
    ToPodBytes = 1,
    /// Packets of pods that were translated and sent out.
    FromPodPackets = 2,
    /// Their bytes.
    FromPodBytes = 3,
    /// New conversations with published ports.
    Published = 4,
    /// New conversations that are masqueraded.
    Masqueraded = 5,
    /// New flows that were noted and left to the stack, whatever the reason.
    Passed = 6,
    /// Flows that became established.
    Established = 7,
    /// Halves that had been evicted and were put back.
    Restored = 8,
    /// ICMP errors about translated packets that were translated.
    Errors = 9,
    /// Flows for which another source port had to be found, because the pod's end was taken.
    PortChanged = 10,
    /// Sockets of the node that were led to a pod: connections of TCP, messages of UDP.
    Sockets = 11,
    /// Dropped: too large for the route, and may not be told so, because fragmenting is allowed. Translated
    /// packets cannot be given to the stack for that.
    DropTooBig = 16,
    /// Dropped: the kernel refused to change the packet after the first change.
    DropWrite = 17,
    /// Dropped: no port is left for a flow that nobody else can serve.
    DropNoPort = 18,
}

impl Counter {
    /// Each counter.
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

    /// Whether it counts packets that were dropped.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        matches!(self, Self::DropTooBig | Self::DropWrite | Self::DropNoPort)
    }
}

/// Why a packet that might have been translated here was left to the stack.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The pod was reached at its own address: nothing to translate.
    Direct = 1,
    /// The pod's interface takes smaller packets than the uplink: the stack tells senders, or fragments.
    Mtu = 2,
    /// The map of flows takes no more.
    Full = 3,
    /// No source port is free that tells this flow from another one at the pod's end.
    Clash = 4,
    /// All ports for masquerade are taken towards this destination.
    NoPort = 5,
    /// A socket of the node's own is there (UDP).
    NodeSocket = 6,
    /// The address is the node's, but not in the map of its addresses.
    UnknownAddress = 7,
    /// Forwarding is off at the interface.
    NotForwarding = 8,
    /// The published port leads to a pod that is gone.
    PodGone = 9,
    /// The uplink has no address to masquerade with, or several, of which the stack chooses one; or it has lost the one
    /// that the programs were told of.
    NoAddress = 10,
    /// The route does not lead to an uplink any more.
    Route = 11,
    /// Larger than the route takes: the stack says so to the sender.
    TooBig = 12,
    /// The time to live ends here: the stack says so to the sender.
    Ttl = 13,
    /// A piece of a packet whose first piece was not seen.
    Fragment = 14,
    /// More extension headers than the programs look at, or a routing header that is not used up.
    Headers = 15,
    /// The pod is left to the stack as a whole: its rate is limited, or it is kept apart from others.
    Pod = 16,
    /// Netfilter had the conversation before the programs served the pod, or it began while they took over.
    Earlier = 17,
    /// The pod has sent it to another router on its link.
    Router = 18,
}

impl Reason {
    /// Each reason.
    pub const ALL: [Self; 18] = [
        Self::Direct,
        Self::Mtu,
        Self::Full,
        Self::Clash,
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

    /// Where [`Counters`] counts packets that were left to others for this reason: those that began a flow,
    /// and each of those that belong to none.
    #[inline(always)]
    #[must_use]
    pub const fn fallback(self) -> usize {
        FALLBACKS + self as usize
    }

    /// The reason with this number.
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
    fn reasons_come_back_from_their_numbers() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_number(reason as u8), Some(reason));
        }
        assert_eq!(Reason::from_number(0), None);
    }
}
