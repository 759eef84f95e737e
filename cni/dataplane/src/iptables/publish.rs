// SPDX-License-Identifier: GPL-2.0-or-later

//! ADD: makes the chains of one container match a plan, with one input of the tool for each family.
//!
//! No lock is held between reading and writing. If another process has made or deleted something in the meantime, the
//! tool refuses the input, because it would make a chain that exists or delete a rule that does not. The chains are
//! then read again. Two ADDs of the same port do not see each other before they write, but afterwards they do,
//! because each rule has a position in the chain of entry rules.

use std::io;

use cni_kernel::lock::FileLock;
use cni_spec::Attachment;

use super::batch::Batch;
use super::listing::Listing;
use super::names::{self, CommentOwner, OUTPUT, POSTROUTING, PREROUTING, TableName};
use super::plan::{MasqueradePlan, PortPlan};
use super::rule::{PortKey, Rule};
use super::tools::{PATIENCE, Tools};
use crate::lock::{self, Mode};
use crate::{AddressFamily, Error};

/// The lock that is held while the rules that all containers share are made.
const SHARED_RULES_LOCK: &str = "iptables.lock";
/// Shared by processes that write a container's rules, and exclusive for a migration that empties old places, and for a
/// withdrawal with a condition.
const MIGRATION_LOCK: &str = "iptables-moving.lock";

/// A port that the plan publishes and that belongs to another container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) key: PortKey,
    pub(crate) family: AddressFamily,
    /// The other container's chain of mappings.
    pub(crate) chain: String,
    /// The other container, as the entry rule's comment names it.
    pub(crate) owner: Option<CommentOwner>,
    /// True if the container's entry rule comes after those of the plan.
    pub(crate) is_behind: bool,
}

/// The position of a container's entry rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// After the entry rules of other containers, as with the reference plugin.
    Last,
    /// Before those of other containers, so that a mapping of one host address precedes one of all addresses.
    First,
}

/// Who uses a container's chains, whose names do not contain the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainUse {
    /// No other living attachment of the container is known, so the chains contain only this attachment's rules.
    Exclusive,
    /// Another attachment of the same container to the same network has rules in the chains, which must stay.
    Shared,
}

/// The chains that a plan for ports reads and changes.
fn port_chains(plan: &PortPlan) -> [&str; 7] {
    let shared = [names::HOSTPORT_DNAT, names::HOSTPORT_SETMARK, names::HOSTPORT_MASQ];
    let [dnat, setmark, masq] = shared;
    [PREROUTING, OUTPUT, POSTROUTING, dnat, setmark, masq, plan.chain.as_str()]
}

pub(crate) fn read_for_ports(tools: &Tools, plan: &PortPlan) -> Result<Listing, Error> {
    tools.read(&port_chains(plan))
}

/// Publishes the ports of one family, starting from what was read of its chains. Returns the position of the entry
/// rules.
pub(crate) fn publish(
    tools: &Tools,
    plan: &PortPlan,
    attachment: &Attachment,
    chain_use: ChainUse,
    mut seen: Listing,
) -> Result<Position, Error> {
    // Two processes that make the shared rules concurrently would make them twice, because iptables-nft appends rules
    // to a chain even if the chain was created after it had looked.
    let lacks_shared = plan.shared.iter().any(|wanted| !seen.contains(wanted.chain, &wanted.rule));
    let _lock = if lacks_shared {
        let lock = lock::take(SHARED_RULES_LOCK, Mode::Exclusive, PATIENCE);
        let lock = lock::or_log(lock, "the rules that all containers share may be made twice");
        seen = read_for_ports(tools, plan)?;
        lock
    } else {
        None
    };
    let mut position = Position::Last;
    tools.update(
        &format!("publish the ports of {attachment}"),
        &port_chains(plan),
        Some(seen),
        |listing| {
            let hidden = hidden_by_wildcards(listing, plan);
            position = if hidden { Position::First } else { Position::Last };
            port_changes(listing, plan, position, chain_use)
        },
    )?;
    Ok(position)
}

/// Takes the lock under which a container's owner and rules are written.
///
/// Chains are named after the container, so the chains of a container that was added again have the same names. The
/// lock keeps a migration from deleting the new chains together with those in the old place, and `restore` from
/// deleting them in place of those that it has made itself.
pub(crate) fn lock_for_writing() -> Option<FileLock> {
    lock::or_log(
        lock::take(MIGRATION_LOCK, Mode::Shared, PATIENCE),
        "a migration or a restore may delete new chains",
    )
}

/// Takes the same lock for a migration that empties old places.
pub(crate) fn lock_for_emptying() -> Option<FileLock> {
    lock::or_log(
        lock::take(MIGRATION_LOCK, Mode::Exclusive, PATIENCE),
        "containers may be added concurrently",
    )
}

/// Takes the same lock for a withdrawal that depends on the owner's record.
///
/// The input of `iptables-restore` cannot carry that condition: it has no command that compares anything, and the
/// record is in another table, which the program neither reads nor changes. So the lock is held from the look at the
/// record to the removal. An ADD writes the record before the chains, and shares the lock meanwhile. While the lock is
/// held exclusively, a later ADD has therefore either made its record, or has made nothing yet.
///
/// # Errors
/// [`Error::Kernel`] if the lock is not acquired, because then the chains may be those of a later ADD.
pub(crate) fn lock_for_condition() -> Result<FileLock, Error> {
    lock::take(MIGRATION_LOCK, Mode::Exclusive, PATIENCE)
        .map_err(|error| Error::kernel("exclude concurrent ADDs", io::Error::other(error)))
}

/// The changes that make the chains match the plan.
pub(crate) fn port_changes(
    listing: &Listing,
    plan: &PortPlan,
    position: Position,
    chain_use: ChainUse,
) -> Batch {
    let chain = plan.chain.as_str();
    let mut batch = Batch::new(TableName::Nat);
    for wanted in plan.shared.iter().filter(|wanted| !listing.contains(wanted.chain, &wanted.rule)) {
        batch.make_chain(listing, wanted.needs);
        if wanted.first {
            batch.insert(wanted.chain, &wanted.rule);
        } else {
            batch.append(wanted.chain, &wanted.rule);
        }
    }
    if chain_use == ChainUse::Shared && listing.has(chain) {
        add_ports(&mut batch, listing, plan);
        return batch;
    }
    batch.make_chain(listing, names::HOSTPORT_DNAT);
    set_rules(&mut batch, listing, chain, &plan.rules);
    // The position matters only for conflicts, and these are checked again after the commit.
    let is_same = listing.jumps(names::HOSTPORT_DNAT, chain).eq(&plan.entries);
    if is_same && position == Position::Last {
        return batch;
    }
    for old in listing.jumps(names::HOSTPORT_DNAT, chain) {
        batch.delete(names::HOSTPORT_DNAT, old);
    }
    if position == Position::First {
        plan.entries.iter().rev().for_each(|rule| batch.insert(names::HOSTPORT_DNAT, rule));
    } else {
        plan.entries.iter().for_each(|rule| batch.append(names::HOSTPORT_DNAT, rule));
    }
    batch
}

/// Adds ports to those that another attachment of the container has in the same chain. A port that both have stays
/// with the other attachment.
fn add_ports(batch: &mut Batch, listing: &Listing, plan: &PortPlan) {
    let chain = plan.chain.as_str();
    let taken: Vec<PortKey> = listing.rules(chain).iter().filter_map(Rule::key).collect();
    let is_new = |rule: &&Rule| rule.key().is_none_or(|key| !taken.contains(&key));
    plan.rules.iter().filter(is_new).for_each(|rule| batch.append(chain, rule));
    let has_entry =
        |key: &&PortKey| listing.jumps(names::HOSTPORT_DNAT, chain).any(|entry| entry.has_port_of(key));
    let missing: Vec<&PortKey> = plan.keys.iter().filter(|key| !has_entry(key)).collect();
    for entry in &plan.entries {
        if missing.iter().any(|key| entry.has_port_of(key)) {
            batch.append(names::HOSTPORT_DNAT, entry);
        }
    }
}

/// Replaces the rules of the chain with these.
pub(super) fn set_rules(batch: &mut Batch, listing: &Listing, chain: &str, rules: &[Rule]) {
    if listing.has(chain) {
        if listing.rules(chain) == rules {
            return;
        }
        batch.flush(chain);
    } else {
        batch.make_chain(listing, chain);
    }
    rules.iter().for_each(|rule| batch.append(chain, rule));
}

/// True if another container's entry rule comes before those of the plan and matches a port that the plan publishes
/// on a single address. The other container's addresses are in its own chain, which is not read, because it does no
/// harm to precede a rule that would not have matched.
fn hidden_by_wildcards(listing: &Listing, plan: &PortPlan) -> bool {
    let chain = plan.chain.as_str();
    let mut before =
        listing.rules(names::HOSTPORT_DNAT).iter().take_while(|rule| rule.target() != Some(chain));
    before.any(|rule| plan.keys.iter().any(|key| key.address.is_some() && rule.has_port_of(key)))
}

/// Finds the ports of the plan that other containers have. For entry rules with one of the ports, also reads the
/// containers' chains, which contain the host addresses.
pub(crate) fn conflicts(tools: &Tools, listing: &Listing, plan: &PortPlan) -> Result<Vec<Conflict>, Error> {
    let chain = plan.chain.as_str();
    let entries = || listing.rules(names::HOSTPORT_DNAT).iter().enumerate();
    let suspects: Vec<(usize, &Rule, &str)> = entries()
        .filter_map(|(i, rule)| Some((i, rule, rule.target()?)))
        .filter(|(_, rule, target)| *target != chain && plan.keys.iter().any(|key| rule.has_port_of(key)))
        .collect();
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    let mut chains: Vec<&str> = suspects.iter().map(|(_, _, target)| *target).collect();
    chains.sort_unstable();
    chains.dedup();
    let others = tools.read(&chains)?;
    let own = entries().find(|(_, rule)| rule.target() == Some(chain)).map(|(i, _)| i);
    let mut found = Vec::new();
    for (i, entry, target) in suspects {
        for rule in others.rules(target).iter().filter(|rule| rule.translation().is_some()) {
            let taken = plan.keys.iter().filter(|key| {
                entry.has_port_of(key)
                    && rule.has_port_of(key)
                    && rule.destination().map(|net| net.addr()) == key.address
            });
            found.extend(taken.map(|key| Conflict {
                key: *key,
                family: plan.family,
                chain: target.to_owned(),
                owner: entry.owner(),
                is_behind: own.is_some_and(|own| own < i),
            }));
        }
    }
    Ok(found)
}

fn masquerade_chains(plan: &MasqueradePlan) -> [&str; 2] {
    [POSTROUTING, plan.chain.as_str()]
}

pub(crate) fn read_for_masquerade(tools: &Tools, plan: &MasqueradePlan) -> Result<Listing, Error> {
    tools.read(&masquerade_chains(plan))
}

/// Masquerades the addresses of one family.
pub(crate) fn masquerade(
    tools: &Tools,
    plan: &MasqueradePlan,
    attachment: &Attachment,
    chain_use: ChainUse,
) -> Result<(), Error> {
    let operation = format!("masquerade the addresses of {attachment}");
    tools.update(&operation, &masquerade_chains(plan), None, |listing| {
        masquerade_changes(listing, plan, chain_use)
    })
}

/// The changes that make the chains match the plan.
pub(crate) fn masquerade_changes(listing: &Listing, plan: &MasqueradePlan, chain_use: ChainUse) -> Batch {
    let mut batch = Batch::new(TableName::Nat);
    let chain = plan.chain.as_str();
    if chain_use == ChainUse::Shared && listing.has(chain) {
        // The rules are inserted, so that packets that keep their source are accepted before a rule masquerades them.
        for rule in plan.rules.iter().filter(|rule| !listing.contains(chain, rule)) {
            batch.insert(chain, rule);
        }
    } else {
        set_rules(&mut batch, listing, chain, &plan.rules);
    }
    let present = || listing.jumps(POSTROUTING, chain);
    if chain_use == ChainUse::Exclusive {
        present().filter(|rule| !plan.jumps.contains(rule)).for_each(|rule| batch.delete(POSTROUTING, rule));
    }
    for rule in plan.jumps.iter().filter(|wanted| !present().any(|rule| rule == *wanted)) {
        batch.append(POSTROUTING, rule);
    }
    batch
}
