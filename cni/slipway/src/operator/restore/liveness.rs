// SPDX-License-Identifier: GPL-2.0-or-later

//! The liveness of a container in a runtime's cache, by the state of the kernel.

use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_kernel::dir::DirError;
use cni_kernel::netns::{Netns, NetnsError, NetnsId};
use cni_kernel::route::{Link, LinkKind, RouteError, RouteSocket};
use cni_plugins::deletion;
use cni_runtime::Cached;
use cni_spec::Interface;

/// The liveness of a cached attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::operator) enum Liveness {
    /// The container runs and is attached as in its result.
    Attached,
    /// The container's own link lacks an address of the result, which may belong to another container by now. So nothing
    /// is restored. The reason.
    WithoutAddress(String),
    /// The container does not run, or the link may be another container's: nothing must be restored. The reason.
    Gone(String),
}

/// A namespace, links, addresses or the mark of a DEL cannot be read.
#[derive(Debug, thiserror::Error)]
pub(in crate::operator) enum LivenessError {
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Mark(#[from] DirError),
}

/// The node's network namespace, from which containers are looked up.
pub(in crate::operator) struct Node {
    pub(in crate::operator) route: RouteSocket,
    id: NetnsId,
}

impl Node {
    /// The namespace of the calling thread.
    pub(in crate::operator) fn open() -> Result<Self, LivenessError> {
        Ok(Self { route: RouteSocket::open()?, id: Netns::current()?.id() })
    }

    /// Checks that no DEL has begun, and looks at the container's namespace, the link in it, the owner on the host's end
    /// of the pair, and the addresses.
    ///
    /// # Errors
    /// [`LivenessError`] if the namespace cannot be opened, or links, addresses or the mark of a DEL cannot be read.
    pub(in crate::operator) fn liveness(&self, cached: &Cached) -> Result<Liveness, LivenessError> {
        let gone = |reason: String| Ok(Liveness::Gone(reason));
        if deletion::has_begun(&cached.attachment)? {
            return gone("the container is being deleted: its DEL has begun".to_owned());
        }
        let Some(path) = &cached.netns else {
            return gone("neither the cache nor its result names the container's namespace".to_owned());
        };
        let netns = match Netns::open(path) {
            Ok(netns) => netns,
            Err(error) if error.is_gone() => {
                return gone(format!("the container is gone: no namespace at {}", path.display()));
            }
            Err(error) => return Err(error.into()),
        };
        if netns.id() == self.id {
            return gone(format!("{} is the node's own namespace", path.display()));
        }
        let inside = RouteSocket::open_in(&netns)?;
        let name = cached.attachment.ifname();
        let Some(link) = inside.find_link(name)? else {
            return gone(format!("the container has no link {name}"));
        };
        if let Some(reason) = self.other_owner(cached, &link) {
            return gone(reason);
        }
        let present = inside.addresses(&link)?;
        let missing = addresses(cached).find(|wanted| !present.iter().any(|address| address.net == *wanted));
        match missing {
            Some(net) => {
                let reason = format!("{name} of the container does not have the address {net}");
                Ok(Liveness::WithoutAddress(reason))
            }
            None => Ok(Liveness::Attached),
        }
    }

    /// The reason to believe that the link is another attachment's. By now, the namespace's path may lead to another
    /// container.
    fn other_owner(&self, cached: &Cached, link: &Link) -> Option<String> {
        // A link without a peer on the host has its owner in its own alias.
        let owner = Owner::from_comment(&link.alias).or_else(|| self.owner_of_the_pair(link));
        match owner {
            Some(owner) if owner.attachment_hash == AttachmentHash::of(&cached.attachment) => None,
            Some(owner) => Some(format!("its link belongs to {owner}")),
            // The reference's links name no owner.
            None => {
                let wanted = inside(cached).map(|interface| interface.mac.as_str()).unwrap_or_default();
                let is_same = wanted.is_empty() || wanted.parse().is_ok_and(|mac| link.mac == Some(mac));
                (!is_same)
                    .then(|| format!("link {} does not have the result's MAC address {wanted}", link.name))
            }
        }
    }

    /// The owner in the alias of the host's end of a veth pair.
    fn owner_of_the_pair(&self, link: &Link) -> Option<Owner> {
        if link.kind != LinkKind::Veth {
            return None;
        }
        let outer = self.route.link_by_index(link.peer?).ok()?;
        let is_pair = outer.kind == LinkKind::Veth && outer.peer == Some(link.index);
        Owner::from_comment(&outer.alias).filter(|_| is_pair)
    }

    /// True if `route_localnet` is set on a link of ours, or on the bridge of one.
    pub(in crate::operator) fn has_route_localnet(&self) -> Result<bool, RouteError> {
        let links = self.route.links()?;
        let ours: Vec<&Link> =
            links.iter().filter(|link| Owner::from_comment(&link.alias).is_some()).collect();
        let is_ours =
            |link: &Link| ours.iter().any(|port| port.index == link.index || port.master == Some(link.index));
        Ok(links.iter().any(|link| link.route_localnet && is_ours(link)))
    }
}

/// The container's interface in the result.
fn inside(cached: &Cached) -> Option<&Interface> {
    cached.result.interfaces.iter().find(|one| is_inside(cached, one))
}

fn is_inside(cached: &Cached, interface: &Interface) -> bool {
    interface.name == cached.attachment.ifname() && !interface.sandbox.is_empty()
}

/// The addresses of the container's interface in the result. One without an interface counts as the
/// container's.
fn addresses(cached: &Cached) -> impl Iterator<Item = ipnet::IpNet> + '_ {
    let of = |index: usize| cached.result.interfaces.get(index);
    let ours = move |index: Option<usize>| index.and_then(of).is_none_or(|one| is_inside(cached, one));
    cached.result.ips.iter().filter(move |ip| ours(ip.interface)).map(|ip| ip.address)
}
