// SPDX-License-Identifier: GPL-2.0-or-later

//! Removes everything that one attachment or every invalid attachment has.
//!
//! The kernel deletes elements by key, without looking at the owner. So the owner is read first, and the deletion is
//! committed under the generation in which it was read.

use std::collections::BTreeSet;

use cni_nftables::Transaction;
use cni_spec::Attachment;

use super::schema::{self, Map};
use super::session::{Known, Listing, OwnedElement, Session};
use super::{exempt, network_chains, owner_entry, plan};
use crate::owned_table::unchanged;
use crate::owner::{AttachmentHash, NetworkHash};
use crate::{AddressFamily, Cause, Error, Kinds, Withdrawal};

/// The most hinted ports that are looked up one by one.
const MANY: usize = 256;
/// The most changes in one batch of the garbage collection.
const BATCH: usize = 1000;

/// The kinds of entries that this choice includes.
pub(crate) fn kinds(kinds: Kinds) -> Vec<u32> {
    let ports = kinds.ports().then_some(schema::KIND_PORTS);
    let masquerade = kinds.masquerade().then_some(schema::KIND_MASQUERADE);
    ports.into_iter().chain(masquerade).collect()
}

/// Removes what the withdrawal names, and returns what was removed.
pub(crate) fn withdraw(session: &Session, withdrawal: &Withdrawal<'_>) -> Result<Vec<OwnedElement>, Error> {
    let hash = AttachmentHash::of(withdrawal.attachment);
    let operation = format!("withdraw what belongs to {}", withdrawal.attachment);
    let kinds = kinds(withdrawal.kinds);
    let known = Known::default();
    session.transact(&operation, |_| {
        let entries = entries(session, hash, &kinds)?;
        let no_ports = || !entries.iter().any(|entry| entry_kind(entry) == schema::KIND_PORTS);
        let is_elsewhere =
            |netns| entries.iter().any(|entry| owner_entry::is_elsewhere(entry.record.as_ref(), netns));
        if entries.is_empty()
            || (withdrawal.kinds == Kinds::AllIfPorts && no_ports())
            || withdrawal.only_in.is_some_and(is_elsewhere)
        {
            return unchanged(Vec::new());
        }
        session.schema()?;
        let expected: usize = entries.iter().map(OwnedElement::count).sum();
        let mut held = hinted(session, hash, withdrawal)?;
        held.retain(|held| kinds.contains(&held.map.kind()));
        if held.iter().filter(|held| held.map.is_counted()).count() != expected {
            // The list lacks what `slipway restore` has put back since the first attempt.
            let listed = session.owned(&known, is_element(hash, &kinds))?;
            held.retain(|held| !listed.contains(held));
            held.extend(listed);
        }
        let mut batch = Transaction::new();
        delete(&mut batch, held.iter().chain(&entries));
        if kinds.contains(&schema::KIND_PORTS) {
            delete_own_chains(session, &mut batch, hash)?;
        }
        Ok((batch, held))
    })
}

/// Removes everything that one attachment has of these kinds, without hints.
pub(crate) fn everything_of(
    session: &Session,
    operation: &str,
    hash: AttachmentHash,
    kinds: &[u32],
) -> Result<(), Error> {
    let known = Known::default();
    session.transact(operation, |_| {
        let mut held = entries(session, hash, kinds)?;
        held.extend(session.owned(&known, is_element(hash, kinds))?);
        let mut batch = Transaction::new();
        delete(&mut batch, &held);
        if kinds.contains(&schema::KIND_PORTS) {
            delete_own_chains(session, &mut batch, hash)?;
        }
        Ok((batch, ()))
    })
}

/// Builds the removal of everything that these attachments have. Returns the elements together with the batch.
pub(crate) fn removal(
    session: &Session,
    hashes: &BTreeSet<AttachmentHash>,
    known: &Known,
) -> Result<(Transaction, Vec<OwnedElement>), Error> {
    let mut batch = Transaction::new();
    if hashes.is_empty() {
        return Ok((batch, Vec::new()));
    }
    let of_them = |held: &OwnedElement| {
        held.owner.as_ref().is_some_and(|owner| hashes.contains(&owner.attachment_hash))
    };
    let held = session.owned(known, of_them)?;
    delete(&mut batch, &held);
    for hash in hashes {
        delete_own_chains(session, &mut batch, *hash)?;
    }
    Ok((batch, held))
}

/// True for an attachment's elements of these kinds, without its entries in the map of owners.
fn is_element(hash: AttachmentHash, kinds: &[u32]) -> impl Fn(&OwnedElement) -> bool {
    move |held| held.map != Map::Owners && held.is_of(hash) && kinds.contains(&held.map.kind())
}

fn entries(session: &Session, hash: AttachmentHash, kinds: &[u32]) -> Result<Vec<OwnedElement>, Error> {
    let mut entries = Vec::new();
    for kind in kinds {
        entries.extend(session.entry(hash, *kind)?);
    }
    Ok(entries)
}

fn delete<'a>(batch: &mut Transaction, held: impl IntoIterator<Item = &'a OwnedElement>) {
    for held in held {
        batch.delete_element(held.id());
    }
}

pub(crate) fn delete_own_chains(
    session: &Session,
    batch: &mut Transaction,
    hash: AttachmentHash,
) -> Result<(), Error> {
    for family in AddressFamily::BOTH {
        let name = schema::own_chain(&hash, family);
        if session.chain(&name)?.is_some() {
            batch.flush_chain(&session.table, &name).delete_chain(&session.table, &name);
        }
    }
    Ok(())
}

/// The elements to which the hints lead. The caller checks whether these are all.
fn hinted(
    session: &Session,
    hash: AttachmentHash,
    withdrawal: &Withdrawal<'_>,
) -> Result<Vec<OwnedElement>, Error> {
    let mut found = HintedElements { session, hash, held: Vec::new() };
    if withdrawal.ports.iter().map(crate::HostPorts::len).sum::<usize>() > MANY {
        return Ok(found.held);
    }
    let mut own_chain = [false; 2];
    for (family, there) in AddressFamily::BOTH.into_iter().zip(&mut own_chain) {
        *there = !withdrawal.ports.is_empty() && session.chain(&schema::own_chain(&hash, family))?.is_some();
    }
    for host in withdrawal.ports {
        let single = crate::HostPorts { last: host.first, ..*host };
        let map = Map::for_ports(&single);
        let conditions = own_chain[usize::from(host.address.family() == AddressFamily::V6)]
            .then(|| Map::for_own_chain(host));
        for port in host.ports() {
            let key = plan::key(host, port);
            if !found.add(map, &key)? {
                found.add_around(map.counterpart(), &key, port)?;
            }
            found.add_around(conditions, &key, port)?;
        }
    }
    let mut addresses: BTreeSet<_> = withdrawal.addresses.iter().copied().collect();
    addresses.extend(found.held.iter().filter_map(container_address));
    for address in addresses {
        let family = AddressFamily::of(address);
        let key = [cni_nftables::Value::address(address)];
        for map in [Map::Hairpin(family), Map::Masquerade(family)] {
            if let Some(set) = map.addresses()
                && found.add(set, &key)?
            {
                found.add(map, &key)?;
            }
        }
    }
    Ok(found.held)
}

/// The container's address in a mapping.
pub(crate) fn container_address(held: &OwnedElement) -> Option<std::net::IpAddr> {
    match &held.data {
        cni_nftables::ElementData::Values(values) => plan::as_address(values.first()?),
        _ => None,
    }
}

struct HintedElements<'a> {
    session: &'a Session,
    hash: AttachmentHash,
    held: Vec<OwnedElement>,
}

impl HintedElements<'_> {
    fn add(&mut self, map: Map, key: &[cni_nftables::Value]) -> Result<bool, Error> {
        // The hints may name a mapping twice.
        if self.held.iter().any(|held| held.map == map && held.key == key) {
            return Ok(true);
        }
        let held = self.session.get(map, key)?.filter(|held| held.is_of(self.hash));
        let there = held.is_some();
        self.held.extend(held);
        Ok(there)
    }

    /// Adds the interval that contains a key, unless it has been added already.
    fn add_around(&mut self, map: Option<Map>, key: &[cni_nftables::Value], port: u16) -> Result<(), Error> {
        let Some(map) = map else { return Ok(()) };
        let around = |held: &OwnedElement| {
            let has = plan::host_ports(held.map, &held.key, held.end.as_deref());
            let wanted = plan::host_ports(map, key, None);
            held.map == map
                && has.zip(wanted).is_some_and(|(has, wanted)| {
                    (has.protocol, has.address) == (wanted.protocol, wanted.address)
                        && (has.first..=has.last).contains(&port)
                })
        };
        if !self.held.iter().any(around) {
            self.add(map, key)?;
        }
        Ok(())
    }
}

/// Removes what belongs to invalid attachments of a network, and unused shared chains. What was removed is added to
/// `gone`, even if an error follows.
pub(crate) fn retain(
    session: &Session,
    (network, valid): (&str, &[Attachment]),
    kinds: &[u32],
    gone: &mut Vec<OwnedElement>,
) -> Result<(), Error> {
    let network_hash = NetworkHash::of(network);
    let valid: BTreeSet<AttachmentHash> = valid.iter().map(AttachmentHash::of).collect();
    let operation = format!("collect garbage of network {network}");
    let condemned = |held: &OwnedElement| {
        let kind = if held.map == Map::Owners { entry_kind(held) } else { held.map.kind() };
        kinds.contains(&kind)
            && held.owner.as_ref().is_some_and(|owner| {
                owner.network_hash == network_hash && !valid.contains(&owner.attachment_hash)
            })
    };
    match session.schema() {
        Ok(Some(schema::SCHEMA)) => {}
        // A table that is missing or that was made by hand contains none of our elements.
        Ok(_) | Err(Error::ForeignTable { .. }) => return Ok(()),
        Err(error) => return Err(error),
    }
    let mut held = session.list(Listing::Changing, Map::all(), condemned)?;
    // The elements of an attachment are removed together, and its entries last.
    held.sort_by_key(|held| {
        (held.owner.as_ref().map(|owner| owner.attachment_hash), held.map == Map::Owners)
    });
    let attachments: Vec<&[OwnedElement]> = held.chunk_by(|a, b| a.owner == b.owner).collect();
    let mut rest = attachments.as_slice();
    while !rest.is_empty() {
        let (taken, removed) = remove_some(session, &operation, rest, kinds)?;
        rest = rest.get(taken..).unwrap_or_default();
        gone.extend(removed);
    }
    remove_unused(session, &operation)
}

/// Removes elements of the first of these attachments, as far as they still exist. Returns the number of these
/// attachments together with the elements.
fn remove_some(
    session: &Session,
    operation: &str,
    attachments: &[&[OwnedElement]],
    kinds: &[u32],
) -> Result<(usize, Vec<OwnedElement>), Error> {
    // The larger the batch, the more likely another process commits before. So each further attempt is half as large.
    let mut most = 2 * BATCH;
    session.transact(operation, |_| {
        most = (most / 2).max(1);
        let (mut batch, mut removed, mut taken) = (Transaction::new(), Vec::new(), 0);
        for of_one in attachments {
            let now = session.read_again(of_one.iter())?;
            delete(&mut batch, &now);
            removed.extend(now);
            let owner = of_one.first().and_then(|held| held.owner.as_ref());
            if let Some(owner) = owner.filter(|_| kinds.contains(&schema::KIND_PORTS)) {
                delete_own_chains(session, &mut batch, owner.attachment_hash)?;
            }
            taken += 1;
            if batch.ops().len() >= most {
                break;
            }
        }
        Ok((batch, (taken, removed)))
    })
}

/// Removes the shared chains to which no address leads, and the sets that only they use.
///
/// An address that is found is proof that its chain is used, while the absence of any address is proven only by a list
/// of one generation, which a busy node may never allow. So this list is read only if a chain seems to be unused.
fn remove_unused(session: &Session, operation: &str) -> Result<(), Error> {
    let build = |listing| -> Result<(Transaction, ()), Error> {
        let (mut batch, used) = network_chains::remove_unused(session, listing)?;
        exempt::delete_unused(session, &mut batch, &used)?;
        Ok((batch, ()))
    };
    let remove = || -> Result<(), Error> {
        let (batch, ()) = build(Listing::Changing)?;
        if batch.is_empty() {
            return Ok(());
        }
        session.transact(operation, |_| build(Listing::OneGeneration))
    };
    match remove() {
        // An unused chain does no harm, and everything that belongs to a container was removed.
        Err(error) if changes_too_often(&error) => {
            log::info!("chains that nothing uses stay until a later garbage collection: {error}");
            Ok(())
        }
        done => done,
    }
}

/// True for the error of a list or a commit that was given up because the ruleset changed at every attempt.
fn changes_too_often(error: &Error) -> bool {
    matches!(
        error,
        Error::Busy { .. }
            | Error::Kernel { source: Cause::Nftables(cni_nftables::Error::Unstable { .. }), .. }
    )
}

fn entry_kind(held: &OwnedElement) -> u32 {
    match held.key.as_slice() {
        [_, cni_nftables::Value::Mark(kind)] => *kind,
        _ => 0,
    }
}
