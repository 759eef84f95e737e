//! The kernel's table of flows (ctnetlink, `linux/netfilter/nfnetlink_conntrack.h`).

use std::net::IpAddr;

use crate::error::Error;

/// One direction of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source port; 0 for protocols without ports.
    pub source_port: u16,
    /// Destination port; 0 for protocols without ports.
    pub destination_port: u16,
}

/// A flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// As its first packet came.
    pub original: Tuple,
    /// As answers come; with address translation it is not just the reverse.
    pub reply: Tuple,
    /// `IPS_*` bits (`linux/netfilter/nf_conntrack_common.h`).
    pub status: u32,
    /// The conntrack zone.
    pub zone: u16,
}

impl Flow {
    /// Whether its destination was translated (`IPS_DST_NAT`).
    #[must_use]
    pub const fn is_dnat(&self) -> bool {
        self.status & 32 != 0
    }
}

/// The address family of the flows that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowFamily {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Which flows. An empty filter means all of the family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Their family.
    pub family: FlowFamily,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Original destinations, any of these; empty means any.
    pub destinations: Vec<IpAddr>,
    /// Original destination port.
    pub port: Option<u16>,
    /// The source of answers: where the flow really goes.
    pub reply_source: Option<IpAddr>,
}

/// A socket to the flow table of the network namespace that the thread was in when it was opened.
#[derive(Debug)]
pub struct Conntrack {}

impl Conntrack {
    /// Opens it.
    ///
    /// # Errors
    /// No netfilter netlink in this kernel, or no permission.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {})
    }

    /// Goes through the flows that pass the filter. Where the kernel can filter (5.8 and later),
    /// other flows never leave it.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn for_each(&self, _filter: &Filter, _each: impl FnMut(&Flow)) -> Result<(), Error> {
        Ok(())
    }

    /// Removes the flows that pass the filter, one by one, and tells how many there were. A flow
    /// that ended meanwhile is no error.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn delete(&self, _filter: &Filter) -> Result<usize, Error> {
        Ok(0)
    }
}
