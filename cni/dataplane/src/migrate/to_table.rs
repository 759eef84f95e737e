// SPDX-License-Identifier: GPL-2.0-or-later

//! Makes things in our own table.

use std::collections::BTreeSet;

use cni_kernel::grace::wait_for_packets;

use super::work::{Source, Wanted, Work, record_kind};
use super::{Mover, NOTHING, REMOVED, Row, State, read_table};
use crate::Error;
use crate::iptables::read_back::What;
use crate::nftables::migration::{self, Key, Part, Removal, Transit};
use crate::nftables::session::Held;
use crate::nftables::{end_flows_of_the_dead, masquerade_job, ports_job};

impl Mover<'_> {
    pub(super) fn only_to_table(&self, group: Vec<Work>) -> Result<Vec<Row>, Error> {
        if group.is_empty() {
            return Ok(Vec::new());
        }
        let (moved, mut rows) = self.to_table(group)?;
        rows.extend(moved.iter().map(|work| work.row(State::Moved, "")));
        Ok(rows)
    }

    /// Removes copies from the table whose old place has become empty.
    pub(super) fn unmake_in_table(&self, keys: &[Key]) -> Result<(), Error> {
        let is_made = |entry: &Held| Ok(entry.transit() == Transit::Made);
        let removal = Removal { part: Part::All, still: &is_made, settle: &|_| None };
        migration::take_away(&self.session, keys, &removal).map(drop)
    }

    /// Returns the things that are in the table now, and rows about the others.
    pub(super) fn to_table(&self, group: Vec<Work>) -> Result<(Vec<Work>, Vec<Row>), Error> {
        let mut rows = Vec::new();
        let mut made = Vec::new();
        let here = read_table::all(&self.session)?;
        for work in group {
            match self.make_in_table(&work, here.get(&work.key())) {
                Ok(None) => made.push(work),
                Ok(Some(why)) => rows.push(work.row(State::LeftAlone, why)),
                Err(error) => rows.push(work.row(State::Failed, error.to_string())),
            }
        }
        wait_for_packets();
        let verified = self.verify(made, &mut rows, |works| {
            self.unmake_in_table(&works.iter().map(Work::key).collect::<Vec<_>>())
        })?;
        let keys: Vec<Key> = verified.iter().map(Work::key).collect();
        let from = [Transit::Made, Transit::Verified, Transit::Settled];
        let without_record = |kind| vec![record_kind(kind)];
        let marked = migration::mark(&self.session, &keys, &from, Transit::Verified, &without_record)?;
        let (going, gone): (Vec<Work>, Vec<Work>) =
            verified.into_iter().partition(|work| marked.contains(&work.key()));
        rows.extend(gone.iter().map(|work| work.row(State::LeftAlone, REMOVED)));
        let locked = self.empty_old_places(&going)?;
        let keys: Vec<Key> = going.iter().map(Work::key).collect();
        // An ADD to the old place since then has written its entry again.
        let added: Vec<&Work> = going
            .iter()
            .filter(|work| matches!(work.source, Source::Chains(_)) && self.is_added_again(&work.record()))
            .collect();
        let (state, why) = if locked {
            (State::LeftAlone, "it was added again concurrently; the next call looks at it again")
        } else {
            (
                State::Failed,
                "it was added again concurrently: run `slipway restore`, which finds missing rules",
            )
        };
        rows.extend(added.iter().map(|work| work.row(state, why)));
        let added: BTreeSet<Key> = added.iter().map(|work| work.key()).collect();
        self.mark(&keys, &[Transit::Verified], Transit::Settled)?;
        let moved = going.into_iter().filter(|work| !added.contains(&work.key())).collect();
        Ok((moved, rows))
    }

    /// Makes the thing in our table. Returns the reason to leave it alone, if there is one.
    fn make_in_table(
        &self,
        work: &Work,
        here: Option<&read_table::Found>,
    ) -> Result<Option<&'static str>, Error> {
        let record = work.record();
        let way_back = self.session.entry(record.hash, record.kind)?.map(|entry| entry.transit());
        match (here, way_back) {
            // A move to the chains had just begun: the table is complete, the chains may not be.
            (Some(_), Some(Transit::Made)) => return Ok(None),
            // A move to the chains was so far that the table may be emptied in part.
            (_, Some(Transit::Verified)) => {}
            // The old place may be emptied in part.
            (Some(found), _) if found.transit != Transit::Made => {
                let there = What::from(&work.wanted);
                let is_whole = found.what.as_ref().is_ok_and(|here| read_table::covers(here, &there));
                return Ok((!is_whole).then_some("our table has something else of the same attachment"));
            }
            _ => {}
        }
        if work.is_empty() {
            return Ok(Some(NOTHING));
        }
        let job = match &work.wanted {
            Wanted::Ports(request) => ports_job(request)?,
            Wanted::Masquerade(request) => masquerade_job(request),
        };
        end_flows_of_the_dead(&job.in_transit(Transit::Made).run(&self.session)?);
        Ok(None)
    }
}
