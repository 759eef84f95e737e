// SPDX-License-Identifier: GPL-2.0-or-later

//! `sbr` (source-based routing): packets from a container's address leave by the link that has the address.

mod expected;
mod plan;

use std::net::IpAddr;
use std::time::Duration;

use cni_kernel::AddressFamily;
use cni_kernel::lock::FileLock;
use cni_kernel::route::{Existing, Link, Route, RouteSocket, Rule};
use cni_spec::address::check_container;
use cni_spec::{AddResult, CniError, ErrorCode, NetConf};
use nix::errno::Errno;
use serde::Deserialize;

use crate::expected::Expected;
use crate::interface::shared::container::Container;
use crate::interface::shared::failed;
use crate::meta::{gone, there};
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::undo::Undo;
use expected::SourceRouting;
use plan::{Gateway, KERNELS, Neighbours, Plan, Present, Source};

/// The time limit for the lock of the namespace.
const LOCK_LIMIT: Duration = Duration::from_secs(15);

/// The `sbr` plugin.
#[derive(Debug)]
pub struct Sbr;

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    table: Option<i64>,
    gateways: Vec<String>,
    add_source_hints: bool,
}

/// The configuration, checked.
#[derive(Debug, PartialEq, Eq)]
struct Config {
    /// A table that another program fills.
    table: Option<u32>,
    gateways: Vec<IpAddr>,
    neighbours: Neighbours,
}

impl Config {
    fn read(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let table = match keys.table {
            None => None,
            Some(table) => Some(u32::try_from(table).ok().filter(|table| *table != 0).ok_or_else(|| {
                CniError::config(format!("table: {table} is not between 1 and {}", u32::MAX))
            })?),
        };
        let neighbours = if keys.add_source_hints { Neighbours::Hinted } else { Neighbours::Moved };
        Ok(Self { table, gateways: gateways(&keys.gateways)?, neighbours })
    }

    fn source(&self, address: ipnet::IpNet, from_ipam: Option<IpAddr>) -> Source {
        let family = AddressFamily::of(address.addr());
        let chosen = self.gateways.iter().find(|gateway| AddressFamily::of(**gateway) == family);
        let gateway = chosen.copied().map(Gateway::Chosen).or(from_ipam.map(Gateway::FromIpam));
        Source { address, gateway }
    }

    fn plan(&self, sources: &[Source], link: &Link, present: &Present) -> Plan {
        match self.table {
            Some(table) => plan::only_rules(sources, table, present),
            None => plan::plan(sources, link.index, present, self.neighbours),
        }
    }
}

fn gateways(texts: &[String]) -> Result<Vec<IpAddr>, CniError> {
    if texts.len() > 2 {
        let msg = "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)";
        return Err(CniError::config(msg));
    }
    let mut gateways: Vec<IpAddr> = Vec::new();
    for text in texts {
        let gateway: IpAddr = text
            .parse()
            .map_err(|_| CniError::config(format!("invalid static gateway IP address: {text}")))?;
        let gateway = gateway.to_canonical();
        if let Some(other) =
            gateways.iter().find(|other| AddressFamily::of(**other) == AddressFamily::of(gateway))
        {
            let family = AddressFamily::of(gateway);
            return Err(CniError::config(format!(
                "gateways list contains multiple {family} addresses: {other} and {gateway}"
            )));
        }
        gateways.push(gateway);
    }
    Ok(gateways)
}

impl Plugin for Sbr {
    fn name(&self) -> &'static str {
        "sbr"
    }

    fn summary(&self) -> &'static str {
        "routes packets of the container by their source address"
    }

    fn place(&self) -> Place {
        Place::Chained
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        crate::keys::probe::fields::<Keys>()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        Config::read(request.config).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let config = Config::read(request.config)?;
        let previous = previous(request)?;
        let sources = sources(&config, previous, request.attachment.ifname());
        if sources.is_empty() {
            let ifname = request.attachment.ifname();
            return Err(CniError::config(format!("No IP addresses supplied on interface: {ifname}")));
        }
        sources.iter().try_for_each(|source| check_container(source.address))?;
        let container = Container::open(request.netns.as_deref())?;
        let _lock = lock(&container)?;
        let link = container.route.link(request.attachment.ifname()).map_err(|error| {
            CniError::internal(format!(
                "Cannot find network interface {}: {error}",
                request.attachment.ifname()
            ))
        })?;
        let present = Present::read(&container.route)?;
        let plan = config.plan(&sources, &link, &present);
        carry_out(&container.route, &plan, &present)?;
        Ok(plan::result(previous, &plan, &present, link.index))
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let Some(container) = Container::open_if_there(request.netns.as_deref())? else { return Ok(()) };
        let link = container.route.find_link(request.attachment.ifname()).map_err(failed)?;
        let keys: Keys = request.config.decode().unwrap_or_default();
        let filled_by_others = keys.table.and_then(|table| u32::try_from(table).ok());
        let addresses = known_addresses(request, &container.route, link.as_ref())?;
        if !has_rules(&container.route, &addresses)? {
            return Ok(());
        }
        let _lock = lock(&container)?;
        remove(&container.route, &addresses, link.as_ref(), filled_by_others)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        SourceRouting::of(request)?.check()
    }

    fn expected(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
        Ok(vec![Box::new(SourceRouting::of(request)?)])
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        Config::read(request.config).map(drop)
    }
}

fn previous<'a>(request: &'a Request<'_>) -> Result<&'a AddResult, CniError> {
    let previous = request.config.prev_result.as_ref();
    previous.ok_or_else(|| CniError::config("This plugin must be called as chained plugin"))
}

/// Locks the namespace, because two concurrent calls would choose the same table.
fn lock(container: &Container) -> Result<FileLock, CniError> {
    container.lock(LOCK_LIMIT).map_err(|error| CniError::new(ErrorCode::TryAgainLater, error.to_string()))
}

/// The addresses of the result that belong to the interface, or to no interface.
fn sources(config: &Config, previous: &AddResult, ifname: &str) -> Vec<Source> {
    let is_others = |index: usize| previous.interfaces.get(index).is_some_and(|one| one.name != ifname);
    let own = previous.ips.iter().filter(|ip| !ip.interface.is_some_and(is_others));
    own.map(|ip| config.source(ip.address, ip.gateway)).collect()
}

impl Present {
    fn read(route: &RouteSocket) -> Result<Self, CniError> {
        let mut present = Self::default();
        for family in AddressFamily::BOTH {
            let Some(rules) = rules(route, family)? else { continue };
            present.rules.extend(rules);
            // 0 means all tables.
            present.routes.extend(route.routes(family, 0).map_err(failed)?);
        }
        Ok(present)
    }
}

/// The rules of a family; none if the kernel lacks the family.
fn rules(route: &RouteSocket, family: AddressFamily) -> Result<Option<Vec<Rule>>, CniError> {
    match route.rules(family) {
        Err(error) if error.errno() == Some(Errno::EAFNOSUPPORT) => Ok(None),
        rules => rules.map(Some).map_err(failed),
    }
}

/// Carries out the plan. Registers each undo before its step, because a step may succeed although its reply is lost.
fn carry_out(route: &RouteSocket, plan: &Plan, present: &Present) -> Result<(), CniError> {
    let mut undo = Undo::new();
    for rule in &plan.rules {
        undo.on_failure(format!("rule {rule}"), move || gone(route.delete_rule(rule)));
        route.add_rule(rule).map_err(failed)?;
    }
    for (new, existing) in &plan.routes {
        // A route of an earlier ADD stays.
        if !present.routes.iter().any(|has| is_same(has, new)) {
            undo.on_failure(format!("route {new}"), move || gone(route.delete_route(new)));
        }
        there(route.add_route(new, *existing)).map_err(failed)?;
    }
    for old in &plan.leaving {
        undo.on_failure(format!("route {old}"), move || there(route.add_route(old, Existing::Append)));
        gone(route.delete_route(old)).map_err(failed)?;
    }
    for new in &plan.hinted {
        if let Some(old) = present.routes.iter().find(|has| is_same(has, new)) {
            undo.on_failure(format!("route {old}"), move || route.add_route(old, Existing::Replace));
        }
        route.add_route(new, Existing::Replace).map_err(failed)?;
    }
    undo.keep();
    Ok(())
}

/// True if two routes differ at most in their source address.
fn is_same(one: &Route, other: &Route) -> bool {
    let key = |route: &Route| (route.dst, route.table, route.metric, route.link, route.gateway);
    key(one) == key(other)
}

/// The addresses of the link and of the result, because the link may be gone or may have lost some of them.
fn known_addresses(
    request: &Request<'_>,
    route: &RouteSocket,
    link: Option<&Link>,
) -> Result<Vec<IpAddr>, CniError> {
    let mut addresses = Vec::new();
    if let Some(link) = link {
        addresses.extend(route.addresses(link).map_err(failed)?.iter().map(|address| address.net.addr()));
    }
    if let Some(previous) = &request.config.prev_result {
        let none = Config { table: None, gateways: Vec::new(), neighbours: Neighbours::Moved };
        let of_result = sources(&none, previous, request.attachment.ifname());
        addresses.extend(of_result.iter().map(|source| source.address.addr()));
    }
    Ok(addresses)
}

/// True for a rule that matches packets from one of the addresses and nothing else.
fn is_of(rule: &Rule, addresses: &[IpAddr]) -> bool {
    let source = rule.source.filter(|net| net.prefix_len() == net.max_prefix_len());
    rule.only_source && source.is_some_and(|net| addresses.contains(&net.addr()))
}

/// True if there are rules for these addresses.
fn has_rules(route: &RouteSocket, addresses: &[IpAddr]) -> Result<bool, CniError> {
    for family in AddressFamily::BOTH {
        let rules = rules(route, family)?.unwrap_or_default();
        if rules.iter().any(|rule| is_of(rule, addresses)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes the rules of the addresses, and the link's routes in their tables.
///
/// # Errors
/// The first that could not be deleted; all others were.
fn remove(
    route: &RouteSocket,
    addresses: &[IpAddr],
    link: Option<&Link>,
    filled_by_others: Option<u32>,
) -> Result<(), CniError> {
    let present = Present::read(route)?;
    let mut result = Ok(());
    for rule in present.rules.iter().filter(|rule| is_of(rule, addresses)) {
        result = result.and(gone(route.delete_rule(rule)));
        if Some(rule.table) == filled_by_others || KERNELS.contains(&rule.table) {
            continue;
        }
        let in_table =
            |has: &&Route| has.table == rule.table && link.is_some_and(|link| has.link == Some(link.index));
        for old in present.routes.iter().filter(in_table) {
            result = result.and(gone(route.delete_route(old)));
        }
    }
    result.map_err(failed)
}

#[cfg(test)]
mod tests {
    use cni_spec::{Interface, IpConfig};
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn read(keys: &Value) -> Result<Config, String> {
        Config::read(&configuration("sbr", keys)).map_err(|error| error.msg)
    }

    #[test]
    fn keys_are_checked() {
        let none = Config { table: None, gateways: vec![], neighbours: Neighbours::Moved };
        assert_eq!(read(&json!({})), Ok(none));
        let all =
            read(&json!({"table": 7, "gateways": ["fd00::1", "10.0.0.1"], "addSourceHints": true})).unwrap();
        assert_eq!((all.table, all.gateways.len(), all.neighbours), (Some(7), 2, Neighbours::Hinted));
        let rows = [
            (json!({"table": 0}), "table: 0 is not between 1 and 4294967295"),
            (json!({"table": -1}), "table: -1 is not between 1 and 4294967295"),
            (
                json!({"gateways": ["10.0.0.1", "10.0.0.2", "fd00::1"]}),
                "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)",
            ),
            (json!({"gateways": ["x"]}), "invalid static gateway IP address: x"),
            (
                json!({"gateways": ["10.0.0.1", "10.0.0.2"]}),
                "gateways list contains multiple IPv4 addresses: 10.0.0.1 and 10.0.0.2",
            ),
            (
                json!({"gateways": ["fd00::1", "fd00::2"]}),
                "gateways list contains multiple IPv6 addresses: fd00::1 and fd00::2",
            ),
        ];
        for (keys, msg) in rows {
            assert_eq!(read(&keys), Err(msg.to_owned()), "{keys}");
        }
    }

    #[test]
    fn addresses_of_other_interfaces_are_left_out() {
        let config = read(&json!({"gateways": ["10.0.0.9"]})).unwrap();
        let name = |name: &str| Interface { name: name.into(), ..Interface::default() };
        let ip = |address: &str, interface| IpConfig {
            interface,
            address: address.parse().unwrap(),
            gateway: Some(if address.contains(':') { "fd00::1" } else { "10.0.0.1" }.parse().unwrap()),
        };
        let previous = AddResult {
            interfaces: vec![name("br0"), name("eth0")],
            ips: vec![
                ip("10.0.0.5/24", Some(1)),
                ip("10.0.0.6/24", Some(0)),
                ip("fd00::5/64", None),
                ip("10.0.0.7/24", Some(9)),
            ],
            ..AddResult::default()
        };
        let sources = sources(&config, &previous, "eth0");
        let seen: Vec<_> =
            sources.iter().map(|source| (source.address.to_string(), source.gateway.unwrap())).collect();
        let row = |address: &str, gateway| (address.to_owned(), gateway);
        assert_eq!(
            seen,
            [
                row("10.0.0.5/24", Gateway::Chosen("10.0.0.9".parse().unwrap())),
                row("fd00::5/64", Gateway::FromIpam("fd00::1".parse().unwrap())),
                row("10.0.0.7/24", Gateway::Chosen("10.0.0.9".parse().unwrap())),
            ]
        );
    }
}
