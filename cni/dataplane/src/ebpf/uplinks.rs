//! Which interfaces carry traffic from outside, and which addresses the node has.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_kernel::route::{Address, Family, Link, LinkKind, RouteError, RouteSocket};
use slipway_ebpf_abi::{Addr4, Addr6, UPLINK_ETHERNET, Uplink};

/// What a node has, as the programs are told it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Surroundings {
    /// By the number of the interface: its name, and what the programs know of it.
    pub(super) uplinks: BTreeMap<u32, (String, Uplink)>,
    /// Every address of the node but those of the loopback and of single links.
    pub(super) locals: Vec<IpAddr>,
}

/// Looks at the node. `named` are the interfaces that an administrator has named; none: they are found.
///
/// # Errors
/// The kernel cannot be asked.
pub(super) fn look(named: &[String]) -> Result<Surroundings, RouteError> {
    let socket = RouteSocket::open()?;
    let (links, addresses) = (socket.links()?, socket.all_addresses()?);
    let mut leads_out = Vec::new();
    for family in [Family::V4, Family::V6] {
        // A node without IPv6 has no such routes to ask for.
        leads_out.extend(socket.default_route(family).ok().flatten().and_then(|route| route.link));
    }
    Ok(judge(&links, &addresses, &leads_out, named))
}

/// An uplink has an address of the node and belongs to no other interface: of a bond or a bridge it is the
/// master. Bridges count only if the default route leads there: those of containers are bridges, too. The
/// host's end of a container's pair has its owner as its alias.
fn judge(links: &[Link], addresses: &[Address], leads_out: &[u32], named: &[String]) -> Surroundings {
    let mut found = Surroundings::default();
    for link in links {
        let own = || addresses.iter().filter(|address| address.link == link.index && address.global);
        let is_uplink = if named.is_empty() {
            let is_default = leads_out.contains(&link.index);
            let is_ours = link.kind == LinkKind::Veth && !link.alias.is_empty();
            link.up
                && link.master.is_none()
                && own().any(|address| !address.net.addr().is_loopback())
                && (is_default || !(is_ours || link.kind == LinkKind::Bridge))
                && link.name != "lo"
        } else {
            named.contains(&link.name)
        };
        if is_uplink {
            found.uplinks.insert(link.index, (link.name.clone(), describe(link, own())));
        }
    }
    let is_local = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_loopback(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    found.locals = addresses.iter().map(|address| address.net.addr()).filter(is_local).collect();
    found.locals.sort_unstable();
    found.locals.dedup();
    found
}

fn describe<'a>(link: &Link, own: impl Iterator<Item = &'a Address>) -> Uplink {
    let usable = own.filter(|address| !address.tentative && !address.duplicate);
    let addresses: Vec<IpAddr> = usable.map(|address| address.net.addr()).collect();
    let v4: Option<Ipv4Addr> =
        addresses.iter().find_map(|a| if let IpAddr::V4(a) = a { Some(*a) } else { None });
    let v6: Option<Ipv6Addr> =
        addresses.iter().find_map(|a| if let IpAddr::V6(a) = a { Some(*a) } else { None });
    Uplink {
        mtu: link.mtu,
        flags: if link.mac.is_some() { UPLINK_ETHERNET } else { 0 },
        address4: v4.map_or_else(Addr4::default, Addr4::from),
        address6: v6.map_or_else(Addr6::default, Addr6::from),
    }
}
