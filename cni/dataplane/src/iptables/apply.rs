//! Publishing and masquerading: the chains of one container become what a plan says, by one input of
//! the tool for each family.
//!
//! Nothing is locked between reading and writing. The tool refuses the whole input if a chain that is
//! to be made has come into being, or a rule that is to go has gone; then it is read again. What two
//! ADDs of the same port cannot see of each other before they write, they see afterwards: each rule
//! has its place in the chain of entries.

use std::path::Path;

use cni_kernel::dir::DurableDir;
use cni_kernel::lock::{FileLock, LockError};
use cni_spec::Attachment;

use super::listing::{ListedRule, Listing};
use super::names::{self, CommentOwner};
use super::plan::{Key, MasqueradePlan, PortPlan, Shared, shared};
use super::rule::{Batch, Op, Rule};
use super::tools::{PATIENCE, Refusal, Tools};
use crate::run_dir::RUN_DIR;
use crate::{AddressFamily, Error};

/// The lock under which the shared rules are made.
const LOCK: &str = "iptables.lock";
/// Its name for those who write, and those who empty.
const MOVING: &str = "iptables-moving.lock";

/// A container of somebody else that has what is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Clash {
    pub(crate) key: Key,
    pub(crate) family: AddressFamily,
    /// Its chain of mappings.
    pub(crate) chain: String,
    /// Who it is, by the entry rule's comment.
    pub(crate) owner: Option<CommentOwner>,
    /// Whether the rule comes after the attachment's own.
    pub(crate) behind: bool,
}

/// The chains that a plan for ports is about.
fn port_chains(plan: &PortPlan) -> Vec<&str> {
    let shared = ["PREROUTING", "OUTPUT", "POSTROUTING"];
    let ours = [names::HOSTPORT_DNAT, names::HOSTPORT_SETMARK, names::HOSTPORT_MASQ, plan.chain.as_str()];
    shared.into_iter().chain(ours).collect()
}

/// Reads what the plan is about.
pub(crate) fn read_for_ports(tools: &Tools, plan: &PortPlan) -> Result<Listing, Error> {
    tools.read(plan.family, &port_chains(plan))
}

/// Brings the ports of one family in place. Returns whether the entry rules had to go before those
/// of others.
///
/// `seen` is what was read a moment ago. That it is older than what is written does no harm: the tool
/// refuses what does not fit any more, and what two ADDs cannot see of each other is looked for after.
pub(crate) fn publish(
    tools: &Tools,
    plan: &PortPlan,
    (attachment, others): (&Attachment, Others),
    seen: Listing,
) -> Result<Place, Error> {
    let operation = format!("publish the ports of {attachment}");
    // Two that make the shared rules at the same moment make them twice: iptables-nft takes a chain that
    // has come into being meanwhile for its own, and appends.
    let (_alone, seen) = match lacks_shared(&seen, plan).then(alone) {
        Some(lock) => (lock, read_for_ports(tools, plan)?),
        None => (None, seen),
    };
    let mut place = Place::Behind;
    settle_from(
        seen,
        (tools, &operation),
        || read_for_ports(tools, plan),
        |listing| {
            let overtakes = wildcards_in_the_way(listing, plan);
            place = if overtakes { Place::Ahead } else { Place::Behind };
            Ok(port_changes(listing, plan, (place, others)))
        },
    )?;
    Ok(place)
}

/// Whether something is missing that the ports of all containers share.
fn lacks_shared(listing: &Listing, plan: &PortPlan) -> bool {
    shared(plan.mark_bit).iter().any(|wanted| !listing.contains(wanted.chain, &wanted.rule.words()))
}

/// Keeps others of us from making the same rules until it is dropped. Who cannot have it goes on without:
/// what stands there twice does no harm.
fn alone() -> Option<FileLock> {
    let lock = DurableDir::create(Path::new(RUN_DIR), 0o755)
        .map_err(|error| error.to_string())
        .and_then(|dir| FileLock::acquire(&dir, LOCK, 0o600, PATIENCE).map_err(|error| error.to_string()));
    lock.map_err(|error| log::debug!("{error}: the rules that all share may be made twice")).ok()
}

/// Held while a container's owner and its rules are written, by as many as do that at once.
///
/// Whoever moves containers elsewhere takes it for himself to empty their old places: chains have their names from the
/// container, and one that has come again since has others of the same name. Who cannot have it goes on without.
pub(crate) fn writing() -> Option<FileLock> {
    moving_lock(FileLock::share).map_err(|error| log::debug!("{error}: migrate may be at work")).ok()
}

/// The same for who empties places: none, if it cannot be had.
pub(crate) fn nobody_writes() -> Option<FileLock> {
    moving_lock(FileLock::acquire).map_err(|error| log::warn!("{error}: containers may come meanwhile")).ok()
}

type Take = fn(&DurableDir, &str, u32, std::time::Duration) -> Result<FileLock, LockError>;

fn moving_lock(take: Take) -> Result<FileLock, String> {
    DurableDir::create(Path::new(RUN_DIR), 0o755)
        .map_err(|error| error.to_string())
        .and_then(|dir| take(&dir, MOVING, 0o600, PATIENCE).map_err(|error| error.to_string()))
}

/// Where a container's entry rules stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Behind those of others, as the reference puts them.
    Behind,
    /// Before those of others: a mapping of one host address wins over one of all.
    Ahead,
}

/// Whether other attachments of the same container to the same network have rules in its chains,
/// whose names do not tell the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// None is known to live: the chains hold what this attachment asks for.
    None,
    /// What is there stays, and what is missing comes on top.
    Living,
}

/// Reads, changes, and begins again when somebody else has changed the same chains meanwhile.
pub(crate) fn settle(
    tools: &Tools,
    operation: &str,
    read: impl Fn() -> Result<Listing, Error>,
    changes: impl FnMut(&Listing) -> Result<Batch, Error>,
) -> Result<(), Error> {
    settle_from(read()?, (tools, operation), read, changes)
}

/// As [`settle`], with what was read already.
fn settle_from(
    mut listing: Listing,
    (tools, operation): (&Tools, &str),
    read: impl Fn() -> Result<Listing, Error>,
    mut changes: impl FnMut(&Listing) -> Result<Batch, Error>,
) -> Result<(), Error> {
    let mut attempts = 0;
    loop {
        let batch = changes(&listing)?;
        let said = match tools.commit(&batch) {
            Ok(()) => return Ok(()),
            Err(Refusal::Failed(error)) => return Err(error),
            Err(Refusal::Rules(said)) => said,
        };
        attempts += 1;
        let now = read()?;
        // Refused twice for the same rules: it is not for what others do.
        if now == listing && attempts > 1 {
            return Err(Error::kernel(operation, said));
        }
        if !tools.has_time() {
            let millis = super::tools::PATIENCE.as_millis();
            return Err(Error::Busy { operation: operation.to_owned(), attempts, millis });
        }
        listing = now;
    }
}

/// What has to change so that the plan holds.
pub(crate) fn port_changes(listing: &Listing, plan: &PortPlan, (place, others): (Place, Others)) -> Batch {
    if others == Others::Living && listing.has(plan.chain.as_str()) {
        return port_additions(listing, plan);
    }
    let mut batch = Batch::new(plan.family);
    for wanted in shared(plan.mark_bit) {
        ensure_shared(&mut batch, listing, &wanted);
    }
    ensure_chain(&mut batch, listing, names::HOSTPORT_DNAT);
    ensure_rules(&mut batch, listing, plan.chain.as_str(), &plan.rules);
    let present: Vec<&ListedRule> = entries_of(listing, plan.chain.as_str()).collect();
    let same = present.len() == plan.entries.len()
        && present.iter().zip(&plan.entries).all(|(is, wanted)| is_rule(is, wanted));
    // Where they stand matters only against those of others, which a second look decides.
    if same && place == Place::Behind {
        return batch;
    }
    for old in present {
        batch.push(Op::Delete(names::HOSTPORT_DNAT.to_owned(), old.0.clone()));
    }
    match place {
        Place::Behind => plan.entries.iter().for_each(|rule| batch.append(names::HOSTPORT_DNAT, rule)),
        Place::Ahead => {
            for rule in plan.entries.iter().rev() {
                batch.push(Op::Insert(names::HOSTPORT_DNAT.to_owned(), rule.words()));
            }
        }
    }
    batch
}

/// What has to come beside what another attachment of the container has in the same chain. A port
/// that it has stays with it.
fn port_additions(listing: &Listing, plan: &PortPlan) -> Batch {
    let mut batch = Batch::new(plan.family);
    let chain = plan.chain.as_str();
    for wanted in shared(plan.mark_bit) {
        ensure_shared(&mut batch, listing, &wanted);
    }
    let taken: Vec<Key> = listing.rules(chain).iter().filter_map(ListedRule::key).collect();
    let is_new = |rule: &&Rule| rule.listed().key().is_none_or(|key| !taken.contains(&key));
    plan.rules.iter().filter(is_new).for_each(|rule| batch.append(chain, rule));
    let present: Vec<&ListedRule> = entries_of(listing, chain).collect();
    let led = |key: &Key| present.iter().any(|entry| entry.has_port(key.protocol, key.port));
    let missing: Vec<&Key> = plan.keys.iter().filter(|key| !led(key)).collect();
    for entry in &plan.entries {
        let listed = entry.listed();
        if missing.iter().any(|key| listed.has_port(key.protocol, key.port)) {
            batch.append(names::HOSTPORT_DNAT, entry);
        }
    }
    batch
}

/// The entry rules that lead to a chain.
pub(crate) fn entries_of<'a>(listing: &'a Listing, chain: &'a str) -> impl Iterator<Item = &'a ListedRule> {
    listing.rules(names::HOSTPORT_DNAT).iter().filter(move |rule| rule.target() == Some(chain))
}

/// Whether a listed rule is the wanted one. Conditions cannot be compared by their words: such rules
/// are never taken for the same.
fn is_rule(listed: &ListedRule, wanted: &Rule) -> bool {
    wanted.is_canonical() && listed.0 == wanted.words()
}

/// Chains that this batch makes are named in it already; they are not made twice.
fn ensure_chain(batch: &mut Batch, listing: &Listing, chain: &str) {
    let made = Op::NewChain(chain.to_owned());
    if !listing.has(chain) && !batch.has(&made) {
        batch.push(made);
    }
}

fn ensure_shared(batch: &mut Batch, listing: &Listing, wanted: &Shared) {
    let words = wanted.rule.words();
    if listing.contains(wanted.chain, &words) {
        return;
    }
    if wanted.chain.starts_with("CNI-") {
        ensure_chain(batch, listing, wanted.chain);
    }
    if let Some(target) = words.last().filter(|target| target.starts_with("CNI-")) {
        ensure_chain(batch, listing, target);
    }
    let chain = wanted.chain.to_owned();
    batch.push(if wanted.first { Op::Insert(chain, words) } else { Op::Append(chain, words) });
}

/// The chain is there and holds these rules and no others.
fn ensure_rules(batch: &mut Batch, listing: &Listing, chain: &str, rules: &[Rule]) {
    let present = listing.rules(chain);
    if listing.has(chain) {
        let same = present.len() == rules.len() && present.iter().zip(rules).all(|(a, b)| is_rule(a, b));
        if same {
            return;
        }
        batch.push(Op::Flush(chain.to_owned()));
    } else {
        ensure_chain(batch, listing, chain);
    }
    rules.iter().for_each(|rule| batch.append(chain, rule));
}

/// Whether an entry rule of somebody else, of all host addresses, would take a packet for one of our
/// mappings of a single address. What its chain says of addresses is not known here; going ahead of a
/// rule that would not have taken it does no harm.
fn wildcards_in_the_way(listing: &Listing, plan: &PortPlan) -> bool {
    let single: Vec<&Key> = plan.keys.iter().filter(|key| key.address.is_some()).collect();
    let chain = plan.chain.as_str();
    let mut ours_seen = false;
    for rule in listing.rules(names::HOSTPORT_DNAT) {
        ours_seen |= rule.target() == Some(chain);
        let other = rule.target() != Some(chain);
        if other && !ours_seen && single.iter().any(|key| rule.has_port(key.protocol, key.port)) {
            return true;
        }
    }
    false
}

/// Who else has one of the plan's ports. The chains of those whose entry rules have one of the ports
/// are read for the host addresses.
pub(crate) fn clashes(tools: &Tools, listing: &Listing, plan: &PortPlan) -> Result<Vec<Clash>, Error> {
    let suspects: Vec<(usize, &ListedRule, &str)> = listing
        .rules(names::HOSTPORT_DNAT)
        .iter()
        .enumerate()
        .filter_map(|(i, rule)| Some((i, rule, rule.target()?)))
        .filter(|(_, rule, target)| *target != plan.chain.as_str() && has_any(rule, &plan.keys))
        .collect();
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    let mut chains: Vec<&str> = suspects.iter().map(|(_, _, target)| *target).collect();
    chains.sort_unstable();
    chains.dedup();
    let theirs = tools.read(plan.family, &chains)?;
    let own = listing
        .rules(names::HOSTPORT_DNAT)
        .iter()
        .position(|rule| rule.target() == Some(plan.chain.as_str()));
    let mut found = Vec::new();
    for (i, entry, chain) in suspects {
        for rule in theirs.rules(chain).iter().filter(|rule| rule.dnat().is_some()) {
            let taken = plan.keys.iter().filter(|key| {
                entry.has_port(key.protocol, key.port)
                    && rule.has_port(key.protocol, key.port)
                    && rule.destination().map(|net| net.addr()) == key.address
            });
            found.extend(taken.map(|key| Clash {
                key: *key,
                family: plan.family,
                chain: chain.to_owned(),
                owner: entry.owner(),
                behind: own.is_some_and(|own| own < i),
            }));
        }
    }
    Ok(found)
}

fn has_any(rule: &ListedRule, keys: &[Key]) -> bool {
    keys.iter().any(|key| rule.has_port(key.protocol, key.port))
}

/// Reads what a plan for masquerade is about.
pub(crate) fn read_for_masquerade(tools: &Tools, plan: &MasqueradePlan) -> Result<Listing, Error> {
    tools.read(plan.family, &["POSTROUTING", plan.chain.as_str()])
}

/// Brings the masquerade of one family in place.
pub(crate) fn masquerade(
    tools: &Tools,
    plan: &MasqueradePlan,
    (attachment, others): (&Attachment, Others),
) -> Result<(), Error> {
    let operation = format!("masquerade the addresses of {attachment}");
    settle(
        tools,
        &operation,
        || read_for_masquerade(tools, plan),
        |listing| Ok(masquerade_changes(listing, plan, others)),
    )
}

/// What has to change so that the plan holds.
pub(crate) fn masquerade_changes(listing: &Listing, plan: &MasqueradePlan, others: Others) -> Batch {
    let mut batch = Batch::new(plan.family);
    let chain = plan.chain.as_str();
    let present: Vec<&ListedRule> = jumps_to(listing, chain).collect();
    if others == Others::Living && listing.has(chain) {
        // What must not be masqueraded comes first, in whatever order.
        for rule in plan.rules.iter().filter(|rule| !listing.contains(chain, &rule.words())) {
            batch.push(Op::Insert(chain.to_owned(), rule.words()));
        }
    } else {
        ensure_rules(&mut batch, listing, chain, &plan.rules);
    }
    let stale = present.iter().filter(|_| others == Others::None);
    for old in stale.filter(|old| !plan.jumps.iter().any(|wanted| is_rule(old, wanted))) {
        batch.push(Op::Delete("POSTROUTING".to_owned(), old.0.clone()));
    }
    for wanted in plan.jumps.iter().filter(|wanted| !present.iter().any(|is| is_rule(is, wanted))) {
        batch.append("POSTROUTING", wanted);
    }
    batch
}

/// The rules of POSTROUTING that lead to a chain.
pub(crate) fn jumps_to<'a>(listing: &'a Listing, chain: &'a str) -> impl Iterator<Item = &'a ListedRule> {
    listing.rules("POSTROUTING").iter().filter(move |rule| rule.target() == Some(chain))
}
