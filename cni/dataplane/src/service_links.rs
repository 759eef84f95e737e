// SPDX-License-Identifier: GPL-2.0-or-later

//! Links to which the addresses of Services are assigned: those of kube-proxy in mode `ipvs`, and those of
//! kube-router.
//!
//! IPVS sees only packets that are addressed to the node, so these engines assign every address of a Service to a
//! link of the node. Such an address is local for the kernel's routing, but a port that is published on all of the
//! node's addresses is not published there. nftables cannot tell these addresses from others, because `fib` returns
//! no interface for a local address, and its type compares only with the packet's interface.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_kernel::AddressFamily;
use cni_kernel::route::{LOCAL_TABLE, Link, RouteError, RouteKind, RouteSocket};

pub(crate) const NAMES: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

/// Finds these links on this node.
pub(crate) fn present(socket: &RouteSocket) -> Result<Vec<Link>, RouteError> {
    let found: Result<Vec<_>, _> = NAMES.iter().map(|name| socket.find_link(name)).collect();
    Ok(found?.into_iter().flatten().collect())
}

/// The node's addresses that are local because of another link, except for loopback addresses. None on a node without
/// links of Services, where every local address counts.
pub(crate) fn other_addresses() -> Result<Option<BTreeSet<IpAddr>>, RouteError> {
    let socket = RouteSocket::open()?;
    let links = present(&socket)?;
    if links.is_empty() {
        return Ok(None);
    }
    let mut addresses = BTreeSet::new();
    for family in AddressFamily::BOTH {
        let of_services = |link: u32| links.iter().any(|known| known.index == link);
        let routes = socket.routes(family, LOCAL_TABLE)?.into_iter();
        let local =
            routes.filter(|route| route.kind == RouteKind::Local && !route.link.is_some_and(of_services));
        let whole = local.filter(|route| route.dst.prefix_len() == route.dst.max_prefix_len());
        addresses.extend(whole.map(|route| route.dst.addr()).filter(|address| !address.is_loopback()));
    }
    Ok(Some(addresses))
}
