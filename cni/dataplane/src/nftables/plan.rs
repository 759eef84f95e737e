// SPDX-License-Identifier: GPL-2.0-or-later

//! Turns requests into elements. These are pure functions, which are tested with plain values.

use std::net::{IpAddr, Ipv6Addr};

use cni_nftables::Value;
use ipnet::IpNet;

use super::schema::{self, ExemptId, Map, SharedChain};
use crate::owner::AttachmentHash;
use crate::{
    AddressFamily, Error, HostAddress, HostPorts, MasqueradeRequest, PortRequest, PublishedPort,
    RequestError, Snat,
};

/// The shortest run of ports that becomes one interval. A single element takes 12 µs, but a map of intervals is
/// copied as a whole by every transaction that changes it.
pub(crate) const RANGE_MIN: usize = 16;

/// An element that is to be added, without its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) map: Map,
    /// The element's key, or for interval maps the first key of the interval.
    pub(crate) key: Vec<Value>,
    /// The last key of the interval, for interval maps.
    pub(crate) end: Option<Vec<Value>>,
    pub(crate) data: Datum,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Datum {
    /// A concatenation of values.
    Values(Vec<Value>),
    /// The verdict `goto` to this chain.
    Chain(String),
    /// No data, because the element belongs to a set.
    None,
}

impl Item {
    /// The container's address, if this is an element of a set of addresses.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        as_address(self.key.first()?).filter(|_| self.data == Datum::None)
    }
}

/// A container's address, and the chain that its packets must reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lead {
    /// [`Map::Hairpin`] or [`Map::Masquerade`].
    pub(crate) map: Map,
    pub(crate) address: IpAddr,
    pub(crate) chain: SharedChain,
}

impl Lead {
    /// The element that leads this address alone to the chain.
    pub(crate) fn own_item(&self) -> Item {
        let data = Datum::Chain(self.chain.name());
        Item { map: self.map, key: vec![Value::address(self.address)], end: None, data }
    }
}

/// What a request needs in the table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// The elements in a stable order, without those that [`network_chains`](super::network_chains) adds.
    pub(crate) items: Vec<Item>,
    /// The addresses that must lead to shared chains.
    pub(crate) leads: Vec<Lead>,
    /// The networks that the shared chains exempt from masquerade.
    pub(crate) exempt: Vec<Exempt>,
    /// The families for which the attachment has a chain of its own.
    pub(crate) own_chains: Vec<AddressFamily>,
}

/// Networks that are exempt from masquerade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exempt {
    pub(crate) id: ExemptId,
    /// In canonical form, all of one family.
    pub(crate) networks: Vec<IpNet>,
}

impl Plan {
    /// The networks that are exempt in the chain of a masqueraded address.
    pub(crate) fn exempt_by(&self, chain: &SharedChain) -> &[IpNet] {
        let found = self.exempt.iter().find(|one| Some(one.id) == chain.exempt());
        found.map_or(&[], |one| &one.networks)
    }

    fn lead(&mut self, map: Map, address: IpAddr, chain: SharedChain) {
        if let Some(set) = map.addresses() {
            let key = vec![Value::address(address)];
            self.items.push(Item { map: set, key, end: None, data: Datum::None });
        }
        self.leads.push(Lead { map, address, chain });
    }
}

/// Combines ports into runs.
///
/// At least [`RANGE_MIN`] consecutive host ports of one address and protocol that keep their number in the same
/// container become one mapping. They must keep their number because the data of an interval is only an address:
/// nftables cannot compute a port. All other ports become single mappings. The order of the result does not depend on
/// the order of the input.
pub(crate) fn collapse(ports: &[PublishedPort]) -> Vec<PublishedPort> {
    let mut single: Vec<PublishedPort> = ports.iter().flat_map(singles).collect();
    // Mappings that keep the port are sorted by container, so that the ports of a run are next to each other.
    single.sort_by_key(|p| {
        (p.host.protocol, p.host.address, p.host.first != p.container_port, p.container, p.host.first)
    });
    single.dedup();
    let follows = |a: &PublishedPort, b: &PublishedPort| {
        let kept = |p: &PublishedPort| p.host.first == p.container_port;
        kept(a)
            && kept(b)
            && (a.host.protocol, a.host.address, a.container)
                == (b.host.protocol, b.host.address, b.container)
            && a.host.first.checked_add(1) == Some(b.host.first)
    };
    let mut out = Vec::new();
    for run in single.chunk_by(follows) {
        match (run.first(), run.last()) {
            (Some(first), Some(last)) if run.len() >= RANGE_MIN => {
                out.push(PublishedPort { host: HostPorts { last: last.host.last, ..first.host }, ..*first });
            }
            _ => out.extend_from_slice(run),
        }
    }
    out.sort();
    out
}

fn singles(port: &PublishedPort) -> impl Iterator<Item = PublishedPort> + use<> {
    let port = *port;
    port.host.ports().zip(0u16..).map(move |(number, offset)| PublishedPort {
        host: HostPorts { first: number, last: number, ..port.host },
        container_port: port.container_port.saturating_add(offset),
        ..port
    })
}

/// The elements of published ports.
pub(crate) fn ports(request: &PortRequest) -> Result<Plan, Error> {
    if !request.iptables.conditions.is_empty() {
        return Err(RequestError::IptablesConditions.into());
    }
    let runs = collapse(&request.ports);
    check_overlaps(&runs)?;
    let mut plan = Plan::default();
    let own = |family| has_own_chain(request, family);
    for run in &runs {
        let family = run.host.address.family();
        if AddressFamily::of(run.container) != family {
            return Err(RequestError::Families(Box::new(*run)).into());
        }
        plan.items.push(Item {
            map: Map::for_ports(&run.host),
            key: key(&run.host, run.host.first),
            end: (run.host.len() > 1).then(|| key(&run.host, run.host.last)),
            data: Datum::Values(target(run)),
        });
        if own(family) {
            plan.items.push(own_chain_item(run, &AttachmentHash::of(&request.attachment)));
        }
    }
    for family in AddressFamily::BOTH {
        let published: Vec<IpAddr> =
            runs.iter().filter(|run| run.host.address.family() == family).map(|run| run.container).collect();
        let Some(container) = published.first() else { continue };
        if own(family) {
            plan.own_chains.push(family);
        }
        plan.lead(Map::Hairpin(family), *container, hairpin_chain(request, *container));
    }
    Ok(plan)
}

fn check_overlaps(runs: &[PublishedPort]) -> Result<(), Error> {
    for (i, run) in runs.iter().enumerate() {
        if let Some(other) = runs.iter().skip(i + 1).find(|other| other.host.overlaps(&run.host)) {
            return Err(RequestError::Contradiction(Box::new([*run, *other])).into());
        }
    }
    Ok(())
}

/// True if packets of this family need the container's own rules.
pub(crate) fn has_own_chain(request: &PortRequest, family: AddressFamily) -> bool {
    request.mark_bit != schema::DEFAULT_MARK_BIT
        || !request.nftables.conditions.of(family).is_empty()
        || request.spares_loopback(family)
}

fn own_chain_item(run: &PublishedPort, hash: &AttachmentHash) -> Item {
    // Even a single port is an interval here, because few containers have conditions.
    Item {
        map: Map::for_own_chain(&run.host),
        key: key(&run.host, run.host.first),
        end: Some(key(&run.host, run.host.last)),
        data: Datum::Chain(schema::own_chain(hash, run.host.address.family())),
    }
}

fn hairpin_chain(request: &PortRequest, container: IpAddr) -> SharedChain {
    let (family, bit) = (AddressFamily::of(container), request.mark_bit);
    match request.snat {
        Snat::Never => SharedChain::HairpinNone { family, bit },
        Snat::Always => SharedChain::HairpinAll { family, bit },
        Snat::Needed => {
            let alone = IpNet::from(container);
            let network =
                request.networks.iter().find(|network| network.contains(&container)).unwrap_or(&alone);
            SharedChain::hairpin(*network, &request.elsewhere, bit)
        }
    }
}

/// The key under which a host port is looked up.
pub(crate) fn key(host: &HostPorts, port: u16) -> Vec<Value> {
    let rest = [Value::Proto(host.protocol.number()), Value::Port(port)];
    match host.address {
        HostAddress::Any(_) => rest.to_vec(),
        HostAddress::One(address) => [Value::address(address)].into_iter().chain(rest).collect(),
    }
}

fn target(run: &PublishedPort) -> Vec<Value> {
    let address = Value::address(run.container);
    if run.host.len() > 1 { vec![address] } else { vec![address, Value::Port(run.container_port)] }
}

pub(crate) fn masquerade(request: &MasqueradeRequest) -> Plan {
    let mut plan = Plan::default();
    for family in AddressFamily::BOTH {
        let networks = request.exempt_of(family);
        if !networks.is_empty() {
            plan.exempt.push(Exempt { id: ExemptId::of(family, &networks), networks });
        }
    }
    for address in &request.addresses {
        let family = AddressFamily::of(address.addr());
        let exempt = plan.exempt.iter().map(|one| one.id).find(|id| id.family() == family);
        let chain = SharedChain::Masquerade { network: address.trunc(), exempt };
        plan.lead(Map::Masquerade(family), address.addr(), chain);
    }
    plan
}

/// The mapping of an element. None if this module makes no such elements.
pub(crate) fn published(
    map: Map,
    key: &[Value],
    end: Option<&[Value]>,
    data: &[Value],
) -> Option<PublishedPort> {
    let host = host_ports(map, key, end)?;
    let container = as_address(data.first()?)?;
    let container_port = match data.get(1) {
        Some(Value::Port(port)) => *port,
        Some(_) => return None,
        None => host.first,
    };
    Some(PublishedPort { host, container, container_port })
}

/// The host ports of a key, or of an interval of keys.
pub(crate) fn host_ports(map: Map, key: &[Value], end: Option<&[Value]>) -> Option<HostPorts> {
    let first = host_port(map, key)?;
    let last = end.map_or(Some(first.last), |end| host_port(map, end).map(|port| port.last))?;
    Some(HostPorts { last, ..first })
}

fn host_port(map: Map, key: &[Value]) -> Option<HostPorts> {
    let (address, protocol, port) = match key {
        [Value::Proto(protocol), Value::Port(port)] => (HostAddress::Any(map.family()?), protocol, *port),
        [address, Value::Proto(protocol), Value::Port(port)] => {
            (HostAddress::One(as_address(address)?), protocol, *port)
        }
        _ => return None,
    };
    let protocol = crate::Protocol::from_number(*protocol)?;
    Some(HostPorts { protocol, address, first: port, last: port })
}

pub(crate) fn as_address(value: &Value) -> Option<IpAddr> {
    match value {
        Value::Ipv4(address) => Some(IpAddr::V4(*address)),
        Value::Ipv6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

/// The key of an attachment's entry in the map of owners.
pub(crate) fn owner_key(hash: AttachmentHash, kind: u32) -> Vec<Value> {
    vec![Value::Ipv6(Ipv6Addr::from(hash.0)), Value::Mark(kind)]
}
