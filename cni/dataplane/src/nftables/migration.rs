// SPDX-License-Identifier: GPL-2.0-or-later

//! Migrations between backends. The state is in the owner's entry, where ADD, DEL and GC of the same
//! attachment find it, and the next migration after a crash.
//!
//! An ADD writes an entry without a state, a DEL removes the entry: either ends the migration.

use std::collections::BTreeSet;

use cni_nftables::{Element, ElementId, Transaction, Value};

use super::liveness::{Record, TLV_KIND};
pub(crate) use super::migration_state::Transit;
use super::schema::{self, Map};
use super::session::{OwnedElement, Session};
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

/// Changes the state of entries from one of `from` to `to`, and removes the entries of the kinds `without`
/// that the same attachments have. Returns the entries that have the state now.
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

/// The part of an attachment's elements to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The elements that translate destinations. Those for packets that were translated before stay.
    Translation,
    /// All elements, and the entries.
    All,
}

/// The conditions and the extent of [`take_away`].
pub(crate) struct Removal<'a> {
    pub(crate) part: Part,
    /// True if an entry is as expected; others stay.
    pub(crate) still: &'a dyn Fn(&OwnedElement) -> Result<bool, Error>,
    /// The kind of the same attachment's entry whose migration ends with the removal of one of this kind; for
    /// [`Part::All`].
    pub(crate) settle: &'a dyn Fn(u32) -> Option<u32>,
}

/// Removes the elements of these entries, and leaves conntrack alone. Returns the removed entries.
pub(crate) fn take_away(
    session: &Session,
    keys: &[Key],
    removal: &Removal<'_>,
) -> Result<BTreeSet<Key>, Error> {
    let Removal { part, still, settle } = *removal;
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
        for held in session.dump(Map::all().filter(|map| meant(*map)), is_going)? {
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
