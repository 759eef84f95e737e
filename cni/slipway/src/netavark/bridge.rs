// SPDX-License-Identifier: GPL-2.0-or-later

//! The bridge of a network, which is removed together with the last container, as netavark's own driver does. podman
//! does not call a driver when a network is removed.

use cni_kernel::route::{Link, LinkKind, RouteError, RouteSocket};
use cni_kernel::sysctl::{self, SysctlError};

use super::error::DriverError;
use cni_dataplane::owner::MADE;

/// Deletes a bridge that slipway has made, and its links `<bridge>.<vlan>`, if no container is joined to it.
pub(super) fn remove_unused(name: &str) -> Result<(), RouteError> {
    let route = RouteSocket::open()?;
    let Some(bridge) = route.find_link(name)?.filter(is_ours) else { return Ok(()) };
    let links = route.links()?;
    let gateways = gateways(&bridge, &links);
    let is_gateways = |port: &Link| gateways.iter().any(|gateway| gateway.peer == Some(port.index));
    if links.iter().any(|link| link.master == Some(bridge.index) && !is_gateways(link)) {
        return Ok(());
    }
    for link in gateways.into_iter().chain([&bridge]) {
        match route.delete_link(link) {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Checks that there is a bridge of another program.
pub(super) fn must_exist(name: &str) -> Result<(), DriverError> {
    let link = RouteSocket::open().and_then(|route| route.find_link(name)).map_err(DriverError::Node)?;
    match link {
        Some(link) if link.kind == LinkKind::Bridge => Ok(()),
        _ => Err(DriverError::NoBridge(name.to_owned())),
    }
}

fn is_ours(link: &Link) -> bool {
    link.kind == LinkKind::Bridge && link.alias == MADE
}

/// The links with the addresses of a bridge's VLANs.
fn gateways<'a>(bridge: &Link, links: &'a [Link]) -> Vec<&'a Link> {
    let is_named =
        |link: &Link| link.name.strip_prefix(&bridge.name).is_some_and(|rest| rest.starts_with('.'));
    links.iter().filter(|link| link.kind == LinkKind::Veth && link.alias == MADE && is_named(link)).collect()
}

/// Keeps the node from forwarding IPv4 packets that come from a bridge. (In IPv6 there is no such setting; containers of
/// an internal network have no route out.)
pub(super) fn do_not_forward(name: &str) -> Result<(), SysctlError> {
    sysctl::set(&format!("net/ipv4/conf/{name}/forwarding"), "0")
}
