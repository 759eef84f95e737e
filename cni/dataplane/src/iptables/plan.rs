// SPDX-License-Identifier: GPL-2.0-or-later

//! Turns a request into chains and rules, with one plan for each address family. These are pure functions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use cni_spec::Attachment;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::names::{self, ChainName, OUTPUT, POSTROUTING, PREROUTING};
use super::rule::{PortKey, Rule};
use crate::nftables::schema::other_networks;
use crate::{
    AddressFamily, Error, HostAddress, Loopback, MasqueradeRequest, PortRequest, Protocol, PublishedPort,
    RequestError, Snat,
};

/// The most ports that one multiport match accepts (`XT_MULTI_PORTS` in `linux/netfilter/xt_multiport.h`).
const PORTS_PER_RULE: usize = 15;

/// The mappings of one container in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortPlan {
    pub(crate) family: AddressFamily,
    /// The container's chain.
    pub(crate) chain: ChainName,
    /// The rules of that chain.
    pub(crate) rules: Vec<Rule>,
    /// The rules of [`names::HOSTPORT_DNAT`] that jump to it.
    pub(crate) entries: Vec<Rule>,
    /// Rules in chains that all containers share, in the order in which they are made.
    pub(crate) shared: Vec<SharedRule>,
    /// The published ports.
    pub(crate) keys: Vec<PortKey>,
    /// The networks to which the container is connected by its other interfaces.
    others: Vec<IpNet>,
}

impl PortPlan {
    /// True if a rule marks packets from another of the container's networks.
    pub(crate) fn is_of_other_network(&self, rule: &Rule) -> bool {
        rule.source().is_some_and(|source| self.others.contains(&source))
    }
}

/// The masquerade of one container in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MasqueradePlan {
    pub(crate) family: AddressFamily,
    /// The container's chain.
    pub(crate) chain: ChainName,
    /// The rules of that chain.
    pub(crate) rules: Vec<Rule>,
    /// The rules of POSTROUTING that jump to it.
    pub(crate) jumps: Vec<Rule>,
}

/// A rule in a chain that all containers share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedRule {
    pub(crate) chain: &'static str,
    pub(crate) rule: Rule,
    /// The shared chain that must exist for the rule: its own, or the one that it jumps to.
    pub(crate) needs: &'static str,
    /// True if the rule must precede those of other programs.
    pub(crate) first: bool,
}

/// Refuses mappings of one host port to different destinations, because only the first one would ever match.
pub(crate) fn refuse_contradictions(request: &PortRequest) -> Result<(), Error> {
    for (i, port) in request.ports.iter().enumerate() {
        let mut others = request.ports.iter().skip(i + 1);
        if let Some(other) = others.find(|other| other.host.overlaps(&port.host) && *other != port) {
            return Err(RequestError::Contradiction(Box::new([*port, *other])).into());
        }
    }
    Ok(())
}

/// The plans for the ports, IPv4 first. There is no plan for a family of which the container has no address.
pub(crate) fn ports(request: &PortRequest) -> Vec<PortPlan> {
    let mut plans: Vec<PortPlan> =
        request.networks.iter().map(|network| port_plan(request, *network)).collect();
    plans.sort_by_key(|plan| plan.family);
    plans
}

fn port_plan(request: &PortRequest, network: IpNet) -> PortPlan {
    let family = AddressFamily::of(network.addr());
    let chain = ChainName::dnat(&request.attachment);
    let marker = match (&request.iptables.set_mark_chain, request.snat) {
        (_, Snat::Never) => None,
        (Some(external), _) => Some(external.as_str()),
        (None, _) => Some(names::HOSTPORT_SETMARK),
    };
    let others = other_networks(&network, &request.elsewhere);
    let (mut rules, mut keys) = (Vec::new(), Vec::new());
    for port in in_order(request, family) {
        for (offset, host_port) in (0u16..).zip(port.host.ports()) {
            let (protocol, address) = (port.host.protocol, host_address(port));
            let key = PortKey { protocol, address, port: host_port };
            // A port that is named twice gets a single rule, as with the reference plugin.
            if keys.contains(&key) {
                continue;
            }
            keys.push(key);
            let with_port = |rule: Rule| {
                let rule = match address {
                    Some(address) => rule.with_destination(address.into()),
                    None if request.loopback == Loopback::Spared => {
                        rule.without_destination(loopback(family))
                    }
                    None => rule,
                };
                rule.with_port(protocol, host_port)
            };
            if let Some(marker) = marker {
                let sources = marked_sources(request.snat, network, &others);
                rules.extend(sources.map(|rule| with_port(rule).jump(marker)));
            }
            let to = SocketAddr::new(port.container, port.container_port.saturating_add(offset));
            rules.push(with_port(Rule::new()).translate_to(to));
        }
    }
    let mark_bit =
        (marker.is_some() && request.iptables.set_mark_chain.is_none()).then_some(request.mark_bit);
    let entries = entries(request, family, &chain);
    PortPlan { family, chain, rules, entries, shared: shared(mark_bit), keys, others }
}

/// The family's mappings in the configuration's order, as with the reference plugin, with one exception: a mapping of
/// a single address precedes a mapping of all addresses for the same port. The reference plugin gets this wrong.
fn in_order(request: &PortRequest, family: AddressFamily) -> Vec<&PublishedPort> {
    let ports = request.ports.iter().filter(|port| port.host.address.family() == family);
    let mut all: Vec<&PublishedPort> = ports.clone().collect();
    let hides_another = |wildcard: &PublishedPort| {
        ports.clone().any(|other| {
            let (a, b) = (&wildcard.host, &other.host);
            matches!(b.address, HostAddress::One(_))
                && a.protocol == b.protocol
                && a.first <= b.last
                && b.first <= a.last
        })
    };
    all.sort_by_key(|port| matches!(port.host.address, HostAddress::Any(_)) && hides_another(port));
    all
}

fn host_address(port: &PublishedPort) -> Option<IpAddr> {
    match port.host.address {
        HostAddress::One(address) => Some(address),
        HostAddress::Any(_) => None,
    }
}

/// The first words of rules that match packets to be masqueraded on their way to the container. These are either all
/// packets, or those from the container's network, from the node's loopback, and from the networks of the container's
/// other interfaces, for which the reference plugin has no rules.
fn marked_sources(snat: Snat, network: IpNet, others: &[IpNet]) -> impl Iterator<Item = Rule> {
    let localhost = IpNet::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let rules = match (snat, network) {
        (Snat::Never, _) => [None, None],
        (Snat::Always, _) => [Some(Rule::new()), None],
        (Snat::Needed, IpNet::V4(_)) => {
            [network, localhost].map(|source| Some(Rule::new().with_source(source)))
        }
        (Snat::Needed, IpNet::V6(_)) => [Some(Rule::new().with_source(network)), None],
    };
    let others = if snat == Snat::Needed { others } else { &[] };
    rules.into_iter().flatten().chain(others.iter().map(|other| Rule::new().with_source(*other)))
}

fn loopback(family: AddressFamily) -> IpNet {
    match family {
        AddressFamily::V4 => IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
        AddressFamily::V6 => IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)),
    }
}

/// The entry rules, sorted by the name of the protocol. The ports are in the configuration's order.
fn entries(request: &PortRequest, family: AddressFamily, chain: &ChainName) -> Vec<Rule> {
    let conditions = request.iptables.conditions.of(family);
    let comment = names::dnat_comment(&request.attachment);
    let mut protocols = Protocol::ALL;
    protocols.sort_by_key(|protocol| protocol.as_str());
    let mut entries = Vec::new();
    for protocol in protocols {
        let named = request.iptables.entry_ports.iter().filter(|entry| entry.protocol == protocol);
        let ports: Vec<u16> = named.map(|entry| entry.port).collect();
        entries.extend(ports.chunks(PORTS_PER_RULE).map(|ports| {
            let rule = Rule::new().with_protocol(protocol).with_comment(&comment).with_ports(ports);
            rule.with_conditions(conditions).jump(chain.as_str())
        }));
    }
    entries
}

fn shared(mark_bit: Option<u8>) -> Vec<SharedRule> {
    let mut shared = Vec::new();
    if let Some(bit) = mark_bit {
        let (setmark, masq) = (names::HOSTPORT_SETMARK, names::HOSTPORT_MASQ);
        let set = Rule::new().with_comment("CNI portfwd masquerade mark").set_mark_bit(bit);
        shared.push(SharedRule { chain: setmark, rule: set, needs: setmark, first: false });
        let masquerade = Rule::new().with_mark_bit(bit).jump("MASQUERADE");
        shared.push(SharedRule { chain: masq, rule: masquerade, needs: masq, first: false });
        // The jump is inserted at the beginning, because rules of other programs could accept the packet before it.
        let jump = Rule::new().with_comment("CNI portfwd requiring masquerade").jump(masq);
        shared.push(SharedRule { chain: POSTROUTING, rule: jump, needs: masq, first: true });
    }
    let dnat = names::HOSTPORT_DNAT;
    let local = Rule::new().with(["-m", "addrtype", "--dst-type", "LOCAL"]).jump(dnat);
    shared.extend([PREROUTING, OUTPUT].map(|chain| SharedRule {
        chain,
        rule: local.clone(),
        needs: dnat,
        first: false,
    }));
    shared
}

/// The plans for the masquerade, IPv4 first.
pub(crate) fn masquerade(request: &MasqueradeRequest) -> Vec<MasqueradePlan> {
    let of = |family: AddressFamily| {
        let addresses: Vec<IpNet> =
            request.addresses.iter().copied().filter(|net| AddressFamily::of(net.addr()) == family).collect();
        (!addresses.is_empty()).then(|| {
            let exempt = request.exempt_of(family);
            masquerade_plan(&request.attachment, family, (&addresses, &exempt))
        })
    };
    AddressFamily::BOTH.into_iter().filter_map(of).collect()
}

fn masquerade_plan(
    attachment: &Attachment,
    family: AddressFamily,
    (addresses, exempt): (&[IpNet], &[IpNet]),
) -> MasqueradePlan {
    let chain = ChainName::masquerade(attachment);
    let comment = names::masquerade_comment(attachment);
    let multicast = match family {
        AddressFamily::V4 => IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
        AddressFamily::V6 => IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)),
    };
    let keep = |net: &IpNet| Rule::new().with_destination(*net).with_comment(&comment).jump("ACCEPT");
    let mut rules: Vec<Rule> = addresses.iter().chain(exempt).map(keep).collect();
    rules.push(Rule::new().without_destination(multicast).with_comment(&comment).jump("MASQUERADE"));
    let jump =
        |net: &IpNet| Rule::new().with_source(net.addr().into()).with_comment(&comment).jump(chain.as_str());
    let jumps = addresses.iter().map(jump).collect();
    MasqueradePlan { family, rules, jumps, chain }
}
