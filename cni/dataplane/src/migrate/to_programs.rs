// SPDX-License-Identifier: GPL-2.0-or-later

//! Moves things to the BPF programs, and away from them.
//!
//! The programs serve what is in our table in any case, so only the BPF maps change. A flow stays with the
//! side that has it: netfilter's flows are entered into the maps before the programs serve a container, and
//! the programs' flows into conntrack before the programs stop.

use std::collections::BTreeMap;

use super::work::{Source, Wanted, Work};
use super::{CHANGED, Mover, NOTHING, Place, REMOVED, Row, State, by_attachment};
use crate::ebpf::migrate::{Begun, Finder, Moving, Spot, Thing};
use crate::ebpf::{FlowSource, Left};
use crate::nftables::migration::Key;
use crate::nftables::schema::KIND_PORTS;
use crate::owner::AttachmentHash;
use crate::{Error, Protocol};

/// An attachment in transit to the programs.
struct Passenger {
    works: Vec<Work>,
    spot: Spot,
    begun: Begun,
}

impl Wanted {
    pub(super) fn thing(&self) -> Thing<'_> {
        match self {
            Self::Ports(request) => Thing::Ports(request),
            Self::Masquerade(request) => Thing::Masquerade(request),
        }
    }

    /// The number of mappings of SCTP, and of all mappings.
    fn of_sctp(&self) -> (usize, usize) {
        match self {
            Self::Ports(request) => {
                let of_sctp = |port: &&crate::PublishedPort| port.host.protocol == Protocol::Sctp;
                (request.ports.iter().filter(of_sctp).count(), request.ports.len())
            }
            Self::Masquerade(_) => (0, 0),
        }
    }
}

fn things(works: &[Work]) -> Vec<Thing<'_>> {
    works.iter().map(|work| work.wanted.thing()).collect()
}

impl Mover<'_> {
    /// Returns what the programs can serve and do not serve yet, and adds rows about the rest. A container's
    /// masquerade moves only together with its ports: otherwise the programs would take its replies to
    /// clients of its ports for flows that it began.
    pub(super) fn for_programs(&self, all: Vec<Work>, rows: &mut Vec<Row>) -> Result<Vec<Work>, Error> {
        let (programs, finder) = (Moving::find()?, Finder::default());
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
                (None, None) => {
                    self.obstacle(&finder, &works, programs.as_ref())?.map(|left| left.to_string())
                }
            };
            if let Some(why) = why {
                rows.extend(selected.iter().map(|work| work.row(State::LeftAlone, why.as_str())));
                continue;
            }
            for work in selected {
                match work.wanted.of_sctp() {
                    _ if work.is_empty() => rows.push(work.row(State::LeftAlone, NOTHING)),
                    (sctp, all) if sctp > 0 && sctp == all => {
                        rows.push(work.row(State::LeftAlone, Left::Sctp.to_string()));
                    }
                    _ => wanted.push(work),
                }
            }
        }
        Ok(wanted)
    }

    /// Lets the programs serve a group. Things in other places are moved into our table first.
    pub(super) fn to_programs(&self, programs: &mut Moving, group: Vec<Work>) -> Result<Vec<Row>, Error> {
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
        let (mut passengers, finder) = (Vec::new(), Finder::default());
        for works in by_attachment(here).into_values() {
            match self.embark(programs, &finder, works) {
                Ok(passenger) => passengers.push(passenger),
                Err(whys) => rows.extend(whys),
            }
        }
        if passengers.is_empty() {
            return Ok(rows);
        }
        let begun: Vec<&Begun> = passengers.iter().map(|one| &one.begun).collect();
        // If this fails the containers stay held, which affects no packet, and the next call continues.
        programs.note_earlier(&begun)?;
        let (now, _) = self.everything()?;
        for one in passengers {
            let is_there = |work: &Work| now.iter().any(|other| other.same(work));
            if one.works.iter().all(is_there) {
                programs.finish(&one.begun)?;
                rows.extend(one.works.iter().map(|work| work.row(State::Moved, self.remark(&work.wanted))));
            } else {
                programs.give_up(&one.spot, &things(&one.works))?;
                rows.extend(one.works.iter().map(|work| work.row(State::LeftAlone, CHANGED)));
            }
        }
        Ok(rows)
    }

    /// Enters a container into the BPF maps, and holds it. Returns rows with the reason if that is not
    /// possible.
    fn embark(
        &self,
        programs: &mut Moving,
        finder: &Finder,
        works: Vec<Work>,
    ) -> Result<Passenger, Vec<Row>> {
        let all = |state: State, why: String| -> Vec<Row> {
            works.iter().map(|work| work.row(state, why.as_str())).collect()
        };
        let failed = |error: Error| all(State::Failed, error.to_string());
        let spot = match finder.spot(self.order.settings.flows, &things(&works)) {
            Ok(Ok(spot)) => spot,
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
        let begun = programs.begin(&spot, &things(&works)).map_err(|error| {
            if let Err(left) = programs.give_up(&spot, &things(&works)) {
                log::warn!("remove a container from the BPF maps again: {left}");
            }
            failed(error)
        })?;
        Ok(Passenger { works, spot, begun })
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

    /// A remark about a thing that the programs serve; empty if there is none.
    fn remark(&self, wanted: &Wanted) -> String {
        match (wanted, wanted.of_sctp().0) {
            _ if self.order.settings.flows == FlowSource::Netfilter => String::new(),
            (Wanted::Masquerade(_), _) => match self.order.settings.masquerade_ports.clash() {
                Some(why) => format!("nftables masquerades: {why}"),
                None => String::new(),
            },
            (Wanted::Ports(_), 0) => String::new(),
            (Wanted::Ports(_), _) => format!("nftables serves those of SCTP: {}", Left::Sctp),
        }
    }

    /// Lets netfilter serve a group again. Returns the things that the programs no longer serve, each with a
    /// remark, and adds rows about the others.
    pub(super) fn leave_programs(
        &self,
        programs: &mut Moving,
        works: Vec<Work>,
        rows: &mut Vec<Row>,
    ) -> Vec<(Work, String)> {
        if works.is_empty() {
            return Vec::new();
        }
        match programs.withdraw(&things(&works)) {
            Ok(handed) => {
                let mut remarked: Vec<AttachmentHash> = Vec::new();
                let mut remark = |work: &Work| {
                    // Once for each container.
                    if remarked.contains(&work.key().hash) {
                        return String::new();
                    }
                    remarked.push(work.key().hash);
                    handed.complaint(&work.wanted.thing().addresses()).unwrap_or_default()
                };
                let with_why = works.into_iter().map(|work| {
                    let why = remark(&work);
                    (work, why)
                });
                with_why.collect()
            }
            Err(error) => {
                rows.extend(works.iter().map(|work| work.row(State::Failed, error.to_string())));
                Vec::new()
            }
        }
    }
}

impl Mover<'_> {
    /// The reason why the programs cannot serve an attachment, if there is one.
    fn obstacle(
        &self,
        finder: &Finder,
        works: &[Work],
        programs: Option<&Moving>,
    ) -> Result<Option<Left>, Error> {
        match finder.spot(self.order.settings.flows, &things(works))? {
            Err(left) => Ok(Some(left)),
            Ok(spot) => match programs {
                Some(programs) if programs.leaves(&spot)? => Ok(Some(Left::Pod)),
                _ => Ok(None),
            },
        }
    }
}

/// Drops the copies of things in transit into our table, which are moved from their old place.
fn without_copies(works: Vec<Work>) -> Vec<Work> {
    let originals: Vec<Key> = works.iter().filter(|work| !work.is_in_table()).map(Work::key).collect();
    works.into_iter().filter(|work| !work.is_in_table() || !originals.contains(&work.key())).collect()
}
