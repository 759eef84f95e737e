// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state inside the container: the addresses and routes of its interface.
//!
//! A program in the container that has `CAP_NET_ADMIN` may have changed them on purpose: a VPN client that takes the
//! default route away would leak packets if Slipway gave it back. So they are named, and never repaired.

use std::path::Path;
use std::rc::Rc;

use cni_kernel::AddressFamily;
use cni_kernel::route::MAIN_TABLE;
use cni_spec::{AddResult, CniError, IpConfig, Route};
use ipnet::IpNet;

use super::check::{has_addresses, has_route, present, wrong};
use super::container::Container;
use super::expected::Objects;
use super::layer3::has;
use crate::expected::{Expected, Whose};
use crate::plugin::Request;

/// The interface's addresses, and its routes in the main table. Those in other tables are objects of `sbr` and `vrf`.
///
/// # Errors
/// The container's namespace cannot be opened.
pub(crate) fn of(request: &Request<'_>, ips: &[IpConfig], previous: &AddResult) -> Result<Objects, CniError> {
    let mut all: Objects = Vec::new();
    if ips.is_empty() {
        return Ok(all);
    }
    let container = Rc::new(Container::open(request.netns.as_deref())?);
    let place = Place { container, ifname: request.attachment.ifname().to_owned() };
    let addresses = ips.iter().map(|ip| ip.address).collect();
    all.push(Box::new(Addresses { place: place.clone(), addresses }));
    for route in previous.routes.iter().filter(|route| route.table.is_none_or(|table| table == MAIN_TABLE)) {
        let family = AddressFamily::of(route.dst.addr());
        let mut gateways = ips.iter().filter_map(|ip| ip.gateway);
        let via = route.gw.or_else(|| gateways.find(|gateway| AddressFamily::of(*gateway) == family));
        all.push(Box::new(RouteInside {
            place: place.clone(),
            route: Route { gw: via.filter(|via| !via.is_unspecified()), ..route.clone() },
            wanted: route.clone(),
        }));
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
    /// A command that is carried out in the container.
    fn command(&self, command: &str) -> Whose {
        let netns = quoted(self.container.namespace().path());
        Whose::Theirs {
            remedy: format!(
                "`nsenter --net={netns} ip {command}`, unless a program in the container changed it on purpose"
            ),
        }
    }
}

/// A path as one word of a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.:@%+".contains(&byte);
    match text.bytes().all(is_plain) {
        true => text,
        false => format!("'{}'", text.escape_default().to_string().replace('\'', "'\\''")),
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
        let Place { container, ifname } = &self.place;
        let link = container.route.find_link(ifname).ok().flatten();
        let missing = link.filter(|link| link.up).and_then(|link| {
            let is_missing = |net: &&IpNet| has_addresses(&container.route, &link, &[**net]).is_err();
            self.addresses.iter().find(is_missing)
        });
        match missing {
            Some(net) if net.addr().is_ipv6() => {
                self.place.command(&format!("address add {net} dev {ifname} nodad"))
            }
            Some(net) => self.place.command(&format!("address add {net} dev {ifname}")),
            None => self.place.command(&format!("link set {ifname} up")),
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
    /// With the gateway that the ADD chose.
    route: Route,
    /// As CHECK compares it.
    wanted: Route,
}

impl Expected for RouteInside {
    fn name(&self) -> String {
        format!("route to {} in the container", self.route.dst)
    }

    fn whose(&self) -> Whose {
        let Route { dst, gw, .. } = &self.route;
        let via = gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
        let metric = match self.route.priority {
            0 => String::new(),
            metric => format!(" metric {metric}"),
        };
        // An unspecified destination alone does not tell ip its family.
        let family = if dst.addr().is_ipv6() { "-6 " } else { "" };
        self.place.command(&format!("{family}route add {dst}{via} dev {}{metric}", self.place.ifname))
    }

    // Replies to the node's neighbours may take another route.
    fn stops(&self, family: AddressFamily, is_forwarded: bool) -> bool {
        is_forwarded && self.route.dst.prefix_len() == 0 && AddressFamily::of(self.route.dst.addr()) == family
    }

    fn check(&self) -> Result<(), CniError> {
        let route = &self.place.container.route;
        has_route(route, &present(route, &self.place.ifname)?, &self.wanted)
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        let rows = [
            ("/run/netns/cni-0f", "/run/netns/cni-0f"),
            ("/run/netns/a b", "'/run/netns/a b'"),
            ("/run/netns/a`id`$(id)", "'/run/netns/a`id`$(id)'"),
        ];
        for (path, word) in rows {
            assert_eq!(quoted(Path::new(path)), word);
        }
    }
}
