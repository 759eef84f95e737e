// SPDX-License-Identifier: GPL-2.0-or-later

//! Repeats the lookups that the kernel makes in the table for one packet.

use std::net::{IpAddr, SocketAddr};

use cni_nftables::{Cmp, ElementData, Field, Operand, Stmt, Value, Verdict};
use ipnet::IpNet;

use crate::nftables::schema::{Map, SharedChain};
use crate::nftables::session::{OwnedElement, Session};
use crate::nftables::{conditions as grammar, exempt, network_chains, plan};
use crate::{AddressFamily, Error, HostAddress, HostPorts, Owner, Protocol};

/// The first packet of a connection, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    pub protocol: Protocol,
    pub to: SocketAddr,
    pub from: Option<IpAddr>,
    pub origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Node,
    /// Another host or a container, with the link on which the packet arrives, if that is known.
    Elsewhere(Option<String>),
}

/// An element that a lookup finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    pub map: &'static str,
    /// None if the element's comment names no owner.
    pub owner: Option<Owner>,
    /// True if the owner is provably dead.
    pub dead: bool,
    /// The host ports of the element.
    pub host: HostPorts,
    pub target: Target,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A container's address and port.
    Container(SocketAddr),
    /// The chain of a container with conditions of its own.
    Chain(String),
}

/// Which sources are masqueraded on the way to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sources {
    /// Clients in the container's network, which is the first in the list, in the networks of its other interfaces,
    /// and on the node's loopback.
    Of(Vec<IpNet>),
    All,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    Yes,
    No,
    /// The outcome depends on fields of the packet that are not given.
    Unknown,
}

/// Finds the element that decides about a packet to an address of the node, by making the lookups in the same order
/// as the kernel.
pub fn first_hit(protocol: Protocol, to: SocketAddr) -> Result<Option<Hit>, Error> {
    let family = AddressFamily::of(to.ip());
    let maps = [
        Map::HostIpConditions(family),
        Map::HostIps(family),
        Map::HostIpRanges(family),
        Map::Conditions(family),
        Map::HostPorts(family),
        Map::Ranges(family),
    ];
    first_of(&maps, protocol, to)
}

/// Finds the element that translates a packet after the rules in a container's own chain have accepted it.
pub fn translation(protocol: Protocol, to: SocketAddr) -> Result<Option<Hit>, Error> {
    let family = AddressFamily::of(to.ip());
    let maps = [Map::HostIps(family), Map::HostIpRanges(family), Map::HostPorts(family), Map::Ranges(family)];
    first_of(&maps, protocol, to)
}

fn first_of(maps: &[Map], protocol: Protocol, to: SocketAddr) -> Result<Option<Hit>, Error> {
    let session = Session::open()?;
    let of = |address| HostPorts { protocol, address, first: to.port(), last: to.port() };
    let any = of(HostAddress::Any(AddressFamily::of(to.ip())));
    let one = of(HostAddress::One(to.ip()));
    for map in maps {
        let by_address = matches!(map, Map::HostIps(_) | Map::HostIpRanges(_) | Map::HostIpConditions(_));
        let host = if by_address { &one } else { &any };
        if let Some(held) = session.get(*map, &plan::key(host, to.port()))? {
            return hit(&session, held, to.port());
        }
    }
    Ok(None)
}

fn hit(session: &Session, held: OwnedElement, port: u16) -> Result<Option<Hit>, Error> {
    let dead = match &held.owner {
        Some(owner) => session.is_dead(owner)?,
        None => false,
    };
    let end = held.end.as_deref();
    let Some(host) = plan::host_ports(held.map, &held.key, end) else { return Ok(None) };
    let target = match &held.data {
        ElementData::Values(data) => {
            let Some(found) = plan::published(held.map, &held.key, end, data) else { return Ok(None) };
            let offset = port.saturating_sub(host.first);
            Target::Container(SocketAddr::new(found.container, found.container_port.saturating_add(offset)))
        }
        ElementData::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => Target::Chain(chain.clone()),
        _ => return Ok(None),
    };
    Ok(Some(Hit { map: held.map.name(), owner: held.owner, dead, host, target }))
}

/// Finds the sources that are masqueraded on the way to a published port of the container. None if the container has
/// no published port.
pub fn masqueraded_towards(container: IpAddr) -> Result<Option<Sources>, Error> {
    let (session, family) = (Session::open()?, AddressFamily::of(container));
    if session.get(Map::Published(family), &[Value::address(container)])?.is_none() {
        return Ok(None);
    }
    let chain = network_chains::chain_of(&session, Map::Hairpin(family), container)?;
    Ok(chain.and_then(|chain| match chain {
        SharedChain::Hairpin { network, others, .. } => {
            Some(Sources::Of([network].into_iter().chain(others).collect()))
        }
        SharedChain::HairpinAll { .. } => Some(Sources::All),
        SharedChain::HairpinNone { .. } => Some(Sources::None),
        SharedChain::Masquerade { .. } => None,
    }))
}

/// How packets from an address are masqueraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masquerade {
    /// The container's network. Packets within it are not masqueraded.
    pub network: IpNet,
    /// The network of `nonMasqueradeCIDRs` that contains the destination.
    pub exempt: Option<IpNet>,
    /// None if the element's comment names no owner.
    pub owner: Option<Owner>,
    /// The chain that the address leads to.
    pub chain: String,
}

/// Finds the masquerade of packets from one address to another.
pub fn masqueraded_from(source: IpAddr, to: IpAddr) -> Result<Option<Masquerade>, Error> {
    let session = Session::open()?;
    let family = AddressFamily::of(source);
    let Some(held) = session.get(Map::Masqueraded(family), &[Value::address(source)])? else {
        return Ok(None);
    };
    let found = network_chains::chain_of(&session, Map::Masquerade(family), source)?;
    let Some(found) = found else { return Ok(None) };
    let SharedChain::Masquerade { network, exempt: id } = found else { return Ok(None) };
    let networks = id.map_or(Ok(None), |id| exempt::read(&session, id))?.unwrap_or_default();
    let exempt = networks.into_iter().find(|network| network.contains(&to));
    Ok(Some(Masquerade { network, exempt, owner: held.owner, chain: found.name() }))
}

/// Evaluates a container's conditions for a packet. Returns each condition as nft writes it, with its result.
pub fn conditions(texts: &[String], packet: &Packet) -> Result<Vec<(String, Truth)>, Error> {
    let stmts = grammar::parse(texts, AddressFamily::of(packet.to.ip()))?;
    Ok(stmts.iter().map(|stmt| (stmt.to_string(), holds(stmt, packet))).collect())
}

fn holds(stmt: &Stmt, packet: &Packet) -> Truth {
    match stmt {
        Stmt::Match { fields, cmp, to } => match fields.as_slice() {
            [field] => compare(*field, *cmp, to, packet),
            _ => Truth::Unknown,
        },
        // The first packet of a connection has the state new.
        Stmt::AnyBit { field: Field::CtState, bits: Value::CtState(bits) } => {
            if bits & Value::CT_NEW != 0 {
                Truth::Yes
            } else {
                Truth::No
            }
        }
        _ => Truth::Unknown,
    }
}

fn compare(field: Field, cmp: Cmp, to: &Operand, packet: &Packet) -> Truth {
    let value = match value(field, packet) {
        Ok(Some(value)) => value,
        // A rule ends at a field that the packet does not have, whatever the field is compared with.
        Ok(None) => return Truth::No,
        Err(NotGiven) => return Truth::Unknown,
    };
    match (is_in(&value, to), cmp) {
        (None, _) => Truth::Unknown,
        (Some(inside), Cmp::Eq) => {
            if inside {
                Truth::Yes
            } else {
                Truth::No
            }
        }
        (Some(inside), Cmp::Ne) => {
            if inside {
                Truth::No
            } else {
                Truth::Yes
            }
        }
    }
}

/// The packet's description does not include the field.
struct NotGiven;

/// A field of a packet. None if such a packet has no such field.
fn value(field: Field, packet: &Packet) -> Result<Option<Value>, NotGiven> {
    let port = |protocol| Ok((packet.protocol == protocol).then_some(Value::Port(packet.to.port())));
    /// `RTN_UNICAST` (`linux/rtnetlink.h`): another host's address.
    const UNICAST: u32 = 1;
    match (field, &packet.origin) {
        (Field::L4Proto, _) => Ok(Some(Value::Proto(packet.protocol.number()))),
        (Field::IpDaddr | Field::Ip6Daddr, _) => Ok(Some(Value::address(packet.to.ip()))),
        (Field::IpSaddr | Field::Ip6Saddr, _) => packet.from.map(Value::address).map(Some).ok_or(NotGiven),
        (Field::ThDport, _) => Ok(Some(Value::Port(packet.to.port()))),
        (Field::TcpDport, _) => port(Protocol::Tcp),
        (Field::UdpDport, _) => port(Protocol::Udp),
        (Field::SctpDport, _) => port(Protocol::Sctp),
        (Field::Iifname, Origin::Elsewhere(Some(link))) => Ok(Some(Value::Ifname(link.clone()))),
        (Field::Iifname, Origin::Node) | (Field::Oifname, Origin::Elsewhere(_)) => Ok(None),
        (Field::FibDaddrType, _) | (Field::FibSaddrType, Origin::Node) => {
            Ok(Some(Value::AddrType(Value::RTN_LOCAL)))
        }
        (Field::FibSaddrType, Origin::Elsewhere(_)) => {
            packet.from.map(|_| Some(Value::AddrType(UNICAST))).ok_or(NotGiven)
        }
        _ => Err(NotGiven),
    }
}

/// True if the value equals the operand or is contained in it. None if the two cannot be compared.
fn is_in(value: &Value, to: &Operand) -> Option<bool> {
    match to {
        Operand::Value(Value::IfnamePrefix(begin)) => match value {
            Value::Ifname(name) => Some(name.starts_with(begin.as_str())),
            _ => None,
        },
        Operand::Value(other) => Some(value == other),
        Operand::Prefix(network, bits) => {
            let network = IpNet::new(plan::as_address(network)?, *bits).ok()?;
            Some(network.contains(&plan::as_address(value)?))
        }
        Operand::Range(first, last) => match (value, first, last) {
            (Value::Port(port), Value::Port(first), Value::Port(last)) => {
                Some((first..=last).contains(&port))
            }
            _ => {
                let address = plan::as_address(value)?;
                Some(plan::as_address(first)? <= address && address <= plan::as_address(last)?)
            }
        },
        Operand::OneOf(all) => {
            let each: Option<Vec<bool>> = all.iter().map(|one| is_in(value, one)).collect();
            each.map(|each| each.contains(&true))
        }
        Operand::Set(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> Packet {
        Packet {
            protocol: Protocol::Tcp,
            to: "192.0.2.2:8080".parse().unwrap(),
            from: Some("198.51.100.7".parse().unwrap()),
            origin: Origin::Elsewhere(Some("eth1".to_owned())),
        }
    }

    fn evaluated(text: &str, packet: &Packet) -> Vec<Truth> {
        conditions(&[text.to_owned()], packet).unwrap().into_iter().map(|(_, truth)| truth).collect()
    }

    #[test]
    fn conditions_are_evaluated_as_far_as_the_packet_is_given() {
        use Truth::{No, Unknown, Yes};
        for (text, truth) in [
            ("ip saddr 198.51.100.0/24", Yes),
            ("ip saddr != 198.51.100.0/24", No),
            ("ip saddr { 192.0.2.1, 198.51.100.1-198.51.100.9 }", Yes),
            ("ip saddr { 192.0.2.1, 10.0.0.0/8 }", No),
            ("ip daddr 192.0.2.2", Yes),
            ("iifname eth1", Yes),
            ("iifname eth*", Yes),
            ("iifname != \"eth1\"", No),
            ("oifname eth1", No),
            ("oifname != eth1", No),
            ("tcp dport 8000-8999", Yes),
            ("udp dport 8080", No),
            ("th dport 80", No),
            ("l4proto tcp", Yes),
            ("fib daddr type local", Yes),
            ("fib saddr type local", No),
            ("ct state new", Yes),
            ("ct state established", No),
            ("ip ttl 64", Unknown),
            ("mark & 0x10 == 0x10", Unknown),
            ("tcp sport 1024-65535", Unknown),
        ] {
            assert_eq!(evaluated(text, &packet()), [truth], "{text}");
        }
        let unknown = Packet { from: None, origin: Origin::Elsewhere(None), ..packet() };
        assert_eq!(evaluated("ip saddr 10.0.0.0/8 iifname eth1", &unknown), [Unknown, Unknown]);
        let own = Packet { origin: Origin::Node, ..packet() };
        assert_eq!(evaluated("iifname != eth1 fib saddr type local", &own), [No, Yes]);
        assert!(conditions(&["nonsense".to_owned()], &own).is_err());
    }
}
