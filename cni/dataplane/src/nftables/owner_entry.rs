// SPDX-License-Identifier: GPL-2.0-or-later

//! Entries in the map of owners for objects that other backends have made.
//!
//! Chains of other backends have no place for an owner's namespace, so the attachment has an entry here. The entry
//! counts no elements. The first entry makes the table, and with it the guard of the node's loopback.

use cni_nftables::{Element, Transaction, Value};
use cni_spec::Attachment;

use super::addresses;
use super::liveness::{Record, TLV_KIND};
use super::migration_state::Transit;
use super::plan;
use super::schema::{self, Map};
use super::session::{Listing, OwnedElement, Session, element_id};
use super::state::State;
use crate::owned_table::unchanged;
use crate::owner::{AttachmentHash, Life};
use crate::{ContainerNetns, Error, HostPorts, Owner};

/// The kind of an entry for ports in chains of iptables.
pub(crate) const KIND_IPTABLES_PORTS: u32 = 3;
/// The kind of an entry for a masquerade in chains of iptables.
pub(crate) const KIND_IPTABLES_MASQUERADE: u32 = 4;

/// An entry for objects that another backend has made.
#[derive(Debug, Clone)]
pub(crate) struct OwnerRecord {
    pub(crate) owner: Owner,
    pub(crate) kind: u32,
    pub(crate) life: Life,
    /// The container's namespace, if it is known.
    pub(crate) netns: Option<ContainerNetns>,
    pub(crate) transit: Transit,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEntry<'a> {
    pub(crate) attachment: &'a Attachment,
    pub(crate) netns: &'a ContainerNetns,
    pub(crate) kind: u32,
    pub(crate) transit: Transit,
}

/// Opens the table. If the kernel has no nf_tables, logs a warning and returns none.
pub(crate) fn open() -> Result<Option<Session>, Error> {
    match Session::open().and_then(|session| session.generation().map(|_| session)) {
        Ok(session) => Ok(Some(session)),
        Err(Error::NoNfTables(why)) => {
            log::warn!("{why}: no guard of the node's loopback, no entries of owners");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Writes the attachment's entry, and makes or repairs the table.
pub(crate) fn put(session: &Session, new: &NewEntry<'_>) -> Result<(), Error> {
    put_if(session, new, &|| Ok(true)).map(drop)
}

/// Like [`put`], but only if a condition holds in the same generation of the ruleset. Returns whether it did.
pub(crate) fn put_if(
    session: &Session,
    new: &NewEntry<'_>,
    condition: &dyn Fn() -> Result<bool, Error>,
) -> Result<bool, Error> {
    let NewEntry { attachment, netns, kind, transit } = *new;
    let owner = Owner::of(attachment);
    let hash = owner.attachment_hash;
    let operation = format!("write the entry of owner {attachment}");
    let id = || element_id(Map::Owners, &plan::owner_key(hash, kind), None);
    let mut entry = Element::new(id()).comment(&owner.to_comment()).values(vec![Value::Mark(transit.bits())]);
    if let Some(bytes) = Record::new(netns).as_ref().and_then(Record::encode) {
        entry = entry.tlv(TLV_KIND, bytes);
    }
    session.transact(&operation, |_| {
        if !condition()? {
            return unchanged(false);
        }
        let mut batch = match session.state()? {
            State::Ready => Transaction::new(),
            State::Missing => addresses::bootstrap()?,
            State::Damaged(repair) => repair,
        };
        if let Some(old) = session.entry(hash, kind)? {
            if batch.is_empty()
                && Record::are_same(old.record.as_ref(), Record::new(netns).as_ref())
                && old.transit() == transit
            {
                return unchanged(true);
            }
            batch.delete_element(id());
        }
        batch.add_element(entry.clone());
        Ok((batch, true))
    })
}

/// Removes an attachment's entries of these kinds.
pub(crate) fn remove(session: &Session, hash: AttachmentHash, kinds: &[u32]) -> Result<(), Error> {
    session.transact("remove the entry of an owner", |_| {
        let mut batch = Transaction::new();
        for kind in kinds {
            if let Some(entry) = session.entry(hash, *kind)? {
                batch.delete_element(entry.id());
            }
        }
        Ok((batch, ()))
    })
}

/// Lists the entries for other backends whose owners pass the filter.
pub(crate) fn list(session: &Session, pass: impl Fn(&Owner) -> bool) -> Result<Vec<OwnerRecord>, Error> {
    let kind = |held: &OwnedElement| match held.key.as_slice() {
        [_, Value::Mark(kind)] => *kind,
        _ => 0,
    };
    let of_others = |held: &OwnedElement| {
        matches!(kind(held), KIND_IPTABLES_PORTS | KIND_IPTABLES_MASQUERADE)
            && held.owner.as_ref().is_some_and(&pass)
    };
    let recorded = |held: OwnedElement| {
        let life = held.record.as_ref().map_or(Life::NotProvenDead, Record::life);
        let netns = held.record.as_ref().and_then(Record::here);
        Some(OwnerRecord { kind: kind(&held), life, netns, transit: held.transit(), owner: held.owner? })
    };
    let found = session.list(Listing::Changing, [Map::Owners], of_others)?;
    Ok(found.into_iter().filter_map(recorded).collect())
}

pub(crate) fn holds(session: &Session, attachment: &Attachment, kind: u32) -> Result<bool, Error> {
    Ok(session.entry(AttachmentHash::of(attachment), kind)?.is_some())
}

/// The records in the attachment's entries of all kinds. None for an entry without a record.
pub(crate) fn records(session: &Session, attachment: &Attachment) -> Result<Vec<Option<Record>>, Error> {
    let hash = AttachmentHash::of(attachment);
    let kinds = [schema::KIND_PORTS, schema::KIND_MASQUERADE, KIND_IPTABLES_PORTS, KIND_IPTABLES_MASQUERADE];
    let mut all = Vec::new();
    for kind in kinds {
        all.extend(session.entry(hash, kind)?.map(|entry| entry.record));
    }
    Ok(all)
}

/// True if an entry of the attachment, of any kind, names another namespace than this one, or one that cannot be read.
pub(crate) fn is_of_another(
    session: &Session,
    attachment: &Attachment,
    netns: &ContainerNetns,
) -> Result<bool, Error> {
    Ok(records(session, attachment)?.iter().any(|record| is_elsewhere(record.as_ref(), netns)))
}

/// True if the record of an entry names another namespace than this one, or cannot be read.
pub(crate) fn is_elsewhere(record: Option<&Record>, netns: &ContainerNetns) -> bool {
    record.is_none_or(|record| !record.netns.is_same(netns))
}

/// Looks in our maps for a living owner of one of these ports that is another container.
pub(crate) fn owner_of_a_port(
    session: &Session,
    attachment: &Attachment,
    ports: &[HostPorts],
) -> Result<Option<(String, Owner)>, Error> {
    let own = Owner::of(attachment);
    for host in ports {
        let map = Map::for_ports(&HostPorts { last: host.first, ..*host });
        for port in host.ports() {
            let key = plan::key(host, port);
            for map in [Some(map), map.counterpart()].into_iter().flatten() {
                let Some(held) = session.get(map, &key)? else { continue };
                let Some(owner) = held.owner.clone().filter(|owner| !own.may_be_of_one_container(owner))
                else {
                    continue;
                };
                if !session.is_dead(&owner)? {
                    return Ok(Some((held.describe(), owner)));
                }
            }
        }
    }
    Ok(None)
}
