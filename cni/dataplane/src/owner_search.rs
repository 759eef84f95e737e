// SPDX-License-Identifier: GPL-2.0-or-later

//! Owners that a renamed network, a lost DEL or a runtime without its state has left behind.
//!
//! An attachment's hash includes the name of its network, so that a DEL under another name finds nothing by it. The
//! container's ID, the interface and the recorded namespace still tell whose it is.

use std::collections::BTreeMap;

use cni_spec::Attachment;

use crate::nftables::liveness::Record;
use crate::nftables::schema::Map;
use crate::nftables::session::Session;
use crate::owned_table::unless_no_nf_tables;
use crate::owner::{AttachmentHash, Life};
use crate::teardown::{OwnTable, TableContent};
use crate::{ContainerNetns, Error, Owner};

/// The state of an owner's namespace, by the owner's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The path leads to the namespace in question.
    Here,
    /// The namespace is gone.
    Gone,
    /// The namespace may exist, and is another one.
    Elsewhere,
}

/// Lists the owners in the table that may be of the same container and interface as `attachment` on another network.
/// `netns` is the namespace in question.
///
/// # Errors
/// [`Error::Kernel`] if the table cannot be read.
pub fn of_other_networks(
    attachment: &Attachment,
    netns: Option<&ContainerNetns>,
) -> Result<Vec<(Owner, Standing)>, Error> {
    let own = Owner::of(attachment);
    let may_be_its = |owner: &Owner| {
        owner.attachment_hash != own.attachment_hash
            && owner.ifname == own.ifname
            && owner.may_be_of_one_container(&own)
    };
    let here =
        |record: &Record| netns.is_some_and(|netns| record.here().is_some_and(|one| one.is_same(netns)));
    recorded(may_be_its, here)
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

/// Lists the owners in the table whose namespace is gone.
///
/// # Errors
/// [`Error::Kernel`] if the table cannot be read.
pub fn gone() -> Result<Vec<Owner>, Error> {
    let all = recorded(|_| true, |_| false)?;
    Ok(all.into_iter().filter(|(_, standing)| *standing == Standing::Gone).map(|(owner, _)| owner).collect())
}

fn recorded(
    pass: impl Fn(&Owner) -> bool,
    here: impl Fn(&Record) -> bool,
) -> Result<Vec<(Owner, Standing)>, Error> {
    let entries = unless_no_nf_tables(Session::open().and_then(|session| {
        match session.schema() {
            Ok(Some(_)) => {}
            // No table, or one of another program or of a later version, which is left alone.
            Ok(None) | Err(Error::ForeignTable { .. } | Error::NewerSchema { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
        session.dump([Map::Owners], |held| held.owner.as_ref().is_some_and(&pass))
    }))?;
    let mut owners = BTreeMap::<AttachmentHash, (Owner, Standing)>::new();
    for entry in entries {
        let Some(owner) = entry.owner else { continue };
        let standing = match &entry.record {
            Some(record) if here(record) => Standing::Here,
            Some(record) if record.life() == Life::Dead => Standing::Gone,
            _ => Standing::Elsewhere,
        };
        let kept = owners.entry(owner.attachment_hash).or_insert((owner, standing));
        // Every entry must prove it.
        if kept.1 != standing {
            kept.1 = Standing::Elsewhere;
        }
    }
    Ok(owners.into_values().collect())
}
