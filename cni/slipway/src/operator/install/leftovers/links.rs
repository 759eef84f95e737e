// SPDX-License-Identifier: GPL-2.0-or-later

//! Leftover links: bridges of the bridge plugin and of slipwayd with the links of their gateways, devices of bandwidth
//! without a container, and the links of slipwayd to other nodes.

use cni_kernel::route::{Link, LinkKind, RouteSocket};

use super::{Leftover, LeftoverError};
use cni_dataplane::Owner;
use cni_dataplane::owner::MADE;
use cni_plugins::meta::bandwidth;
use cni_state::agent::{VXLAN_LINK, WIREGUARD_LINK};

/// Finds the links. Those of gateways come first, as their other ends are ports of the bridges. Those to other nodes
/// come last, because bridges send through them.
pub(super) fn plan() -> Result<Vec<Leftover>, LeftoverError> {
    let route = RouteSocket::open()?;
    let links = route.links()?;
    let gateways = links.iter().filter(|link| is_gateway(link));
    let mut leftovers: Vec<Leftover> = gateways.map(|link| Leftover::Link(link.name.clone())).collect();
    leftovers.extend(bridges(&links).map(|(bridge, ports)| decide(&bridge.name, ports)));
    for device in links.iter().filter(|link| bandwidth::is_ours(link)) {
        leftovers.push(decide_device(&route, &links, device)?);
    }
    leftovers.extend(links.iter().filter(|link| is_tunnel(link)).map(|link| decide_tunnel(&links, link)));
    Ok(leftovers)
}

/// Removes a link, unless it is in use or has another owner now.
pub(super) fn remove(name: String) -> Result<Leftover, LeftoverError> {
    let route = RouteSocket::open()?;
    let found = route.find_link(&name)?.filter(|link| is_ours(link) || bandwidth::is_ours(link));
    let Some(link) = found else { return Ok(Leftover::Link(name)) };
    let links = route.links()?;
    let decision = if bandwidth::is_ours(&link) {
        decide_device(&route, &links, &link)?
    } else if is_tunnel(&link) {
        decide_tunnel(&links, &link)
    } else {
        decide(&name, links.iter().filter(|port| port.master == Some(link.index)).count())
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

/// True for the end of a pair whose other end is a port of a bridge.
fn is_gateway(link: &Link) -> bool {
    is_ours(link) && link.kind == LinkKind::Veth
}

/// True for a link of slipwayd to other nodes.
pub(super) fn is_tunnel(link: &Link) -> bool {
    let has_kind = match link.name.as_str() {
        VXLAN_LINK => matches!(link.kind, LinkKind::Vxlan(_)),
        WIREGUARD_LINK => link.kind == LinkKind::WireGuard,
        _ => false,
    };
    has_kind && is_ours(link)
}

/// Our bridges, each with the number of its ports, among which those of gateways do not count.
fn bridges(links: &[Link]) -> impl Iterator<Item = (&Link, usize)> {
    let bridges = links.iter().filter(|link| is_ours(link) && link.kind == LinkKind::Bridge);
    bridges.map(move |bridge| {
        let ports = links.iter().filter(|link| link.master == Some(bridge.index));
        let of_gateway = |port: &&Link| {
            links.iter().any(|gateway| is_gateway(gateway) && gateway.peer == Some(port.index))
        };
        (bridge, ports.filter(|port| !of_gateway(port)).count())
    })
}

/// Why containers may send packets: a bridge of ours has ports, or a container has a pair of links. None if no
/// container can send any.
pub(super) fn used_by_containers(links: &[Link]) -> Option<String> {
    if let Some((bridge, ports)) = bridges(links).find(|(_, ports)| *ports > 0) {
        return Some(format!("link {} has {}", bridge.name, ports_text(ports)));
    }
    let is_containers =
        |link: &&Link| link.kind == LinkKind::Veth && Owner::from_comment(&link.alias).is_some();
    links.iter().find(is_containers).map(|link| format!("link {} leads to a container", link.name))
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

/// Decides about a link to other nodes: it is kept if containers may send through it.
fn decide_tunnel(links: &[Link], tunnel: &Link) -> Leftover {
    let leftover = Leftover::Link(tunnel.name.clone());
    match used_by_containers(links) {
        None => leftover,
        Some(why) => leftover.kept(&why),
    }
}

fn decide(name: &str, ports: usize) -> Leftover {
    let leftover = Leftover::Link(name.to_owned());
    match ports {
        0 => leftover,
        ports => leftover.kept(&format!("it has {}", ports_text(ports))),
    }
}

fn ports_text(ports: usize) -> String {
    match ports {
        1 => "a port".to_owned(),
        many => format!("{many} ports"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: LinkKind, alias: &str) -> Link {
        Link { index, name: name.to_owned(), kind, alias: alias.to_owned(), ..Link::default() }
    }

    #[test]
    fn ports_and_pairs_of_containers_are_in_use() {
        let bridge = link(2, "cni5", LinkKind::Bridge, MADE);
        let gateway = Link { peer: Some(4), ..link(3, "cni5.7", LinkKind::Veth, MADE) };
        let port = |index| Link { master: Some(2), ..link(index, "port", LinkKind::Veth, "") };
        let mut links = vec![link(1, "eth0", LinkKind::Veth, ""), bridge, gateway, port(4)];
        assert_eq!(used_by_containers(&links), None);
        links.push(port(5));
        assert_eq!(used_by_containers(&links).as_deref(), Some("link cni5 has a port"));
        links.push(port(6));
        assert_eq!(used_by_containers(&links).as_deref(), Some("link cni5 has 2 ports"));
        let attachment = cni_spec::Attachment::new("routed", "web", "eth0").unwrap();
        let alias = Owner::of(&attachment).to_comment();
        let pair = [link(1, "veth1", LinkKind::Veth, &alias)];
        assert_eq!(used_by_containers(&pair).as_deref(), Some("link veth1 leads to a container"));
    }

    #[test]
    fn a_tunnel_has_its_name_and_kind_and_the_alias() {
        let wireguard = link(1, "slipway-wg", LinkKind::WireGuard, MADE);
        assert!(is_tunnel(&wireguard));
        let foreign = [
            Link { alias: String::new(), ..wireguard.clone() },
            Link { kind: LinkKind::Dummy, ..wireguard.clone() },
            Link { name: "wg0".to_owned(), ..wireguard },
        ];
        for link in &foreign {
            assert!(!is_tunnel(link), "{link:?}");
        }
    }
}
