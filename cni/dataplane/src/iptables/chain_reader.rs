// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads chains of containers and derives the requests from which they were made.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::conditions::{self, Untranslatable};
use super::detect;
use super::listing::Listing;
use super::names::{self, ChainName, CommentOwner, POSTROUTING};
use super::publish::lock_for_emptying;
use super::rule::Rule;
use super::tools::{Place, Tools, Variant};
use super::withdraw::{self, OwnedChain};
use crate::{AddressFamily, Error, Loopback, Protocol, PublishedPort, Snat};

/// A container's chains of one kind, both families together.
#[derive(Debug, Clone)]
pub(crate) struct ContainerChains {
    pub(crate) variant: Variant,
    pub(crate) owner: CommentOwner,
    pub(crate) chains: BTreeSet<String>,
    pub(crate) families: BTreeSet<AddressFamily>,
    /// The content, or the reason why it does not correspond to any request.
    pub(crate) content: Result<Content, Unreadable>,
}

/// The content of chains of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Ports(PortContent),
    Masquerade(MasqueradeContent),
}

/// Masqueraded addresses, as in a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct MasqueradeContent {
    pub(crate) addresses: Vec<IpNet>,
    /// More networks to which packets keep their source.
    pub(crate) exempt: Vec<IpNet>,
}

/// Published ports, as in a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PortContent {
    pub(crate) ports: Vec<PublishedPort>,
    pub(crate) networks: Vec<IpNet>,
    /// The networks to which the container is connected by its other interfaces.
    pub(crate) elsewhere: Vec<IpNet>,
    pub(crate) snat: Snat,
    pub(crate) loopback: Loopback,
    pub(crate) bit: u8,
    pub(crate) conditions: BTreeMap<AddressFamily, Vec<String>>,
    pub(crate) mapped: Vec<(Protocol, u16)>,
}

/// Why the rules of a container do not correspond to any request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error(transparent)]
    Condition(#[from] Untranslatable),
    #[error("the rules of IPv4 and IPv6 differ in what is masqueraded")]
    FamiliesDiffer,
    #[error(
        "chain {chain} jumps to {target}, a chain of others (externalSetMarkChain): they act on its mark"
    )]
    ForeignTarget { chain: String, target: String },
    #[error("two interfaces of the container share its chain, {0} is one of them")]
    SharedByInterfaces(IpAddr),
    #[error("the rules that jump to chain {0} have different conditions")]
    ConditionsDiffer(String),
    #[error("chain {0} has other rules than the plugins make")]
    ForeignRules(String),
    #[error("chain {chain} has no network for {address}")]
    NoNetwork { chain: String, address: IpAddr },
}

impl Content {
    /// Adds the content of the other family's chains of the same kind.
    fn merge(&mut self, other: Self) -> Result<(), Unreadable> {
        match (self, other) {
            (Self::Masquerade(all), Self::Masquerade(more)) => {
                all.addresses.extend(more.addresses);
                all.exempt.extend(more.exempt);
            }
            (Self::Ports(all), Self::Ports(more)) => {
                let is_same = (all.snat, all.loopback) == (more.snat, more.loopback);
                if !is_same && !all.ports.is_empty() && !more.ports.is_empty() {
                    return Err(Unreadable::FamiliesDiffer);
                }
                if all.ports.is_empty() {
                    (all.snat, all.loopback, all.bit) = (more.snat, more.loopback, more.bit);
                }
                all.ports.extend(more.ports);
                all.networks.extend(more.networks);
                all.elsewhere.extend(more.elsewhere);
                all.conditions.extend(more.conditions);
                let new: Vec<_> = more.mapped.into_iter().filter(|m| !all.mapped.contains(m)).collect();
                all.mapped.extend(new);
            }
            // Cannot happen, because the caller groups chains by kind.
            _ => {}
        }
        Ok(())
    }
}

/// Reads the chains of all containers, in a stable order.
pub(crate) fn all() -> Result<Vec<ContainerChains>, Error> {
    let mut all: BTreeMap<(Variant, CommentOwner, bool), ContainerChains> = BTreeMap::new();
    for place in detect::containers_places()? {
        let Place { variant, family } = place;
        let tools = Tools::nat(place);
        let (listing, owned) = withdraw::read_owned_chains(&tools, &[names::HOSTPORT_SETMARK], |_| true)?;
        let mut grouped: BTreeMap<(CommentOwner, bool), BTreeSet<String>> = BTreeMap::new();
        for OwnedChain { owner, chain, ports } in owned {
            grouped.entry((owner, ports)).or_default().insert(chain);
        }
        for ((owner, ports), chains) in grouped {
            let read = if ports {
                read_ports(&listing, family, &chains)
            } else {
                read_masquerade(&listing, &chains)
            };
            let families = BTreeSet::from([family]);
            let Some(before) = all.get_mut(&(variant, owner.clone(), ports)) else {
                let first =
                    ContainerChains { variant, owner: owner.clone(), chains, families, content: read };
                all.insert((variant, owner, ports), first);
                continue;
            };
            before.chains.extend(chains);
            before.families.extend(families);
            if let Ok(content) = &mut before.content
                && let Err(why) = read.and_then(|read| content.merge(read))
            {
                before.content = Err(why);
            }
        }
    }
    Ok(all.into_values().collect())
}

pub(super) fn read_ports(
    listing: &Listing,
    family: AddressFamily,
    chains: &BTreeSet<String>,
) -> Result<Content, Unreadable> {
    let mut all = PortContent { bit: mark_bit(listing), ..PortContent::default() };
    let mut marked: Vec<Option<IpNet>> = Vec::new();
    for chain in chains.iter().filter(|chain| chain.starts_with(names::DNAT_PREFIX)) {
        for rule in listing.rules(chain) {
            if let Some(port) = rule.published() {
                if rule.words().iter().any(|word| word == "!") {
                    all.loopback = Loopback::Spared;
                }
                all.ports.push(port);
            } else if rule.target() == Some(names::HOSTPORT_SETMARK) {
                marked.push(rule.source());
            } else {
                let target = rule.target().unwrap_or("nothing").to_owned();
                return Err(Unreadable::ForeignTarget { chain: chain.clone(), target });
            }
        }
        let conditions = conditions_of(listing, chain)?;
        if !conditions.is_empty() {
            all.conditions.insert(family, conditions::to_nftables(&conditions, family)?);
        }
    }
    all.ports.dedup();
    let mut containers: Vec<IpAddr> = all.ports.iter().map(|port| port.container).collect();
    containers.dedup();
    if let [_, other, ..] = containers.as_slice() {
        return Err(Unreadable::SharedByInterfaces(*other));
    }
    all.mapped = all.ports.iter().map(|port| (port.host.protocol, port.host.first)).collect();
    let is_oldest = chains.iter().any(|chain| chain.starts_with(names::SNAT_PREFIX));
    all.snat = match marked.as_slice() {
        [] if is_oldest => Snat::Needed,
        [] => Snat::Never,
        some if some.contains(&None) => Snat::Always,
        _ => Snat::Needed,
    };
    let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
    for address in containers {
        let others = marked.iter().flatten().filter(|net| !net.contains(&address) && net.addr() != localhost);
        for other in others.map(IpNet::trunc) {
            if !all.elsewhere.contains(&other) {
                all.elsewhere.push(other);
            }
        }
        let network = marked.iter().flatten().find(|net| net.contains(&address));
        let network = network.and_then(|net| IpNet::new(address, net.prefix_len()).ok());
        all.networks.push(network.unwrap_or_else(|| IpNet::from(address)));
    }
    Ok(Content::Ports(all))
}

/// The mark bit that the shared chain sets. If it sets several bits, each for all containers, the default bit is
/// preferred.
fn mark_bit(listing: &Listing) -> u8 {
    let bit = |rule: &Rule| {
        let value = rule.value("--set-xmark")?.split('/').next()?.strip_prefix("0x")?;
        let value = u32::from_str_radix(value, 16).ok().filter(|value| value.is_power_of_two())?;
        u8::try_from(value.trailing_zeros()).ok()
    };
    let bits: Vec<u8> = listing.rules(names::HOSTPORT_SETMARK).iter().filter_map(bit).collect();
    let default = crate::nftables::schema::DEFAULT_MARK_BIT;
    if bits.contains(&default) { default } else { bits.first().copied().unwrap_or(default) }
}

/// The conditions of entry rules.
fn conditions_of(listing: &Listing, chain: &str) -> Result<Vec<String>, Unreadable> {
    let mut all: Vec<Vec<String>> = listing.jumps(names::HOSTPORT_DNAT, chain).map(without_ports).collect();
    all.dedup();
    match all.as_slice() {
        [] => Ok(Vec::new()),
        [one] => Ok(one.clone()),
        _ => Err(Unreadable::ConditionsDiffer(chain.to_owned())),
    }
}

/// The words of an entry rule without protocol, comment, ports and target.
fn without_ports(rule: &Rule) -> Vec<String> {
    let (mut left, mut words) = (Vec::new(), rule.words().iter().map(String::as_str).peekable());
    while let Some(word) = words.next() {
        let is_of_ports = match word {
            "-j" | "-p" | "--comment" | "--dports" | "--dport" => true,
            "-m" => words.peek().is_some_and(|m| ["comment", "multiport", "tcp", "udp", "sctp"].contains(m)),
            _ => false,
        };
        if is_of_ports {
            words.next();
        } else {
            left.push(word.to_owned());
        }
    }
    left
}

pub(super) fn read_masquerade(listing: &Listing, chains: &BTreeSet<String>) -> Result<Content, Unreadable> {
    let mut all = MasqueradeContent::default();
    for chain in chains {
        let (kept, rest): (Vec<&Rule>, Vec<&Rule>) =
            listing.rules(chain).iter().partition(|rule| rule.target() == Some("ACCEPT"));
        let networks: Vec<IpNet> = kept.iter().filter_map(|rule| rule.destination()).collect();
        let expected = networks.len() == kept.len()
            && matches!(rest.as_slice(), [rule] if rule.target() == Some("MASQUERADE"));
        if !expected {
            return Err(Unreadable::ForeignRules(chain.clone()));
        }
        let mut own = BTreeSet::new();
        for address in
            listing.jumps(POSTROUTING, chain).filter_map(|rule| rule.source().map(|net| net.addr()))
        {
            let no_network = || Unreadable::NoNetwork { chain: chain.clone(), address };
            // A network of nonMasqueradeCIDRs that contains the address is larger than the container's own network.
            let around = networks.iter().filter(|net| net.contains(&address));
            let network = around.max_by_key(|net| net.prefix_len()).ok_or_else(no_network)?;
            own.insert(network.trunc());
            all.addresses.extend(IpNet::new(address, network.prefix_len()));
        }
        all.exempt.extend(networks.into_iter().map(|net| net.trunc()).filter(|net| !own.contains(net)));
    }
    for nets in [&mut all.addresses, &mut all.exempt] {
        nets.sort_unstable();
        nets.dedup();
    }
    Ok(Content::Masquerade(all))
}

/// Removes the chains of containers for which `is_over` returns true while the lock is held, with one input of the
/// tool for each family. conntrack is left alone. Returns whether the lock was held.
pub(crate) fn remove_chains_of<T>(
    containers: &[(&ContainerChains, T)],
    is_over: impl Fn(&T) -> Result<bool, Error>,
) -> Result<bool, Error> {
    let lock = lock_for_emptying();
    let mut over: Vec<&ContainerChains> = Vec::new();
    for (one, whose) in containers {
        if is_over(whose)? {
            over.push(one);
        }
    }
    for place in Place::all() {
        let here =
            over.iter().filter(|one| one.variant == place.variant && one.families.contains(&place.family));
        let chains: Vec<ChainName> =
            here.flat_map(|one| &one.chains).filter_map(|name| ChainName::new(name).ok()).collect();
        if !chains.is_empty() {
            withdraw::remove_chains(&Tools::nat(place), &chains)?;
        }
    }
    Ok(lock.is_some())
}
