//! From a request to chains and rules: pure, one plan for each address family.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cni_spec::Attachment;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::names::{self, ChainName};
use super::rule::{Match, Rule, Target};
use crate::{
    AddressFamily, Error, HostAddress, Loopback, MasqueradeRequest, PortRequest, Protocol, PublishedPort,
    Snat,
};

/// The multiport match takes no more (`XT_MULTI_PORTS` in `linux/netfilter/xt_multiport.h`).
const PORTS_PER_RULE: usize = 15;

/// The mappings of one container in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortPlan {
    pub(crate) family: AddressFamily,
    /// The container's chain.
    pub(crate) chain: ChainName,
    /// Its rules.
    pub(crate) rules: Vec<Rule>,
    /// The rules of [`names::HOSTPORT_DNAT`] that lead to it.
    pub(crate) entries: Vec<Rule>,
    /// The mark's bit, where the chains that set and use it must be there.
    pub(crate) mark_bit: Option<u8>,
    /// What is published, for conflicts: protocol, host address (none for all), port.
    pub(crate) keys: Vec<Key>,
}

/// What two containers cannot both have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) protocol: Protocol,
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
}

/// The masquerade of one container in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MasqueradePlan {
    pub(crate) family: AddressFamily,
    /// The container's chain.
    pub(crate) chain: ChainName,
    /// Its rules.
    pub(crate) rules: Vec<Rule>,
    /// The rules of POSTROUTING that lead to it.
    pub(crate) jumps: Vec<Rule>,
}

/// What stands in chains that all containers share, with the place where it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) chain: &'static str,
    pub(crate) rule: Rule,
    /// Whether it must come before what others have put there.
    pub(crate) first: bool,
}

/// Refuses mappings that contradict each other: the first one would win, and nobody would know.
///
/// # Errors
/// [`Error::Request`] with the two.
pub(crate) fn refuse_contradictions(request: &PortRequest) -> Result<(), Error> {
    for (i, port) in request.ports.iter().enumerate() {
        let others = request.ports.iter().skip(i + 1);
        if let Some(other) = others.clone().find(|other| other.host.overlaps(&port.host) && *other != port) {
            return Err(Error::Request(format!("{port} and {other} are published for the same container")));
        }
    }
    Ok(())
}

/// The plans for the ports, IPv4 first; a family that the container does not have has none.
pub(crate) fn ports(request: &PortRequest) -> Vec<PortPlan> {
    let of = |network: &IpNet| port_plan(request, *network);
    let mut plans: Vec<PortPlan> = request.networks.iter().map(of).collect();
    plans.sort_by_key(|plan| plan.family);
    plans
}

fn port_plan(request: &PortRequest, network: IpNet) -> PortPlan {
    let family = AddressFamily::of(network.addr());
    let chain = ChainName::dnat(&request.attachment);
    let ours = ordered(request.ports.iter().filter(|port| port.host.address.family() == family));
    let marker = match (&request.iptables.set_mark_chain, request.snat) {
        (_, Snat::Never) => None,
        (Some(external), _) => Some(external.clone()),
        (None, _) => Some(ChainName::fixed(names::HOSTPORT_SETMARK)),
    };
    let mut rules = Vec::new();
    let mut keys = Vec::new();
    for port in ours {
        let spared = (request.loopback == Loopback::Spared).then(|| loopback(family));
        for (offset, host_port) in (0u16..).zip(port.host.ports()) {
            let (protocol, address) = (port.host.protocol, host_address(port));
            let place = match address {
                Some(address) => Some(Match::Destination(IpNet::from(address))),
                None => spared.map(Match::NotDestination),
            };
            let key = Key { protocol, address, port: host_port };
            // Said twice, as the reference: one rule.
            if keys.contains(&key) {
                continue;
            }
            keys.push(key);
            for source in marker.iter().flat_map(|_| marked_sources(request.snat, network)) {
                let target = Target::Chain(marker.clone().unwrap_or_else(|| chain.clone()));
                rules.push(Rule::new(matches(source, place.clone(), (protocol, host_port)), target));
            }
            let to = SocketAddr::new(port.container, port.container_port.saturating_add(offset));
            rules.push(Rule::new(matches(None, place, (protocol, host_port)), Target::Dnat(to)));
        }
    }
    let mark_bit =
        (marker.is_some() && request.iptables.set_mark_chain.is_none()).then_some(request.mark_bit);
    let entries = entries(request, family, &chain);
    PortPlan { family, chain, rules, entries, mark_bit, keys }
}

/// The mappings in the configuration's order, which the reference keeps, but for one case that it
/// gets wrong: a mapping of all addresses must not come before one of a single address that has the
/// same port.
fn ordered<'a>(ports: impl Iterator<Item = &'a PublishedPort>) -> Vec<&'a PublishedPort> {
    let mut all: Vec<&PublishedPort> = ports.collect();
    let clashes = |wildcard: &PublishedPort| {
        all.iter().any(|other| {
            let (a, b) = (&wildcard.host, &other.host);
            matches!(b.address, HostAddress::One(_))
                && a.protocol == b.protocol
                && a.first <= b.last
                && b.first <= a.last
        })
    };
    let late: Vec<bool> =
        all.iter().map(|port| matches!(port.host.address, HostAddress::Any(_)) && clashes(port)).collect();
    let mut paired: Vec<_> = late.into_iter().zip(all.iter().copied()).collect();
    paired.sort_by_key(|(late, _)| *late);
    all.clear();
    all.extend(paired.into_iter().map(|(_, port)| port));
    all
}

fn host_address(port: &PublishedPort) -> Option<IpAddr> {
    match port.host.address {
        HostAddress::One(address) => Some(address),
        HostAddress::Any(_) => None,
    }
}

/// Whose packets are masqueraded on the way to the container: all, or the container's network and
/// the node's loopback.
fn marked_sources(snat: Snat, network: IpNet) -> Vec<Option<IpNet>> {
    match (snat, network) {
        (Snat::Never, _) => Vec::new(),
        (Snat::Always, _) => vec![None],
        (Snat::Needed, IpNet::V4(_)) => {
            vec![Some(network), Some(IpNet::from(IpAddr::V4(Ipv4Addr::LOCALHOST)))]
        }
        (Snat::Needed, IpNet::V6(_)) => vec![Some(network)],
    }
}

/// The node's loopback.
fn loopback(family: AddressFamily) -> IpNet {
    match family {
        AddressFamily::V4 => IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
        AddressFamily::V6 => IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)),
    }
}

fn matches(source: Option<IpNet>, place: Option<Match>, (protocol, port): (Protocol, u16)) -> Vec<Match> {
    let mut matches = Vec::new();
    matches.extend(source.map(Match::Source));
    matches.extend(place);
    matches.push(Match::Protocol(protocol));
    matches.push(Match::Port(protocol, port));
    matches
}

/// The entry rules: for each protocol, in the order of their names, the ports in the order of the
/// configuration, fifteen to a rule.
fn entries(request: &PortRequest, family: AddressFamily, chain: &ChainName) -> Vec<Rule> {
    let conditions = request.iptables.conditions.of(family);
    let mut protocols = Protocol::ALL;
    protocols.sort_by_key(|protocol| protocol.as_str());
    let mut entries = Vec::new();
    for protocol in protocols {
        let named = request.iptables.entry_ports.iter().filter(|entry| entry.protocol == protocol);
        let ports: Vec<u16> = named.map(|entry| entry.port).collect();
        for group in ports.chunks(PORTS_PER_RULE) {
            let mut matches = vec![
                Match::Protocol(protocol),
                Match::Comment(names::dnat_comment(&request.attachment)),
                Match::Ports(group.to_vec()),
            ];
            if !conditions.is_empty() {
                matches.push(Match::Conditions(conditions.to_vec()));
            }
            entries.push(Rule::new(matches, Target::Chain(chain.clone())));
        }
    }
    entries
}

/// What the chains of all containers must hold for these ports, in the order of making.
pub(crate) fn shared(mark_bit: Option<u8>) -> Vec<Shared> {
    let jump = |chain| Target::Chain(ChainName::fixed(chain));
    let mut shared = Vec::new();
    if let Some(bit) = mark_bit {
        let said = |text: &str| vec![Match::Comment(text.to_owned())];
        let mark = Rule::new(said("CNI portfwd masquerade mark"), Target::SetMarkBit(bit));
        shared.push(Shared { chain: names::HOSTPORT_SETMARK, rule: mark, first: false });
        let masquerade = Rule::new(vec![Match::MarkBit(bit)], Target::Masquerade);
        shared.push(Shared { chain: names::HOSTPORT_MASQ, rule: masquerade, first: false });
        let way = Rule::new(said("CNI portfwd requiring masquerade"), jump(names::HOSTPORT_MASQ));
        // Before rules that would let the packet pass as it is.
        shared.push(Shared { chain: "POSTROUTING", rule: way, first: true });
    }
    let local = Rule::new(vec![Match::Local], jump(names::HOSTPORT_DNAT));
    for chain in ["PREROUTING", "OUTPUT"] {
        shared.push(Shared { chain, rule: local.clone(), first: false });
    }
    shared
}

/// The plans for the masquerade, IPv4 first.
pub(crate) fn masquerade(request: &MasqueradeRequest) -> Vec<MasqueradePlan> {
    let of = |family: AddressFamily| {
        let addresses: Vec<IpNet> =
            request.addresses.iter().copied().filter(|net| AddressFamily::of(net.addr()) == family).collect();
        (!addresses.is_empty()).then(|| masquerade_plan(&request.attachment, family, &addresses))
    };
    AddressFamily::BOTH.into_iter().filter_map(of).collect()
}

fn masquerade_plan(attachment: &Attachment, family: AddressFamily, addresses: &[IpNet]) -> MasqueradePlan {
    let chain = ChainName::masquerade(attachment);
    let comment = || Match::Comment(names::masquerade_comment(attachment));
    let multicast = match family {
        AddressFamily::V4 => IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
        AddressFamily::V6 => IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)),
    };
    let stays = |net: &IpNet| Rule::new(vec![Match::Destination(*net), comment()], Target::Accept);
    let mut rules: Vec<Rule> = addresses.iter().map(stays).collect();
    rules.push(Rule::new(vec![Match::NotDestination(multicast), comment()], Target::Masquerade));
    let jump = |net: &IpNet| {
        let source = Match::Source(IpNet::from(net.addr()));
        Rule::new(vec![source, comment()], Target::Chain(chain.clone()))
    };
    let jumps = addresses.iter().map(jump).collect();
    MasqueradePlan { family, rules, jumps, chain }
}
