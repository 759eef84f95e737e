// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads our own table and derives the requests from which it was made.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_nftables::{Cmp, Field, Stmt, Value};
use ipnet::IpNet;

use crate::iptables::chain_reader::{Content, MasqueradeContent, PortContent};
use crate::iptables::{self, Untranslatable};
use crate::nftables::exempt;
use crate::nftables::liveness::Record;
use crate::nftables::migration::{Key, Transit};
use crate::nftables::network_chains::AllChains;
use crate::nftables::plan;
use crate::nftables::schema::{self, KIND_MASQUERADE, KIND_PORTS, Map, SharedChain};
use crate::nftables::session::{Listing, OwnedElement, Session};
use crate::owner::AttachmentHash;
use crate::{AddressFamily, ContainerNetns, Error, Loopback, Owner, Snat};

/// The elements of one kind that belong to one attachment.
#[derive(Debug, Clone)]
pub(crate) struct AttachmentElements {
    pub(crate) owner: Owner,
    pub(crate) netns: ContainerNetns,
    pub(crate) transit: Transit,
    /// The content, or the reason why it does not correspond to any request.
    pub(crate) content: Result<Content, Unreadable>,
}

/// Why an attachment's elements do not correspond to any request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error(transparent)]
    Condition(#[from] Untranslatable),
    #[error("map {map} sends {container} to an unknown chain")]
    UnknownChain { map: &'static str, container: IpAddr },
    #[error("a condition in its chain cannot be read back")]
    UnknownCondition,
    #[error("its chain has no rule that translates")]
    NoTranslation,
    #[error("an element has no address")]
    NoAddress,
}

/// Reads the elements of all attachments.
pub(crate) fn all(session: &Session) -> Result<BTreeMap<Key, AttachmentElements>, Error> {
    let mut elements: BTreeMap<Key, Vec<OwnedElement>> = BTreeMap::new();
    let mut entries = Vec::new();
    for held in session.dump(Map::all(), |held| held.owner.is_some())? {
        let Some(owner) = &held.owner else { continue };
        match (held.map, held.key.as_slice()) {
            (Map::Owners, [_, Value::Mark(kind)]) if [KIND_PORTS, KIND_MASQUERADE].contains(kind) => {
                entries.push((Key { hash: owner.attachment_hash, kind: *kind }, held));
            }
            (Map::Owners, _) => {}
            (map, _) => {
                let key = Key { hash: owner.attachment_hash, kind: map.kind() };
                elements.entry(key).or_default().push(held);
            }
        }
    }
    let chains = AllChains::read(session, Listing::OneGeneration)?;
    let mut all = BTreeMap::new();
    for (key, entry) in entries {
        let Some(owner) = entry.owner.clone() else { continue };
        let mut of_it = elements.remove(&key).unwrap_or_default();
        of_it.sort_by(|a, b| format!("{:?}", a.key).cmp(&format!("{:?}", b.key)));
        let content = match key.kind {
            KIND_PORTS => read_ports(session, key.hash, (&of_it, &chains))?,
            _ => read_masquerade(session, &of_it, &chains)?,
        };
        let netns = entry.record.as_ref().and_then(Record::here);
        let netns = netns.unwrap_or_else(ContainerNetns::unknown);
        all.insert(key, AttachmentElements { owner, netns, transit: entry.transit(), content });
    }
    Ok(all)
}

fn read_ports(
    session: &Session,
    hash: AttachmentHash,
    (held, chains): (&[OwnedElement], &AllChains),
) -> Result<Result<Content, Unreadable>, Error> {
    let mut all = PortContent { bit: schema::DEFAULT_MARK_BIT, ..PortContent::default() };
    all.ports = held.iter().filter_map(crate::nftables::published).collect();
    all.ports.sort_unstable();
    all.mapped = Vec::new();
    for port in &all.ports {
        for number in port.host.ports() {
            let mapped = (port.host.protocol, number);
            if !all.mapped.contains(&mapped) {
                all.mapped.push(mapped);
            }
        }
    }
    for published in held.iter().filter(|held| matches!(held.map, Map::Published(_))) {
        let Some(container) = published.address() else { continue };
        let map = Map::Hairpin(AddressFamily::of(container));
        let network = match chains.of(map, container) {
            Some(SharedChain::Hairpin { network, others, bit }) => {
                all.elsewhere.extend(others);
                (all.snat, all.bit) = (Snat::Needed, bit);
                IpNet::new(container, network.prefix_len()).ok()
            }
            Some(SharedChain::HairpinAll { bit, .. }) => {
                (all.snat, all.bit) = (Snat::Always, bit);
                None
            }
            Some(SharedChain::HairpinNone { bit, .. }) => {
                (all.snat, all.bit) = (Snat::Never, bit);
                None
            }
            _ => return Ok(Err(Unreadable::UnknownChain { map: map.name(), container })),
        };
        all.networks.push(network.unwrap_or_else(|| IpNet::from(container)));
    }
    all.networks.sort_unstable();
    for family in AddressFamily::BOTH {
        let name = schema::own_chain(&hash, family);
        if session.chain(&name)?.is_none() {
            continue;
        }
        let rules = session.socket.rules(&session.table, &name);
        let rules = rules.map_err(|e| Error::kernel(format!("list the rules of chain {name}"), e))?;
        match read_own_chain(rules.into_iter().map(|rule| rule.stmts).collect(), family) {
            Ok((words, loopback)) => {
                if loopback == Loopback::Spared {
                    all.loopback = loopback;
                }
                if !words.is_empty() {
                    all.conditions.insert(family, words);
                }
            }
            Err(why) => return Ok(Err(why)),
        }
    }
    Ok(Ok(Content::Ports(all)))
}

/// Reads the conditions, and returns them in the syntax of iptables. The last rule that translates is the one for all
/// addresses.
fn read_own_chain(
    rules: Vec<Option<Vec<Stmt>>>,
    family: AddressFamily,
) -> Result<(Vec<String>, Loopback), Unreadable> {
    let rules: Option<Vec<Vec<Stmt>>> = rules.into_iter().collect();
    let rules = rules.ok_or(Unreadable::UnknownCondition)?;
    let translate = Stmt::goto(schema::translate_chain(family));
    let general = rules.iter().rev().find(|rule| rule.last() == Some(&translate));
    let general = general.ok_or(Unreadable::NoTranslation)?;
    let (mut words, mut loopback) = (Vec::new(), Loopback::Served);
    for stmt in general {
        match stmt {
            Stmt::SetMark { .. } | Stmt::Verdict(_) => {}
            Stmt::Match { fields, cmp: Cmp::Ne, to }
                if matches!(fields.as_slice(), [Field::IpDaddr | Field::Ip6Daddr])
                    && *to == schema::loopback(family) =>
            {
                loopback = Loopback::Spared;
            }
            other => words.extend(iptables::to_iptables(other)?),
        }
    }
    Ok((words, loopback))
}

fn read_masquerade(
    session: &Session,
    held: &[OwnedElement],
    chains: &AllChains,
) -> Result<Result<Content, Unreadable>, Error> {
    let mut all = MasqueradeContent::default();
    for one in held.iter().filter(|held| matches!(held.map, Map::Masqueraded(_))) {
        let Some(address) = one.address() else {
            return Ok(Err(Unreadable::NoAddress));
        };
        let map = Map::Masquerade(AddressFamily::of(address));
        let Some(SharedChain::Masquerade { network, exempt }) = chains.of(map, address) else {
            return Ok(Err(Unreadable::UnknownChain { map: map.name(), container: address }));
        };
        all.addresses.extend(IpNet::new(address, network.prefix_len()));
        if let Some(id) = exempt {
            all.exempt.extend(exempt::read(session, id)?.unwrap_or_default());
        }
    }
    for nets in [&mut all.addresses, &mut all.exempt] {
        nets.sort_unstable();
        nets.dedup();
    }
    Ok(Ok(Content::Masquerade(all)))
}

/// True if the table contains everything that a container has in another place.
pub(crate) fn covers(here: &Content, there: &Content) -> bool {
    match (here, there) {
        (Content::Masquerade(here), Content::Masquerade(there)) => {
            let has_all = |all: &[IpNet], some: &[IpNet]| some.iter().all(|net| all.contains(net));
            has_all(&here.addresses, &there.addresses)
                && has_all(&here.exempt, &there.exempt)
                && has_all(&there.exempt, &here.exempt)
        }
        (Content::Ports(here), Content::Ports(there)) => {
            let (here, there) = (plan::collapse(&here.ports), plan::collapse(&there.ports));
            there.iter().all(|port| here.contains(port))
        }
        _ => false,
    }
}
