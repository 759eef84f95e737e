// SPDX-License-Identifier: GPL-2.0-or-later

//! Leftovers of slipwayd, which leaves everything in place when it ends: routes to the pods of other nodes, and rules
//! in the chain FORWARD of iptables. `links` removes its links, and its files are in the dataplane's directory below
//! /run.
//!
//! With WireGuard, routes of type unreachable keep packets to the cluster's pods from leaving the node in clear text by
//! another route. So everything stays as long as a container may send packets, and these routes are deleted last.

use std::path::Path;
use std::time::Duration;

use cni_dataplane::iptables::forward::AcceptedLink;
use cni_dataplane::teardown::OwnTable;
use cni_dataplane::{Error as DataplaneError, RUN_DIR};
use cni_kernel::AddressFamily;
use cni_kernel::dir::DurableDir;
use cni_kernel::lock::FileLock;
use cni_kernel::route::{Link, MAIN_TABLE, Route, RouteError, RouteKind, RouteSocket};
use cni_state::agent::{BRIDGE, LOCK, ROUTE_METRIC, ROUTE_PROTOCOL, VXLAN_LINK, WIREGUARD_LINK};
use cni_state::report;

use super::disk::is_directory;
use super::links::{is_tunnel, used_by_containers};
use super::{Leftover, LeftoverError};

/// Whether slipwayd runs. An agent that does not run cannot start either while the value exists, unless it had never
/// made its lock file, or has chosen another directory for it.
pub(super) struct Agent {
    runs: bool,
    _lock: Option<FileLock>,
}

impl Agent {
    /// Finds out whether slipwayd runs. Makes no file.
    pub(super) fn find() -> Result<Self, LeftoverError> {
        // The directory of the lock is an option of slipwayd, but the path of this socket is not.
        if report::has_receiver(Path::new(report::SOCKET)) {
            return Ok(Self { runs: true, _lock: None });
        }
        Self::lock(Path::new(RUN_DIR))
    }

    fn lock(directory: &Path) -> Result<Self, LeftoverError> {
        if !is_directory(directory)? {
            return Ok(Self { runs: false, _lock: None });
        }
        let dir = DurableDir::open(directory)?;
        if !dir.exists(LOCK)? {
            return Ok(Self { runs: false, _lock: None });
        }
        match FileLock::acquire(&dir, LOCK, 0o600, Duration::ZERO) {
            Ok(lock) => Ok(Self { runs: false, _lock: Some(lock) }),
            Err(error) if error.is_timeout() => Ok(Self { runs: true, _lock: None }),
            Err(error) => Err(error.into()),
        }
    }

    /// The leftover as one that is kept, if it belongs to an agent that runs.
    pub(super) fn keeps(&self, leftover: &Leftover) -> Option<Leftover> {
        let belongs = match leftover {
            Leftover::Routes(_)
            | Leftover::ForwardRules(_)
            | Leftover::RunDirectory(_)
            | Leftover::Table(OwnTable::Tunnel) => true,
            Leftover::Link(name) => [BRIDGE, VXLAN_LINK, WIREGUARD_LINK].contains(&name.as_str()),
            Leftover::Content(path, _) => path == Path::new(RUN_DIR),
            _ => false,
        };
        (self.runs && belongs).then(|| leftover.kept("slipwayd is running: stop it first"))
    }
}

/// Adds routes and rules to the `others` that were found. While containers may need them, these and the guard of the
/// tunnels are kept.
pub(super) fn plan(others: Vec<Leftover>) -> Result<Vec<Leftover>, LeftoverError> {
    let route = RouteSocket::open()?;
    let links = route.links()?;
    let is_guard = |leftover: &Leftover| *leftover == Leftover::Table(OwnTable::Tunnel);
    let (mut leftovers, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_guard);
    let routes = own_routes(&route, &links)?.len();
    if routes > 0 {
        leftovers.push(Leftover::Routes(routes));
    }
    match AcceptedLink::all() {
        Ok(all) => leftovers.extend(all.into_iter().map(Leftover::ForwardRules)),
        // A node must be rid of the plugins even if it has lost iptables.
        Err(error @ DataplaneError::NoIptables { .. }) => {
            leftovers.push(Leftover::Keep { what: "rules in FORWARD".to_owned(), why: error.to_string() });
        }
        Err(error) => return Err(error.into()),
    }
    if let Some(why) = used_by_containers(&links) {
        leftovers = leftovers.iter().map(|leftover| leftover.kept(&why)).collect();
    }
    Ok([others, leftovers].concat())
}

/// Deletes the routes, unless containers may send packets now. `count` is their number in the plan; those by slipwayd's
/// links are gone together with these.
pub(super) fn remove_routes(count: usize) -> Result<Leftover, LeftoverError> {
    let leftover = Leftover::Routes(count);
    let route = RouteSocket::open()?;
    let links = route.links()?;
    if let Some(why) = used_by_containers(&links) {
        return Ok(leftover.kept(&why));
    }
    for one in in_order(own_routes(&route, &links)?) {
        match route.delete_own_route(&one) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(leftover)
}

/// Deletes the rules, unless containers may need them now.
pub(super) fn remove_rules(accepted: &AcceptedLink) -> Result<Leftover, LeftoverError> {
    let leftover = Leftover::ForwardRules(accepted.clone());
    if let Some(why) = used_by_containers(&RouteSocket::open()?.links()?) {
        return Ok(leftover.kept(&why));
    }
    accepted.withdraw()?;
    Ok(leftover)
}

fn own_routes(route: &RouteSocket, links: &[Link]) -> Result<Vec<Route>, RouteError> {
    let tunnels: Vec<u32> = links.iter().filter(|link| is_tunnel(link)).map(|link| link.index).collect();
    let mut routes = Vec::new();
    for family in AddressFamily::BOTH {
        let all = route.routes(family, MAIN_TABLE)?;
        routes.extend(all.into_iter().filter(|route| is_own(route, &tunnels)));
    }
    Ok(routes)
}

/// True for a route as slipwayd makes it: via a gateway, by one of its links, or of type unreachable. The protocol
/// alone would not tell, because nobody assigns its numbers.
fn is_own(route: &Route, tunnels: &[u32]) -> bool {
    let has_form = match route.kind {
        RouteKind::Unicast => {
            route.gateway.is_some() || route.link.is_some_and(|link| tunnels.contains(&link))
        }
        RouteKind::UNREACHABLE => route.gateway.is_none(),
        _ => false,
    };
    has_form && route.protocol == ROUTE_PROTOCOL && route.metric == ROUTE_METRIC
}

/// The order in which routes are deleted: those that refuse packets last.
fn in_order(mut routes: Vec<Route>) -> Vec<Route> {
    routes.sort_by_key(|route| route.kind == RouteKind::UNREACHABLE);
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUNNEL: u32 = 7;

    fn own(dst: &str) -> Route {
        Route { protocol: ROUTE_PROTOCOL, metric: ROUTE_METRIC, ..Route::to(dst.parse().unwrap()) }
    }

    fn via(dst: &str, gateway: &str) -> Route {
        Route { gateway: Some(gateway.parse().unwrap()), link: Some(2), ..own(dst) }
    }

    fn refusal(dst: &str) -> Route {
        Route { kind: RouteKind::UNREACHABLE, ..own(dst) }
    }

    #[test]
    fn routes_of_another_form_are_not_slipwayds() {
        let by = |link| Route { link: Some(link), ..own("10.244.2.0/24") };
        let ours = [
            via("10.244.1.0/24", "192.0.2.11"),
            via("fd44:0:0:1::/64", "2001:db8::11"),
            by(TUNNEL),
            refusal("10.244.0.0/16"),
            // The kernel lists such a route with the loopback as its link.
            Route { link: Some(1), ..refusal("fd44::/32") },
        ];
        for route in &ours {
            assert!(is_own(route, &[TUNNEL]), "{route:?}");
        }
        let foreign = [
            by(2),
            Route { link: None, ..by(TUNNEL) },
            Route { protocol: 12, ..ours[0].clone() },
            Route { metric: 0, ..ours[0].clone() },
            Route { kind: RouteKind::Other(6), ..ours[3].clone() },
        ];
        for route in &foreign {
            assert!(!is_own(route, &[TUNNEL]), "{route:?}");
        }
    }

    #[test]
    fn routes_that_refuse_packets_are_deleted_last() {
        let (refused, others) = (
            [refusal("10.244.0.0/16"), refusal("fd44::/32")],
            [via("10.244.1.0/24", "192.0.2.11"), via("fd44:0:0:1::/64", "2001:db8::11")],
        );
        let listed = vec![refused[0].clone(), others[0].clone(), refused[1].clone(), others[1].clone()];
        assert_eq!(in_order(listed), [others, refused].concat());
    }

    #[test]
    fn an_agent_with_the_lock_keeps_what_is_its_own() {
        let temp = tempfile::tempdir().unwrap();
        let without = Agent::lock(&temp.path().join("none")).unwrap();
        assert!(!without.runs && !Agent::lock(temp.path()).unwrap().runs);
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "no file is made");
        let dir = DurableDir::open(temp.path()).unwrap();
        let lock = || FileLock::acquire(&dir, LOCK, 0o600, Duration::ZERO);
        let held = lock().unwrap();
        let running = Agent::lock(temp.path()).unwrap();
        let link = |name: &str| Leftover::Link(name.to_owned());
        let own = [
            link("slipway0"),
            link("slipway-wg"),
            Leftover::Table(OwnTable::Tunnel),
            Leftover::Routes(1),
            Leftover::RunDirectory(RUN_DIR.into()),
            Leftover::Content(RUN_DIR.into(), "a mount point"),
        ];
        for leftover in &own {
            let kept = running.keeps(leftover).unwrap().to_string();
            assert!(kept.starts_with("leave   ") && kept.contains("(slipwayd is running: "), "{kept}");
            assert_eq!(without.keeps(leftover), None);
        }
        for other in [link("cni0"), Leftover::Directory("/var/lib/cni/networks/a".into()), Leftover::Programs]
        {
            assert_eq!(running.keeps(&other), None);
        }
        drop(held);
        let stopped = Agent::lock(temp.path()).unwrap();
        assert!(!stopped.runs && lock().unwrap_err().is_timeout(), "it cannot start meanwhile");
        drop(stopped);
        lock().unwrap();
    }
}
