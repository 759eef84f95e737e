// SPDX-License-Identifier: GPL-3.0-or-later

//! The routes to the pods of other nodes: those that the main table has, compared with those that it should have.
//!
//! Routes of ours are recognised by their origin, [`PROTOCOL`]. No other route is changed, and no state file is
//! needed to find what an earlier process left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use cni_kernel::AddressFamily;
use cni_kernel::route::{Existing, MAIN_TABLE, Route, RouteError, RouteKind, RouteScope, RouteSocket};
use cni_state::agent::{ROUTE_METRIC, ROUTE_PROTOCOL};
use ipnet::IpNet;

use super::desired::{Desired, Via};

/// The origin of our routes (`rtm_protocol`).
pub const PROTOCOL: u8 = ROUTE_PROTOCOL;

/// The metric of our routes.
pub const METRIC: u32 = ROUTE_METRIC;

/// A change of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A route is missing.
    Add(Route),
    /// A route of ours leads elsewhere.
    Replace(Route),
    /// A route of ours has no node any more.
    Delete(Route),
}

impl Change {
    /// The family of the route.
    #[must_use]
    pub fn family(&self) -> AddressFamily {
        let (Self::Add(route) | Self::Replace(route) | Self::Delete(route)) = self;
        AddressFamily::of(route.dst.addr())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(route) => write!(f, "added route {route}"),
            Self::Replace(route) => write!(f, "replaced route {route}"),
            Self::Delete(route) => write!(f, "deleted route {route}"),
        }
    }
}

/// Another program's route to the pods of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The pods' subnet.
    pub net: IpNet,
    /// The route's origin (`rtm_protocol`).
    pub protocol: u8,
    /// True if packets take it, not ours.
    pub wins: bool,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { net, protocol, .. } = self;
        write!(f, "another program (protocol {protocol}) has a route to {net}")?;
        f.write_str(if self.wins { "; packets take it" } else { "; packets take ours" })
    }
}

/// The changes and conflicts that a comparison finds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they are made: deletions first, for a subnet may have gone to another node.
    pub changes: Vec<Change>,
    /// Routes of others that are left alone.
    pub conflicts: Vec<Conflict>,
}

/// The changes that make the main table have these routes of ours, and no others of ours.
///
/// `keep_others` leaves routes of ours that are not wanted: while the list of nodes is not complete.
#[must_use]
pub fn plan(wanted: &[Route], shown: &[Route], keep_others: bool) -> Plan {
    let wanted: BTreeMap<IpNet, &Route> = wanted.iter().map(|route| (route.dst, route)).collect();
    let (own, foreign): (Vec<&Route>, Vec<&Route>) =
        shown.iter().filter(|route| route.table == MAIN_TABLE).partition(|route| route.protocol == PROTOCOL);
    // A node may have a full table of the Internet.
    let mut of_others: BTreeMap<IpNet, Vec<&Route>> = BTreeMap::new();
    for route in foreign.into_iter().filter(|route| wanted.contains_key(&route.dst)) {
        of_others.entry(route.dst).or_default().push(route);
    }
    let mut plan = Plan::default();
    let mut missing = Vec::new();
    // Several routes of ours may lead to a subnet, with different metrics; at most one of them is right.
    let mut present: BTreeMap<IpNet, Vec<&Route>> = BTreeMap::new();
    for route in own {
        present.entry(route.dst).or_default().push(route);
    }
    for (dst, route) in wanted {
        let of_others = of_others.remove(&dst).unwrap_or_default();
        let conflict =
            |other: &&Route| Conflict { net: dst, protocol: other.protocol, wins: other.metric <= METRIC };
        plan.conflicts.extend(of_others.iter().map(conflict));
        let shares_key = of_others.iter().any(|other| other.metric == METRIC);
        let old = present.remove(&dst).unwrap_or_default();
        match old.as_slice() {
            [one] if leads_alike(route, one) => {}
            [one] if one.metric == METRIC && !shares_key && !hides_gateway(one, route) => {
                missing.push(Change::Replace(route.clone()));
            }
            _ => {
                plan.changes.extend(old.iter().map(|one| Change::Delete((*one).clone())));
                if !shares_key {
                    missing.push(Change::Add(route.clone()));
                }
            }
        }
    }
    if !keep_others {
        plan.changes.extend(present.into_values().flatten().cloned().map(Change::Delete));
    }
    plan.changes.extend(missing);
    plan.conflicts.sort();
    plan.conflicts.dedup();
    plan
}

/// True if the kernel refuses a route as long as an old one exists: it looks up an IPv6 gateway with the flag `onlink`, which
/// must not be on another link (`ip6_route_check_nh_onlink`). The gateway of VXLAN is within the route's own prefix.
fn hides_gateway(old: &Route, new: &Route) -> bool {
    new.onlink && new.dst.addr().is_ipv6() && old.link != new.link
}

fn leads_alike(wanted: &Route, shown: &Route) -> bool {
    // The kernel lists the loopback as the link of IPv6 routes of type unreachable.
    let same_link = wanted.kind != RouteKind::Unicast || wanted.link == shown.link;
    (wanted.kind, wanted.gateway, wanted.onlink, wanted.source, wanted.mtu, wanted.metric)
        == (shown.kind, shown.gateway, shown.onlink, shown.source, shown.mtu, shown.metric)
        && same_link
}

/// The deletion of those of our routes that are not wanted and have a gateway: by the link or by VXLAN, in clear text.
/// With encryption these go also while the list of nodes is not complete.
#[must_use]
pub(crate) fn without_clear_text(wanted: &[Route], shown: &[Route]) -> Vec<Change> {
    let wanted: BTreeSet<IpNet> = wanted.iter().map(|route| route.dst).collect();
    let is_clear = |route: &&Route| {
        route.table == MAIN_TABLE
            && route.protocol == PROTOCOL
            && route.gateway.is_some()
            && !wanted.contains(&route.dst)
    };
    shown.iter().filter(is_clear).cloned().map(Change::Delete).collect()
}

/// A route of ours that refuses packets.
#[must_use]
pub fn refusal(dst: IpNet) -> Route {
    Route { kind: RouteKind::UNREACHABLE, ..route(dst) }
}

/// A route of ours.
#[must_use]
pub fn route(dst: IpNet) -> Route {
    Route { metric: METRIC, protocol: PROTOCOL, scope: Some(RouteScope::UNIVERSE), ..Route::to(dst.trunc()) }
}

/// The routes of a desired state, by the indexes of the devices of VXLAN and WireGuard. Those by VXLAN are left out without
/// its device. Without the WireGuard device packets are refused.
#[must_use]
pub fn wanted(desired: &Desired, vxlan: Option<u32>, wireguard: Option<u32>) -> Vec<Route> {
    let routes = desired.routes.iter().filter_map(|peer| {
        let to =
            |gateway: Option<IpAddr>, link: u32| Route { gateway, link: Some(link), ..route(peer.prefix) };
        match peer.via {
            Via::Link { gateway, link } => Some(to(Some(gateway), link)),
            Via::Tunnel { gateway } => Some(Route { onlink: true, ..to(Some(gateway), vxlan?) }),
            Via::WireGuard => Some(wireguard.map_or_else(|| refusal(peer.prefix), |link| to(None, link))),
        }
    });
    routes.collect()
}

/// The routes of the main table, of both families.
///
/// # Errors
/// [`RouteError`] if the kernel cannot list them.
pub fn shown(socket: &RouteSocket) -> Result<Vec<Route>, RouteError> {
    let mut all = socket.routes(AddressFamily::V4, MAIN_TABLE)?;
    all.extend(socket.routes(AddressFamily::V6, MAIN_TABLE)?);
    Ok(all)
}

/// Makes the changes, and returns the outcome of each: true if it was made here, false if another process has made it.
/// A failed one does not keep the others back.
#[must_use]
pub fn apply(socket: &RouteSocket, changes: &[Change]) -> Vec<Result<bool, RouteError>> {
    let make = |change: &Change| match change {
        Change::Add(route) => match socket.add_route(route, Existing::Refuse) {
            // Another process has added it since: the next comparison reads its origin.
            Err(error) if error.already_exists() => Ok(false),
            other => other.map(|()| true),
        },
        // Only a route of ours has this key: see plan().
        Change::Replace(route) => socket.add_route(route, Existing::Replace).map(|()| true),
        Change::Delete(route) => match socket.delete_own_route(route) {
            Err(error) if error.is_not_found() => Ok(false),
            other => other.map(|()| true),
        },
    };
    changes.iter().map(make).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(dst: &str, gateway: &str) -> Route {
        Route { gateway: Some(gateway.parse().unwrap()), link: Some(2), ..route(dst.parse().unwrap()) }
    }

    #[test]
    fn only_routes_that_differ_are_changed() {
        let (a, b, c) = (
            own("10.244.1.0/24", "192.0.2.11"),
            own("10.244.2.0/24", "192.0.2.12"),
            own("fd44:0:0:1::/64", "2001:db8::11"),
        );
        let wanted = [a.clone(), b.clone(), c.clone()];
        assert_eq!(plan(&wanted, &wanted, false), Plan::default(), "nothing to do");
        let moved = own("10.244.2.0/24", "192.0.2.13");
        let stale = own("10.244.9.0/24", "192.0.2.19");
        let shown = [moved, c, stale.clone()];
        let found = plan(&wanted, &shown, false);
        let expected = [Change::Delete(stale.clone()), Change::Add(a.clone()), Change::Replace(b.clone())];
        assert_eq!(found.changes, expected);
        let found = plan(&wanted, &shown, true);
        assert_eq!(
            found.changes,
            [Change::Add(a.clone()), Change::Replace(b)],
            "an incomplete list deletes nothing"
        );
        // The route is as an earlier version, or a person, made it.
        let other_metric = Route { metric: 0, ..a.clone() };
        let found = plan(std::slice::from_ref(&a), std::slice::from_ref(&other_metric), false);
        assert_eq!(found.changes, [Change::Delete(other_metric), Change::Add(a)]);
    }

    #[test]
    fn routes_of_others_are_left_alone_and_reported() {
        let wanted = [own("10.244.1.0/24", "192.0.2.11")];
        let foreign = Route { protocol: 12, metric: 0, ..wanted[0].clone() };
        let conflict = |wins| Conflict { net: wanted[0].dst, protocol: 12, wins };
        let add = [Change::Add(wanted[0].clone())];
        let found = plan(&wanted, std::slice::from_ref(&foreign), false);
        assert_eq!((found.changes.as_slice(), found.conflicts), (add.as_slice(), vec![conflict(true)]));
        let beside = Route { metric: 1024, ..foreign.clone() };
        let found = plan(&wanted, &[beside], false);
        assert_eq!((found.changes.as_slice(), found.conflicts), (add.as_slice(), vec![conflict(false)]));
        // With our metric, one of the two routes would become a next hop of the other.
        let same = Route { metric: METRIC, ..foreign.clone() };
        let found = plan(&wanted, std::slice::from_ref(&same), false);
        assert_eq!(found, Plan { changes: vec![], conflicts: vec![conflict(true)] });
        let moved = own("10.244.1.0/24", "192.0.2.19");
        let found = plan(&wanted, &[same, moved.clone()], false);
        assert_eq!(found.changes, [Change::Delete(moved)]);
        // No wanted route, and not ours: nothing to do, in whatever table.
        let other_table = Route { table: 100, ..wanted[0].clone() };
        assert_eq!(plan(&[], &[foreign, other_table], false), Plan::default());
    }

    #[test]
    fn an_ipv6_route_by_vxlan_does_not_replace_one_by_another_link() {
        for (dst, gateway) in [("10.244.1.0/24", "10.244.1.0"), ("fd44:0:0:1::/64", "fd44:0:0:1::")] {
            let vxlan = Route { link: Some(7), onlink: true, ..own(dst, gateway) };
            let direct = own(dst, "192.0.2.11");
            let found = plan(std::slice::from_ref(&vxlan), std::slice::from_ref(&direct), false);
            let expected = match vxlan.dst.addr().is_ipv4() {
                true => vec![Change::Replace(vxlan.clone())],
                false => vec![Change::Delete(direct.clone()), Change::Add(vxlan.clone())],
            };
            assert_eq!(found.changes, expected);
            let found = plan(std::slice::from_ref(&direct), std::slice::from_ref(&vxlan), false);
            assert_eq!(found.changes, [Change::Replace(direct)], "the other way round");
        }
    }

    #[test]
    fn a_refusal_takes_the_place_of_a_route() {
        let lost = own("10.244.1.0/24", "192.0.2.11");
        let wanted = [refusal(lost.dst), refusal("fd44::/32".parse().unwrap())];
        // The kernel lists these routes with the loopback as their link.
        let listed = Route { link: Some(1), ..wanted[1].clone() };
        let found = plan(&wanted, &[lost.clone(), listed.clone()], false);
        assert_eq!(found.changes, [Change::Replace(wanted[0].clone())]);
        assert_eq!(plan(&wanted, &[wanted[0].clone(), listed], false), Plan::default());
        let found = plan(std::slice::from_ref(&lost), &wanted[..1], false);
        assert_eq!(found.changes, [Change::Replace(lost)], "the other way round");
    }

    #[test]
    fn routes_in_clear_text_go_without_a_complete_list() {
        let (clear, replaced) = (own("10.244.1.0/24", "192.0.2.11"), own("10.244.2.0/24", "192.0.2.12"));
        let encrypted = Route { link: Some(7), ..route("10.244.3.0/24".parse().unwrap()) };
        let foreign = Route { protocol: 12, ..clear.clone() };
        let wanted = [Route { gateway: None, ..replaced.clone() }];
        let shown = [clear.clone(), replaced, encrypted, refusal("10.244.0.0/16".parse().unwrap()), foreign];
        assert_eq!(without_clear_text(&wanted, &shown), [Change::Delete(clear)]);
    }

    #[test]
    fn conflicts_are_told_in_words() {
        let conflict = Conflict { net: "10.0.0.0/8".parse().unwrap(), protocol: 12, wins: true };
        let text = "another program (protocol 12) has a route to 10.0.0.0/8; packets take it";
        assert_eq!(conflict.to_string(), text);
    }
}
