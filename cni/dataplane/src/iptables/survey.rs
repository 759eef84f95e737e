//! What containers have in chains of iptables, read back into what was asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::listing::{ListedRule, Listing};
use super::names::{self, ChainName, CommentOwner};
use super::tools::{Tools, Variant};
use super::{apply, presence, withdraw};
use crate::migrate::words;
use crate::{AddressFamily, Error, Loopback, Protocol, PublishedPort, Snat};

/// The chains of one container of one kind, both families together.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) variant: Variant,
    pub(crate) owner: CommentOwner,
    pub(crate) chains: BTreeSet<String>,
    pub(crate) families: BTreeSet<AddressFamily>,
    /// What they say, or why that cannot be said in other words.
    pub(crate) what: Result<What, String>,
}

/// What chains of one kind say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Ports(Ports),
    /// Addresses with the prefixes of their networks.
    Masquerade(Vec<IpNet>),
}

/// Published ports as chains tell them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ports {
    pub(crate) ports: Vec<PublishedPort>,
    pub(crate) networks: Vec<IpNet>,
    pub(crate) snat: Snat,
    pub(crate) loopback: Loopback,
    pub(crate) bit: u8,
    pub(crate) conditions: BTreeMap<AddressFamily, Vec<String>>,
    pub(crate) mapped: Vec<(Protocol, u16)>,
}

impl What {
    fn merge(self, other: Self) -> Result<Self, String> {
        match (self, other) {
            (Self::Masquerade(mut all), Self::Masquerade(more)) => {
                all.extend(more);
                Ok(Self::Masquerade(all))
            }
            (Self::Ports(mut all), Self::Ports(more)) => {
                let of_one = (all.snat, all.loopback) == (more.snat, more.loopback);
                if !of_one && !all.ports.is_empty() && !more.ports.is_empty() {
                    return Err("the rules of IPv4 and IPv6 differ in what is masqueraded".to_owned());
                }
                if all.ports.is_empty() {
                    (all.snat, all.loopback, all.bit) = (more.snat, more.loopback, more.bit);
                }
                all.ports.extend(more.ports);
                all.networks.extend(more.networks);
                all.conditions.extend(more.conditions);
                let new: Vec<_> = more.mapped.into_iter().filter(|m| !all.mapped.contains(m)).collect();
                all.mapped.extend(new);
                Ok(Self::Ports(all))
            }
            _ => Err("chains of two kinds have one name".to_owned()),
        }
    }
}

/// Everything that is there, in a stable order.
pub(crate) fn all() -> Result<Vec<Found>, Error> {
    let mut found: BTreeMap<(Variant, CommentOwner, bool), Found> = BTreeMap::new();
    for (variant, family) in presence::of_anyone()?.places() {
        let tools = Tools::new(variant);
        let leading: Vec<&str> = withdraw::LEADING.into_iter().chain([names::HOSTPORT_SETMARK]).collect();
        let mut listing = tools.read(family, &leading)?;
        let known = withdraw::known(&listing);
        let chains: BTreeSet<&str> = known.iter().map(|known| known.chain.as_str()).collect();
        let missing: Vec<&str> = chains.into_iter().filter(|chain| !listing.has(chain)).collect();
        if !missing.is_empty() {
            listing.merge(tools.read(family, &missing)?);
        }
        let mut grouped: BTreeMap<(CommentOwner, bool), BTreeSet<String>> = BTreeMap::new();
        for known in known {
            grouped.entry((known.owner, known.ports)).or_default().insert(known.chain);
        }
        for ((owner, ports), chains) in grouped {
            let what = if ports {
                read_ports(&listing, family, &chains)
            } else {
                read_masquerade(&listing, &chains)
            };
            let families = BTreeSet::from([family]);
            let one = Found { variant, owner: owner.clone(), chains, families, what };
            let key = (variant, owner, ports);
            let merged = match found.remove(&key) {
                None => one,
                Some(mut before) => {
                    before.chains.extend(one.chains);
                    before.families.extend(one.families);
                    before.what = before.what.and_then(|what| what.merge(one.what?));
                    before
                }
            };
            found.insert(key, merged);
        }
    }
    Ok(found.into_values().collect())
}

fn read_ports(listing: &Listing, family: AddressFamily, chains: &BTreeSet<String>) -> Result<What, String> {
    let mut all = Ports { bit: mark_bit(listing), ..Ports::default() };
    let mut marked: Vec<Option<IpNet>> = Vec::new();
    for chain in chains.iter().filter(|chain| chain.starts_with(names::DNAT_PREFIX)) {
        for rule in listing.rules(chain) {
            if let Some(port) = withdraw::published(rule) {
                if rule.0.iter().any(|word| word == "!") {
                    all.loopback = Loopback::Spared;
                }
                all.ports.push(port);
            } else if rule.target() == Some(names::HOSTPORT_SETMARK) {
                marked.push(rule.source());
            } else {
                let to = rule.target().unwrap_or("nowhere");
                return Err(format!(
                    "chain {chain} leads to {to}, which is not ours (externalSetMarkChain): others act upon it"
                ));
            }
        }
        let conditions = conditions(listing, chain)?;
        if !conditions.is_empty() {
            all.conditions.insert(family, words::to_nftables(&conditions, family)?);
        }
    }
    all.ports.dedup();
    let mut containers: Vec<IpAddr> = all.ports.iter().map(|port| port.container).collect();
    containers.dedup();
    if let [_, other, ..] = containers.as_slice() {
        return Err(format!("two interfaces of the container share its chain, {other} is one of them"));
    }
    all.mapped = all.ports.iter().map(|port| (port.host.protocol, port.host.first)).collect();
    let oldest = chains.iter().any(|chain| chain.starts_with(names::SNAT_PREFIX));
    all.snat = match marked.as_slice() {
        [] if oldest => Snat::Needed,
        [] => Snat::Never,
        some if some.contains(&None) => Snat::Always,
        _ => Snat::Needed,
    };
    for address in containers {
        let network = marked.iter().flatten().find(|net| net.contains(&address));
        let network = network.and_then(|net| IpNet::new(address, net.prefix_len()).ok());
        all.networks.push(network.unwrap_or_else(|| IpNet::from(address)));
    }
    Ok(What::Ports(all))
}

/// The bit that the shared chain sets. Where it sets several, the usual one is taken if it is among them:
/// each of them is set for everybody.
fn mark_bit(listing: &Listing) -> u8 {
    let bit = |rule: &ListedRule| {
        let at = rule.0.iter().position(|word| word == "--set-xmark")?;
        let value = rule.0.get(at + 1)?.split('/').next()?.strip_prefix("0x")?;
        let value = u32::from_str_radix(value, 16).ok().filter(|value| value.is_power_of_two())?;
        u8::try_from(value.trailing_zeros()).ok()
    };
    let bits: Vec<u8> = listing.rules(names::HOSTPORT_SETMARK).iter().filter_map(bit).collect();
    let usual = crate::nftables::schema::DEFAULT_MARK_BIT;
    if bits.contains(&usual) { usual } else { bits.first().copied().unwrap_or(usual) }
}

/// What entry rules ask for beside protocol and ports.
fn conditions(listing: &Listing, chain: &str) -> Result<Vec<String>, String> {
    let entries = listing.rules(names::HOSTPORT_DNAT).iter().filter(|rule| rule.target() == Some(chain));
    let mut all: Vec<Vec<String>> = entries.map(beyond).collect();
    all.dedup();
    match all.as_slice() {
        [] => Ok(Vec::new()),
        [one] => Ok(one.clone()),
        _ => Err(format!("the rules that lead to chain {chain} have different conditions")),
    }
}

fn beyond(rule: &ListedRule) -> Vec<String> {
    let (mut left, mut words) = (Vec::new(), rule.0.iter().map(String::as_str).peekable());
    while let Some(word) = words.next() {
        match word {
            "-j" | "-p" | "--comment" | "--dports" | "--dport" => {
                words.next();
            }
            "-m" if words
                .peek()
                .is_some_and(|m| ["comment", "multiport", "tcp", "udp", "sctp"].contains(m)) =>
            {
                words.next();
            }
            other => left.push(other.to_owned()),
        }
    }
    left
}

fn read_masquerade(listing: &Listing, chains: &BTreeSet<String>) -> Result<What, String> {
    let mut all = Vec::new();
    for chain in chains {
        let (stays, rest): (Vec<&ListedRule>, Vec<&ListedRule>) =
            listing.rules(chain).iter().partition(|rule| rule.target() == Some("ACCEPT"));
        let networks: Vec<IpNet> = stays.iter().filter_map(|rule| rule.destination()).collect();
        let expected = networks.len() == stays.len()
            && matches!(rest.as_slice(), [rule] if rule.target() == Some("MASQUERADE"));
        if !expected {
            return Err(format!("chain {chain} has other rules than the plugins make"));
        }
        let jumps = listing.rules("POSTROUTING").iter().filter(|rule| rule.target() == Some(chain));
        for address in jumps.filter_map(|rule| rule.source().map(|net| net.addr())) {
            let network = networks.iter().find(|net| net.contains(&address));
            let prefix =
                network.ok_or_else(|| format!("chain {chain} has no network for {address}"))?.prefix_len();
            all.extend(IpNet::new(address, prefix));
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(What::Masquerade(all))
}

/// Removes the chains of these containers and what leads to them, by one input of the tool for each family;
/// conntrack is left alone. Those are spared of which `is_over` is not true any more when nobody writes. Returns whether
/// that could be made sure.
pub(crate) fn take_away<T>(found: &[(&Found, T)], is_over: impl Fn(&T) -> bool) -> Result<bool, Error> {
    let alone = apply::nobody_writes();
    let over: Vec<&Found> = found.iter().filter(|(_, whose)| is_over(whose)).map(|(one, _)| *one).collect();
    for variant in Variant::ALL {
        for family in AddressFamily::BOTH {
            let here = over.iter().filter(|one| one.variant == variant && one.families.contains(&family));
            let chains: Vec<ChainName> =
                here.flat_map(|one| &one.chains).filter_map(|name| ChainName::new(name).ok()).collect();
            if !chains.is_empty() {
                withdraw::remove_chains(&Tools::new(variant), family, &chains)?;
            }
        }
    }
    Ok(alone.is_some())
}
