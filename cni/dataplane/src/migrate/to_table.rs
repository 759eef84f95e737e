// SPDX-License-Identifier: GPL-2.0-or-later

//! Moves requests to our own table.

use std::collections::BTreeSet;

use cni_kernel::grace::wait_for_packets;

use super::transfer::{OldObjects, Transfer, record_kind};
use super::{Mover, NOTHING, REMOVED, Row, State, table_reader};
use crate::iptables::chain_reader::Content;
use crate::nftables::migration::{self, Key, Part, Removal, Transit};
use crate::nftables::session::OwnedElement;
use crate::nftables::{end_flows_of_the_dead, masquerade_job, ports_job};
use crate::{Error, Request};

impl Mover<'_> {
    pub(super) fn only_to_table(&self, group: Vec<Transfer>) -> Result<Vec<Row>, Error> {
        if group.is_empty() {
            return Ok(Vec::new());
        }
        let (moved, mut rows) = self.to_table(group)?;
        rows.extend(moved.iter().map(|transfer| transfer.row(State::Moved, "")));
        Ok(rows)
    }

    /// Removes copies from the table if their old place has become empty.
    pub(super) fn unmake_in_table(&self, keys: &[Key]) -> Result<(), Error> {
        let is_made = |entry: &OwnedElement| Ok(entry.transit() == Transit::Made);
        let removal = Removal { part: Part::All, still: &is_made, settle: &|_| None };
        migration::take_away(&self.session, keys, &removal).map(drop)
    }

    /// Returns the requests that the table now serves, and adds rows about the others.
    pub(super) fn to_table(&self, group: Vec<Transfer>) -> Result<(Vec<Transfer>, Vec<Row>), Error> {
        let mut rows = Vec::new();
        let mut made = Vec::new();
        let here = table_reader::all(&self.session)?;
        for transfer in group {
            match self.make_in_table(&transfer, here.get(&transfer.key())) {
                Ok(None) => made.push(transfer),
                Ok(Some(why)) => rows.push(transfer.row(State::LeftAlone, why)),
                Err(error) => rows.push(transfer.row(State::Failed, error.to_string())),
            }
        }
        wait_for_packets();
        let verified = self.verify(made, &mut rows, |transfers| {
            self.unmake_in_table(&transfers.iter().map(Transfer::key).collect::<Vec<_>>())
        })?;
        let keys: Vec<Key> = verified.iter().map(Transfer::key).collect();
        let from = [Transit::Made, Transit::Verified, Transit::Settled];
        let without_record = |kind| vec![record_kind(kind)];
        let marked = migration::mark(&self.session, &keys, &from, Transit::Verified, &without_record)?;
        let (going, gone): (Vec<Transfer>, Vec<Transfer>) =
            verified.into_iter().partition(|transfer| marked.contains(&transfer.key()));
        rows.extend(gone.iter().map(|transfer| transfer.row(State::LeftAlone, REMOVED)));
        let locked = self.empty_old_places(&going)?;
        let keys: Vec<Key> = going.iter().map(Transfer::key).collect();
        // If an ADD to the old place has run since then, it has written its entry again.
        let mut added = Vec::new();
        for transfer in &going {
            if matches!(transfer.old, OldObjects::Chains(_)) && self.is_added_again(&transfer.record())? {
                added.push(transfer);
            }
        }
        let (state, why) = if locked {
            (State::LeftAlone, "it was added again concurrently; the next call looks at it again")
        } else {
            (
                State::Failed,
                "it was added again concurrently: run `slipway restore`, which finds missing rules",
            )
        };
        rows.extend(added.iter().map(|transfer| transfer.row(state, why)));
        let added: BTreeSet<Key> = added.iter().map(|transfer| transfer.key()).collect();
        self.mark(&keys, &[Transit::Verified], Transit::Settled)?;
        let moved = going.into_iter().filter(|transfer| !added.contains(&transfer.key())).collect();
        Ok((moved, rows))
    }

    /// Serves a request with our table. Returns the reason if the request must be left alone.
    fn make_in_table(
        &self,
        transfer: &Transfer,
        here: Option<&table_reader::AttachmentElements>,
    ) -> Result<Option<&'static str>, Error> {
        let record = transfer.record();
        let way_back = self.session.entry(record.hash, record.kind)?.map(|entry| entry.transit());
        match (here, way_back) {
            // A move to the chains has just begun: the table is complete, but the chains may not be.
            (Some(_), Some(Transit::Made)) => return Ok(None),
            // A move to the chains had progressed so far that the table may already have been emptied in part.
            (_, Some(Transit::Verified)) => {}
            // The old place may already have been emptied in part.
            (Some(found), _) if found.transit != Transit::Made => {
                let there = Content::from(&transfer.request);
                let is_whole = found.content.as_ref().is_ok_and(|here| table_reader::covers(here, &there));
                return Ok((!is_whole).then_some("our table has something else of the same attachment"));
            }
            _ => {}
        }
        if transfer.is_empty() {
            return Ok(Some(NOTHING));
        }
        let job = match &transfer.request {
            Request::Ports(request) => ports_job(request)?,
            Request::Masquerade(request) => masquerade_job(request),
        };
        end_flows_of_the_dead(&job.in_transit(Transit::Made).run(&self.session)?.gone);
        Ok(None)
    }
}
