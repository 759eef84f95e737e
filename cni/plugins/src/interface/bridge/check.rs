//! CHECK: compares the result of the ADD with what is there.

use cni_dataplane::nftables::Nftables;
use cni_dataplane::{Backend, MasqueradeRequest, macspoof};
use cni_kernel::netns::Netns;
use cni_kernel::route::{Family, Link, LinkKind, MAIN_TABLE, PortVlan, RouteSocket};
use cni_spec::{AddResult, CniError, Interface, Route};

use super::config::Settings;
use super::container::Container;
use super::failed;
use super::host::Host;
use crate::plugin::Request;
use crate::skel::delegate;

pub(super) fn check(request: &Request<'_>) -> Result<(), CniError> {
    let settings = Settings::new(request.config, request.args)?;
    if settings.ipam {
        delegate::ipam_check(request)?;
    }
    let previous =
        request.config.prev_result.as_ref().ok_or_else(|| CniError::config("Required prevResult missing"))?;
    let container = Container::open(request.netns.as_deref())?;
    let host = Host::open()?;
    let ifname = request.attachment.ifname();

    let bridge = check_bridge(&host.route, previous, &settings)?;
    let inner = check_inner(&container, previous, ifname)?;
    let port = check_port(&host.route, previous, (&bridge, &inner), &settings)?;
    if let (true, Some(mac)) = (settings.spoof_check, inner.mac) {
        macspoof::check(&request.attachment, &port.name, mac)?;
    }
    let index = previous
        .interfaces
        .iter()
        .position(|interface| interface.name == ifname && !interface.sandbox.is_empty());
    check_addresses(&container.route, &inner, previous, index)?;
    check_routes(&container.route, &inner, &previous.routes)?;
    if settings.masquerade && settings.ipam {
        let ips = previous.ips.iter().filter(|ip| ip.interface == index || ip.interface.is_none());
        let masquerade = MasqueradeRequest {
            attachment: request.attachment.clone(),
            netns: container.netns(),
            addresses: ips.map(|ip| ip.address).collect(),
        };
        Nftables::new().check_masquerade(&masquerade)?;
    }
    Ok(())
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

fn check_inner(container: &Container, previous: &AddResult, ifname: &str) -> Result<Link, CniError> {
    let expected = previous
        .interfaces
        .iter()
        .find(|interface| !interface.sandbox.is_empty() && interface.name == ifname)
        .ok_or_else(|| wrong(format!("CNI created interface in container {ifname} not found")))?;
    let sandbox = container.sandbox();
    // Another path may lead to the same namespace.
    let same = || Netns::open(expected.sandbox.as_ref()).is_ok_and(|netns| container.is(netns.id()));
    if expected.sandbox != sandbox && !same() {
        return Err(wrong(format!(
            "Sandbox in prevResult {} doesn't match configured netns: {sandbox}",
            expected.sandbox
        )));
    }
    let link = present(&container.route, ifname)?;
    if link.kind != LinkKind::Veth {
        return Err(wrong(format!("Error: Container interface {ifname} not of type veth")));
    }
    if !same_mac(&link, expected) {
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        let msg = format!("Interface {ifname} Mac {} doesn't match container Mac: {mac}", expected.mac);
        return Err(wrong(msg));
    }
    Ok(link)
}

fn check_port(
    route: &RouteSocket,
    previous: &AddResult,
    (bridge, inner): (&Link, &Link),
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

fn check_addresses(
    route: &RouteSocket,
    link: &Link,
    previous: &AddResult,
    index: Option<usize>,
) -> Result<(), CniError> {
    let present = route.addresses(link).map_err(failed)?;
    let ours = previous.ips.iter().filter(|ip| ip.interface.is_none() || ip.interface == index);
    for ip in ours {
        if !present.iter().any(|address| address.net == ip.address) {
            return Err(wrong(format!("Failed to match addr {} on interface {}", ip.address, link.name)));
        }
    }
    Ok(())
}

/// A default route matches with any gateway, as with the reference.
fn check_routes(route: &RouteSocket, link: &Link, expected: &[Route]) -> Result<(), CniError> {
    for wanted in expected {
        let table = wanted.table.unwrap_or(MAIN_TABLE);
        let present = route.routes(Family::of(wanted.dst.addr()), table).map_err(failed)?;
        let is_default = wanted.dst.prefix_len() == 0;
        let found = present.iter().any(|is| {
            is.dst == wanted.dst.trunc()
                && is.link == Some(link.index)
                && (is_default || wanted.gw.is_none() || is.gateway == wanted.gw)
                && (wanted.priority == 0 || is.metric == wanted.priority)
        });
        if !found {
            let via = wanted.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
            return Err(wrong(format!("Expected Route {}{via} not found in routing table", wanted.dst)));
        }
    }
    Ok(())
}

fn present(route: &RouteSocket, name: &str) -> Result<Link, CniError> {
    route.find_link(name).map_err(failed)?.ok_or_else(|| wrong(format!("Interface {name} not found")))
}

fn same_mac(link: &Link, expected: &Interface) -> bool {
    expected.mac.is_empty() || expected.mac.parse().is_ok_and(|mac| link.mac == Some(mac))
}

fn wrong(msg: String) -> CniError {
    CniError::internal(msg)
}
