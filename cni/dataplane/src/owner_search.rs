// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds owners that were left behind because a network was renamed, a DEL was lost or a runtime lost its state.
//!
//! An attachment's hash includes the name of its network, so a DEL with another name finds nothing. The container's
//! ID, the interface and the recorded namespace still show to whom the objects belong.

use std::collections::BTreeMap;
use std::io;

use cni_spec::Attachment;

use crate::nftables::liveness::Record;
use crate::nftables::owner_entry;
use crate::nftables::schema::Map;
use crate::nftables::session::{Listing, Session};
use crate::owned_table::unless_no_nf_tables;
use crate::owner::{AttachmentHash, Life};
use crate::teardown::{OwnTable, TableContent};
use crate::{ContainerNetns, Error, Owner};

/// What an owner's records say about its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The record's path leads to the namespace in question.
    Here,
    /// The namespace is gone.
    Gone,
    /// The namespace may exist, but is not the one in question.
    Elsewhere,
}

/// What the table records about the namespaces of these attachments, without those that own nothing there. Each
/// attachment is looked up by its key, so the number of owners in the table does not matter. `netns` is the namespace
/// in question.
///
/// # Errors
/// [`Error::Kernel`] if the table cannot be read.
pub fn standings(
    attachments: &[Attachment],
    netns: Option<&ContainerNetns>,
) -> Result<Vec<(Attachment, Standing)>, Error> {
    if attachments.is_empty() {
        return Ok(Vec::new());
    }
    unless_no_nf_tables(with_table(|session| {
        let mut found = Vec::new();
        for attachment in attachments {
            let records = owner_entry::records(session, attachment)?;
            let standings = records.iter().map(|record| standing(record.as_ref(), netns));
            // If the entries disagree, the namespace counts as another one.
            let agreed = standings.reduce(|one, other| if one == other { one } else { Standing::Elsewhere });
            found.extend(agreed.map(|standing| (attachment.clone(), standing)));
        }
        Ok(found)
    }))
}

fn standing(record: Option<&Record>, netns: Option<&ContainerNetns>) -> Standing {
    let Some(record) = record else { return Standing::Elsewhere };
    if netns.is_some_and(|netns| record.here().is_some_and(|one| one.is_same(netns))) {
        return Standing::Here;
    }
    if record.life() == Life::Dead { Standing::Gone } else { Standing::Elsewhere }
}

/// Calls `work` for the table, unless the table is missing or was made by another program or a later version.
fn with_table<T: Default>(work: impl FnOnce(&Session) -> Result<T, Error>) -> Result<T, Error> {
    let session = Session::open()?;
    match session.schema() {
        Ok(Some(_)) => work(&session),
        Ok(None) | Err(Error::ForeignTable { .. } | Error::NewerSchema { .. }) => Ok(T::default()),
        Err(error) => Err(error),
    }
}

/// True if the attachment has something in one of the tables.
///
/// # Errors
/// [`Error::Kernel`] if a table cannot be read.
pub fn owns(attachment: &Attachment) -> Result<bool, Error> {
    let hash = AttachmentHash::of(attachment);
    for table in OwnTable::ALL {
        if let TableContent::Owners(owners) = table.holding()?
            && owners.iter().any(|owner| owner.attachment_hash == hash)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The owners in the table whose namespace is gone.
#[derive(Debug, Default)]
pub struct GoneOwners {
    /// Owners whose namespace is gone according to all of their entries.
    pub owners: Vec<Owner>,
    /// Why it is unknown whether the namespaces of others are gone.
    pub unknown: Vec<io::Error>,
}

/// Lists the owners in the table whose namespace is gone.
///
/// # Errors
/// [`Error::Kernel`] if the table cannot be read.
pub fn gone() -> Result<GoneOwners, Error> {
    let list = |session: &Session| session.list(Listing::Changing, [Map::Owners], |_| true);
    let entries = unless_no_nf_tables(with_table(list))?;
    let mut owners = BTreeMap::<AttachmentHash, (Owner, bool)>::new();
    let mut unknown = Vec::new();
    for entry in entries {
        let Some(owner) = entry.owner else { continue };
        let life = entry.record.map_or(Ok(Life::NotProvenDead), |record| record.try_life());
        let is_gone = life.unwrap_or_else(|error| {
            unknown.push(error);
            Life::NotProvenDead
        }) == Life::Dead;
        owners.entry(owner.attachment_hash).or_insert((owner, true)).1 &= is_gone;
    }
    let owners = owners.into_values().filter(|(_, is_gone)| *is_gone).map(|(owner, _)| owner).collect();
    Ok(GoneOwners { owners, unknown })
}
