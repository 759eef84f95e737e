// SPDX-License-Identifier: GPL-2.0-or-later

//! DEL and GC: removes chains of containers that Slipway or the reference plugins made, in any layout that was ever
//! used.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_spec::Attachment;

use super::batch::Batch;
use super::listing::Listing;
use super::names::{self, ChainName, CommentOwner, ENTRY_CHAINS, POSTROUTING, TableName};
use super::rule::{PortKey, Rule};
use super::tools::{Tools, nat_table};
use crate::{Error, Kinds, PublishedPort};

/// Changes the given chains and those that jump to them. Returns the ports that are no longer published.
fn update(
    tools: &Tools,
    action: &str,
    chains: &[&str],
    mut changes: impl FnMut(&Listing) -> (Batch, Vec<PublishedPort>),
) -> Result<Vec<PublishedPort>, Error> {
    let operation = format!("{action} {} of {}", chains.join(", "), nat_table(tools.family));
    let all: Vec<&str> = ENTRY_CHAINS.into_iter().chain(chains.iter().copied()).collect();
    let mut unpublished = Vec::new();
    tools.update(&operation, &all, None, |listing| {
        let (batch, ports) = changes(listing);
        unpublished.extend(ports);
        batch
    })?;
    unpublished.sort_unstable();
    unpublished.dedup();
    Ok(unpublished)
}

/// Removes these chains and all rules that jump to them. Returns the ports that they published.
pub(crate) fn remove_chains(tools: &Tools, chains: &[ChainName]) -> Result<Vec<PublishedPort>, Error> {
    let wanted: BTreeSet<&str> = chains.iter().map(ChainName::as_str).collect();
    let wanted: Vec<&str> = wanted.into_iter().collect();
    update(tools, "remove the chains", &wanted, |listing| {
        let ports = wanted.iter().flat_map(|chain| listing.rules(chain)).filter_map(Rule::published);
        (removal(listing, &wanted), ports.collect())
    })
}

/// Removes the rules for these addresses from chains that other attachments of the same container use as well, and
/// the entry rules that then lead to nothing. Returns the ports that the rules published.
pub(crate) fn remove_addresses(
    tools: &Tools,
    chains: &[ChainName],
    addresses: &[IpAddr],
) -> Result<Vec<PublishedPort>, Error> {
    let chains: Vec<&str> = chains.iter().map(ChainName::as_str).collect();
    update(tools, "remove an attachment's rules from", &chains, |listing| {
        let mut batch = Batch::new(TableName::Nat);
        let removed =
            chains.iter().flat_map(|chain| remove_from_chain(&mut batch, listing, chain, addresses));
        let removed = removed.collect();
        (batch, removed)
    })
}

fn remove_from_chain(
    batch: &mut Batch,
    listing: &Listing,
    chain: &str,
    addresses: &[IpAddr],
) -> Vec<PublishedPort> {
    let is_source = |rule: &&Rule| rule.source().is_some_and(|net| addresses.contains(&net.addr()));
    for rule in listing.jumps(POSTROUTING, chain).filter(is_source) {
        batch.delete(POSTROUTING, rule);
    }
    let rules = || listing.rules(chain).iter();
    let (removed, kept): (Vec<PublishedPort>, Vec<PublishedPort>) =
        rules().filter_map(Rule::published).partition(|port| addresses.contains(&port.container));
    let translates = |rule: &&Rule| rule.translation().is_some_and(|to| addresses.contains(&to.ip()));
    let keys: Vec<PortKey> = rules().filter(translates).filter_map(Rule::key).collect();
    // The rules that translate, and also those that set the mark for the same ports.
    for rule in rules().filter(|rule| rule.key().is_some_and(|key| keys.contains(&key))) {
        batch.delete(chain, rule);
    }
    let matches_any = |entry: &Rule, ports: &[PublishedPort]| {
        ports.iter().any(|port| {
            entry.has_port_of(&PortKey { protocol: port.host.protocol, address: None, port: port.host.first })
        })
    };
    let is_empty = |entry: &&Rule| matches_any(entry, &removed) && !matches_any(entry, &kept);
    for entry in listing.jumps(names::HOSTPORT_DNAT, chain).filter(is_empty) {
        batch.delete(names::HOSTPORT_DNAT, entry);
    }
    removed
}

/// The changes that remove chains and the rules that jump to them.
pub(crate) fn removal(listing: &Listing, chains: &[&str]) -> Batch {
    let mut batch = Batch::new(TableName::Nat);
    // The chain of entry rules in the oldest layout is removed with its last rule. The current one stays, as with the
    // reference plugin. The chain is flushed as a whole, because the nft variant would commit deletions of single
    // rules last, and could not delete the containers' chains before that.
    let old = names::HOSTPORT_SNAT;
    let is_last = |rule: &Rule| rule.target().is_some_and(|target| chains.contains(&target));
    let old_goes = listing.has(old) && listing.rules(old).iter().all(is_last);
    if old_goes {
        batch.delete_jumps(listing, POSTROUTING, &[old]);
        batch.delete_chains(listing, &[old]);
    }
    for from in ENTRY_CHAINS.into_iter().filter(|from| !old_goes || *from != old) {
        batch.delete_jumps(listing, from, chains);
    }
    batch.delete_chains(listing, chains);
    batch
}

/// A chain of a container, with the owner in the comment of a rule that jumps to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnedChain {
    pub(crate) owner: CommentOwner,
    /// The chain's name.
    pub(crate) chain: String,
    /// True for published ports, false for masquerade.
    pub(crate) ports: bool,
}

/// The chains of containers to which rules with a comment of Slipway or the reference plugins jump.
pub(crate) fn owned_chains(listing: &Listing) -> BTreeSet<OwnedChain> {
    let mut all = BTreeSet::new();
    for from in ENTRY_CHAINS {
        for rule in listing.rules(from) {
            let (Some(owner), Some(chain)) = (rule.owner(), rule.target()) else { continue };
            // Other programs may write such comments, so the name of the target must be one of ours as well.
            let ports = [names::DNAT_PREFIX, names::SNAT_PREFIX].iter().any(|is| chain.starts_with(is));
            if chain.starts_with(names::MASQUERADE_PREFIX) && (from == POSTROUTING) != ports {
                all.insert(OwnedChain { owner, chain: chain.to_owned(), ports });
            }
        }
    }
    all
}

/// Reads the rules that jump to chains of containers, `more` chains, and the containers' chains.
pub(crate) fn read_owned_chains(
    tools: &Tools,
    more: &[&str],
    wanted: impl Fn(&OwnedChain) -> bool,
) -> Result<(Listing, Vec<OwnedChain>), Error> {
    let mut listing = tools.read(&[&ENTRY_CHAINS[..], more].concat())?;
    let owned: Vec<OwnedChain> = owned_chains(&listing).into_iter().filter(wanted).collect();
    let unread: BTreeSet<&str> =
        owned.iter().map(|owned| owned.chain.as_str()).filter(|chain| !listing.has(chain)).collect();
    if !unread.is_empty() {
        let unread: Vec<&str> = unread.into_iter().collect();
        listing.merge(tools.read(&unread)?);
    }
    Ok((listing, owned))
}

/// Removes the chains of attachments of `network` that are not in `valid`. Returns the ports that they
/// published.
pub(crate) fn retain(
    tools: &Tools,
    network: &str,
    valid: &[Attachment],
    kinds: Kinds,
) -> Result<Vec<PublishedPort>, Error> {
    let chains: BTreeSet<String> = owned_chains(&tools.read(&ENTRY_CHAINS)?)
        .into_iter()
        .filter(|owned| if owned.ports { kinds.ports() } else { kinds.masquerade() })
        .filter(|owned| owned.owner.network == network && !valid.iter().any(|a| owned.owner.is(a)))
        .map(|owned| owned.chain)
        .collect();
    let chains: Vec<ChainName> = chains.iter().filter_map(|name| ChainName::new(name).ok()).collect();
    if chains.is_empty() { Ok(Vec::new()) } else { remove_chains(tools, &chains) }
}
