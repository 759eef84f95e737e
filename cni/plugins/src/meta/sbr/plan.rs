//! From what is there to what is to be there: one rule and one table for each of the link's addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use cni_kernel::route::{Existing, Family, MAIN_TABLE, Route, RouteKind, Rule};
use cni_spec::AddResult;
use ipnet::IpNet;

/// The first table that is taken, as by the reference.
const FIRST_TABLE: u32 = 100;
/// `RT_TABLE_DEFAULT`, `RT_TABLE_MAIN` and `RT_TABLE_LOCAL`: everybody's.
pub(super) const KERNELS: RangeInclusive<u32> = 253..=255;

/// Whether a table may be one that an ADD has taken for an address.
fn may_be_own(table: u32) -> bool {
    table >= FIRST_TABLE && !KERNELS.contains(&table)
}

/// One of the link's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) address: IpNet,
    pub(super) gateway: Option<Gateway>,
}

/// Where packets from an address leave by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gateway {
    /// IPAM's: a default route that the link has goes before it.
    Told(IpAddr),
    /// The configuration's: it goes before every other.
    Chosen(IpAddr),
}

impl Gateway {
    pub(super) fn address(self) -> IpAddr {
        let (Self::Told(address) | Self::Chosen(address)) = self;
        address
    }
}

/// What happens to the link's own networks in the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbours {
    /// They go, like everything else.
    Moved,
    /// They stay, with the address that packets without one shall have.
    Hinted,
}

/// What the container has now.
#[derive(Debug, Default)]
pub(super) struct Present {
    pub(super) rules: Vec<Rule>,
    /// The routes of all tables.
    pub(super) routes: Vec<Route>,
}

/// What is to be done, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rules to add.
    pub(super) rules: Vec<Rule>,
    /// Routes to add, and what to do where there is one to the same place.
    pub(super) routes: Vec<(Route, Existing)>,
    /// Routes of the main table to delete.
    pub(super) leaving: Vec<Route>,
    /// Routes of the main table to put in the place of those that are there.
    pub(super) hinted: Vec<Route>,
}

impl Present {
    /// The rule of an address that an earlier ADD has made.
    pub(super) fn rule_of(&self, address: IpAddr) -> Option<&Rule> {
        let source = Some(IpNet::from(address));
        self.rules.iter().find(|rule| rule.by_source_alone && rule.source == source && may_be_own(rule.table))
    }

    /// The routes of the link in the main table. Those to link-local addresses stay where they are: they
    /// say the link by themselves (RFC 4007), and IPv6 does not work without them.
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

/// Only the rules, to a table that somebody else fills.
pub(super) fn rules_alone(sources: &[Source], table: u32, present: &Present) -> Plan {
    let there = |rule: &Rule| present.rules.iter().any(|has| Rule { priority: None, ..has.clone() } == *rule);
    let rules = sources.iter().map(|source| Rule::from_address(source.address.addr(), table));
    Plan { rules: rules.filter(|rule| !there(rule)).collect(), ..Plan::default() }
}

/// A rule and a table for each address.
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
    // A gateway is reached by a route that has none.
    plan.leaving.sort_by_key(|route| route.gateway.is_none());
    plan
}

/// The routes of one address's table.
fn in_table(
    source: &Source,
    table: u32,
    link: u32,
    present: &Present,
    sources: &[Source],
) -> Vec<(Route, Existing)> {
    let family = Family::of(source.address.addr());
    let mut routes: Vec<Route> = present
        .of_link(link)
        .filter(|route| Family::of(route.dst.addr()) == family && is_for(route, source, sources))
        .map(|route| Route { table, ..route.clone() })
        .collect();
    // Those without a gateway first: they lead to the gateways of the others.
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
        (Some(Gateway::Told(_)), Some(default)) if !routes.iter().any(|route| replaced(&default, route)) => {
            routes.push(default);
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    let with_mode = |route: Route| {
        let first = seen.insert((route.dst, effective_metric(&route)));
        // Others to the same place are further next hops.
        (route, if first { Existing::Replace } else { Existing::Append })
    };
    routes.into_iter().map(with_mode).collect()
}

/// The result with the tables that its routes are in now: a CHECK of the plugin that made them looks there.
pub(super) fn told(previous: &AddResult, plan: &Plan, present: &Present, link: u32) -> AddResult {
    let in_main = |table: u32| table == MAIN_TABLE;
    let moved = plan.routes.iter().map(|(route, _)| route);
    let before = present.routes.iter().filter(|route| route.link == Some(link) && may_be_own(route.table));
    let elsewhere: Vec<&Route> = moved.chain(before).collect();
    let mut result = previous.clone();
    for told in result.routes.iter_mut().filter(|told| told.table.is_none_or(in_main)) {
        let fits = |route: &&&Route| {
            route.dst == told.dst.trunc() && (told.gw.is_none() || route.gateway == told.gw)
        };
        let stays = plan.hinted.iter().any(|route| fits(&&route));
        told.table =
            elsewhere.iter().find(fits).filter(|_| !stays).map_or(told.table, |route| Some(route.table));
    }
    result
}

/// The kernel takes 0 for 1,024 in IPv6, `IP6_RT_PRIO_USER`.
fn effective_metric(route: &Route) -> u32 {
    match (route.metric, route.dst) {
        (0, IpNet::V6(_)) => 1024,
        (metric, _) => metric,
    }
}

/// Whether packets from an address may take a route: its own source or gateway is in the address's network,
/// or it names none, or those of nobody.
fn is_for(route: &Route, source: &Source, sources: &[Source]) -> bool {
    let named: Vec<IpAddr> = route.source.into_iter().chain(route.gateway).collect();
    let fits = |source: &Source| named.iter().any(|address| source.address.contains(address));
    named.is_empty() || fits(source) || !sources.iter().any(fits)
}

/// The route with the address that packets without one shall have.
fn hint(route: &Route, sources: &[Source]) -> Option<Route> {
    if route.source.is_some() {
        return Some(route.clone());
    }
    let family = Family::of(route.dst.addr());
    let mut of_family = sources.iter().filter(|source| Family::of(source.address.addr()) == family);
    let within = of_family.clone().find(|source| source.address.contains(&route.dst.addr()));
    let source = within.or_else(|| of_family.next())?;
    Some(Route { source: Some(source.address.addr()), ..route.clone() })
}

/// Tables that nothing leads to and nothing is in.
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
        let gateway = gateway.map(|gateway| Gateway::Told(gateway.parse().unwrap()));
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
    fn one_address_takes_the_links_routes_along() {
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
        // The gateway's way last.
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
    fn the_result_tells_the_tables() {
        let told_route = |dst: &str, gw: Option<&str>| {
            cni_spec::Route::new(dst.parse().unwrap(), gw.map(|gw| gw.parse().unwrap()))
        };
        let previous = AddResult {
            routes: vec![
                told_route("0.0.0.0/0", None),
                told_route("172.16.0.0/16", Some("10.0.0.1")),
                told_route("172.17.0.0/16", None),
                cni_spec::Route { table: Some(7), ..told_route("0.0.0.0/0", None) },
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
        let result = told(&previous, &plan, &present, LINK);
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

    /// Somebody's rule to one of the kernel's tables is not an earlier ADD's.
    #[test]
    fn the_kernels_tables_are_nobodys_own() {
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
    fn which_gateway_counts() {
        let present = Present {
            rules: vec![],
            routes: vec![
                route("10.0.0.0/24", None, Some("10.0.0.5")),
                route("0.0.0.0/0", Some("10.0.0.2"), None),
                route("0.0.0.0/0", Some("10.0.0.3"), None),
                Route { metric: 9, ..route("0.0.0.0/0", Some("10.0.0.4"), None) },
            ],
        };
        let told = source("10.0.0.5/24", Some("10.0.0.1"));
        let with = |source: Source| lines(&plan(&[source], LINK, &present, Neighbours::Moved).routes);
        assert_eq!(
            with(told.clone())[1..],
            [
                "0.0.0.0/0 via 10.0.0.2 table 100 Replace",
                "0.0.0.0/0 via 10.0.0.3 table 100 Append",
                "0.0.0.0/0 via 10.0.0.4 metric 9 table 100 Replace",
            ]
        );
        let chosen = Source { gateway: Some(Gateway::Chosen("10.0.0.1".parse().unwrap())), ..told };
        assert_eq!(
            with(chosen)[1..],
            ["0.0.0.0/0 via 10.0.0.4 metric 9 table 100 Replace", "0.0.0.0/0 via 10.0.0.1 table 100 Replace"]
        );
    }

    #[test]
    fn hints_stay_in_the_main_table() {
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
    fn a_table_of_somebody_elses_gets_rules_alone() {
        let there = Rule { priority: Some(5), ..Rule::from_address("10.0.0.5".parse().unwrap(), 40) };
        let present = Present { rules: vec![there], routes: vec![route("10.0.0.0/24", None, None)] };
        let sources = [source("10.0.0.5/24", None), source("fd00::5/64", None)];
        let plan = rules_alone(&sources, 40, &present);
        assert_eq!(plan.rules, [Rule::from_address("fd00::5".parse().unwrap(), 40)]);
        assert!(plan.routes.is_empty() && plan.leaving.is_empty());
    }
}
