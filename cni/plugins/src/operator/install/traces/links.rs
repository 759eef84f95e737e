//! Bridges that the bridge plugin made, and the links of their gateways; devices of bandwidth's whose container
//! is gone.

use cni_kernel::route::{Link, LinkKind, RouteSocket};

use super::{Trace, TraceError};
use crate::interface::bridge::MADE;
use crate::meta::bandwidth;

/// The gateways' links first: their other ends are ports of the bridges.
pub(super) fn plan() -> Result<Vec<Trace>, TraceError> {
    let route = RouteSocket::open()?;
    let links = route.links()?;
    let ours = |kind: LinkKind| links.iter().filter(move |link| is_ours(link) && link.kind == kind);
    let gateways: Vec<&Link> = ours(LinkKind::Veth).collect();
    let mut traces: Vec<Trace> = gateways.iter().map(|link| Trace::Link(link.name.clone())).collect();
    for bridge in ours(LinkKind::Bridge) {
        let of_gateway = |port: &&Link| gateways.iter().any(|link| link.peer == Some(port.index));
        let ports = links.iter().filter(|link| link.master == Some(bridge.index));
        traces.push(judge(&bridge.name, ports.filter(|port| !of_gateway(port)).count()));
    }
    for device in links.iter().filter(|link| bandwidth::is_ours(link)) {
        traces.push(judge_device(&route, &links, device)?);
    }
    Ok(traces)
}

/// Removes a link, unless it has got ports or somebody else's name on it since.
pub(super) fn remove(name: String) -> Result<Trace, TraceError> {
    let route = RouteSocket::open()?;
    let found = route.find_link(&name)?.filter(|link| is_ours(link) || bandwidth::is_ours(link));
    let Some(link) = found else { return Ok(Trace::Link(name)) };
    let links = route.links()?;
    let verdict = match bandwidth::is_ours(&link) {
        true => judge_device(&route, &links, &link)?,
        false => judge(&name, links.iter().filter(|port| port.master == Some(link.index)).count()),
    };
    if let Trace::Leave { .. } = verdict {
        return Ok(verdict);
    }
    match route.delete_link(&link) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(Trace::Link(name)),
    }
}

fn is_ours(link: &Link) -> bool {
    link.alias == MADE
}

/// A device goes unless a container's link sends through it.
fn judge_device(route: &RouteSocket, links: &[Link], device: &Link) -> Result<Trace, TraceError> {
    for link in links.iter().filter(|link| link.kind == LinkKind::Veth) {
        if route.redirections(link)?.contains(&device.index) {
            let why = format!("what comes in by {} goes through it", link.name);
            return Ok(Trace::Leave { what: format!("link {}", device.name), why });
        }
    }
    Ok(Trace::Link(device.name.clone()))
}

fn judge(name: &str, ports: usize) -> Trace {
    match ports {
        0 => Trace::Link(name.to_owned()),
        1 => Trace::Leave { what: format!("link {name}"), why: "it has a port".to_owned() },
        many => Trace::Leave { what: format!("link {name}"), why: format!("it has {many} ports") },
    }
}
