// SPDX-License-Identifier: GPL-2.0-or-later

//! Changes for migrations between backends. The state of a migration is in the owner's entry, where the attachment's
//! ADD, DEL and GC find it, and so does the next migration after a crash.
//!
//! An ADD writes an entry without a state, and a DEL removes the entry, so either ends the migration.

use std::collections::BTreeSet;

use cni_nftables::{Element, ElementId, Transaction, Value};

use super::liveness::{Record, TLV_KIND};
pub(crate) use super::migration_state::Transit;
use super::schema::{self, Map};
use super::session::{Known, OwnedElement, Session};
use super::withdraw;
use crate::owner::AttachmentHash;
use crate::{Error, Owner};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) hash: AttachmentHash,
    pub(crate) kind: u32,
}

/// The entry with another migration state.
fn rewritten(entry: &OwnedElement, to: Transit) -> Option<Element> {
    let count = u32::try_from(entry.count()).ok()?;
    let comment = entry.owner.as_ref()?.to_comment();
    let id: ElementId = entry.id();
    let element = Element::new(id).comment(&comment).values(vec![Value::Mark(count | to.bits())]);
    Some(match entry.record.as_ref().and_then(Record::encode) {
        Some(bytes) => element.tlv(TLV_KIND, bytes),
        None => element,
    })
}

/// Changes the state of entries from any of `from` to `to`, and removes those entries of the same attachments whose
/// kind is in `without`. Returns the entries that now have the state.
pub(crate) fn mark(
    session: &Session,
    keys: &[Key],
    from: &[Transit],
    to: Transit,
    without: &dyn Fn(u32) -> Vec<u32>,
) -> Result<BTreeSet<Key>, Error> {
    session.transact("write the state of a migration", |_| {
        let (mut batch, mut done) = (Transaction::new(), BTreeSet::new());
        for key in keys {
            let Some(entry) = session.entry(key.hash, key.kind)? else { continue };
            if !from.contains(&entry.transit()) {
                continue;
            }
            if entry.transit() != to
                && let Some(element) = rewritten(&entry, to)
            {
                batch.delete_element(entry.id()).add_element(element);
            }
            for kind in without(key.kind) {
                if let Some(other) = session.entry(key.hash, kind)? {
                    batch.delete_element(other.id());
                }
            }
            done.insert(*key);
        }
        Ok((batch, done))
    })
}

/// Which of an attachment's elements are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The elements that translate destinations. Those for packets that have been translated stay.
    Translation,
    /// All elements, and the entries.
    All,
}

/// What [`take_away`] removes, and under which conditions.
pub(crate) struct Removal<'a> {
    pub(crate) part: Part,
    /// True if an entry is still as expected. Other entries are left alone.
    pub(crate) still: &'a dyn Fn(&OwnedElement) -> Result<bool, Error>,
    /// For [`Part::All`]: the kind of another entry of the same attachment, whose migration ends when an entry of
    /// this kind is removed.
    pub(crate) settle: &'a dyn Fn(u32) -> Option<u32>,
}

/// Removes the elements of these entries, and leaves conntrack alone. Returns the entries that were removed.
pub(crate) fn take_away(
    session: &Session,
    keys: &[Key],
    removal: &Removal<'_>,
) -> Result<BTreeSet<Key>, Error> {
    let Removal { part, still, settle } = *removal;
    let known = Known::default();
    session.transact("remove what was migrated", |_| {
        let (mut batch, mut going) = (Transaction::new(), BTreeSet::new());
        for key in keys {
            let Some(entry) = session.entry(key.hash, key.kind)? else { continue };
            if !still(&entry)? {
                continue;
            }
            going.insert(*key);
            if part == Part::All {
                batch.delete_element(entry.id());
                let other = settle(key.kind).map_or(Ok(None), |kind| session.entry(key.hash, kind))?;
                if let Some((other, element)) =
                    other.as_ref().and_then(|entry| Some((entry, rewritten(entry, Transit::Settled)?)))
                {
                    batch.delete_element(other.id()).add_element(element);
                }
            }
        }
        let meant = |map: Map| match part {
            Part::All => map != Map::Owners,
            Part::Translation => map.translates(),
        };
        let is_going = |held: &OwnedElement| {
            let key = |owner: &Owner| Key { hash: owner.attachment_hash, kind: held.map.kind() };
            held.owner.as_ref().is_some_and(|owner| going.contains(&key(owner)))
        };
        for held in session.owned(&known, |held| meant(held.map) && is_going(held))? {
            batch.delete_element(held.id());
        }
        for key in going.iter().filter(|_| part == Part::All) {
            if key.kind == schema::KIND_PORTS {
                withdraw::delete_own_chains(session, &mut batch, key.hash)?;
            }
        }
        Ok((batch, going))
    })
}
