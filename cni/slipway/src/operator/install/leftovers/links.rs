// SPDX-License-Identifier: GPL-2.0-or-later

//! Leftover links: bridges of the bridge plugin with the links of their gateways, and devices of bandwidth
//! without a container.

use cni_kernel::route::{Link, LinkKind, RouteSocket};

use super::{Leftover, LeftoverError};
use cni_dataplane::owner::MADE;
use cni_plugins::meta::bandwidth;

/// Finds the links. Those of gateways come first, as their other ends are ports of the bridges.
pub(super) fn plan() -> Result<Vec<Leftover>, LeftoverError> {
    let route = RouteSocket::open()?;
    let links = route.links()?;
    let ours = |kind: LinkKind| links.iter().filter(move |link| is_ours(link) && link.kind == kind);
    let gateways: Vec<&Link> = ours(LinkKind::Veth).collect();
    let mut leftovers: Vec<Leftover> =
        gateways.iter().map(|link| Leftover::Link(link.name.clone())).collect();
    for bridge in ours(LinkKind::Bridge) {
        let of_gateway = |port: &&Link| gateways.iter().any(|link| link.peer == Some(port.index));
        let ports = links.iter().filter(|link| link.master == Some(bridge.index));
        leftovers.push(decide(&bridge.name, ports.filter(|port| !of_gateway(port)).count()));
    }
    for device in links.iter().filter(|link| bandwidth::is_ours(link)) {
        leftovers.push(decide_device(&route, &links, device)?);
    }
    Ok(leftovers)
}

/// Removes a link, unless it has ports or another owner now.
pub(super) fn remove(name: String) -> Result<Leftover, LeftoverError> {
    let route = RouteSocket::open()?;
    let found = route.find_link(&name)?.filter(|link| is_ours(link) || bandwidth::is_ours(link));
    let Some(link) = found else { return Ok(Leftover::Link(name)) };
    let links = route.links()?;
    let decision = match bandwidth::is_ours(&link) {
        true => decide_device(&route, &links, &link)?,
        false => decide(&name, links.iter().filter(|port| port.master == Some(link.index)).count()),
    };
    if let Leftover::Keep { .. } = decision {
        return Ok(decision);
    }
    match route.delete_link(&link) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(Leftover::Link(name)),
    }
}

fn is_ours(link: &Link) -> bool {
    link.alias == MADE
}

/// Decides about a device of bandwidth: it is kept if a container's link sends through it.
fn decide_device(route: &RouteSocket, links: &[Link], device: &Link) -> Result<Leftover, LeftoverError> {
    for link in links.iter().filter(|link| link.kind == LinkKind::Veth) {
        if route.redirections(link)?.contains(&device.index) {
            let why = format!("packets from {} go through it", link.name);
            return Ok(Leftover::Keep { what: format!("link {}", device.name), why });
        }
    }
    Ok(Leftover::Link(device.name.clone()))
}

fn decide(name: &str, ports: usize) -> Leftover {
    match ports {
        0 => Leftover::Link(name.to_owned()),
        1 => Leftover::Keep { what: format!("link {name}"), why: "it has a port".to_owned() },
        many => Leftover::Keep { what: format!("link {name}"), why: format!("it has {many} ports") },
    }
}
