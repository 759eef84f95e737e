//! The node's own way to published ports: from 127/8 and from ::1.

use std::net::{IpAddr, Ipv6Addr};

use cni_dataplane::AddressFamily;
use cni_kernel::route::{
    Existing, Family, LOCAL_TABLE, Link, LinkChange, LinkKind, Route, RouteKind, RouteSocket,
};
use cni_kernel::sysctl;
use cni_spec::CniError;
use ipnet::IpNet;

/// Lets packets between the node's loopback and a container pass. The tables that keep everybody
/// else away from 127/8 must be in place before.
///
/// The IPv6 route is one per link, shared by all its containers, and goes with the link; so does
/// the IPv4 setting.
///
/// # Errors
/// What could not be set, on which link.
pub(crate) fn open_loopback(container: IpAddr) -> Result<(), CniError> {
    let socket = RouteSocket::open().map_err(|e| CniError::internal(e.to_string()))?;
    let Some(link) = link_towards(&socket, container)? else { return Ok(()) };
    match AddressFamily::of(container) {
        AddressFamily::V4 => {
            // Documentation/networking/ip-sysctl.rst: otherwise 127/8 is martian on this link.
            if link.route_localnet {
                return Ok(());
            }
            socket
                .change_link(&link, &LinkChange::new().route_localnet())
                .map_err(|e| CniError::internal(e.to_string()))
        }
        AddressFamily::V6 => accept_answers(&socket, &link),
    }
}

/// Whether packets between the node's loopback and a container pass, as far as [`open_loopback`] sees to
/// it. True where no link leads to the container, as it does nothing there.
///
/// # Errors
/// What could not be read.
pub(crate) fn is_open(container: IpAddr) -> Result<bool, CniError> {
    let failed = |e: cni_kernel::route::RouteError| CniError::internal(e.to_string());
    let socket = RouteSocket::open().map_err(failed)?;
    let Some(link) = link_towards(&socket, container)? else { return Ok(true) };
    match AddressFamily::of(container) {
        AddressFamily::V4 => Ok(link.route_localnet),
        AddressFamily::V6 => {
            let local = socket.routes(Family::V6, LOCAL_TABLE).map_err(failed)?;
            let loopback = IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST));
            Ok(local.iter().any(|route| route.dst == loopback && route.link == Some(link.index)))
        }
    }
}

/// The link that leads to a container.
fn link_towards(socket: &RouteSocket, container: IpAddr) -> Result<Option<Link>, CniError> {
    let link = match socket.route_to(container) {
        Ok(Route { link: Some(link), .. }) => link,
        Ok(_) => return Ok(None),
        Err(error) => {
            log::warn!("the node's loopback will not reach {container}: {error}");
            return Ok(None);
        }
    };
    socket.link_by_index(link).map(Some).map_err(|e| CniError::internal(e.to_string()))
}

/// An answer to ::1, its translation undone, is looked up strictly: only a route by the link that
/// it came in through will do (`ip6_route_input` and `rt6_need_strict` in the kernel).
fn accept_answers(socket: &RouteSocket, link: &Link) -> Result<(), CniError> {
    // Behind the loopback's own route, whose metric is 0, and one metric for each link, as equal
    // ones would be one route.
    const METRIC: u32 = 1024;
    let route = Route {
        link: Some(link.index),
        metric: METRIC.saturating_add(link.index),
        table: LOCAL_TABLE,
        kind: RouteKind::Local,
        ..Route::to(IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)))
    };
    match socket.add_route(&route, Existing::Refuse) {
        Ok(()) => {}
        Err(error) if error.already_exists() => {}
        Err(error) => return Err(CniError::internal(error.to_string())),
    }
    let bridged = "net/bridge/bridge-nf-call-ip6tables";
    if link.kind == LinkKind::Bridge && sysctl::get(bridged).is_ok_and(|value| value == "1") {
        let name = &link.name;
        log::warn!("{bridged} is 1: published ports on [::1] of the node will not answer through {name}");
    }
    Ok(())
}
