// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state inside the container: the addresses and routes of its interface.
//!
//! A program in the container that has `CAP_NET_ADMIN` may have changed them on purpose: a VPN client that takes the
//! default route away would leak packets if Slipway gave it back. Therefore differences are reported and never
//! repaired.

use std::net::IpAddr;
use std::rc::Rc;

use cni_kernel::AddressFamily;
use cni_kernel::route::MAIN_TABLE;
use cni_spec::{CniError, Route, text};
use ipnet::IpNet;

use super::check::{Inside, has_addresses, has_route, present, wrong};
use super::container::Container;
use super::expected::Objects;
use super::layer3::has;
use crate::expected::{Expected, Whose};

/// The interface's addresses, and its routes in the main table. Routes in other tables are objects of `sbr` and `vrf`.
///
/// # Errors
/// The container has no such interface, and no command can bring it back.
pub(crate) fn of(inside: Inside<'_>) -> Result<Objects, CniError> {
    let ips = inside.ips();
    let Inside { container, previous, ifname, .. } = inside;
    let mut all: Objects = Vec::new();
    if ips.is_empty() {
        return Ok(all);
    }
    present(&container.route, ifname)?;
    let place = Place { container: Rc::new(container), ifname: ifname.to_owned() };
    let addresses = ips.iter().map(|ip| ip.address).collect();
    all.push(Box::new(Addresses { place: place.clone(), addresses }));
    for route in previous.routes.iter().filter(|route| route.table.is_none_or(|table| table == MAIN_TABLE)) {
        let family = AddressFamily::of(route.dst.addr());
        let mut gateways = ips.iter().filter_map(|ip| ip.gateway);
        let via = route.gw.or_else(|| gateways.find(|gateway| AddressFamily::of(*gateway) == family));
        let via = via.filter(|via| !via.is_unspecified());
        all.push(Box::new(RouteInside { place: place.clone(), via, wanted: route.clone() }));
    }
    Ok(all)
}

/// The container's interface.
#[derive(Clone)]
struct Place {
    container: Rc<Container>,
    ifname: String,
}

impl Place {
    /// The remedy by a command of ip(8) in the container's namespace.
    fn remedy(&self, command: &str) -> String {
        let netns = text::shell_word(&self.container.sandbox());
        format!(
            "`nsenter --net={netns} ip {command}`, unless a program in the container changed it on purpose"
        )
    }
}

/// The addresses of the result, on an interface that is up.
struct Addresses {
    place: Place,
    addresses: Vec<IpNet>,
}

impl Expected for Addresses {
    fn name(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        format!("addresses {} on {} in the container", addresses.join(", "), self.place.ifname)
    }

    fn whose(&self) -> Whose {
        Whose::Theirs
    }

    fn remedy(&self) -> String {
        let Place { container, ifname } = &self.place;
        let link = container.route.find_link(ifname).ok().flatten();
        let missing = link.filter(|link| link.up).and_then(|link| {
            let is_missing = |net: &&IpNet| has_addresses(&container.route, &link, &[**net]).is_err();
            self.addresses.iter().find(is_missing)
        });
        match missing {
            Some(net) if net.addr().is_ipv6() => {
                self.place.remedy(&format!("address add {net} dev {ifname} nodad"))
            }
            Some(net) => self.place.remedy(&format!("address add {net} dev {ifname}")),
            None => self.place.remedy(&format!("link set {ifname} up")),
        }
    }

    fn stops(&self, family: AddressFamily, _is_forwarded: bool) -> bool {
        has(&self.addresses, family)
    }

    fn check(&self) -> Result<(), CniError> {
        let route = &self.place.container.route;
        let link = present(route, &self.place.ifname)?;
        if !link.up {
            return Err(wrong(format!("Interface {} is down", link.name)));
        }
        has_addresses(route, &link, &self.addresses)
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.check()
    }
}

/// A route of the result.
struct RouteInside {
    place: Place,
    wanted: Route,
    /// The gateway that the ADD chose.
    via: Option<IpAddr>,
}

impl Expected for RouteInside {
    fn name(&self) -> String {
        format!("route to {} in the container", self.wanted.dst)
    }

    fn whose(&self) -> Whose {
        Whose::Theirs
    }

    fn remedy(&self) -> String {
        let Route { dst, priority, .. } = &self.wanted;
        let via = self.via.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        let metric = if *priority == 0 { String::new() } else { format!(" metric {priority}") };
        // From `default` alone, ip(8) cannot tell the family.
        let family = if dst.addr().is_ipv6() { "-6 " } else { "" };
        self.place.remedy(&format!("{family}route add {dst}{via} dev {}{metric}", self.place.ifname))
    }

    // Without the default route, replies to the node's own neighbours may still find a route, so only forwarded packets
    // count.
    fn stops(&self, family: AddressFamily, is_forwarded: bool) -> bool {
        let dst = self.wanted.dst;
        is_forwarded && dst.prefix_len() == 0 && AddressFamily::of(dst.addr()) == family
    }

    fn check(&self) -> Result<(), CniError> {
        let route = &self.place.container.route;
        has_route(route, &present(route, &self.place.ifname)?, &self.wanted)
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.check()
    }
}
