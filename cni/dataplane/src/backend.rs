//! What every way of publishing ports and masquerading must offer.

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
    /// All of them.
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
    /// The owner.
    pub attachment: Attachment,
    /// The container's namespace: it is how a later caller tells that the owner is dead.
    pub netns: ContainerNetns,
    /// The mappings, without overlaps among themselves.
    pub ports: Vec<PublishedPort>,
    /// The container's addresses with the prefixes of their networks, at most one of a family.
    /// Sources in that network get the node's address on the way to a published port, as the
    /// answer would otherwise not pass the node.
    pub networks: Vec<IpNet>,
    /// Which sources are masqueraded on the way to the container.
    pub snat: Snat,
    /// What becomes of the node's own loopback.
    pub loopback: Loopback,
    /// Bit of the packet mark, 0 to 31, that remembers between the translation of the destination
    /// and that of the source that the packet came through a published port.
    pub mark_bit: u8,
    /// Options of the nftables and eBPF backends.
    pub nftables: NftablesOptions,
    /// Options of the iptables backend.
    pub iptables: IptablesOptions,
}

/// Whether mappings of all of the node's addresses hold for its loopback, 127/8 and ::1, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Loopback {
    /// They do.
    #[default]
    Served,
    /// They do not: what the node itself has there is reached. A mapping that names a loopback
    /// address holds all the same.
    Spared,
}

/// Which sources get an address of the node on the way to a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Snat {
    /// Those that need it: the container's own network (itself included) and the node's loopback.
    #[default]
    Needed,
    /// None: the container always sees the client, the container and its neighbours and the
    /// node's loopback may not get an answer.
    Never,
    /// All.
    Always,
}

/// A container's addresses to masquerade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasqueradeRequest {
    /// The owner.
    pub attachment: Attachment,
    /// The container's namespace: it is how a later caller tells that the owner is dead.
    pub netns: ContainerNetns,
    /// The container's addresses, each with its network's prefix (host bits kept, as results of
    /// IPAM have them). Packets to that network and to multicast groups keep their source.
    pub addresses: Vec<IpNet>,
}

/// Which of an attachment's things are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    /// Published ports alone.
    Ports,
    /// Masqueraded addresses alone.
    Masquerade,
    /// Everything it owns.
    All,
    /// Everything it owns if it has published ports, otherwise nothing.
    AllIfPorts,
}

impl Kinds {
    /// Whether published ports are among them.
    #[must_use]
    pub fn ports(self) -> bool {
        self != Self::Masquerade
    }

    /// Whether masqueraded addresses are among them.
    #[must_use]
    pub fn masquerade(self) -> bool {
        self != Self::Ports
    }
}

/// What to take away. Only the attachment is needed; the hints save the search through all
/// elements when they are right and do no harm when they are wrong or missing.
#[derive(Debug, Clone)]
pub struct Withdrawal<'a> {
    /// The owner.
    pub attachment: &'a Attachment,
    /// What of it.
    pub kinds: Kinds,
    /// Host ports that it probably has.
    pub ports: &'a [HostPorts],
    /// Container addresses that it probably has.
    pub addresses: &'a [IpAddr],
}

impl PortRequest {
    /// Whether mappings of the family hold for all of the node's addresses but its loopback.
    #[must_use]
    pub fn spares_loopback(&self, family: AddressFamily) -> bool {
        self.loopback == Loopback::Spared
            && self.ports.iter().any(|port| port.host.address == HostAddress::Any(family))
    }

    /// The mappings of the family that name a loopback address of the node.
    pub fn on_loopback(&self, family: AddressFamily) -> impl Iterator<Item = &PublishedPort> {
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
        Self { attachment, kinds, ports: &[], addresses: &[] }
    }
}

/// One published port as it is in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Who owns it; none for an element that was made by hand.
    pub owner: Option<Owner>,
    /// The mapping.
    pub port: PublishedPort,
    /// Who serves it. What the programs leave to nftables is nftables'.
    pub backend: BackendName,
}

/// What goes through a mapping at this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections that are known; conversations, for protocols without.
    pub connections: usize,
    /// Packets and bytes of these, both directions together; none where nobody counts them.
    pub counted: Option<(u64, u64)>,
}

impl Traffic {
    /// One connection more.
    pub(crate) fn add(&mut self, counted: Option<(u64, u64)>) {
        self.connections += 1;
        if let Some((packets, bytes)) = counted {
            let (before, bytes_before) = self.counted.unwrap_or_default();
            self.counted = Some((before + packets, bytes_before + bytes));
        }
    }
}

/// A way to publish ports and to masquerade.
///
/// All calls are blocking, act on the network namespace of the calling thread, and are safe
/// against any number of other processes that do the same.
pub trait Backend {
    /// Publishes the ports: all of them or none. Publishing again what the same attachment has
    /// already is no error; what it had and is no longer asked for goes away. What another
    /// attachment of the same container (one ID, one namespace) publishes already stays with that
    /// one, as long as it has it.
    ///
    /// # Errors
    /// [`Error::Conflict`] when a living attachment of another container has one of the ports or
    /// addresses.
    fn publish(&self, request: &PortRequest) -> Result<(), Error>;

    /// Masquerades the addresses: all of them or none. As with [`Backend::publish`], a repetition
    /// is no error.
    ///
    /// # Errors
    /// [`Error::Conflict`] when another living attachment has one of the addresses.
    fn masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error>;

    /// Takes away what the attachment owns. Nothing owned, or nothing ever made: no error and no
    /// write.
    ///
    /// # Errors
    /// What failed; the call can be repeated.
    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error>;

    /// Compares the request with what is there.
    ///
    /// # Errors
    /// [`Error::Missing`] with the first difference.
    fn check_ports(&self, request: &PortRequest) -> Result<(), Error>;

    /// Compares the request with what is there.
    ///
    /// # Errors
    /// [`Error::Missing`] with the first difference.
    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error>;

    /// Takes away what belongs to attachments of `network` that are not in `valid`, and what no
    /// attachment of any network uses any longer.
    ///
    /// # Errors
    /// What failed; the rest was done all the same.
    fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error>;

    /// Everything that is published on the node, in a stable order.
    ///
    /// # Errors
    /// What could not be read.
    fn list(&self) -> Result<Vec<Listed>, Error>;

    /// Whether the next `publish` and `masquerade` can succeed.
    ///
    /// # Errors
    /// What this kernel or this node lacks.
    fn status(&self) -> Result<(), Error>;
}
