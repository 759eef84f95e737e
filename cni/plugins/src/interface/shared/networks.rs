// SPDX-License-Identifier: GPL-2.0-or-later

//! Tells the published ports of a container in several networks about all of these networks, whichever plugin made the
//! link.

use std::path::Path;

use cni_dataplane::{ContainerNetns, ContainerNetworks, Dataplane};
use cni_kernel::netns::Netns;
use cni_kernel::route::{Address, Link, RouteSocket};
use cni_spec::{Attachment, CniError, Interface};
use ipnet::IpNet;

use super::container::Container;
use super::failed;

/// The index of the first link that is added to a new namespace, after the loopback.
const FIRST_INDEX: u32 = 2;

/// True if the container had no link before this one, and so is not running yet. Links that the kernel makes in each
/// namespace, such as `tunl0`, are down and do not count.
pub(crate) fn is_first(container: &Container, link: &Link) -> Result<bool, CniError> {
    const LOOPBACK_INDEX: u32 = 1;
    if link.index <= FIRST_INDEX {
        return Ok(true);
    }
    let mut others = container.route.links().map_err(failed)?;
    others.retain(|other| other.index != link.index && other.index != LOOPBACK_INDEX);
    Ok(!others.is_empty() && others.iter().all(|other| !other.up))
}

/// Tells the container's published ports about the networks of a link that an ADD has set up. Does nothing for the
/// first link of a namespace.
pub(crate) fn joined(container: &Container, attachment: &Attachment, link: &Link) -> Result<(), CniError> {
    if link.index <= FIRST_INDEX {
        return Ok(());
    }
    let all = read(&container.route, container.netns(), attachment)?;
    let has_others = all.addresses.iter().any(|(of, _)| *of != link.index);
    if has_others
        && all.addresses.iter().any(|(of, _)| *of == link.index)
        && let Err(error) = Dataplane::set_networks(&all)
    {
        // The container's own network works without this.
        log::warn!(
            "clients in the network of {attachment} may not reach the container's other ports: {error}"
        );
    }
    Ok(())
}

/// Tells the container's published ports that a DEL has removed a link. A failure is only logged, because it only means
/// that some clients are masqueraded unnecessarily until the ports are withdrawn.
pub(crate) fn left(container: &Container, attachment: &Attachment) {
    let told = read(&container.route, container.netns(), attachment).and_then(|all| {
        match all.addresses.is_empty() {
            true => Ok(()),
            false => Ok(Dataplane::set_networks(&all)?),
        }
    });
    if let Err(error) = told {
        log::warn!("published ports of the other networks of {attachment} are not updated: {error}");
    }
}

/// The addresses that a container has on its other interfaces. `interfaces` are those of the ADD's result. If the
/// host's end of the pair shows that the link is the first one of its namespace, as for most containers, there are no
/// others. A failure is only logged, because the ports then serve all clients except those in the container's other
/// networks.
pub(crate) fn elsewhere(attachment: &Attachment, path: &Path, interfaces: &[Interface]) -> Vec<IpNet> {
    find_elsewhere(attachment, path, interfaces).unwrap_or_else(|error| {
        log::warn!("clients in other networks of {attachment} may not reach its ports: {error}");
        Vec::new()
    })
}

fn find_elsewhere(
    attachment: &Attachment,
    path: &Path,
    interfaces: &[Interface],
) -> Result<Vec<IpNet>, CniError> {
    if is_peer_first(interfaces)? {
        return Ok(Vec::new());
    }
    let netns = Netns::open(path).map_err(failed)?;
    let route = RouteSocket::open_in(&netns).map_err(failed)?;
    let Some(own) = route.find_link(attachment.ifname()).map_err(failed)? else { return Ok(Vec::new()) };
    Ok(read(&route, ContainerNetns::read(path).map_err(failed)?, attachment)?.elsewhere(own.index))
}

/// True if the peer of the host's end is the first link of its namespace.
fn is_peer_first(interfaces: &[Interface]) -> Result<bool, CniError> {
    let on_host: Vec<_> = interfaces.iter().filter(|interface| interface.sandbox.is_empty()).collect();
    if on_host.is_empty() {
        return Ok(false);
    }
    let host = RouteSocket::open().map_err(failed)?;
    for interface in on_host.iter().rev() {
        let link = host.find_link(&interface.name).map_err(failed)?;
        if let Some(peer) = link.and_then(|link| link.peer) {
            return Ok(peer <= FIRST_INDEX);
        }
    }
    Ok(false)
}

fn read(
    route: &RouteSocket,
    netns: ContainerNetns,
    attachment: &Attachment,
) -> Result<ContainerNetworks, CniError> {
    let all = route.all_addresses().map_err(failed)?;
    let counts = |address: &&Address| address.global && !address.net.addr().is_loopback();
    let addresses = all.iter().filter(counts).map(|address| (address.link, address.net)).collect();
    Ok(ContainerNetworks { container_id: attachment.container_id().to_owned(), netns, addresses })
}
