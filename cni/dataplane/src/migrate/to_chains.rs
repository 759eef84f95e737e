// SPDX-License-Identifier: GPL-2.0-or-later

//! Moves requests to chains of iptables.

use cni_kernel::grace::wait_for_packets;
use cni_nftables::Value;
use cni_spec::Attachment;

use super::transfer::{OldObjects, Transfer, record_kind};
use super::{Mover, NOTHING, REMOVED, Row, State};
use crate::iptables::Iptables;
use crate::nftables::migration::{self, Key, Part, Removal, Transit};
use crate::nftables::owner_entry::{self, NewEntry};
use crate::nftables::session::OwnedElement;
use crate::{Error, Owner, Request};

impl Mover<'_> {
    /// Removes the owner's chains together with the entry.
    pub(super) fn remove_owners_chains(&self, owner: &Owner, kind: u32) -> Result<(), Error> {
        if let Ok(attachment) = Attachment::new(&owner.network, &owner.container_id, &owner.ifname) {
            Iptables::unmake(&attachment, kind)?;
        }
        owner_entry::remove(&self.session, owner.attachment_hash, &[kind])
    }

    pub(super) fn to_chains(&self, group: Vec<Transfer>) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        let mut made = Vec::new();
        for transfer in group {
            match self.make_in_chains(&transfer) {
                Ok(None) => made.push(transfer),
                Ok(Some(why)) => rows.push(transfer.row(State::LeftAlone, why)),
                Err(error) => {
                    self.unmake_in_chains(&transfer)?;
                    rows.push(transfer.row(State::Failed, error.to_string()));
                }
            }
        }
        wait_for_packets();
        let unmake = |transfers: &[Transfer]| {
            transfers.iter().try_for_each(|transfer| self.unmake_in_chains(transfer))
        };
        let verified = self.verify(made, &mut rows, unmake)?;
        let (from_table, from_rules): (Vec<Transfer>, Vec<Transfer>) =
            verified.into_iter().partition(|transfer| matches!(transfer.old, OldObjects::Elements));
        let records: Vec<Key> = from_rules.iter().map(Transfer::record).collect();
        self.mark(&records, &[Transit::Made], Transit::Verified)?;
        self.empty_old_places(&from_rules)?;
        self.mark(&records, &[Transit::Verified], Transit::Settled)?;
        rows.extend(from_rules.iter().map(|transfer| transfer.row(State::Moved, "")));
        rows.extend(self.leave_table(&from_table)?);
        Ok(rows)
    }

    /// Removes the requests that chains now serve from our table.
    fn leave_table(&self, transfers: &[Transfer]) -> Result<Vec<Row>, Error> {
        // False if an ADD or DEL of the same attachment has changed the entry. A later ADD or DEL finds the entry.
        let is_in_transit = |entry: &OwnedElement| match (&entry.owner, entry.key.as_slice()) {
            (Some(owner), [_, Value::Mark(kind)]) => {
                let record = self.session.entry(owner.attachment_hash, record_kind(*kind))?;
                Ok(record.is_some_and(|record| record.transit() != Transit::Settled))
            }
            _ => Ok(false),
        };
        let records: Vec<Key> = transfers.iter().map(Transfer::record).collect();
        self.mark(&records, &[Transit::Made], Transit::Verified)?;
        let keys: Vec<Key> = transfers.iter().map(Transfer::key).collect();
        let settle = |kind| Some(record_kind(kind));
        let removal = |part| Removal { part, still: &is_in_transit, settle: &settle };
        migration::take_away(&self.session, &keys, &removal(Part::Translation))?;
        wait_for_packets();
        let gone = migration::take_away(&self.session, &keys, &removal(Part::All))?;
        let mut rows = Vec::new();
        for transfer in transfers {
            if gone.contains(&transfer.key()) {
                rows.push(transfer.row(State::Moved, ""));
            } else {
                self.unmake_in_chains(transfer)?;
                rows.push(transfer.row(State::LeftAlone, REMOVED));
            }
        }
        Ok(rows)
    }

    /// Serves a request with chains. Returns the reason if the request must be left alone.
    fn make_in_chains(&self, transfer: &Transfer) -> Result<Option<&'static str>, Error> {
        let Key { hash, kind } = transfer.record();
        let is_of_table = matches!(transfer.old, OldObjects::Elements);
        if Iptables::shares_chains(&self.session, transfer.attachment(), kind)? {
            return Ok(Some("another interface of the container has things in the same chains"));
        }
        let before = self.session.entry(hash, kind)?.map(|entry| entry.transit());
        // The chains are complete, but the old place may already have been emptied in part.
        if before == Some(Transit::Verified) {
            return Ok(None);
        }
        if transfer.is_empty() {
            return Ok(Some(NOTHING));
        }
        if before == Some(Transit::Settled) && !is_of_table {
            return Ok(Some("iptables has something of the same attachment"));
        }
        let here = transfer.key();
        let is_there = || Ok(!is_of_table || self.session.entry(here.hash, here.kind)?.is_some());
        let new = NewEntry {
            attachment: transfer.attachment(),
            netns: transfer.request.netns(),
            kind,
            transit: Transit::Made,
        };
        if !owner_entry::put_if(&self.session, &new, &is_there)? {
            return Ok(Some(REMOVED));
        }
        match &transfer.request {
            Request::Ports(request) => Iptables::make_ports(request)?,
            Request::Masquerade(request) => Iptables::make_masquerade(request)?,
        }
        Ok(None)
    }

    /// Removes the chains again, unless an ADD has taken them over.
    fn unmake_in_chains(&self, transfer: &Transfer) -> Result<(), Error> {
        let Key { hash, kind } = transfer.record();
        if self.session.entry(hash, kind)?.is_some_and(|entry| entry.transit() == Transit::Settled) {
            return Ok(());
        }
        Iptables::unmake(transfer.attachment(), kind)?;
        owner_entry::remove(&self.session, hash, &[kind])
    }
}
