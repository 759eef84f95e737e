// SPDX-License-Identifier: GPL-2.0-or-later

//! A link's IPv6 addresses and its routes in all tables, which the kernel removes when the link goes down.

use cni_kernel::AddressFamily;
use cni_kernel::route::{
    DuplicateDetection, Existing, Link, MAIN_TABLE, Route, RouteError, RouteKind, RouteSocket,
};
use ipnet::IpNet;

use super::{gone, there};

// linux/rtnetlink.h
/// `RTPROT_KERNEL`: routes that the kernel makes for addresses.
const BY_KERNEL: u8 = 2;
/// `RTPROT_RA`: routes from router advertisements, which routers send again.
const BY_ROUTERS: u8 = 9;
/// `RT_TABLE_LOCAL`.
const LOCAL_TABLE: u32 = 255;

/// A link's addresses and routes.
#[derive(Debug, Clone)]
pub(super) struct Layer3 {
    addresses: Vec<IpNet>,
    routes: Vec<Route>,
}

impl Layer3 {
    /// Reads the addresses and routes of a link.
    pub(super) fn of(route: &RouteSocket, link: &Link) -> Result<Self, RouteError> {
        let addresses = route.addresses(link)?.into_iter();
        let lost = addresses.filter(|one| one.global && one.net.addr().is_ipv6()).map(|one| one.net);
        Ok(Self { addresses: lost.collect(), routes: routes_of(route, link)? })
    }

    /// Moves the routes of the main and local tables to a VRF's table.
    pub(super) fn in_vrf(mut self, table: u32) -> Self {
        for route in self.routes.iter_mut().filter(|route| [MAIN_TABLE, LOCAL_TABLE].contains(&route.table)) {
            route.table = table;
        }
        self
    }

    /// Restores addresses and routes of the link, which is up again. Deletes routes that the kernel has made for the
    /// addresses in the meantime and that were missing before, because sbr or vrf had moved them to another table.
    ///
    /// # Errors
    /// The first that could not be restored; all others were.
    pub(super) fn put_back(&self, route: &RouteSocket, link: &Link) -> Result<(), RouteError> {
        let mut result = Ok(());
        for net in &self.addresses {
            // Duplicate address detection has already run for this address.
            result = result.and(there(route.add_address(link, *net, DuplicateDetection::Skip)));
        }
        let Changes { extra, missing } = changes(&self.routes, &routes_of(route, link)?);
        for extra in &extra {
            result = result.and(gone(route.delete_route(extra)));
        }
        for missing in &missing {
            // Further routes to the same destination are further next hops.
            result = result.and(there(route.add_route(missing, Existing::Append)));
        }
        result
    }
}

/// The link's routes in all tables.
fn routes_of(route: &RouteSocket, link: &Link) -> Result<Vec<Route>, RouteError> {
    let mut routes = Vec::new();
    for family in AddressFamily::BOTH {
        routes.extend(route.routes(family, 0)?);
    }
    routes.retain(|has| has.link == Some(link.index) && has.kind == RouteKind::Unicast);
    Ok(routes)
}

/// The changes that restore the earlier routes.
#[derive(Debug)]
struct Changes {
    extra: Vec<Route>,
    /// In the order in which they can be added.
    missing: Vec<Route>,
}

fn changes(before: &[Route], now: &[Route]) -> Changes {
    let extra = now.iter().filter(|has| has.protocol == BY_KERNEL && !before.contains(has));
    let missing = before.iter().filter(|had| had.protocol != BY_ROUTERS && !now.contains(had));
    let (extra, mut missing): (Vec<_>, Vec<_>) = (extra.cloned().collect(), missing.cloned().collect());
    // The routes that lead to the gateways, which have no gateway themselves, come first.
    missing.sort_by_key(|route| route.gateway.is_some());
    Changes { extra, missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(dst: &str, gateway: Option<&str>, table: u32, protocol: u8) -> Route {
        let gateway = gateway.map(|gateway| gateway.parse().unwrap());
        Route { gateway, table, protocol, link: Some(7), ..Route::to(dst.parse().unwrap()) }
    }

    #[test]
    fn gateways_come_after_the_routes_to_them() {
        // The routes are in the kernel's order, with the shortest prefix first.
        let before = [
            route("0.0.0.0/0", Some("10.8.0.1"), 254, 3),
            route("10.8.0.1/32", None, 254, 3),
            route("0.0.0.0/0", Some("10.9.0.1"), 100, 3),
            route("10.9.0.0/24", None, 100, BY_KERNEL),
            route("fe80::/64", None, 254, BY_KERNEL),
            route("fd00:7::/64", Some("fe80::1"), 254, BY_ROUTERS),
        ];
        let now = [
            route("10.9.0.0/24", None, 254, BY_KERNEL),
            before[4].clone(),
            route("1.1.1.1/32", None, 254, 3),
        ];
        let Changes { extra, missing } = changes(&before, &now);
        let lines = |routes: &[Route]| routes.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(lines(&extra), ["10.9.0.0/24"]);
        assert_eq!(
            lines(&missing),
            [
                "10.8.0.1/32",
                "10.9.0.0/24 table 100",
                "0.0.0.0/0 via 10.8.0.1",
                "0.0.0.0/0 via 10.9.0.1 table 100"
            ]
        );
        let Changes { extra, missing } = changes(&before, &before);
        assert!(extra.is_empty() && missing.is_empty());
    }

    #[test]
    fn a_vrf_gets_the_routes_of_the_main_and_local_tables_only() {
        let of = |table| route("10.9.0.0/24", None, table, BY_KERNEL);
        let routes = [MAIN_TABLE, LOCAL_TABLE, 100].map(of).to_vec();
        let there = Layer3 { addresses: Vec::new(), routes }.in_vrf(7);
        assert_eq!(there.routes, [of(7), of(7), of(100)]);
    }
}
