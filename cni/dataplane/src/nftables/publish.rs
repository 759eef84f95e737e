// SPDX-License-Identifier: GPL-2.0-or-later

//! Publishing and masquerading: makes the elements of one attachment and kind match a plan.
//!
//! The usual case is one batch that creates elements exclusively, whatever the ruleset's generation: if two processes
//! want the same key, the kernel decides. If shared chains are missing, another batch makes them first. In all other
//! cases (the attachment has elements already, a key is taken, or a run of ports is involved) the elements are read
//! and changed under one generation of the ruleset.

use std::collections::BTreeSet;

use cni_nftables::{Chain, Element, ElementData, Stmt, Transaction, Value, Verdict};
use cni_spec::Attachment;

use super::liveness::{Record, TLV_KIND};
use super::migration_state::Transit;
use super::network_chains::{self, Ways};
use super::plan::{self, Datum, Item, Lead, Plan};
use super::schema::{self, Layout, Map, SharedChain};
use super::session::{Known, OwnedElement, Session, describe, element_id};
use super::state::State;
use super::{addresses, exempt};
use crate::difference::Difference;
use crate::owned_table::unchanged;
use crate::owner::AttachmentHash;
use crate::{AddressFamily, Before, ContainerNetns, Error, Owner};

/// The longest run of ports that is looked up port by port, at 12 µs each. The time for a dump of a map grows with
/// the square of the number of elements: it is a second for 50,000.
const PROBED: usize = 1024;

/// The elements of one kind that an attachment should have.
#[derive(Debug)]
pub(crate) struct Job {
    /// The operation, for errors.
    pub(crate) operation: String,
    /// [`schema::KIND_PORTS`] or [`schema::KIND_MASQUERADE`].
    pub(crate) kind: u32,
    owner: Owner,
    hash: AttachmentHash,
    comment: String,
    record: Option<Record>,
    plan: Plan,
    /// The migration state that is written to the owner's entry.
    transit: Transit,
    /// The rules of the attachment's own chains.
    own_rules: Vec<(AddressFamily, Vec<Vec<Stmt>>)>,
}

/// What other attachments have of the elements that a plan needs.
#[derive(Debug, Default)]
struct OtherOwners {
    dead: BTreeSet<AttachmentHash>,
    /// Elements of other attachments of the same container that serve this attachment as well.
    shared: Vec<OwnedElement>,
}

/// The outcome of a job.
#[derive(Debug)]
pub(crate) struct Made {
    /// Whether the attachment had elements of the kind before.
    pub(crate) before: Before,
    /// The elements of dead owners that were removed.
    pub(crate) gone: Vec<OwnedElement>,
}

/// The outcome of the attempt to treat a job as the usual case.
enum FastPath {
    Done,
    /// Nothing was made, so [`Job::careful`] has to do the work.
    NotUsual,
}

impl Job {
    pub(crate) fn new(kind: u32, attachment: &Attachment, netns: &ContainerNetns, plan: Plan) -> Self {
        let owner = Owner::of(attachment);
        let what = if kind == schema::KIND_PORTS { "publish the ports" } else { "masquerade the addresses" };
        Self {
            operation: format!("{what} of {attachment}"),
            kind,
            hash: owner.attachment_hash,
            comment: owner.to_comment(),
            owner,
            record: Record::new(netns),
            plan,
            own_rules: Vec::new(),
            transit: Transit::Settled,
        }
    }

    /// Sets the migration state that is written to the owner's entry.
    pub(crate) fn in_transit(self, transit: Transit) -> Self {
        Self { transit, ..self }
    }

    pub(crate) fn with_own_rules(mut self, rules: Vec<(AddressFamily, Vec<Vec<Stmt>>)>) -> Self {
        self.own_rules = rules;
        self
    }

    /// Makes the elements.
    pub(crate) fn run(&self, session: &Session) -> Result<Made, Error> {
        match self.fast(session)? {
            FastPath::Done => Ok(Made { before: Before::Nothing, gone: Vec::new() }),
            FastPath::NotUsual => self.careful(session),
        }
    }

    fn fast(&self, session: &Session) -> Result<FastPath, Error> {
        let Some(ways) = self.lay_ground(session)? else { return Ok(FastPath::NotUsual) };
        let items = self.items(&ways);
        let mut batch = Transaction::new();
        for (family, rules) in &self.own_rules {
            let name = schema::own_chain(&self.hash, *family);
            batch.add_chain(Chain::new(&session.table, &name).comment(&self.comment).exclusive());
            schema::add_rules(&mut batch, &name, rules.clone());
        }
        batch.append(self.creations(&items));
        match session.socket.commit(&batch, None) {
            Ok(()) => {}
            Err(e) if e.is_exists() || e.is_not_found() || e.is_busy() => return Ok(FastPath::NotUsual),
            // The kernel refused the batch, or committed it but the reply was lost.
            Err(e) => return Err(self.take_back(session, Error::kernel(&self.operation, e))),
        }
        // Single ports and runs are in different maps, so the kernel does not notice an overlap. A process that adds
        // a run reads the single ports and commits under the same generation, and a process that adds a single port
        // looks for runs after its commit, so one of the two always notices. The same check covers the garbage
        // collection, which removes the element of a network without containers.
        let stands = self.overlaps_a_run(session).and_then(|overlaps| Ok(!overlaps && ways.hold(session)?));
        if !stands.map_err(|error| self.take_back(session, error))? {
            super::withdraw::everything_of(session, &self.operation, self.hash, &[self.kind])?;
            return Ok(FastPath::NotUsual);
        }
        Ok(FastPath::Done)
    }

    /// Makes the table and the shared chains if they are missing. None if this is not the usual case.
    ///
    /// If many ADDs begin on an empty node, one of them makes these, and the others find them in their second
    /// attempt.
    fn lay_ground(&self, session: &Session) -> Result<Option<Ways<'_>>, Error> {
        if self.plan.items.iter().any(is_run) {
            return Ok(None);
        }
        for _ in 0..2 {
            // The commit below does not depend on a generation, so it must not repair anything: a table can look
            // damaged while it is being flushed, and a repair would make another one.
            let mut base = match session.state()? {
                State::Ready => Transaction::new(),
                State::Missing => addresses::bootstrap()?,
                State::Damaged(_) => return Ok(None),
            };
            if session.entry(self.hash, self.kind)?.is_some() || self.overlaps_a_run(session)? {
                return Ok(None);
            }
            let ways = Ways::decide(session, &self.plan.leads)?;
            for (map, key) in ways.without_own() {
                if session.get(map, &key)?.is_some() {
                    return Ok(None);
                }
            }
            self.add_shared_chains(session, &mut base, &ways)?;
            if base.is_empty() {
                return Ok(Some(ways));
            }
            match session.socket.commit(&base, None) {
                Ok(()) => return Ok(Some(ways)),
                Err(e) if e.is_exists() || e.is_not_found() || e.is_busy() => {}
                Err(e) => return Err(Error::kernel(&self.operation, e)),
            }
        }
        Ok(None)
    }

    /// Removes what the failed batch may have made, because the attachment had nothing of this kind before. Returns
    /// `error`.
    fn take_back(&self, session: &Session, error: Error) -> Error {
        if let Err(left) = super::withdraw::everything_of(session, &self.operation, self.hash, &[self.kind]) {
            log::warn!("{}: undo: {left}", self.operation);
        }
        error
    }

    /// The changes that the table itself needs before elements can be added.
    fn base(session: &Session) -> Result<Transaction, Error> {
        Ok(match session.state()? {
            State::Ready => Transaction::new(),
            State::Missing => addresses::bootstrap()?,
            State::Damaged(repair) => repair,
        })
    }

    /// All elements of the attachment, some of which depend on what the table contains.
    fn items(&self, ways: &Ways<'_>) -> Vec<Item> {
        self.plan.items.iter().cloned().chain(ways.own_items()).collect()
    }

    fn overlaps_a_run(&self, session: &Session) -> Result<bool, Error> {
        for item in self.plan.items.iter().filter(|item| item.end.is_none()) {
            let Some(map) = item.map.counterpart() else { continue };
            if session.get(map, &item.key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds the missing shared chains. They are committed before any element leads to them, because for a moment
    /// during a commit, the rules are in effect while the sets in them are still empty (seen on Linux 6.18), and a
    /// packet would not be masqueraded.
    fn add_shared_chains(
        &self,
        session: &Session,
        batch: &mut Transaction,
        ways: &Ways<'_>,
    ) -> Result<(), Error> {
        exempt::add_missing(session, batch, &self.plan.exempt)?;
        ways.add_missing(session, batch)
    }

    fn creations(&self, items: &[Item]) -> Transaction {
        let mut batch = Transaction::new();
        batch.add_element(self.entry(counted(items)));
        for item in items {
            batch.add_element(self.element(item));
        }
        batch
    }

    fn element(&self, item: &Item) -> Element {
        let element =
            Element::new(element_id(item.map, &item.key, item.end.as_deref())).comment(&self.comment);
        match datum(item) {
            ElementData::Values(values) => element.values(values),
            ElementData::Verdict(verdict) => element.verdict(verdict),
            ElementData::None => element,
        }
    }

    /// The attachment's entry in the map of owners, with its number of elements.
    fn entry(&self, count: usize) -> Element {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let id = element_id(Map::Owners, &plan::owner_key(self.hash, self.kind), None);
        let entry =
            Element::new(id).comment(&self.comment).values(vec![Value::Mark(count | self.transit.bits())]);
        match self.record.as_ref().and_then(Record::encode) {
            Some(bytes) => entry.tlv(TLV_KIND, bytes),
            None => entry,
        }
    }

    /// Reads the attachment's elements and those at the keys that it needs, and commits the difference under the same
    /// generation.
    fn careful(&self, session: &Session) -> Result<Made, Error> {
        // A repair may add the same elements of networks, from an earlier schema, so it is committed separately.
        session.transact(&self.operation, |_| match session.state()? {
            State::Damaged(repair) => Ok((repair, ())),
            _ => unchanged(()),
        })?;
        session.transact(&self.operation, |_| {
            let mut batch = Self::base(session)?;
            self.add_shared_chains(session, &mut batch, &Ways::decide(session, &self.plan.leads)?)?;
            Ok((batch, ()))
        })?;
        let known = Known::default();
        session.transact(&self.operation, |_| self.difference(session, &known))
    }

    fn difference(&self, session: &Session, known: &Known) -> Result<(Transaction, Made), Error> {
        let mut batch = Self::base(session)?;
        let ways = Ways::decide(session, &self.plan.leads)?;
        self.add_shared_chains(session, &mut batch, &ways)?;
        let all_items = self.items(&ways);
        let entry = session.entry(self.hash, self.kind)?;
        let mut own = match entry {
            Some(_) => session.owned(known, |held| {
                held.map != Map::Owners && held.is_of(self.hash) && held.map.kind() == self.kind
            })?,
            None => Vec::new(),
        };
        // The list lacks what another process has put back since the first attempt, and the kernel refuses to add that
        // twice.
        for item in &all_items {
            let found = session.get(item.map, &item.key)?;
            let found = found.filter(|held| held.is_of(self.hash) && !own.contains(held));
            own.extend(found);
        }
        let others = self.others(session, &all_items, &ways)?;
        let (removal, gone) = super::withdraw::removal(session, &others.dead, known)?;
        batch.append(removal);
        let shared = |item: &&Item| others.shared.iter().any(|held| serves(held, item));
        let items: Vec<&Item> = all_items.iter().filter(|item| !shared(item)).collect();
        let count = counted(items.iter().copied());
        let kept = |item: &Item| own.iter().any(|held| matches(held, item));
        let wanted = |held: &OwnedElement| items.iter().any(|item| matches(held, item));
        for held in own.iter().filter(|held| !wanted(held)) {
            batch.delete_element(held.id());
        }
        self.own_chains(session, &mut batch)?;
        for item in items.iter().filter(|item| !kept(item)) {
            batch.add_element(self.element(item));
        }
        let same = |e: &OwnedElement| {
            e.count() == count
                && Record::are_same(e.record.as_ref(), self.record.as_ref())
                && e.transit() == self.transit
        };
        if !entry.as_ref().is_some_and(same) {
            if let Some(entry) = &entry {
                batch.delete_element(entry.id());
            }
            batch.add_element(self.entry(count));
        }
        Ok((batch, Made { before: Before::of(entry.is_some()), gone }))
    }

    /// Replaces the rules of the attachment's own chains, because rules cannot be compared, and deletes the chains of
    /// a family that needs none.
    fn own_chains(&self, session: &Session, batch: &mut Transaction) -> Result<(), Error> {
        if self.kind != schema::KIND_PORTS {
            return Ok(());
        }
        for family in AddressFamily::BOTH {
            let name = schema::own_chain(&self.hash, family);
            let there = session.chain(&name)?.is_some();
            let rules = self.own_rules.iter().find(|(of, _)| *of == family).map(|(_, rules)| rules);
            if there {
                batch.flush_chain(&session.table, &name);
            }
            match rules {
                Some(rules) => {
                    batch.add_chain(Chain::new(&session.table, &name).comment(&self.comment));
                    schema::add_rules(batch, &name, rules.clone());
                }
                None if there => {
                    batch.delete_chain(&session.table, &name);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Reads which of the elements that the plan needs belong to other attachments.
    fn others(&self, session: &Session, items: &[Item], ways: &Ways<'_>) -> Result<OtherOwners, Error> {
        let mut others = OtherOwners::default();
        let mut holders = self.holders(session, items)?;
        for (map, key) in ways.without_own() {
            holders.extend(session.get(map, &key)?.filter(|held| !held.is_of(self.hash)));
        }
        for held in holders {
            let Some(owner) = &held.owner else {
                return Err(Error::ConflictUnowned {
                    what: held.describe(),
                    place: held.map.name().to_owned(),
                });
            };
            if others.dead.contains(&owner.attachment_hash) {
                continue;
            }
            if session.is_dead(owner)? {
                let what = held.describe();
                log::warn!("{what}: its owner ({owner}) is dead, reassigning it to {}", self.owner);
                others.dead.insert(owner.attachment_hash);
            } else if items.iter().any(|item| serves(&held, item)) && self.is_sibling(session, owner)? {
                others.shared.push(held);
            } else {
                return Err(Error::Conflict { what: held.describe(), owner: Box::new(owner.clone()) });
            }
        }
        Ok(others)
    }

    /// True if the owner is another attachment of the same container. Runtimes that join a container to several
    /// networks request its ports on each network, with the same container ID and namespace.
    fn is_sibling(&self, session: &Session, owner: &Owner) -> Result<bool, Error> {
        if self.record.is_none() || !self.owner.may_be_of_one_container(owner) {
            return Ok(false);
        }
        let entry = session.entry(owner.attachment_hash, self.kind)?;
        Ok(entry.is_some_and(|entry| Record::are_same(entry.record.as_ref(), self.record.as_ref())))
    }

    /// Elements of other attachments that have one of the plan's keys or overlap with one.
    fn holders(&self, session: &Session, items: &[Item]) -> Result<Vec<OwnedElement>, Error> {
        let mut holders = Vec::new();
        for item in items.iter().filter(|item| !is_run(item)) {
            for map in [Some(item.map), item.map.counterpart()].into_iter().flatten() {
                holders.extend(session.get(map, &item.key)?);
            }
        }
        for item in items.iter().filter(|item| is_run(item)) {
            let Some(run) = plan::host_ports(item.map, &item.key, item.end.as_deref()) else { continue };
            let overlaps = |held: &OwnedElement| {
                plan::host_ports(held.map, &held.key, held.end.as_deref())
                    .is_some_and(|has| has.overlaps(&run))
            };
            let maps = [Some(item.map), item.map.counterpart()].into_iter().flatten();
            if run.len() > PROBED {
                holders.extend(session.dump(maps, overlaps)?);
                continue;
            }
            for map in maps {
                for port in run.ports() {
                    holders.extend(session.get(map, &plan::key(&run, port))?);
                }
            }
        }
        holders.retain(|held| !held.is_of(self.hash));
        Ok(holders)
    }

    /// Compares the plan with the table.
    pub(crate) fn check(&self, session: &Session) -> Result<(), Error> {
        match session.state()? {
            State::Ready => {}
            State::Missing => return Err(Difference::NoTable(schema::TABLE).into()),
            State::Damaged(_) => {
                return Err(Difference::DamagedChains(schema::TABLE).into());
            }
        }
        for item in &self.plan.items {
            let map = item.map.name();
            let element = format!("{} of {}", describe(item.map, &item.key, item.end.as_deref()), self.owner);
            match session.get(item.map, &item.key)? {
                None => {
                    return Err(match item.address() {
                        Some(address) => Difference::NoAddress { address, set: map, table: schema::TABLE },
                        None => Difference::NoElement { element, map },
                    }
                    .into());
                }
                Some(held) if !held.is_of(self.hash) => {
                    let sibling = match &held.owner {
                        Some(owner) if serves(&held, item) => self.is_sibling(session, owner)?,
                        _ => false,
                    };
                    if sibling {
                        continue;
                    }
                    let owner = held.owner.map(Box::new);
                    return Err(Difference::OtherOwner { element, owner, map }.into());
                }
                Some(held) if !matches(&held, item) => {
                    return Err(Difference::OtherTarget { element, map }.into());
                }
                Some(_) => {}
            }
        }
        let mut shared = BTreeSet::new();
        for lead in &self.plan.leads {
            shared.insert(self.check_lead(session, lead)?);
        }
        self.check_chains(session, &shared)
    }

    /// Compares the chain to which an address leads with the wanted one. Returns the chain that was found, which may
    /// differ in ways that do not count as a difference.
    fn check_lead(&self, session: &Session, lead: &Lead) -> Result<SharedChain, Error> {
        let element = || format!("container address {} of {}", lead.address, self.owner);
        let found = network_chains::chain_of(session, lead.map, lead.address)?;
        let Some(found) = found else {
            let map = lead.map.networks().unwrap_or(lead.map).name();
            return Err(Difference::NoElement { element: element(), map }.into());
        };
        if let (SharedChain::Masquerade { .. }, SharedChain::Masquerade { .. }) = (&found, &lead.chain)
            && let Some(difference) =
                exempt::difference(session, found.exempt(), self.plan.exempt_by(&lead.chain))?
        {
            return Err(Difference::Exemption { element: element(), difference }.into());
        }
        if found != lead.chain && !differ_in_networks(&found, &lead.chain) {
            return Err(Difference::OtherTarget { element: element(), map: lead.map.name() }.into());
        }
        Ok(found)
    }

    fn check_chains(&self, session: &Session, shared: &BTreeSet<SharedChain>) -> Result<(), Error> {
        let shared = shared.iter().map(|chain| (chain.name(), chain.rules(Layout::PLAIN).len()));
        let own = self.own_rules.iter().map(|(f, rules)| (schema::own_chain(&self.hash, *f), rules.len()));
        for (chain, expected) in shared.chain(own) {
            let read = session.socket.rules(&session.table, &chain);
            let found = read.map_err(|e| Error::kernel(format!("list the rules of chain {chain}"), e))?.len();
            if found != expected {
                return Err(Difference::RuleCount { chain, table: schema::TABLE, found, expected }.into());
            }
        }
        Ok(())
    }
}

/// True if an item is a run of ports.
fn is_run(item: &Item) -> bool {
    matches!(item.map, Map::Ranges(_) | Map::HostIpRanges(_))
}

/// The number of these elements that an owner's entry counts.
fn counted<'a>(items: impl IntoIterator<Item = &'a Item>) -> usize {
    items.into_iter().filter(|item| item.map.is_counted()).count()
}

/// The item's data in the form in which elements have it.
fn datum(item: &Item) -> ElementData {
    match &item.data {
        Datum::Values(values) => ElementData::Values(values.clone()),
        Datum::Chain(name) => ElementData::Verdict(Verdict::Goto(name.clone())),
        Datum::None => ElementData::None,
    }
}

/// True if an element of another attachment of the container can take the place of the item: it publishes the same
/// host ports to the same container ports, on another address of the container.
fn serves(held: &OwnedElement, item: &Item) -> bool {
    let there = held.map == item.map && held.key == item.key && held.end == item.end;
    there
        && match (&held.data, &item.data) {
            (ElementData::Values(has), Datum::Values(wanted)) => has.get(1..) == wanted.get(1..),
            (ElementData::Verdict(_), Datum::Chain(_)) => {
                matches!(item.map, Map::Conditions(_) | Map::HostIpConditions(_))
            }
            _ => false,
        }
}

/// True if two chains of published addresses differ only in the container's other networks. Programs in the container
/// may have links of their own, whose networks do not count as a difference.
fn differ_in_networks(one: &SharedChain, other: &SharedChain) -> bool {
    let fixed = |chain: &SharedChain| match chain {
        SharedChain::Hairpin { network, bit, .. } => Some((*network, *bit)),
        _ => None,
    };
    fixed(one).is_some() && fixed(one) == fixed(other)
}

fn matches(held: &OwnedElement, item: &Item) -> bool {
    held.map == item.map && held.key == item.key && held.end == item.end && held.data == datum(item)
}
