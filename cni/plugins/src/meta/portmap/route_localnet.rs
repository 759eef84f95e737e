// SPDX-License-Identifier: GPL-2.0-or-later

//! Access to published ports from the node itself, from 127/8 and ::1.

use std::net::{IpAddr, Ipv6Addr};

use cni_dataplane::{AddressFamily, PortRequest, Snat};
use cni_kernel::route::{
    Existing, LOCAL_TABLE, Link, LinkChange, LinkKind, Route, RouteError, RouteKind, RouteSocket,
};
use cni_kernel::sysctl;
use cni_spec::CniError;
use ipnet::IpNet;

use super::config::loopback_families;

/// Lets packets from the node's loopback reach a container's address.
pub(super) type Open<'a> = &'a dyn Fn(IpAddr) -> Result<(), CniError>;

/// Lets packets from the node's loopback reach the containers behind these ports.
pub(crate) fn open_for(request: &PortRequest, open: Open<'_>) -> Result<(), CniError> {
    addresses(request).into_iter().try_for_each(open)
}

/// The container's addresses that the node's loopback must reach, at most one per family.
pub(super) fn addresses(request: &PortRequest) -> Vec<IpAddr> {
    if request.snat == Snat::Never {
        return Vec::new();
    }
    let first = |family| request.ports.iter().find(move |port| port.host.address.family() == family);
    let families = loopback_families(&request.ports, request.loopback);
    families.into_iter().filter_map(first).map(|port| port.container).collect()
}

/// Lets packets pass between the node's loopback and a container. The rules that keep other hosts away from 127/8 must
/// already be in place.
///
/// The IPv4 setting and the IPv6 route exist once per link and are shared by all its containers. The kernel removes
/// them together with the link.
pub(crate) fn open(container: IpAddr) -> Result<(), CniError> {
    let socket = RouteSocket::open().map_err(failed)?;
    let Some(link) = link_towards(&socket, container)? else { return Ok(()) };
    match AddressFamily::of(container) {
        AddressFamily::V4 => {
            // Documentation/networking/ip-sysctl.rst: otherwise 127/8 is martian on this link.
            if link.route_localnet {
                return Ok(());
            }
            socket.change_link(&link, &LinkChange::new().route_localnet()).map_err(failed)
        }
        AddressFamily::V6 => accept_replies(&socket, &link),
    }
}

/// True if [`open`] has nothing to change for the container, which includes a container that no link leads to.
pub(super) fn is_open(container: IpAddr) -> Result<bool, CniError> {
    let socket = RouteSocket::open().map_err(failed)?;
    let Some(link) = link_towards(&socket, container)? else { return Ok(true) };
    match AddressFamily::of(container) {
        AddressFamily::V4 => Ok(link.route_localnet),
        AddressFamily::V6 => {
            let local = socket.routes(AddressFamily::V6, LOCAL_TABLE).map_err(failed)?;
            let loopback = IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST));
            Ok(local.iter().any(|route| route.dst == loopback && route.link == Some(link.index)))
        }
    }
}

/// The link that leads to a container; none without a route to it.
fn link_towards(socket: &RouteSocket, container: IpAddr) -> Result<Option<Link>, CniError> {
    let link = match socket.link_to(container) {
        Ok(Some(link)) => link,
        Ok(None) => return Ok(None),
        Err(error) if error.is_transient() => return Err(failed(error)),
        Err(error) => {
            log::warn!("the node's loopback does not reach {container}: {error}");
            return Ok(None);
        }
    };
    socket.link_by_index(link).map(Some).map_err(failed)
}

/// Adds a local route to ::1 through the link. After the kernel has undone the translation of a reply to ::1, it looks
/// the route up strictly: only a route through the link on which the reply arrived is accepted (`ip6_route_input` and
/// `rt6_need_strict`).
fn accept_replies(socket: &RouteSocket, link: &Link) -> Result<(), CniError> {
    // The metric must be above 0, which the loopback's own route has, and differ for each link, because equal
    // metrics would make one route.
    const METRIC: u32 = 1024;
    let route = Route {
        link: Some(link.index),
        metric: METRIC.saturating_add(link.index),
        table: LOCAL_TABLE,
        kind: RouteKind::Local,
        ..Route::to(IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)))
    };
    match socket.add_route(&route, Existing::Refuse) {
        Err(error) if !error.already_exists() => return Err(failed(error)),
        _ => {}
    }
    let bridged = "net/bridge/bridge-nf-call-ip6tables";
    if link.kind == LinkKind::Bridge && sysctl::get(bridged).is_ok_and(|value| value == "1") {
        let name = &link.name;
        log::warn!("{bridged} is 1: published ports on [::1] of the node do not answer through {name}");
    }
    Ok(())
}

#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn failed(error: RouteError) -> CniError {
    CniError::internal(error.to_string())
}
