// SPDX-License-Identifier: GPL-2.0-or-later

//! CHECK: compares the result of the ADD with the kernel's state.

use cni_dataplane::macspoof;
use cni_kernel::route::{Link, LinkKind, PortVlan, RouteSocket};
use cni_spec::{AddResult, CniError, Interface};

use super::config::Settings;
use crate::interface::shared::check::{Inside, present, previous_result, same_mac, wrong};
use crate::interface::shared::failed;
use crate::interface::shared::host::Host;
use crate::interface::shared::masquerade;
use crate::plugin::Request;
use crate::skel::delegate;

pub(super) fn check(request: &Request<'_>) -> Result<(), CniError> {
    let settings = Settings::new(request.config, request.args)?;
    if settings.common.ipam {
        delegate::ipam_check(request)?;
    }
    let previous = previous_result(request, "")?;
    let inside = Inside::open(request, previous, "")?;
    let host = Host::open()?;

    let bridge = check_bridge(&host.route, previous, &settings)?;
    let inner = inside.check_link()?;
    let port = check_port(&host.route, previous, &bridge, &inner, &settings)?;
    if let (true, Some(mac)) = (settings.spoof_check, inner.mac) {
        macspoof::check(&request.attachment, &port.name, mac)?;
    }
    inside.check_addresses(&inner)?;
    inside.check_routes(&inner)?;
    settings.common.advertisements.check(&inside.container.route, &inner)?;
    masquerade::check(&settings.common, &request.attachment, &inside.container, &inside.addresses())
}

fn check_bridge(route: &RouteSocket, previous: &AddResult, settings: &Settings) -> Result<Link, CniError> {
    let name = &settings.bridge;
    let of_host = |interface: &&Interface| interface.sandbox.is_empty() && interface.name == *name;
    let expected = previous
        .interfaces
        .iter()
        .find(of_host)
        .ok_or_else(|| wrong(format!("CNI created bridge {name} in host namespace was not found")))?;
    let bridge = present(route, name)?;
    if bridge.kind != LinkKind::Bridge {
        return Err(wrong(format!("Interface {name} does not have link type of bridge")));
    }
    if !same_mac(&bridge, expected) {
        return Err(wrong(format!("Bridge interface {name} Mac doesn't match: {}", expected.mac)));
    }
    // Another network may have asked for it on the same bridge.
    if settings.promiscuous && !bridge.promiscuous {
        return Err(wrong(format!(
            "Bridge interface {name} configured Promisc Mode true doesn't match current state: false"
        )));
    }
    if !bridge.up {
        return Err(wrong(format!("Bridge interface {name} is down")));
    }
    Ok(bridge)
}

fn check_port(
    route: &RouteSocket,
    previous: &AddResult,
    bridge: &Link,
    inner: &Link,
    settings: &Settings,
) -> Result<Link, CniError> {
    let missing = || wrong(format!("CNI veth created for bridge {} was not found", bridge.name));
    let port = match route.link_by_index(inner.peer.ok_or_else(missing)?) {
        Err(error) if error.is_not_found() => return Err(missing()),
        other => other.map_err(failed)?,
    };
    let named = |interface: &Interface| interface.sandbox.is_empty() && interface.name == port.name;
    if port.master != Some(bridge.index) || !previous.interfaces.iter().any(named) {
        return Err(missing());
    }
    let name = &port.name;
    if port.port.is_some_and(|is| is != settings.port) {
        return Err(wrong(format!(
            "Interface {name}: port is set to {:?} and should be {:?}",
            port.port, settings.port
        )));
    }
    let Some(vlans) = &settings.vlans else { return Ok(port) };
    let present = route.port_vlans(&port).map_err(failed)?;
    let has = |wanted: &PortVlan| {
        present.iter().any(|is| {
            is.first <= wanted.first
                && wanted.last <= is.last
                && is.pvid == wanted.pvid
                && is.untagged == wanted.untagged
        })
    };
    let native = PortVlan::native(vlans.native());
    match std::iter::once(&native).chain(&vlans.trunk).find(|wanted| !has(wanted)) {
        Some(missing) => Err(wrong(format!("Interface {name}: {missing} not found on the port"))),
        None => Ok(port),
    }
}
