// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds the uplinks, the interfaces that carry traffic from outside.

use std::collections::BTreeMap;

use cni_kernel::AddressFamily;
use cni_kernel::route::{Address, Link, LinkKind, RouteError, RouteSocket};

use crate::service_links;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uplink {
    pub(super) name: String,
    /// True if its packets begin with an Ethernet header.
    pub(super) is_ethernet: bool,
}

/// Finds the uplinks, by the index of their interfaces. `named` are the uplinks that an administrator has named; if
/// there are none, the uplinks are found by addresses and routes. A tunnel in `external` mode is not an uplink,
/// because the packet's route decides about the tunnel's remote end, and carried packets have no route.
pub(super) fn find(named: &[String]) -> Result<BTreeMap<u32, Uplink>, RouteError> {
    let socket = RouteSocket::open()?;
    let (links, addresses) = (socket.links()?, socket.all_addresses()?);
    let mut default_links = Vec::new();
    for family in AddressFamily::BOTH {
        // Listing these routes fails on a node without IPv6.
        default_links.extend(RouteSocket::open()?.default_link(family).ok().flatten());
    }
    let chosen = links.into_iter().filter(|link| !link.is_external).filter(|link| {
        if named.is_empty() {
            is_uplink(link, &addresses, default_links.contains(&link.index))
        } else {
            named.contains(&link.name)
        }
    });
    Ok(chosen.map(|link| (link.index, Uplink { name: link.name, is_ethernet: link.mac.is_some() })).collect())
}

/// True for an interface that has an address of the node and no master. The ports of a bond or a bridge do not count,
/// but their master does. A bridge counts only if the default route leads there, because containers have bridges,
/// too. The host end of a container's veth is recognised by its alias, which is the container's owner.
fn is_uplink(link: &Link, addresses: &[Address], is_default: bool) -> bool {
    let mut own = addresses.iter().filter(|address| address.link == link.index && address.global);
    let is_ours = link.kind == LinkKind::Veth && !link.alias.is_empty();
    link.up
        && link.name != "lo"
        && !service_links::NAMES.contains(&link.name.as_str())
        && link.master.is_none()
        && own.any(|address| !address.net.addr().is_loopback())
        && (is_default || !(is_ours || link.kind == LinkKind::Bridge))
}
