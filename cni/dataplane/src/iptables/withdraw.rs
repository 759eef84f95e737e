//! Taking away: chains of one container, or of all that are no longer valid, whoever made them and in
//! whichever of the layouts that there have been.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_spec::Attachment;

use super::apply::{entries_of, settle};
use super::listing::{ListedRule, Listing};
use super::names::{self, ChainName, CommentOwner};
use super::rule::{Batch, Op};
use super::tools::{Tools, nat_table};
use crate::{AddressFamily, Error, HostAddress, HostPorts, Kinds, PublishedPort};

/// The chains that hold rules which lead to containers' chains.
pub(crate) const LEADING: [&str; 3] = [names::HOSTPORT_DNAT, names::HOSTPORT_SNAT, "POSTROUTING"];

/// The chains that a container may have of these kinds.
pub(crate) fn own_chains(attachment: &Attachment, kinds: Kinds) -> Vec<ChainName> {
    let mut chains = Vec::new();
    if kinds.ports() {
        chains.push(ChainName::dnat(attachment));
        chains.push(ChainName::old_snat(attachment));
    }
    if kinds.masquerade() {
        chains.push(ChainName::masquerade(attachment));
    }
    chains
}

/// Removes these chains and all rules that lead to them. Returns what was published by them.
pub(crate) fn remove_chains(
    tools: &Tools,
    family: AddressFamily,
    chains: &[ChainName],
) -> Result<Vec<PublishedPort>, Error> {
    let wanted: BTreeSet<String> = chains.iter().map(ToString::to_string).collect();
    let all: Vec<&str> = LEADING.into_iter().chain(wanted.iter().map(String::as_str)).collect();
    let mut gone = Vec::new();
    let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let operation = format!("remove the chains {} of {}", names.join(", "), nat_table(family));
    settle(
        tools,
        &operation,
        || tools.read(family, &all),
        |listing| {
            for chain in &wanted {
                gone.extend(listing.rules(chain).iter().filter_map(published));
            }
            Ok(removal(listing, family, &wanted))
        },
    )?;
    gone.sort_unstable();
    gone.dedup();
    Ok(gone)
}

/// Removes the rules about these addresses from the chains, which other attachments of the same
/// container have rules in, and the rules that lead to nothing any longer. Returns what was published
/// by them.
pub(crate) fn remove_addresses(
    tools: &Tools,
    family: AddressFamily,
    (chains, addresses): (&[ChainName], &[IpAddr]),
) -> Result<Vec<PublishedPort>, Error> {
    let names: Vec<&str> = chains.iter().map(ChainName::as_str).collect();
    let all: Vec<&str> = LEADING.into_iter().chain(names.iter().copied()).collect();
    let mut gone = Vec::new();
    let operation =
        format!("remove an attachment's rules from {} of {}", names.join(", "), nat_table(family));
    settle(
        tools,
        &operation,
        || tools.read(family, &all),
        |listing| {
            let mut batch = Batch::new(family);
            for chain in &names {
                gone.extend(remove_from_chain(&mut batch, listing, (chain, addresses)));
            }
            Ok(batch)
        },
    )?;
    Ok(gone)
}

fn remove_from_chain(
    batch: &mut Batch,
    listing: &Listing,
    (chain, addresses): (&str, &[IpAddr]),
) -> Vec<PublishedPort> {
    let jumps = listing.rules("POSTROUTING").iter().filter(|rule| rule.target() == Some(chain));
    let is_source = |rule: &&ListedRule| rule.source().is_some_and(|net| addresses.contains(&net.addr()));
    for rule in jumps.filter(is_source) {
        batch.push(Op::Delete("POSTROUTING".to_owned(), rule.0.clone()));
    }
    let published: Vec<PublishedPort> = listing.rules(chain).iter().filter_map(published).collect();
    let (gone, left): (Vec<_>, Vec<_>) =
        published.into_iter().partition(|port| addresses.contains(&port.container));
    let keys: Vec<_> = listing
        .rules(chain)
        .iter()
        .filter(|rule| rule.dnat().is_some_and(|to| addresses.contains(&to.ip())))
        .filter_map(ListedRule::key)
        .collect();
    // With the rules that set the mark for the same ports.
    for rule in listing.rules(chain).iter().filter(|rule| rule.key().is_some_and(|key| keys.contains(&key))) {
        batch.push(Op::Delete(chain.to_owned(), rule.0.clone()));
    }
    let leads_on = |entry: &&ListedRule| {
        left.iter().any(|port| entry.has_port(port.host.protocol, port.host.first))
            || !gone.iter().any(|port| entry.has_port(port.host.protocol, port.host.first))
    };
    for entry in entries_of(listing, chain).filter(|entry| !leads_on(entry)) {
        batch.push(Op::Delete(names::HOSTPORT_DNAT.to_owned(), entry.0.clone()));
    }
    gone
}

/// The changes that remove chains and what leads to them.
pub(crate) fn removal(listing: &Listing, family: AddressFamily, chains: &BTreeSet<String>) -> Batch {
    let mut batch = Batch::new(family);
    let leads = |rule: &&ListedRule| rule.target().is_some_and(|target| chains.contains(target));
    let old_goes = remove_old_entry_chain(&mut batch, listing, chains);
    for from in LEADING.into_iter().filter(|from| !old_goes || *from != names::HOSTPORT_SNAT) {
        for rule in listing.rules(from).iter().filter(leads) {
            batch.push(Op::Delete(from.to_owned(), rule.0.clone()));
        }
    }
    let present: Vec<&String> = chains.iter().filter(|chain| listing.has(chain)).collect();
    for chain in &present {
        batch.push(Op::Flush((*chain).clone()));
    }
    for chain in present {
        batch.push(Op::DeleteChain(chain.clone()));
    }
    batch
}

/// The oldest layout's chain of entry rules goes with its last rule. (Those of today stay, as with
/// the reference.) It is emptied as a whole: the nft variant would do that last of all otherwise, and
/// the containers' chains could not go before.
fn remove_old_entry_chain(batch: &mut Batch, listing: &Listing, chains: &BTreeSet<String>) -> bool {
    let leads = |rule: &ListedRule| rule.target().is_some_and(|target| chains.contains(target));
    let old = names::HOSTPORT_SNAT;
    if !listing.has(old) || !listing.rules(old).iter().all(leads) {
        return false;
    }
    for rule in listing.rules("POSTROUTING").iter().filter(|rule| rule.target() == Some(old)) {
        batch.push(Op::Delete("POSTROUTING".to_owned(), rule.0.clone()));
    }
    batch.push(Op::Flush(old.to_owned()));
    batch.push(Op::DeleteChain(old.to_owned()));
    true
}

/// The mapping that a rule of a container's chain makes.
pub(crate) fn published(rule: &ListedRule) -> Option<PublishedPort> {
    let to = rule.dnat()?;
    let protocol = rule.protocol()?;
    let (first, last) = rule.ports().first().copied()?;
    let family = AddressFamily::of(to.ip());
    let address = match rule.destination() {
        Some(net) => HostAddress::One(net.addr()),
        None => HostAddress::Any(family),
    };
    let host = HostPorts { protocol, address, first, last };
    Some(PublishedPort { host, container: to.ip(), container_port: to.port() })
}

/// A container that has chains, as the rules that lead to them tell it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Known {
    pub(crate) owner: CommentOwner,
    /// The chain's name, as it is in the kernel.
    pub(crate) chain: String,
    /// Whether it is for published ports.
    pub(crate) ports: bool,
    /// The container's address, where the rule names it.
    pub(crate) address: Option<IpAddr>,
}

/// All containers' chains that rules with a comment of ours or the reference's lead to.
pub(crate) fn known(listing: &Listing) -> Vec<Known> {
    let mut all = Vec::new();
    for from in LEADING {
        for rule in listing.rules(from) {
            let (Some(owner), Some(chain)) = (rule.owner(), rule.target()) else { continue };
            // A comment may be anybody's; these chains' names are not.
            let ports = [names::DNAT_PREFIX, names::SNAT_PREFIX].iter().any(|is| chain.starts_with(is));
            if !chain.starts_with(names::MASQUERADE_PREFIX) || (from == "POSTROUTING") == ports {
                continue;
            }
            let address = rule.source().map(|net| net.addr()).filter(|_| !ports);
            all.push(Known { owner, chain: chain.to_owned(), ports, address });
        }
    }
    all.sort();
    all.dedup();
    all
}

/// Removes the chains of attachments of `network` that are not in `valid`. Returns what was
/// published by them.
pub(crate) fn retain(
    tools: &Tools,
    family: AddressFamily,
    (network, valid): (&str, &[Attachment]),
    kinds: Kinds,
) -> Result<Vec<PublishedPort>, Error> {
    let listing = tools.read(family, &LEADING)?;
    let condemned: BTreeSet<String> = known(&listing)
        .into_iter()
        .filter(|known| if known.ports { kinds.ports() } else { kinds.masquerade() })
        .filter(|known| known.owner.network == network && !valid.iter().any(|a| known.owner.is(a)))
        .map(|known| known.chain)
        .collect();
    let chains: Vec<ChainName> = condemned.iter().filter_map(|name| ChainName::new(name).ok()).collect();
    if chains.is_empty() { Ok(Vec::new()) } else { remove_chains(tools, family, &chains) }
}
