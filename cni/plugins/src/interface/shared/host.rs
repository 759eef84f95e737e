// SPDX-License-Identifier: GPL-2.0-or-later

//! The host's side of the pair.

use std::time::Duration;

use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_kernel::AddressFamily;
use cni_kernel::forwarding;
use cni_kernel::mac::Mac;
use cni_kernel::netns::Netns;
use cni_kernel::route::{Address, DuplicateDetection, Link, LinkKind, NewVeth, OperState, RouteSocket};
use cni_spec::{Attachment, CniError};
use ipnet::{IpNet, Ipv6Net};

use super::failed;
use super::layer3::families;

/// The time limit for a link to come up, that of the reference's bridge.
const LINK_LIMIT: Duration = Duration::from_millis(2550);
/// The largest MTU of a veth, `ETH_MAX_MTU` of `linux/if_ether.h`; the loopback's MTU is larger.
const MAX_MTU: u32 = 65_535;

/// The namespace that the plugin was called in: the node's.
pub(crate) struct Host {
    /// The namespace itself.
    pub(crate) netns: Netns,
    pub(crate) route: RouteSocket,
}

impl Host {
    /// Opens the calling thread's namespace and a netlink socket in it.
    pub(crate) fn open() -> Result<Self, CniError> {
        let netns = Netns::current().map_err(failed)?;
        Ok(Self { netns, route: RouteSocket::open().map_err(failed)? })
    }

    /// The MTU for a new pair. If the configuration has none, it is the smallest MTU on the path of the default route,
    /// or of the routes that a VPN has put in its place, and else the kernel's default. The reference always uses the
    /// kernel's default of 1,500 bytes, which is too much for a tunnel.
    pub(crate) fn mtu(&self, wanted: Option<u32>) -> Result<Option<u32>, CniError> {
        if wanted.is_some() {
            return Ok(wanted);
        }
        for family in AddressFamily::BOTH {
            let mut routes = self.route.routes_to_anywhere(family).map_err(failed)?;
            // Usually the same default route covers both halves of the address space.
            routes.dedup();
            let mut smallest: Option<u32> = None;
            for route in routes {
                let link = match self.route.link_by_index(route.link.unwrap_or_default()) {
                    Err(error) if error.is_not_found() => continue,
                    other => other.map_err(failed)?,
                };
                let mtu = if route.mtu == 0 { link.mtu } else { link.mtu.min(route.mtu) };
                smallest = Some(smallest.map_or(mtu, |other| other.min(mtu)));
            }
            if let Some(mtu) = smallest {
                return Ok(Some(mtu.min(MAX_MTU)));
            }
        }
        Ok(None)
    }

    /// Makes the veth pair and returns both ends, the container's first. After an error no pair is left, even if the
    /// kernel made one and its reply was lost.
    pub(crate) fn create_pair(
        &self,
        pod: &RouteSocket,
        attachment: &Attachment,
        mac: Option<Mac>,
        mtu: Option<u32>,
    ) -> Result<(Link, Link), CniError> {
        self.try_create_pair(pod, attachment, mac, mtu).inspect_err(|_| self.delete_unused(attachment))
    }

    /// Deletes links with one of the attachment's names and without an owner: only a call that failed or was
    /// killed leaves such links.
    fn delete_unused(&self, attachment: &Attachment) {
        for name in host_names(attachment) {
            let unused = |link: &Link| {
                let plain = link.master.is_none() && link.alias.is_empty() && !link.up;
                plain && link.kind == LinkKind::Veth
            };
            let deleted = match self.route.find_link(&name) {
                Ok(Some(link)) if unused(&link) => self.route.delete_link(&link),
                other => other.map(drop),
            };
            if let Err(error) = deleted {
                log::warn!("{error}");
            }
        }
    }

    fn try_create_pair(
        &self,
        pod: &RouteSocket,
        attachment: &Attachment,
        mac: Option<Mac>,
        mtu: Option<u32>,
    ) -> Result<(Link, Link), CniError> {
        let name = attachment.ifname();
        // systemd's link policies change the addresses that the kernel chooses, and no others.
        let (mac, peer_mac) = (mac.map_or_else(random_mac, Ok)?, random_mac()?);
        let mut last = None;
        for peer_name in host_names(attachment) {
            let new = NewVeth {
                name,
                mac: Some(mac),
                peer_name: &peer_name,
                peer_mac: Some(peer_mac),
                peer_netns: &self.netns,
                mtu,
            };
            match pod.create_veth(&new) {
                Ok(()) => {
                    let inner = pod.link(name).map_err(failed)?;
                    let outer = self.route.link(&peer_name).map_err(failed)?;
                    return Ok((inner, outer));
                }
                Err(error) if error.already_exists() => {
                    if pod.find_link(name).map_err(failed)?.is_some() {
                        return Err(taken(attachment));
                    }
                    last = Some(error);
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(last.map_or_else(|| CniError::internal("no name for the host's link"), failed))
    }

    /// The host's end of an attachment's pair; none unless it is a port of the bridge.
    pub(crate) fn port_of(&self, bridge: &Link, attachment: &Attachment) -> Result<Option<Link>, CniError> {
        let hash = AttachmentHash::of(attachment);
        for name in host_names(attachment) {
            let Some(link) = self.route.find_link(&name).map_err(failed)? else { continue };
            let is_its = Owner::from_comment(&link.alias).is_some_and(|owner| owner.attachment_hash == hash);
            if is_its {
                return Ok(Some(link).filter(|link| link.master == Some(bridge.index)));
            }
        }
        Ok(None)
    }

    /// Waits until a link is up, and returns its last state.
    pub(crate) fn wait_until_up(&self, link: &Link) -> Result<Link, CniError> {
        self.route.wait_for_link(link, LINK_LIMIT, |link| link.state == OperState::Up).map_err(failed)
    }

    /// Enables forwarding on the node for the families of the addresses.
    pub(crate) fn forward(&self, addresses: &[IpNet]) -> Result<(), CniError> {
        families(addresses).try_for_each(|family| self.forward_family(family))
    }

    /// Enables forwarding of a family on the node.
    pub(crate) fn forward_family(&self, family: AddressFamily) -> Result<(), CniError> {
        forwarding::enable(&self.route, family).map(drop).map_err(failed)
    }

    /// True if a link has a link-local IPv6 address. A tentative one will be usable soon.
    pub(crate) fn has_link_local(&self, link: &Link) -> Result<bool, CniError> {
        let usable = |address: &Address| match address.net {
            IpNet::V6(net) => net.addr().is_unicast_link_local() && !address.duplicate,
            IpNet::V4(_) => false,
        };
        Ok(self.route.addresses(link).map_err(failed)?.iter().any(usable))
    }

    /// Gives a link the link-local address that the kernel derives from its MAC address, unless it has one.
    pub(crate) fn ensure_link_local(&self, link: &Link) -> Result<(), CniError> {
        let Some(mac) = link.mac.filter(|_| !link.disables_ipv6) else { return Ok(()) };
        if self.has_link_local(link)? {
            return Ok(());
        }
        let address = IpNet::V6(Ipv6Net::new_assert(mac.link_local(), 64));
        // A duplicate address is in the way.
        match self.route.delete_address(link, address) {
            Err(error) if !error.is_not_found() => return Err(failed(error)),
            _ => {}
        }
        match self.route.add_address(link, address, DuplicateDetection::Skip) {
            Err(error) if !error.already_exists() => Err(failed(error)),
            _ => Ok(()),
        }
    }
}

/// A random MAC address for a new link.
pub(crate) fn random_mac() -> Result<Mac, CniError> {
    Mac::random().map_err(|error| CniError::internal(format!("draw a random MAC address: {error}")))
}

/// The node-wide setting that enables forwarding for a family.
pub(crate) const fn forwarding_setting(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "net/ipv4/ip_forward",
        AddressFamily::V6 => "net/ipv6/conf/all/forwarding",
    }
}

/// The names to try for the host's end, in order: `veth` and eight hexadecimal digits of the attachment's
/// hash, so that a DEL without a namespace finds the link.
pub(crate) fn host_names(attachment: &Attachment) -> impl Iterator<Item = String> {
    const TRIES: usize = 10;
    let hash = AttachmentHash::of(attachment).0;
    (0..TRIES).filter_map(move |try_number| {
        let [a, b, c, d] = *hash.get(try_number..)?.first_chunk()?;
        Some(format!("veth{a:02x}{b:02x}{c:02x}{d:02x}"))
    })
}

/// The details of the error when an ADD is refused before it changes anything.
pub(crate) const UNCHANGED: &str =
    "the container is attached already, and nothing was changed: call DEL before another ADD";

/// The error if the container has a link of that name already.
pub(crate) fn taken(attachment: &Attachment) -> CniError {
    let (name, peer) = (attachment.ifname(), host_names(attachment).next().unwrap_or_default());
    CniError::internal(format!("container veth name ({name:?}) peer provided ({peer:?}) already exists"))
        .with_details(UNCHANGED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_name_depends_on_the_attachment() {
        let attachment = Attachment::new("net", "c1", "eth0").unwrap();
        let names: Vec<String> = host_names(&attachment).collect();
        assert_eq!(names.len(), 10);
        assert!(names.iter().all(|name| name.len() == 12 && name.starts_with("veth")), "{names:?}");
        assert_eq!(names, host_names(&attachment).collect::<Vec<_>>());
        let other = Attachment::new("net", "c1", "eth1").unwrap();
        assert_ne!(names.first(), host_names(&other).collect::<Vec<_>>().first());
    }
}
