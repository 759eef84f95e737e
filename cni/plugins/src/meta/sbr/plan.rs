// SPDX-License-Identifier: GPL-2.0-or-later

//! Plans the changes from the present rules and routes to the wanted ones, which are a rule and a table for each of the
//! link's addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use cni_kernel::AddressFamily;
use cni_kernel::route::{Existing, MAIN_TABLE, Route, RouteKind, Rule};
use cni_spec::AddResult;
use ipnet::IpNet;

/// The first table that an ADD tries, the same as in the reference.
const FIRST_TABLE: u32 = 100;
/// `RT_TABLE_DEFAULT`, `RT_TABLE_MAIN` and `RT_TABLE_LOCAL`, which all programs share.
pub(super) const KERNELS: RangeInclusive<u32> = 253..=255;

/// True if an ADD may take the table for an address.
fn may_be_own(table: u32) -> bool {
    table >= FIRST_TABLE && !KERNELS.contains(&table)
}

/// One of the link's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) address: IpNet,
    pub(super) gateway: Option<Gateway>,
}

/// The default gateway of packets from an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gateway {
    /// The gateway from IPAM. A default route of the link takes precedence.
    FromIpam(IpAddr),
    /// The gateway from the configuration, which takes precedence over all default routes.
    Chosen(IpAddr),
}

impl Gateway {
    pub(super) fn address(self) -> IpAddr {
        let (Self::FromIpam(address) | Self::Chosen(address)) = self;
        address
    }
}

/// The treatment of routes to the link's own networks in the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbours {
    /// The link's own networks move to the table, like all routes.
    Moved,
    /// The link's own networks stay in the main table, with a source address for packets that have none yet.
    Hinted,
}

/// The container's current state.
#[derive(Debug, Default)]
pub(super) struct Present {
    pub(super) rules: Vec<Rule>,
    /// The routes of all tables.
    pub(super) routes: Vec<Route>,
}

/// The changes, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rules to add.
    pub(super) rules: Vec<Rule>,
    /// Routes to add, and the treatment of existing ones to the same destination.
    pub(super) routes: Vec<(Route, Existing)>,
    /// Routes of the main table to delete.
    pub(super) leaving: Vec<Route>,
    /// Routes that replace others of the main table.
    pub(super) hinted: Vec<Route>,
}

impl Present {
    /// An address's rule of an earlier ADD.
    pub(super) fn rule_of(&self, address: IpAddr) -> Option<&Rule> {
        let source = Some(IpNet::from(address));
        self.rules.iter().find(|rule| rule.only_source && rule.source == source && may_be_own(rule.table))
    }

    /// The routes of the link in the main table, except the routes to link-local addresses, because such an address is
    /// valid on its link only (RFC 4007) and IPv6 does not work without these routes.
    fn of_link(&self, link: u32) -> impl Iterator<Item = &Route> {
        let link_local =
            |dst: IpNet| matches!(dst, IpNet::V6(net) if net.addr().segments()[0] & 0xffc0 == 0xfe80);
        self.routes.iter().filter(move |route| {
            route.table == MAIN_TABLE
                && route.link == Some(link)
                && route.kind == RouteKind::Unicast
                && !link_local(route.dst)
        })
    }
}

/// Plans rules for a table that another program fills.
pub(super) fn only_rules(sources: &[Source], table: u32, present: &Present) -> Plan {
    let there = |rule: &Rule| present.rules.iter().any(|has| Rule { priority: None, ..has.clone() } == *rule);
    let rules = sources.iter().map(|source| Rule::from_address(source.address.addr(), table));
    Plan { rules: rules.filter(|rule| !there(rule)).collect(), ..Plan::default() }
}

/// Plans a rule and a table for each address.
pub(super) fn plan(sources: &[Source], link: u32, present: &Present, neighbours: Neighbours) -> Plan {
    let mut plan = Plan::default();
    let mut tables = Tables::of(present);
    for source in sources {
        let rule = match present.rule_of(source.address.addr()) {
            Some(rule) => rule.clone(),
            None => {
                let rule = Rule::from_address(source.address.addr(), tables.next());
                plan.rules.push(rule.clone());
                rule
            }
        };
        plan.routes.extend(in_table(source, rule.table, link, present, sources));
    }
    for route in present.of_link(link) {
        match (neighbours, hint(route, sources)) {
            (Neighbours::Hinted, Some(hinted)) if route.gateway.is_none() => {
                if hinted != *route {
                    plan.hinted.push(hinted);
                }
            }
            _ => plan.leaving.push(route.clone()),
        }
    }
    // The routes that lead to the gateways, which have no gateway themselves, are deleted last.
    plan.leaving.sort_by_key(|route| route.gateway.is_none());
    plan
}

/// The missing rule of an address, to the table that an earlier ADD has filled for the address; none if the address has
/// a rule or no such table.
pub(super) fn lost_rule(source: &Source, link: u32, present: &Present, sources: &[Source]) -> Option<Rule> {
    let address = source.address.addr();
    if present.rule_of(address).is_some() {
        return None;
    }
    let family = AddressFamily::of(address);
    let is_led_to = |table: u32| present.rules.iter().any(|rule| rule.table == table);
    let is_its = |route: &&Route| {
        may_be_own(route.table)
            && route.link == Some(link)
            && AddressFamily::of(route.dst.addr()) == family
            && !is_led_to(route.table)
            && is_for(route, source, sources)
    };
    let table = present.routes.iter().find(is_its)?.table;
    Some(Rule::from_address(address, table))
}

/// The routes of one address's table.
fn in_table(
    source: &Source,
    table: u32,
    link: u32,
    present: &Present,
    sources: &[Source],
) -> Vec<(Route, Existing)> {
    let family = AddressFamily::of(source.address.addr());
    let mut routes: Vec<Route> = present
        .of_link(link)
        .filter(|route| AddressFamily::of(route.dst.addr()) == family && is_for(route, source, sources))
        .map(|route| Route { table, ..route.clone() })
        .collect();
    // Routes without a gateway come first, because the gateways of the others are reached through them.
    routes.sort_by_key(|route| route.gateway.is_some());
    let default = source.gateway.map(|gateway| Route {
        gateway: Some(gateway.address()),
        link: Some(link),
        table,
        ..Route::default_of(family)
    });
    let replaced = |default: &Route, route: &Route| {
        route.is_default() && effective_metric(route) == effective_metric(default)
    };
    match (source.gateway, default) {
        (Some(Gateway::Chosen(_)), Some(default)) => {
            routes.retain(|route| !replaced(&default, route));
            routes.push(default);
        }
        (Some(Gateway::FromIpam(_)), Some(default))
            if !routes.iter().any(|route| replaced(&default, route)) =>
        {
            routes.push(default);
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    let with_mode = |route: Route| {
        let first = seen.insert((route.dst, effective_metric(&route)));
        // Further routes to the same destination are further next hops.
        (route, if first { Existing::Replace } else { Existing::Append })
    };
    routes.into_iter().map(with_mode).collect()
}

/// The result with the new tables of its routes, in which a CHECK of the interface plugin looks.
pub(super) fn result(previous: &AddResult, plan: &Plan, present: &Present, link: u32) -> AddResult {
    let in_main = |table: u32| table == MAIN_TABLE;
    let moved = plan.routes.iter().map(|(route, _)| route);
    let before = present.routes.iter().filter(|route| route.link == Some(link) && may_be_own(route.table));
    let elsewhere: Vec<&Route> = moved.chain(before).collect();
    let mut result = previous.clone();
    for entry in result.routes.iter_mut().filter(|entry| entry.table.is_none_or(in_main)) {
        let fits = |route: &&&Route| {
            route.dst == entry.dst.trunc() && (entry.gw.is_none() || route.gateway == entry.gw)
        };
        let stays = plan.hinted.iter().any(|route| fits(&&route));
        entry.table =
            elsewhere.iter().find(fits).filter(|_| !stays).map_or(entry.table, |route| Some(route.table));
    }
    result
}

/// The metric in the kernel, which takes 0 as 1,024 in IPv6 (`IP6_RT_PRIO_USER`).
fn effective_metric(route: &Route) -> u32 {
    match (route.metric, route.dst) {
        (0, IpNet::V6(_)) => 1024,
        (metric, _) => metric,
    }
}

/// True if packets from an address may take a route: its source or gateway is in the address's network, or in
/// none of the sources' networks, or missing.
fn is_for(route: &Route, source: &Source, sources: &[Source]) -> bool {
    let named: Vec<IpAddr> = route.source.into_iter().chain(route.gateway).collect();
    let fits = |source: &Source| named.iter().any(|address| source.address.contains(address));
    named.is_empty() || fits(source) || !sources.iter().any(fits)
}

/// The route with a source address for packets that have none yet.
fn hint(route: &Route, sources: &[Source]) -> Option<Route> {
    if route.source.is_some() {
        return Some(route.clone());
    }
    let family = AddressFamily::of(route.dst.addr());
    let mut of_family = sources.iter().filter(|source| AddressFamily::of(source.address.addr()) == family);
    let within = of_family.clone().find(|source| source.address.contains(&route.dst.addr()));
    let source = within.or_else(|| of_family.next())?;
    Some(Route { source: Some(source.address.addr()), ..route.clone() })
}

/// The tables without rules and routes.
struct Tables {
    used: BTreeSet<u32>,
    next: u32,
}

impl Tables {
    fn of(present: &Present) -> Self {
        let rules = present.rules.iter().map(|rule| rule.table);
        let used = rules.chain(present.routes.iter().map(|route| route.table)).collect();
        Self { used, next: FIRST_TABLE }
    }

    fn next(&mut self) -> u32 {
        while !may_be_own(self.next) || !self.used.insert(self.next) {
            self.next += 1;
        }
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u32 = 7;

    fn source(address: &str, gateway: Option<&str>) -> Source {
        let gateway = gateway.map(|gateway| Gateway::FromIpam(gateway.parse().unwrap()));
        Source { address: address.parse().unwrap(), gateway }
    }

    fn route(dst: &str, gateway: Option<&str>, from: Option<&str>) -> Route {
        let parse = |text: &str| text.parse().unwrap();
        Route {
            gateway: gateway.map(parse),
            source: from.map(parse),
            link: Some(LINK),
            ..Route::to(dst.parse().unwrap())
        }
    }

    fn lines(routes: &[(Route, Existing)]) -> Vec<String> {
        routes.iter().map(|(route, existing)| format!("{route} {existing:?}")).collect()
    }

    #[test]
    fn the_links_routes_move_to_the_addresss_table() {
        let present = Present {
            rules: vec![],
            routes: vec![
                route("0.0.0.0/0", Some("10.0.0.1"), None),
                route("10.0.0.0/24", None, Some("10.0.0.5")),
                Route { link: Some(1), ..route("192.0.2.0/24", None, None) },
                Route { table: 255, kind: RouteKind::Local, ..route("10.0.0.5/32", None, Some("10.0.0.5")) },
                route("fe80::/64", None, None),
            ],
        };
        let sources = [source("10.0.0.5/24", Some("10.0.0.1"))];
        let plan = plan(&sources, LINK, &present, Neighbours::Moved);
        assert_eq!(plan.rules, [Rule::from_address("10.0.0.5".parse().unwrap(), 100)]);
        assert_eq!(
            lines(&plan.routes),
            ["10.0.0.0/24 table 100 Replace", "0.0.0.0/0 via 10.0.0.1 table 100 Replace"]
        );
        // The route to the gateway is deleted last.
        assert_eq!(plan.leaving, [present.routes[0].clone(), present.routes[1].clone()]);
        assert!(plan.hinted.is_empty());
    }

    #[test]
    fn each_address_has_a_table_that_is_free() {
        let other = Rule { priority: Some(5), ..Rule::from_address("1.1.1.1".parse().unwrap(), 101) };
        let present = Present {
            rules: vec![other],
            routes: vec![
                Route { table: 100, link: Some(1), ..route("9.9.9.0/24", None, None) },
                route("10.0.0.0/24", None, Some("10.0.0.5")),
                route("10.0.1.0/24", None, Some("10.0.1.5")),
                route("10.9.0.0/16", Some("10.0.1.9"), None),
                route("10.8.0.0/16", None, None),
                route("10.7.0.0/16", Some("172.16.0.1"), None),
                route("fd00::/64", None, None),
            ],
        };
        let sources = [
            source("10.0.0.5/24", Some("10.0.0.1")),
            source("10.0.1.5/24", None),
            source("fd00::5/64", Some("fd00::1")),
        ];
        let plan = plan(&sources, LINK, &present, Neighbours::Moved);
        let tables: Vec<u32> = plan.rules.iter().map(|rule| rule.table).collect();
        assert_eq!(tables, [102, 103, 104]);
        assert_eq!(
            lines(&plan.routes),
            [
                "10.0.0.0/24 table 102 Replace",
                "10.8.0.0/16 table 102 Replace",
                "10.7.0.0/16 via 172.16.0.1 table 102 Replace",
                "0.0.0.0/0 via 10.0.0.1 table 102 Replace",
                "10.0.1.0/24 table 103 Replace",
                "10.8.0.0/16 table 103 Replace",
                "10.9.0.0/16 via 10.0.1.9 table 103 Replace",
                "10.7.0.0/16 via 172.16.0.1 table 103 Replace",
                "fd00::/64 table 104 Replace",
                "::/0 via fd00::1 table 104 Replace",
            ]
        );
        assert_eq!(plan.leaving.len(), 6);
    }

    #[test]
    fn the_result_has_the_new_tables() {
        let entry = |dst: &str, gw: Option<&str>| {
            cni_spec::Route::new(dst.parse().unwrap(), gw.map(|gw| gw.parse().unwrap()))
        };
        let previous = AddResult {
            routes: vec![
                entry("0.0.0.0/0", None),
                entry("172.16.0.0/16", Some("10.0.0.1")),
                entry("172.17.0.0/16", None),
                cni_spec::Route { table: Some(7), ..entry("0.0.0.0/0", None) },
            ],
            ..AddResult::default()
        };
        let present = Present {
            rules: vec![],
            routes: vec![
                route("10.0.0.0/24", None, Some("10.0.0.5")),
                route("0.0.0.0/0", Some("10.0.0.1"), None),
                route("172.16.0.0/16", Some("10.0.0.1"), None),
            ],
        };
        let plan = plan(&[source("10.0.0.5/24", Some("10.0.0.1"))], LINK, &present, Neighbours::Moved);
        let result = result(&previous, &plan, &present, LINK);
        let tables: Vec<_> = result.routes.iter().map(|route| route.table).collect();
        assert_eq!(tables, [Some(100), Some(100), None, Some(7)]);
    }

    #[test]
    fn a_repeated_add_keeps_the_table() {
        let rule = Rule { priority: Some(5), ..Rule::from_address("10.0.0.5".parse().unwrap(), 100) };
        let moved = Route { table: 100, ..route("10.0.0.0/24", None, Some("10.0.0.5")) };
        let present = Present { rules: vec![rule], routes: vec![moved] };
        let plan = plan(&[source("10.0.0.5/24", Some("10.0.0.1"))], LINK, &present, Neighbours::Moved);
        assert!(plan.rules.is_empty() && plan.leaving.is_empty());
        assert_eq!(lines(&plan.routes), ["0.0.0.0/0 via 10.0.0.1 table 100 Replace"]);
    }

    #[test]
    fn a_lost_rule_leads_to_the_table_of_its_address() {
        let in_table = |table, route: Route| Route { table, ..route };
        let other = Rule { priority: Some(5), ..Rule::from_address("10.0.1.5".parse().unwrap(), 101) };
        let present = Present {
            rules: vec![other],
            routes: vec![
                in_table(100, route("10.0.0.0/24", None, Some("10.0.0.5"))),
                in_table(101, route("10.0.1.0/24", None, Some("10.0.1.5"))),
                in_table(102, route("fd00::/64", None, None)),
                in_table(103, Route { link: Some(1), ..route("10.0.0.0/24", None, None) }),
            ],
        };
        let sources =
            ["10.0.0.5/24", "10.0.1.5/24", "fd00::5/64", "10.0.9.5/24"].map(|net| source(net, None));
        let tables: Vec<_> = sources
            .iter()
            .map(|source| lost_rule(source, LINK, &present, &sources).map(|rule| rule.table))
            .collect();
        assert_eq!(tables, [Some(100), None, Some(102), None]);
    }

    /// A rule to one of the kernel's tables was not made by an earlier ADD.
    #[test]
    fn the_kernels_tables_are_never_taken() {
        for table in KERNELS {
            let rule = Rule { priority: Some(5), ..Rule::from_address("10.0.0.5".parse().unwrap(), table) };
            let present = Present { rules: vec![rule], routes: vec![route("10.0.0.0/24", None, None)] };
            let plan = plan(&[source("10.0.0.5/24", None)], LINK, &present, Neighbours::Moved);
            assert_eq!(plan.rules, [Rule::from_address("10.0.0.5".parse().unwrap(), 100)]);
            assert_eq!(lines(&plan.routes), ["10.0.0.0/24 table 100 Replace"]);
        }
        let full = (100..253).map(|table| Rule::from_address("1.1.1.1".parse().unwrap(), table));
        let mut tables = Tables::of(&Present { rules: full.collect(), routes: vec![] });
        assert_eq!([tables.next(), tables.next()], [256, 257]);
    }

    #[test]
    fn a_chosen_gateway_replaces_default_routes_and_ipams_does_not() {
        let present = Present {
            rules: vec![],
            routes: vec![
                route("10.0.0.0/24", None, Some("10.0.0.5")),
                route("0.0.0.0/0", Some("10.0.0.2"), None),
                route("0.0.0.0/0", Some("10.0.0.3"), None),
                Route { metric: 9, ..route("0.0.0.0/0", Some("10.0.0.4"), None) },
            ],
        };
        let from_ipam = source("10.0.0.5/24", Some("10.0.0.1"));
        let with = |source: Source| lines(&plan(&[source], LINK, &present, Neighbours::Moved).routes);
        assert_eq!(
            with(from_ipam.clone())[1..],
            [
                "0.0.0.0/0 via 10.0.0.2 table 100 Replace",
                "0.0.0.0/0 via 10.0.0.3 table 100 Append",
                "0.0.0.0/0 via 10.0.0.4 metric 9 table 100 Replace",
            ]
        );
        let chosen = Source { gateway: Some(Gateway::Chosen("10.0.0.1".parse().unwrap())), ..from_ipam };
        assert_eq!(
            with(chosen)[1..],
            ["0.0.0.0/0 via 10.0.0.4 metric 9 table 100 Replace", "0.0.0.0/0 via 10.0.0.1 table 100 Replace"]
        );
    }

    #[test]
    fn hinted_routes_stay_in_the_main_table() {
        let present = Present {
            rules: vec![],
            routes: vec![
                route("10.0.0.0/24", None, Some("10.0.0.5")),
                route("fd00::/64", None, None),
                route("10.8.0.0/16", None, None),
                route("0.0.0.0/0", Some("10.0.0.1"), None),
            ],
        };
        let sources = [source("10.0.0.5/24", None), source("fd00::5/64", None)];
        let plan = plan(&sources, LINK, &present, Neighbours::Hinted);
        assert_eq!(plan.leaving, [present.routes[3].clone()]);
        let hinted: Vec<_> =
            plan.hinted.iter().map(|r| (r.dst.to_string(), r.source.unwrap().to_string())).collect();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(hinted, [pair("fd00::/64", "fd00::5"), pair("10.8.0.0/16", "10.0.0.5")]);
    }

    #[test]
    fn a_table_of_another_program_gets_only_rules() {
        let there = Rule { priority: Some(5), ..Rule::from_address("10.0.0.5".parse().unwrap(), 40) };
        let present = Present { rules: vec![there], routes: vec![route("10.0.0.0/24", None, None)] };
        let sources = [source("10.0.0.5/24", None), source("fd00::5/64", None)];
        let plan = only_rules(&sources, 40, &present);
        assert_eq!(plan.rules, [Rule::from_address("fd00::5".parse().unwrap(), 40)]);
        assert!(plan.routes.is_empty() && plan.leaving.is_empty());
    }
}
