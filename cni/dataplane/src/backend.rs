// SPDX-License-Identifier: GPL-2.0-or-later

//! The contract of a backend, and the requests that it takes.

use std::fmt;
use std::net::IpAddr;

use cni_spec::Attachment;
use ipnet::IpNet;

use crate::options::{IptablesOptions, NftablesOptions};
use crate::{AddressFamily, ContainerNetns, Error, HostAddress, HostPorts, Owner, PublishedPort};

/// The backends that a configuration can choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackendName {
    /// [`crate::nftables::Nftables`].
    Nftables,
    /// [`crate::iptables::Iptables`].
    Iptables,
    /// [`crate::ebpf::Ebpf`].
    Ebpf,
}

impl BackendName {
    /// Every backend.
    pub const ALL: [Self; 3] = [Self::Nftables, Self::Iptables, Self::Ebpf];

    /// The name in configurations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ebpf => "ebpf",
        }
    }

    /// The backend of that name in configurations.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.as_str() == name)
    }
}

/// A container's ports to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRequest {
    pub attachment: Attachment,
    /// The container's namespace. Once it is gone, the owner is known to be dead.
    pub netns: ContainerNetns,
    /// The mappings, which do not overlap each other.
    pub ports: Vec<PublishedPort>,
    /// The container's addresses with the prefixes of their networks, at most one per family. Packets from that network
    /// to a published port are masqueraded, because otherwise the reply would not pass through the node.
    pub networks: Vec<IpNet>,
    /// The addresses of the container's other interfaces, with their prefixes. Packets from those networks are
    /// masqueraded as well, because the container would reply through that interface, past the node.
    pub elsewhere: Vec<IpNet>,
    /// Which sources are masqueraded on the way to the container.
    pub snat: Snat,
    pub loopback: Loopback,
    /// The bit of the packet mark, from 0 to 31, that is set on packets to a published port after their destination
    /// has been translated and until their source is.
    pub mark_bit: u8,
    /// Options of the nftables and eBPF backends.
    pub nftables: NftablesOptions,
    pub iptables: IptablesOptions,
}

/// Whether a mapping of all of the node's addresses includes its loopback addresses, 127/8 and ::1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Loopback {
    /// Connections to the loopback are translated, too.
    #[default]
    Served,
    /// Connections to the loopback reach the node's own services, except those to a loopback address that a
    /// mapping names.
    Spared,
}

/// Which sources are replaced by an address of the node on the way to a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Snat {
    /// The sources that need it: the container's own network (including the container itself) and the node's
    /// loopback.
    #[default]
    Needed,
    /// None. The container always sees the client's address, but the container itself, its neighbours and the node's
    /// loopback may get no reply.
    Never,
    Always,
}

/// A container's addresses to masquerade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasqueradeRequest {
    pub attachment: Attachment,
    /// The container's namespace. Once it is gone, the owner is known to be dead.
    pub netns: ContainerNetns,
    /// The container's addresses with their networks' prefixes and the host bits, as in results of IPAM.
    /// Packets to that network and to multicast groups keep their source.
    pub addresses: Vec<IpNet>,
    /// More networks to which packets keep their source (`nonMasqueradeCIDRs`), in any form.
    pub exempt: Vec<IpNet>,
}

impl MasqueradeRequest {
    /// The networks of a family to which packets are not masqueraded, apart from those of the addresses. In canonical
    /// form: sorted, without overlaps, and with adjacent halves merged.
    #[must_use]
    pub(crate) fn exempt_of(&self, family: AddressFamily) -> Vec<IpNet> {
        let of_family: Vec<IpNet> = self
            .exempt
            .iter()
            .filter(|network| AddressFamily::of(network.addr()) == family)
            .copied()
            .collect();
        let is_own = |network: &IpNet| self.addresses.iter().any(|own| own.trunc().contains(network));
        let mut networks = IpNet::aggregate(&of_family);
        networks.retain(|network| !is_own(network));
        networks.sort_unstable();
        networks
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Ports(PortRequest),
    Masquerade(MasqueradeRequest),
}

impl Request {
    #[must_use]
    pub fn attachment(&self) -> &Attachment {
        match self {
            Self::Ports(request) => &request.attachment,
            Self::Masquerade(request) => &request.attachment,
        }
    }

    #[must_use]
    pub fn netns(&self) -> &ContainerNetns {
        match self {
            Self::Ports(request) => &request.netns,
            Self::Masquerade(request) => &request.netns,
        }
    }

    #[must_use]
    pub fn addresses(&self) -> &[IpNet] {
        match self {
            Self::Ports(request) => &request.networks,
            Self::Masquerade(request) => &request.addresses,
        }
    }
}

/// Names the first four ports or addresses, and how many others there are.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (object, all): (_, Vec<String>) = match self {
            Self::Ports(request) => {
                ("published ports", request.ports.iter().map(ToString::to_string).collect())
            }
            Self::Masquerade(request) => {
                ("masquerade of", request.addresses.iter().map(|net| net.addr().to_string()).collect())
            }
        };
        let shown: Vec<&str> = all.iter().take(4).map(String::as_str).collect();
        write!(f, "{object} {}", shown.join(", "))?;
        if all.len() > 4 { write!(f, " and {} more", all.len() - 4) } else { Ok(()) }
    }
}

/// Which of an attachment's objects a call concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    /// Published ports only.
    Ports,
    /// Masqueraded addresses only.
    Masquerade,
    /// Everything that the attachment owns.
    All,
    /// Everything that the attachment owns if it has published ports, otherwise nothing.
    AllIfPorts,
}

impl Kinds {
    /// True if the choice includes published ports.
    #[must_use]
    pub fn ports(self) -> bool {
        self != Self::Masquerade
    }

    /// True if the choice includes masqueraded addresses.
    #[must_use]
    pub fn masquerade(self) -> bool {
        self != Self::Ports
    }
}

/// A request to remove what an attachment has. Correct hints save searching all elements; wrong or missing hints do
/// no harm.
#[derive(Debug, Clone)]
pub struct Withdrawal<'a> {
    pub attachment: &'a Attachment,
    pub kinds: Kinds,
    /// Hint: the host ports of the attachment.
    pub ports: &'a [HostPorts],
    /// Hint: the container addresses of the attachment.
    pub addresses: &'a [IpAddr],
    /// True if the container's namespace is gone, so nothing has closed its TCP connections. conntrack is then also
    /// searched for those that remain, which takes milliseconds.
    pub has_vanished: bool,
    /// If given, what a container in another namespace has stays, because a later ADD with the same ID made it.
    pub only_in: Option<&'a ContainerNetns>,
}

impl PortRequest {
    /// True if mappings of the family apply to all of the node's addresses except its loopback addresses.
    #[must_use]
    pub fn spares_loopback(&self, family: AddressFamily) -> bool {
        self.loopback == Loopback::Spared
            && self.ports.iter().any(|port| port.host.address == HostAddress::Any(family))
    }

    /// The mappings of the family that name a loopback address of the node.
    pub(crate) fn on_loopback(&self, family: AddressFamily) -> impl Iterator<Item = &PublishedPort> {
        let named = |port: &&PublishedPort| match port.host.address {
            HostAddress::One(address) => address.is_loopback(),
            HostAddress::Any(_) => false,
        };
        self.ports.iter().filter(move |port| port.host.address.family() == family).filter(named)
    }
}

impl<'a> Withdrawal<'a> {
    /// A withdrawal without hints.
    #[must_use]
    pub fn of(attachment: &'a Attachment, kinds: Kinds) -> Self {
        Self { attachment, kinds, ports: &[], addresses: &[], has_vanished: false, only_in: None }
    }
}

/// A published port in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// None for an element that was made by hand.
    pub owner: Option<Owner>,
    pub port: PublishedPort,
    /// The backend that serves it. Flows that the BPF programs leave to nftables count as nftables.
    pub backend: BackendName,
}

/// The traffic through a mapping.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub connections: usize,
    /// Packets and bytes of these flows, both directions together. None if accounting is off.
    pub counted: Option<(u64, u64)>,
}

impl Traffic {
    pub(crate) fn add(&mut self, counted: Option<(u64, u64)>) {
        self.connections += 1;
        if let Some((packets, bytes)) = counted {
            let (before, bytes_before) = self.counted.unwrap_or_default();
            self.counted = Some((before + packets, bytes_before + bytes));
        }
    }
}

/// Whether an attachment already had ports, or masqueraded addresses, before a call added them. An ADD that fails in
/// a later step undoes only what it added itself, because the ports of an earlier ADD serve a running container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    Nothing,
    Something,
}

impl Before {
    /// [`Self::Something`] if `has`.
    pub(crate) fn of(has: bool) -> Self {
        if has { Self::Something } else { Self::Nothing }
    }

    /// Combines what the attachment had in two places.
    pub(crate) fn or(self, other: Self) -> Self {
        if self == Self::Nothing { other } else { self }
    }
}

/// Publishes ports and masquerades addresses.
///
/// All calls block, act on the network namespace of the calling thread, and are safe against any number of
/// processes that do the same.
pub trait Backend {
    /// Publishes all ports or none. Repeating a call is not an error, and removes the ports that the request no
    /// longer names. A port that another attachment of the same container (same ID and namespace) publishes stays
    /// with that attachment.
    fn publish(&self, request: &PortRequest) -> Result<Before, Error>;

    /// Masquerades all addresses or none. Repeating a call is not an error.
    fn masquerade(&self, request: &MasqueradeRequest) -> Result<Before, Error>;

    /// Removes what the attachment owns. If the attachment owns nothing, this succeeds without writing anything.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel refuses, [`Error::Busy`] if other processes change the ruleset at
    /// every attempt. The call can be repeated.
    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error>;

    /// Compares the request with the kernel's state.
    fn check_ports(&self, request: &PortRequest) -> Result<(), Error>;

    /// Compares the request with the kernel's state.
    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error>;

    /// Removes what belongs to attachments of `network` that are not in `valid`, and what no attachment uses
    /// any longer.
    ///
    /// # Errors
    /// If something cannot be removed, the rest is removed all the same, and the first error is returned.
    fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error>;

    /// Lists everything that is published on the node, in a stable order.
    fn list(&self) -> Result<Vec<Listed>, Error>;

    /// Checks that the next `publish` and `masquerade` can succeed.
    fn status(&self) -> Result<(), Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exempt_networks_have_one_form() {
        let networks = |all: &[&str]| -> Vec<IpNet> { all.iter().map(|one| one.parse().unwrap()).collect() };
        let request = MasqueradeRequest {
            attachment: Attachment::new("net", "c1", "eth0").unwrap(),
            netns: ContainerNetns::unknown(),
            addresses: networks(&["10.22.0.2/16", "fd00:22::2/64"]),
            exempt: networks(&[
                "192.0.2.128/25",
                "10.22.4.0/24",
                "192.0.2.0/25",
                "fd00::/16",
                "192.0.2.7/32",
                "172.16.0.0/12",
                "fd00:22::/64",
            ]),
        };
        assert_eq!(request.exempt_of(AddressFamily::V4), networks(&["172.16.0.0/12", "192.0.2.0/24"]));
        assert_eq!(request.exempt_of(AddressFamily::V6), networks(&["fd00::/16"]));
    }
}
