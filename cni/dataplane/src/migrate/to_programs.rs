// SPDX-License-Identifier: GPL-2.0-or-later

//! Moves things to the BPF programs, and away from them.
//!
//! The programs serve what is in our table in any case, so only the programs at a container's link change.
//! conntrack has every flow.

use std::collections::BTreeMap;

use cni_kernel::route::Link;

use super::work::{Source, Wanted, Work};
use super::{CHANGED, Mover, NOTHING, Place, REMOVED, Row, State, by_attachment};
use crate::Error;
use crate::ebpf::migrate::{Finder, Programs, Thing};
use crate::nftables::migration::Key;
use crate::nftables::schema::KIND_PORTS;

/// An attachment in transit to the programs.
struct Passenger {
    works: Vec<Work>,
    link: Link,
}

impl Wanted {
    pub(super) fn thing(&self) -> Thing<'_> {
        match self {
            Self::Ports(request) => Thing::Ports(request),
            Self::Masquerade(request) => Thing::Masquerade(request),
        }
    }
}

fn things(works: &[Work]) -> Vec<Thing<'_>> {
    works.iter().map(|work| work.wanted.thing()).collect()
}

impl Mover<'_> {
    /// Returns what the programs can serve and do not serve yet, and adds rows about the rest. A container's
    /// masquerade moves only together with its ports: the programs at its link carry the flows of both.
    pub(super) fn for_programs(&self, all: Vec<Work>, rows: &mut Vec<Row>) -> Result<Vec<Work>, Error> {
        let finder = Finder::default();
        let mut wanted = Vec::new();
        for works in by_attachment(without_copies(all)).into_values() {
            let Some(attachment) = works.first().map(|work| work.attachment.clone()) else { continue };
            let (selected, others): (Vec<Work>, Vec<Work>) = works
                .iter()
                .filter(|work| work.place != Place::Ebpf)
                .cloned()
                .partition(|work| self.moves_from(work.place));
            if selected.is_empty() {
                continue;
            }
            let behind = rows.iter().find(|row| row.owner.as_ref() == Some(&attachment));
            let other_ports = others.iter().find(|work| work.wanted.kind() == KIND_PORTS);
            let why = match (behind, other_ports) {
                (Some(row), _) => Some(format!("{} stays in {}", row.what, row.from.as_str())),
                (None, Some(work)) => {
                    let place = work.place.as_str();
                    Some(format!("its published ports are in {place}, which --from does not name"))
                }
                (None, None) => finder.link(&things(&works))?.err().map(|left| left.to_string()),
            };
            if let Some(why) = why {
                rows.extend(selected.iter().map(|work| work.row(State::LeftAlone, why.as_str())));
                continue;
            }
            let (empty, full): (Vec<Work>, Vec<Work>) = selected.into_iter().partition(Work::is_empty);
            rows.extend(empty.iter().map(|work| work.row(State::LeftAlone, NOTHING)));
            wanted.extend(full);
        }
        Ok(wanted)
    }

    /// Lets the programs serve a group. Things in other places are moved into our table first.
    pub(super) fn to_programs(&self, programs: &Programs, group: Vec<Work>) -> Result<Vec<Row>, Error> {
        let (mut here, others): (Vec<Work>, Vec<Work>) = group.into_iter().partition(Work::is_in_table);
        let mut rows = Vec::new();
        if !others.is_empty() {
            let (moved, left) = self.to_table(others)?;
            let stays = |work: &Work| left.iter().any(|row| row.owner.as_ref() == Some(&work.attachment));
            here.extend(self.as_in_table(moved)?);
            let (behind, on): (Vec<Work>, Vec<Work>) = here.into_iter().partition(stays);
            let why = "it is in nftables: something else of the container could not be moved";
            rows.extend(behind.iter().map(|work| work.row(State::LeftAlone, why)));
            rows.extend(left);
            here = on;
        }
        let mut passengers = Vec::new();
        for works in by_attachment(here).into_values() {
            match self.embark(programs, works) {
                Ok(passenger) => passengers.push(passenger),
                Err(whys) => rows.extend(whys),
            }
        }
        if passengers.is_empty() {
            return Ok(rows);
        }
        let (now, _) = self.everything()?;
        for one in passengers {
            let is_there = |work: &Work| now.iter().any(|other| other.same(work));
            let (state, why) = if one.works.iter().all(is_there) {
                (State::Moved, "")
            } else {
                programs.detach(&one.link);
                (State::LeftAlone, CHANGED)
            };
            rows.extend(one.works.iter().map(|work| work.row(state, why)));
        }
        Ok(rows)
    }

    /// Attaches the programs to a container's link. Returns rows with the reason if that is not possible.
    fn embark(&self, programs: &Programs, works: Vec<Work>) -> Result<Passenger, Vec<Row>> {
        let all = |state: State, why: String| -> Vec<Row> {
            works.iter().map(|work| work.row(state, why.as_str())).collect()
        };
        let failed = |error: Error| all(State::Failed, error.to_string());
        let link = match programs.link(&things(&works)) {
            Ok(Ok(link)) => link,
            Ok(Err(left)) => return Err(all(State::LeftAlone, left.to_string())),
            Err(error) => return Err(failed(error)),
        };
        for work in &works {
            let Key { hash, kind } = work.key();
            match self.session.entry(hash, kind) {
                Ok(Some(_)) => {}
                Ok(None) => return Err(all(State::LeftAlone, REMOVED.to_owned())),
                Err(error) => return Err(failed(error)),
            }
        }
        programs.attach(&link).map_err(failed)?;
        Ok(Passenger { works, link })
    }

    /// The things that were just moved into our table, as they read there.
    fn as_in_table(&self, moved: Vec<Work>) -> Result<Vec<Work>, Error> {
        let (now, _) = self.everything()?;
        let here: BTreeMap<Key, Wanted> =
            now.into_iter().filter(Work::is_in_table).map(|work| (work.key(), work.wanted)).collect();
        let as_there = |work: Work| {
            let wanted = here.get(&work.key())?.clone();
            Some(Work { wanted, source: Source::Table, ..work })
        };
        Ok(moved.into_iter().filter_map(as_there).collect())
    }

    /// Lets netfilter serve a group again. Returns the things that the programs no longer serve, and adds rows
    /// about the others.
    pub(super) fn leave_programs(programs: &Programs, works: Vec<Work>, rows: &mut Vec<Row>) -> Vec<Work> {
        match programs.withdraw(&things(&works)) {
            Ok(()) => works,
            Err(error) => {
                rows.extend(works.iter().map(|work| work.row(State::Failed, error.to_string())));
                Vec::new()
            }
        }
    }
}

/// Drops the copies of things in transit into our table, which are moved from their old place.
fn without_copies(works: Vec<Work>) -> Vec<Work> {
    let originals: Vec<Key> = works.iter().filter(|work| !work.is_in_table()).map(Work::key).collect();
    works.into_iter().filter(|work| !work.is_in_table() || !originals.contains(&work.key())).collect()
}
