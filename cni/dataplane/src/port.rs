// SPDX-License-Identifier: GPL-2.0-or-later

//! Published ports as plain values.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use cni_kernel::AddressFamily;

/// A transport protocol for which ports can be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// All protocols, in the order in which listings show them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The number in the IP header (IANA "Assigned Internet Protocol Numbers").
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with this number in the IP header.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.number() == number)
    }

    /// The name in lower case, as port mappings and listings write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// On which of the node's addresses a port is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostAddress {
    /// Every local address of one family.
    Any(AddressFamily),
    /// A single address, which takes precedence over [`HostAddress::Any`].
    One(IpAddr),
}

impl HostAddress {
    #[must_use]
    pub fn family(self) -> AddressFamily {
        match self {
            Self::Any(family) => family,
            Self::One(address) => AddressFamily::of(address),
        }
    }

    /// The address, or the unspecified address of the family for every local address.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        match self {
            Self::Any(AddressFamily::V4) => Ipv4Addr::UNSPECIFIED.into(),
            Self::Any(AddressFamily::V6) => Ipv6Addr::UNSPECIFIED.into(),
            Self::One(address) => address,
        }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any(AddressFamily::V4) => f.write_str("0.0.0.0"),
            Self::Any(AddressFamily::V6) => f.write_str("[::]"),
            Self::One(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::One(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// The host's side of a mapping: one port, or a run of consecutive ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPorts {
    pub protocol: Protocol,
    /// The node's addresses on which the ports are open.
    pub address: HostAddress,
    /// The first port of the run, never 0.
    pub first: u16,
    /// The last port of the run, equal to `first` for a single port.
    pub last: u16,
}

impl HostPorts {
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.last.saturating_sub(self.first)) + 1
    }

    /// Always false: a run has at least one port.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The ports of the run.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        self.first..=self.last
    }

    /// True if both have a port in common, on the same address and protocol. A wildcard and a single address do not
    /// overlap, because the single address takes precedence.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.protocol == other.protocol
            && self.address == other.address
            && self.first <= other.last
            && other.first <= self.last
    }
}

impl fmt::Display for HostPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.protocol, self.address, self.first)?;
        if self.last == self.first { Ok(()) } else { write!(f, "-{}", self.last) }
    }
}

/// A mapping: packets to the host's ports are sent to the container's ports, in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishedPort {
    pub host: HostPorts,
    /// The container's address, of the host side's family.
    pub container: IpAddr,
    /// The container's port for the first port of the run. The other ports follow in order.
    pub container_port: u16,
}

impl PublishedPort {
    /// The container's port for the last port of the run. Configurations are checked, so the sum is in range.
    #[must_use]
    pub fn last_container_port(&self) -> u16 {
        self.container_port.saturating_add(self.host.last.saturating_sub(self.host.first))
    }
}

impl fmt::Display for PublishedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.host, SocketAddr::new(self.container, self.container_port))?;
        if self.host.len() > 1 { write!(f, "-{}", self.last_container_port()) } else { Ok(()) }
    }
}
