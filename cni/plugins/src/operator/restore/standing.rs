//! Whether a container that a runtime remembers is still there, by what the kernel says.

use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_kernel::netns::{Netns, NetnsId};
use cni_kernel::route::{Link, LinkKind, RouteSocket};
use cni_runtime::Cached;
use cni_spec::Interface;

/// What became of a remembered attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::operator) enum Standing {
    /// The container lives and is attached as its result says.
    Attached,
    /// It does not, or it cannot be told from another one: nothing may be done in its name.
    Not(String),
}

/// The node that containers are looked for from.
pub(in crate::operator) struct Node {
    pub(in crate::operator) route: RouteSocket,
    id: NetnsId,
}

impl Node {
    /// The namespace of the calling thread.
    pub(in crate::operator) fn open() -> Result<Self, String> {
        let id = Netns::current().map_err(|e| e.to_string())?.id();
        Ok(Self { route: RouteSocket::open().map_err(|e| e.to_string())?, id })
    }

    /// Looks at the container: its namespace, the link in it, the owner on the host's end of a pair, the
    /// addresses.
    ///
    /// # Errors
    /// What could not be looked at.
    pub(in crate::operator) fn standing(&self, cached: &Cached) -> Result<Standing, String> {
        let not = |why: String| Ok(Standing::Not(why));
        let Some(path) = &cached.netns else {
            return not("neither the cache nor its result names the container's namespace".to_owned());
        };
        let netns = match Netns::open(path) {
            Ok(netns) => netns,
            Err(error) if error.is_gone() => {
                return not(format!("the container is gone: no namespace at {}", path.display()));
            }
            Err(error) => return Err(error.to_string()),
        };
        if netns.id() == self.id {
            return not(format!("{} is the node's own namespace", path.display()));
        }
        let inside = RouteSocket::open_in(&netns).map_err(|e| e.to_string())?;
        let name = cached.attachment.ifname();
        let Some(link) = inside.find_link(name).map_err(|e| e.to_string())? else {
            return not(format!("the container has no link {name} any more"));
        };
        if let Some(why) = self.is_of_another(cached, &link) {
            return not(why);
        }
        let present = inside.addresses(&link).map_err(|e| e.to_string())?;
        let missing = addresses(cached).find(|wanted| !present.iter().any(|address| address.net == *wanted));
        match missing {
            Some(net) => not(format!("{name} of the container has not the address {net} any more")),
            None => Ok(Standing::Attached),
        }
    }

    /// Why the link is not the attachment's: the path may lead to another container by now.
    fn is_of_another(&self, cached: &Cached, link: &Link) -> Option<String> {
        // A link that is in the container alone names its owner itself.
        let owner = Owner::from_comment(&link.alias).or_else(|| self.owner_of_the_pair(link));
        match owner {
            Some(owner) if owner.attachment_hash == AttachmentHash::of(&cached.attachment) => None,
            Some(owner) => Some(format!("its link belongs to {owner}")),
            // The reference's links name no owner.
            None => {
                let told = inside(cached).map(|interface| interface.mac.as_str()).unwrap_or_default();
                let same = told.is_empty() || told.parse().is_ok_and(|mac| link.mac == Some(mac));
                (!same).then(|| format!("link {} has not the MAC address {told} of the result", link.name))
            }
        }
    }

    /// The owner that the host's end of a pair names, if it is the node that has it.
    fn owner_of_the_pair(&self, link: &Link) -> Option<Owner> {
        if link.kind != LinkKind::Veth {
            return None;
        }
        let outer = self.route.link_by_index(link.peer?).ok()?;
        let joined = outer.kind == LinkKind::Veth && outer.peer == Some(link.index);
        Owner::from_comment(&outer.alias).filter(|_| joined)
    }

    /// Whether the node's loopback is open towards containers, as an ADD leaves it: on a link of ours, or
    /// on the bridge that one is a port of.
    pub(in crate::operator) fn opens_its_loopback(&self) -> Result<bool, String> {
        let links = self.route.links().map_err(|e| e.to_string())?;
        let ours: Vec<&Link> =
            links.iter().filter(|link| Owner::from_comment(&link.alias).is_some()).collect();
        let is_ours =
            |link: &Link| ours.iter().any(|port| port.index == link.index || port.master == Some(link.index));
        Ok(links.iter().any(|link| link.route_localnet && is_ours(link)))
    }
}

/// The container's end in the result.
fn inside(cached: &Cached) -> Option<&Interface> {
    let ours = |one: &&Interface| one.name == cached.attachment.ifname() && !one.sandbox.is_empty();
    cached.result.interfaces.iter().find(ours)
}

/// The addresses that the result gives the container's end.
fn addresses(cached: &Cached) -> impl Iterator<Item = ipnet::IpNet> + '_ {
    let of = |index: usize| cached.result.interfaces.get(index);
    let ours = move |index: Option<usize>| match index.and_then(of) {
        None => true,
        Some(one) => one.name == cached.attachment.ifname() && !one.sandbox.is_empty(),
    };
    cached.result.ips.iter().filter(move |ip| ours(ip.interface)).map(|ip| ip.address)
}
