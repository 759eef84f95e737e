//! The eBPF fast path: programs on the node's interfaces that translate hostPorts and masquerade.
//!
//! The programs are in `ebpf/programs`. `cargo xtask ebpf` builds them, this crate's build script finds
//! the object, and the binary carries it. A binary that was built without them has no such backend.
//!
//! The nftables tables stay underneath: they hold the ownership, and serve what the programs leave to them.
//! What the programs are told comes after the elements are in, and goes before they do (`entries`).
//! Whatever keeps the programs from serving, the ports are published all the same.

mod adopt;
mod attach;
mod cookie;
mod earlier;
pub(crate) mod entries;
mod flows;
mod handover;
mod links;
mod load;
pub(crate) mod moving;
mod node;
mod place;
mod said;
mod services;
mod sockets;
mod tables;
mod timeouts;
mod uplinks;

use std::fmt;

use cni_spec::Attachment;

pub use crate::PortRange;
use crate::nftables::Nftables;
use crate::{Backend, Error, Kinds, Listed, MasqueradeRequest, PortRequest, Withdrawal};
pub(crate) use entries::{Programs, name_served};
pub use entries::{leave_addresses, leave_link};
pub(crate) use flows::add_traffic;
pub use flows::{Direction, Ends, KnownFlow, Plane, flows};
pub use links::Without;
pub use load::{Sizes, try_object};
pub use node::{Settings, Status, is_there, served_abroad, setup_node, status, teardown_node};
pub use slipway_ebpf_abi::{Counter, Reason, State};
pub use sockets::{ControlGroup, Sockets};

/// Aligned as the loader reads it.
#[cfg(ebpf_object)]
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

#[cfg(ebpf_object)]
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/slipway.o")));

/// The programs as an ELF object, if this binary was built with them.
#[must_use]
pub fn object() -> Option<&'static [u8]> {
    #[cfg(ebpf_object)]
    return Some(&OBJECT.0);
    #[cfg(not(ebpf_object))]
    None
}

/// Whether this kernel takes the programs of this binary, and has a place for them. Nothing is left.
///
/// # Errors
/// What is missing, or what the verifier says.
pub fn try_out() -> Result<(), Error> {
    place::Place::mountable()?;
    try_object(node::programs_of_this_binary()?)
}

/// Why a container is left to nftables although this backend was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// `conditionsV4` or `conditionsV6`.
    Conditions,
    /// `externalSetMarkChain`.
    MarkChain,
    /// `masqAll`.
    MasqueradeAll,
    /// `snat: false`.
    NoMasquerade,
    /// More ports than the maps are meant for.
    ManyPorts,
    /// The container's interface is no veth.
    NoVeth,
    /// Its rate is limited, or it is kept apart from others.
    Pod,
    /// All its ports are of SCTP.
    Sctp,
    /// Its network namespace is not known, and it cannot be found by its addresses.
    Nowhere,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conditions => "it has conditions",
            Self::MarkChain => "it has externalSetMarkChain",
            Self::MasqueradeAll => "it has masqAll",
            Self::NoMasquerade => "it has snat: false",
            Self::ManyPorts => "it has more than 4,096 ports",
            Self::NoVeth => "its interface is no veth",
            Self::Pod => "its rate is limited, or it is kept apart from others",
            Self::Sctp => "the programs do not know SCTP",
            Self::Nowhere => "its interface cannot be found",
        })
    }
}

/// The eBPF backend: a decorator of [`Nftables`], which holds the ownership and serves all that the programs do not.
#[derive(Debug)]
pub struct Ebpf {
    nftables: Nftables,
    settings: Settings,
}

impl Ebpf {
    /// Puts the programs on top of nftables, with what an administrator has set.
    #[must_use]
    pub(crate) fn over(nftables: Nftables, settings: Settings) -> Self {
        Self { nftables, settings }
    }

    /// Does what the programs are to do for an attachment. What fails here is no failure of the ADD:
    /// nftables has the ports already.
    fn on_top(&self, attachment: &Attachment, work: impl Fn(&place::Place) -> Result<Option<Left>, Error>) {
        let done = node::ready(&self.settings).and_then(|place| {
            node::yield_to_services(&place)?;
            work(&place)
        });
        match done {
            Ok(None) => {}
            Ok(Some(left)) => log::info!("{attachment} is left to nftables: {left}"),
            Err(error) => log::warn!("{attachment} is left to nftables: {error}"),
        }
    }
}

impl Backend for Ebpf {
    fn publish(&self, request: &PortRequest) -> Result<(), Error> {
        self.nftables.publish(request)?;
        self.on_top(&request.attachment, |place| {
            let left = entries::unserved(request);
            let done = if left.is_none() { entries::publish(place, request) } else { Ok(left) };
            if !matches!(done, Ok(None)) {
                entries::leave_ports(request);
            }
            done
        });
        Ok(())
    }

    fn masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        self.nftables.masquerade(request)?;
        self.on_top(&request.attachment, |place| entries::masquerade(place, request));
        Ok(())
    }

    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error> {
        self.nftables.withdraw(withdrawal)
    }

    fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        self.nftables.check_ports(request)?;
        match node::at_home() {
            Some(place) if object().is_some() && entries::unserved(request).is_none() => {
                entries::check_ports(&place, request)
            }
            _ => Ok(()),
        }
    }

    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        self.nftables.check_masquerade(request)?;
        match node::at_home() {
            Some(place) if object().is_some() => entries::check_masquerade(&place, request),
            _ => Ok(()),
        }
    }

    fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error> {
        self.nftables.retain(network, valid, kinds)
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        self.nftables.list()
    }

    fn status(&self) -> Result<(), Error> {
        self.nftables.status()?;
        // kube-proxy may come later than the last container.
        if let Some(Err(error)) = node::at_home().map(|place| node::yield_to_services(&place)) {
            log::warn!("look for engines that translate Services: {error}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_a_bpf_object() {
        // Machine 247 is EM_BPF: elf(5), linux/elf-em.h.
        if let Some(object) = object() {
            assert_eq!((&object[..4], object[18]), (&b"\x7fELF"[..], 247));
        }
    }
}
