// SPDX-License-Identifier: GPL-2.0-or-later

//! The facts about one packet's path, read from the kernel.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use cni_dataplane::dropping::DroppingChain;
use cni_dataplane::ebpf::{self, HoldingRule};
use cni_dataplane::explain::{self, Hit, Masquerade, Origin, Packet, Sources, Target, Truth};
use cni_dataplane::firewall::{self, Separation};
use cni_dataplane::foreign_nat::{ForeignNat, Hook, Probe, Translation};
use cni_dataplane::iptables::Iptables;
use cni_dataplane::nftables::addresses;
use cni_dataplane::node::{self, OwnTable};
use cni_dataplane::owner::AttachmentHash;
use cni_dataplane::{AddressFamily, Backend, Error, HostAddress, Listed, Owner, Protocol};
use cni_kernel::route::{LOCAL_TABLE, Link, LinkKind, RouteError, RouteKind, RouteSocket, Switch};
use cni_kernel::sysctl;
use cni_runtime::Cache;
use ipnet::IpNet;

use super::super::check_node;
use crate::operator::directories;
use crate::operator::restore::{self, Difference};
use cni_plugins::meta::portmap;

/// The number of published ports near the queried one that are printed.
const NEAR: usize = 3;

/// The place of a packet's destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// On this node.
    Here,
    /// At a Service's address, which is local but at which published ports do not answer.
    OfServices,
    /// Behind this link of the node.
    Behind(String),
    /// The node has no route to it.
    Nowhere(String),
}

/// The state of our table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Table {
    Ready,
    Absent,
    Damaged,
    /// The table does not belong to Slipway, or the kernel has no nf_tables.
    Unusable(String),
}

/// The path from the node to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) link: String,
    pub(super) is_bridge: bool,
    pub(super) route_localnet: bool,
    /// True if a local route accepts replies to ::1 from this link.
    pub(super) accepts_loopback6: bool,
    /// The hairpin mode of the bridge's ports; none if they differ or there is no bridge.
    pub(super) hairpin: Option<Switch>,
}

/// A fact cannot be read from the kernel.
#[derive(Debug, thiserror::Error)]
pub(super) enum FactsError {
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Dataplane(#[from] Error),
}

/// All facts about the packet's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) packet: Packet,
    pub(super) place: Place,
    pub(super) table: Table,
    /// The rule of another program that translates the packet before Slipway's rules do.
    pub(super) first: Option<Translation>,
    /// The element that the lookups find.
    pub(super) hit: Option<Hit>,
    /// The conditions of a container's own chain, if the runtime's cache has them.
    pub(super) conditions: Option<Vec<(String, Truth)>>,
    /// The element that translates the packet if the conditions hold.
    pub(super) translation: Option<Hit>,
    /// The mapping in the chains of iptables.
    pub(super) of_iptables: Option<Listed>,
    /// Published ports that resemble the queried one, the nearest first.
    pub(super) near: Vec<Listed>,
    /// True if a socket of the node listens on the port.
    pub(super) listens: bool,
    /// The path to the container that the packet is translated to.
    pub(super) way: Option<Way>,
    /// The objects that the container needs for the packet and that are missing or different, even if the packet passes
    /// nevertheless.
    pub(super) obstacles: Vec<Difference>,
    pub(super) sources: Option<Sources>,
    /// The masquerade of the source.
    pub(super) masquerade: Option<Masquerade>,
    pub(super) forwards: bool,
    /// Chains of other programs that drop what none of their rules accepts.
    pub(super) dropping: Vec<String>,
    /// Chains that drop by default, but have a rule that accepts this connection.
    pub(super) admitting: Vec<String>,
    /// The rules of the firewall plugin that drop packets between the links of sender and receiver.
    pub(super) separation: Option<Separation>,
    /// True if an administrator has rules in the firewall plugin's table.
    pub(super) administrator: bool,
    /// True if bridged packets of the family pass through netfilter.
    pub(super) bridge_netfilter: bool,
    /// The rules that keep the BPF programs from carrying any such flow.
    pub(super) holding: Vec<HoldingRule>,
}

/// The rules that keep the BPF programs, if they are loaded, from carrying any flow of a protocol.
fn holding(protocol: Protocol) -> Vec<HoldingRule> {
    let all = ebpf::holding_rules().inspect_err(|error| log::debug!("{error}")).unwrap_or_default();
    let name = protocol.to_string().to_uppercase();
    let concerns = |one: &HoldingRule| one.flows.starts_with("all ") || one.flows.starts_with(&name);
    all.into_iter().filter(concerns).collect()
}

impl Facts {
    /// The destination after all of Slipway's translations.
    pub(super) fn target(&self) -> Option<SocketAddr> {
        let of_hit = |hit: &Hit| match hit.target {
            Target::Container(to) => Some(to),
            Target::Chain(_) => None,
        };
        let of_nftables = self.hit.as_ref().and_then(of_hit);
        let of_own_chain = self.translation.as_ref().and_then(of_hit);
        let of_iptables = || self.of_iptables.as_ref().map(|one| listed_target(one, self.packet.to.port()));
        of_nftables.or(of_own_chain).or_else(of_iptables)
    }

    /// The owner of the port.
    fn owner(&self) -> Option<&Owner> {
        let of_hit = self.hit.as_ref().and_then(|hit| hit.owner.as_ref());
        of_hit.or_else(|| self.of_iptables.as_ref().and_then(|listed| listed.owner.as_ref()))
    }

    /// Reads the kernel's state.
    ///
    /// # Errors
    /// [`FactsError`] if routes, links, settings or the table cannot be read.
    pub(super) fn gather(packet: Packet) -> Result<Self, FactsError> {
        let route = RouteSocket::open()?;
        let to = packet.to;
        let family = AddressFamily::of(to.ip());
        let mut facts = Self {
            place: destination(&route, to.ip())?,
            table: table(),
            first: None,
            hit: None,
            conditions: None,
            translation: None,
            of_iptables: None,
            near: Vec::new(),
            listens: listens(packet.protocol, to),
            way: None,
            obstacles: Vec::new(),
            sources: None,
            masquerade: None,
            forwards: route.forwards(AddressFamily::of(to.ip()))?,
            dropping: Vec::new(),
            admitting: Vec::new(),
            separation: None,
            administrator: false,
            bridge_netfilter: bridge_netfilter(family),
            holding: holding(packet.protocol),
            packet,
        };
        if !matches!(facts.table, Table::Absent | Table::Unusable(_)) {
            facts.read_table(family)?;
        }
        if facts.place == Place::Here {
            facts.find_others()?;
            facts.first = first_translation(&facts.packet, family)?;
        }
        if let Some(target) = facts.target() {
            facts.way = way(&route, target.ip())?;
            let is_forwarded = facts.packet.origin != Origin::Node;
            let owner = facts.owner().map(|owner| owner.attachment_hash);
            let of = |owner| restore::obstacles(owner, AddressFamily::of(target.ip()), is_forwarded);
            facts.obstacles = owner.map(of).unwrap_or_default();
        }
        facts.find_filters(family)?;
        Ok(facts)
    }

    /// Finds what filters the packet where it is forwarded.
    fn find_filters(&mut self, family: AddressFamily) -> Result<(), Error> {
        let (target, from) = (self.target(), self.packet.from);
        let admits = |chain: &DroppingChain| {
            target.is_some_and(|target| chain.admits(target.ip()))
                || from.is_some_and(|from| chain.admits_source(from))
        };
        let (admitting, dropping): (Vec<_>, Vec<_>) =
            check_node::dropping_chains(family).into_iter().partition(admits);
        let names = |chains: Vec<DroppingChain>| -> Vec<String> {
            chains.into_iter().map(|chain| chain.name).collect()
        };
        (self.admitting, self.dropping) = (names(admitting), names(dropping));
        let to = match (&self.way, &self.place) {
            (Some(way), _) => Some(way.link.as_str()),
            (None, Place::Behind(link)) => Some(link.as_str()),
            _ => None,
        };
        if let (Origin::Elsewhere(Some(from)), Some(to)) = (&self.packet.origin, to) {
            self.separation = firewall::between(from, to, family)?;
        }
        self.administrator = firewall::has_rules_of_an_administrator()?;
        Ok(())
    }

    fn read_table(&mut self, family: AddressFamily) -> Result<(), Error> {
        let Packet { protocol, to, from, .. } = self.packet;
        if self.place == Place::Here {
            self.hit = explain::first_hit(protocol, to)?;
        }
        if let Some(Hit { target: Target::Chain(_), owner, host, .. }) = &self.hit {
            let named = matches!(host.address, HostAddress::One(_));
            self.conditions = owner.as_ref().and_then(|owner| cached_conditions(owner, &self.packet, named));
            self.translation = explain::translation(protocol, to)?;
        }
        if let Some(target) = self.target() {
            self.sources = explain::masqueraded_towards(target.ip())?;
        } else if let Some(from) = from.filter(|from| AddressFamily::of(*from) == family) {
            self.masquerade = explain::masqueraded_from(from, to.ip())?;
        }
        Ok(())
    }

    /// Finds the port in the chains of iptables, or else ports near to it.
    fn find_others(&mut self) -> Result<(), Error> {
        if self.hit.is_some() {
            return Ok(());
        }
        let Packet { protocol, to, .. } = self.packet;
        let of_iptables = Iptables::new().list()?;
        let mut fitting: Vec<Listed> =
            of_iptables.iter().filter(|one| fits(one, protocol, to)).cloned().collect();
        // The rules of a container with a host address go before those for all addresses.
        fitting.sort_by_key(|one| matches!(one.port.host.address, HostAddress::Any(_)));
        self.of_iptables = fitting.into_iter().next();
        if self.of_iptables.is_none() {
            self.near = nearest(cni_dataplane::Dataplane::default().list()?, protocol, to);
        }
        Ok(())
    }
}

/// The rule of another program that translates the packet before ours.
fn first_translation(packet: &Packet, family: AddressFamily) -> Result<Option<Translation>, Error> {
    let hook = if packet.origin == Origin::Node { Hook::Output } else { Hook::Prerouting };
    let Some(foreign) = ForeignNat::open(hook)? else { return Ok(None) };
    let link = match &packet.origin {
        Origin::Elsewhere(link) => link.clone(),
        Origin::Node => None,
    };
    let (to, port) = (Some(packet.to.ip()), packet.to.port());
    foreign.first(&Probe { family, protocol: packet.protocol.number(), to, port, from: packet.from, link })
}

/// The container's side of a mapping for one of its host ports.
pub(super) fn listed_target(listed: &Listed, port: u16) -> SocketAddr {
    let offset = port.saturating_sub(listed.port.host.first);
    SocketAddr::new(listed.port.container, listed.port.container_port.saturating_add(offset))
}

fn fits(listed: &Listed, protocol: Protocol, to: SocketAddr) -> bool {
    let host = &listed.port.host;
    let address = match host.address {
        HostAddress::Any(family) => family == AddressFamily::of(to.ip()),
        HostAddress::One(address) => address == to.ip(),
    };
    host.protocol == protocol && address && (host.first..=host.last).contains(&to.port())
}

/// The ports that were probably meant: the same number with another protocol or address, then the next
/// numbers.
fn nearest(mut all: Vec<Listed>, protocol: Protocol, to: SocketAddr) -> Vec<Listed> {
    let distance = |listed: &Listed| {
        let host = &listed.port.host;
        let number = match to.port() {
            port if port < host.first => host.first - port,
            port => port.saturating_sub(host.last),
        };
        (number, host.protocol != protocol)
    };
    all.sort_by_key(distance);
    all.truncate(NEAR);
    all
}

fn place(route: &RouteSocket, to: IpAddr) -> Result<Place, RouteError> {
    match route.route_to(to) {
        Ok(found) if found.kind == RouteKind::Local => Ok(Place::Here),
        Ok(found) => {
            let link = found.link.map(|index| route.link_by_index(index)).transpose()?;
            Ok(Place::Behind(link.map_or_else(|| "no link".to_owned(), |link| link.name)))
        }
        Err(error) => Ok(Place::Nowhere(error.to_string())),
    }
}

/// Like [`place`], but separates the addresses of Services from the node's.
fn destination(route: &RouteSocket, to: IpAddr) -> Result<Place, FactsError> {
    match place(route, to)? {
        Place::Here if !addresses::answers_at(to)? => Ok(Place::OfServices),
        place => Ok(place),
    }
}

/// The sender of a packet, by its source and link.
pub(in super::super) fn origin(
    packet_from: Option<IpAddr>,
    link: Option<&str>,
    to: IpAddr,
) -> Result<Origin, RouteError> {
    let elsewhere = |link: Option<String>| Origin::Elsewhere(link);
    match (packet_from, link) {
        (_, Some("lo")) => Ok(Origin::Node),
        (_, Some(link)) => Ok(elsewhere(Some(link.to_owned()))),
        (None, None) if to.is_loopback() => Ok(Origin::Node),
        (None, None) => Ok(elsewhere(None)),
        (Some(from), None) => {
            let route = RouteSocket::open()?;
            Ok(match place(&route, from)? {
                Place::Here | Place::OfServices => Origin::Node,
                Place::Behind(link) => elsewhere(Some(link)),
                Place::Nowhere(_) => elsewhere(None),
            })
        }
    }
}

fn table() -> Table {
    match node::own_table() {
        Ok(OwnTable::Ready) => Table::Ready,
        Ok(OwnTable::Absent) => Table::Absent,
        Ok(OwnTable::Damaged) => Table::Damaged,
        Err(error) => Table::Unusable(error.to_string()),
    }
}

fn way(route: &RouteSocket, container: IpAddr) -> Result<Option<Way>, RouteError> {
    let Ok(found) = route.route_to(container) else { return Ok(None) };
    let Some(index) = found.link else { return Ok(None) };
    let link = route.link_by_index(index)?;
    let local = route.routes(AddressFamily::V6, LOCAL_TABLE)?;
    let loopback = |dst: &IpNet| dst.addr().is_loopback();
    let accepts_loopback6 = local.iter().any(|one| loopback(&one.dst) && one.link == Some(link.index));
    let is_bridge = link.kind == LinkKind::Bridge;
    let hairpin = if is_bridge { hairpin(route, &link)? } else { None };
    Ok(Some(Way {
        route_localnet: link.route_localnet,
        link: link.name,
        is_bridge,
        accepts_loopback6,
        hairpin,
    }))
}

/// The hairpin mode of the bridge's ports, if all have the same.
fn hairpin(route: &RouteSocket, bridge: &Link) -> Result<Option<Switch>, RouteError> {
    let links = route.links()?;
    let ports = links.iter().filter(|link| link.master == Some(bridge.index));
    let mut settings = ports.filter_map(|link| link.port.map(|port| port.hairpin));
    let first = settings.next();
    Ok(first.filter(|first| settings.all(|other| other == *first)))
}

fn bridge_netfilter(family: AddressFamily) -> bool {
    let name = match family {
        AddressFamily::V4 => "net/bridge/bridge-nf-call-iptables",
        AddressFamily::V6 => "net/bridge/bridge-nf-call-ip6tables",
    };
    sysctl::get(name).is_ok_and(|value| value == "1")
}

/// True if a socket of the node is bound to the port, by the lists in `/proc/net` (proc_pid_net(5)), which
/// have addresses in hexadecimal.
pub(super) fn listens(protocol: Protocol, to: SocketAddr) -> bool {
    let (name, listening) = match protocol {
        Protocol::Tcp => ("tcp", "0A"),
        Protocol::Udp => ("udp", "07"),
        Protocol::Sctp => return false,
    };
    let bound = |text: &str| text.lines().skip(1).any(|line| is_bound(line, to.port(), listening));
    // An IPv6 socket may accept IPv4, too.
    [name.to_owned(), format!("{name}6")]
        .iter()
        .any(|name| fs::read_to_string(Path::new("/proc/self/net").join(name)).is_ok_and(|text| bound(&text)))
}

fn is_bound(line: &str, port: u16, state: &str) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let local = words.next().and_then(|local| local.rsplit_once(':'));
    let is_port = local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port));
    is_port && words.nth(1) == Some(state)
}

/// The conditions of a container from the runtime's cache, because they cannot be read back from rules. excludeLoopback
/// has no effect on a mapping with a host address of its own.
fn cached_conditions(owner: &Owner, packet: &Packet, named: bool) -> Option<Vec<(String, Truth)>> {
    let family = AddressFamily::of(packet.to.ip());
    let caches = directories::CACHES.iter().filter_map(|directory| Cache::open(Path::new(directory)).ok()?);
    let all = caches.filter_map(|cache| cache.read().ok()).flat_map(|(all, _)| all);
    let mut ours = all.filter(|cached| AttachmentHash::of(&cached.attachment) == owner.attachment_hash);
    let configs = ours.next()?.configs().ok()?;
    let portmap = configs.iter().find(|config| config.plugin == "portmap")?;
    let (texts, spares_loopback) = portmap::conditions(portmap, family)?;
    let mut evaluated = explain::conditions(&texts, packet).ok()?;
    if spares_loopback && !named {
        let outside = if packet.to.ip().is_loopback() { Truth::No } else { Truth::Yes };
        evaluated.push(("not the node's loopback (excludeLoopback)".to_owned(), outside));
    }
    Some(evaluated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_sockets_are_found_in_proc() {
        let line =
            "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1";
        assert!(is_bound(line, 8080, "0A"));
        assert!(!is_bound(line, 8081, "0A") && !is_bound(line, 8080, "07"));
        assert!(!is_bound("nonsense", 8080, "0A"));
    }
}
