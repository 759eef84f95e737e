// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds the uplinks, the interfaces that carry traffic from outside, and the node's addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::service_links;
use cni_kernel::AddressFamily;
use cni_kernel::route::{Address, Link, LinkKind, RouteError, RouteSocket};
use slipway_ebpf_abi::{Addr4, Addr6, SEVERAL, UPLINK_ETHERNET, Uplink};

/// The node's interfaces and addresses for the maps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Surroundings {
    /// Name and map entry by the index of the interface.
    pub(super) uplinks: BTreeMap<u32, (String, Uplink)>,
    /// Every address of the node, except loopback and link-local ones, with its interface or [`SEVERAL`].
    pub(super) locals: BTreeMap<IpAddr, u32>,
}

/// Reads the node's interfaces. `named` are the administrator's uplinks; if empty, the uplinks are found.
///
/// # Errors
/// The kernel refused to list links or addresses.
pub(super) fn look(named: &[String]) -> Result<Surroundings, RouteError> {
    let socket = RouteSocket::open()?;
    let (links, addresses) = (socket.links()?, socket.all_addresses()?);
    let mut default_links = Vec::new();
    for family in AddressFamily::BOTH {
        // A node without IPv6 refuses to list such routes.
        default_links.extend(socket.default_route(family).ok().flatten().and_then(|route| route.link));
    }
    Ok(choose(&links, &addresses, &default_links, named))
}

/// Chooses the uplinks. An uplink has an address of the node and no master: of a bond or a bridge, the master
/// is the uplink. A bridge counts only if the default route leads there, as containers have bridges, too. The
/// host end of a container's veth has its owner as its alias.
fn choose(links: &[Link], addresses: &[Address], default_links: &[u32], named: &[String]) -> Surroundings {
    let mut found = Surroundings::default();
    for link in links {
        let own = || addresses.iter().filter(|address| address.link == link.index && address.global);
        let is_uplink = if named.is_empty() {
            let is_default = default_links.contains(&link.index);
            let is_ours = link.kind == LinkKind::Veth && !link.alias.is_empty();
            link.up
                && !service_links::NAMES.contains(&link.name.as_str())
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
    let of_services: Vec<u32> = links
        .iter()
        .filter(|link| service_links::NAMES.contains(&link.name.as_str()))
        .map(|link| link.index)
        .collect();
    let addresses = addresses.iter().filter(|address| !of_services.contains(&address.link));
    for address in addresses.filter(|address| is_local(&address.net.addr())) {
        let at = found.locals.entry(address.net.addr()).or_insert(address.link);
        if *at != address.link {
            *at = SEVERAL;
        }
    }
    found
}

/// The uplink's only primary address of each family, to masquerade with. Of several, the kernel chooses by
/// the next hop (IPv4) or the destination (IPv6, RFC 6724): nftables masquerades then.
fn only_primary<'a>(own: impl Iterator<Item = &'a Address>) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let usable = own.filter(|address| !address.tentative && !address.duplicate && !address.deprecated);
    let (mut of_v4, mut of_v6) = (Vec::new(), Vec::new());
    for address in usable {
        match address.net.addr() {
            // Of the addresses of one subnet, the kernel takes the first one.
            IpAddr::V4(v4) if !address.secondary => of_v4.push(v4),
            IpAddr::V4(_) => {}
            IpAddr::V6(v6) => of_v6.push(v6),
        }
    }
    (only(&of_v4), only(&of_v6))
}

fn describe<'a>(link: &Link, own: impl Iterator<Item = &'a Address>) -> Uplink {
    let (v4, v6) = only_primary(own);
    Uplink {
        mtu: link.mtu,
        flags: if link.mac.is_some() { UPLINK_ETHERNET } else { 0 },
        address4: v4.map_or_else(Addr4::default, Addr4::from),
        address6: v6.map_or_else(Addr6::default, Addr6::from),
    }
}

fn only<A: Copy>(all: &[A]) -> Option<A> {
    if let [one] = all { Some(*one) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(net: &str) -> Address {
        let net = net.parse().expect("an address");
        Address {
            link: 3,
            net,
            tentative: false,
            duplicate: false,
            secondary: false,
            deprecated: false,
            global: true,
        }
    }

    #[test]
    fn an_uplink_masquerades_only_with_its_only_primary_address() {
        let chosen = |addresses: &[Address]| only_primary(addresses.iter());
        let (v4, v6) = (address("192.0.2.2/24"), address("2001:db8::2/64"));
        let both = (Some(Ipv4Addr::new(192, 0, 2, 2)), Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)));
        assert_eq!(chosen(&[]), (None, None));
        assert_eq!(chosen(&[v4.clone(), v6.clone()]), both);
        let unusable = [
            Address { secondary: true, ..address("192.0.2.3/24") },
            Address { deprecated: true, ..address("2001:db8::3/64") },
            Address { tentative: true, ..address("2001:db8::4/64") },
            Address { duplicate: true, ..address("2001:db8::5/64") },
        ];
        assert_eq!(chosen(&[&[v4.clone(), v6.clone()][..], &unusable].concat()), both);
        // Of several, the kernel chooses by next hop or destination.
        assert_eq!(chosen(&[v4.clone(), address("198.51.100.2/24"), v6.clone()]), (None, both.1));
        let temporary = Address { secondary: true, ..address("2001:db8::9/64") };
        assert_eq!(chosen(&[v4.clone(), v6.clone(), temporary]), (both.0, None));
        assert_eq!(chosen(&[v4, v6, address("fd00::2/64")]), (both.0, None));
    }
}
