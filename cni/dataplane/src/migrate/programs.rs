//! To the programs of the eBPF backend, and away from them.
//!
//! What they serve is in our table in any case, so that nothing but the maps changes. A conversation stays with
//! whom it is with: those of netfilter are noted in the maps before the programs serve a container, those of the
//! programs are put into conntrack before they no longer do.

use std::collections::BTreeMap;

use super::{Mover, NOTHING, Place, Row, Source, State, Wanted, Work, by_attachment};
use crate::ebpf::Left;
use crate::ebpf::migrate::{Begun, Finder, Moving, Spot, Thing};
use crate::nftables::migration::Key;
use crate::nftables::schema::KIND_PORTS;
use crate::owner::AttachmentHash;
use crate::{Error, Protocol};

/// An attachment on its way to the programs.
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

    /// How many mappings are of SCTP, and how many there are.
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
    /// What the programs can serve of what there is, and do not. The rest is told in rows. Answers of a container
    /// to clients of its ports must not be taken for conversations of its own: its masquerade goes to the
    /// programs only where its ports are theirs, too.
    pub(super) fn for_programs(&self, all: Vec<Work>, rows: &mut Vec<Row>) -> Result<Vec<Work>, Error> {
        let (programs, finder) = (Moving::find()?, Finder::default());
        let mut wanted = Vec::new();
        for works in by_attachment(without_copies(all)).into_values() {
            let Some(attachment) = works.first().map(|work| work.attachment.clone()) else { continue };
            let (selected, others): (Vec<Work>, Vec<Work>) = works
                .iter()
                .filter(|work| work.place != Place::Ebpf)
                .cloned()
                .partition(|work| self.from(work.place));
            if selected.is_empty() {
                continue;
            }
            let behind = rows.iter().find(|row| row.owner.as_ref() == Some(&attachment));
            let ports_elsewhere = others.iter().find(|work| work.wanted.kind() == KIND_PORTS);
            let why = match (behind, ports_elsewhere) {
                (Some(row), _) => Some(format!("{} stays in {}", row.what, row.from.as_str())),
                (None, Some(work)) => {
                    let place = work.place.as_str();
                    Some(format!("its published ports are in {place}, which --from does not name"))
                }
                (None, None) => obstacle(&finder, &works, programs.as_ref())?.map(|left| left.to_string()),
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

    /// Has the programs serve a group. What is elsewhere comes into our table first.
    pub(super) fn to_programs(&self, programs: &mut Moving, group: Vec<Work>) -> Result<Vec<Row>, Error> {
        let (mut here, elsewhere): (Vec<Work>, Vec<Work>) = group.into_iter().partition(Work::is_in_table);
        let mut rows = Vec::new();
        if !elsewhere.is_empty() {
            let (moved, others) = self.to_table(elsewhere)?;
            let stays = |work: &Work| others.iter().any(|row| row.owner.as_ref() == Some(&work.attachment));
            here.extend(self.as_in_table(moved)?);
            let (behind, on): (Vec<Work>, Vec<Work>) = here.into_iter().partition(stays);
            let why = "it is in nftables: something else of the container could not be moved";
            rows.extend(behind.iter().map(|work| work.row(State::LeftAlone, why)));
            rows.extend(others);
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
        // If this fails they stay held, which nobody notices, and another call goes on.
        programs.note_earlier(&begun)?;
        let (now, _) = self.everything()?;
        for one in passengers {
            let is_there = |work: &Work| now.iter().any(|other| other.same(work));
            if one.works.iter().all(is_there) {
                programs.finish(&one.begun)?;
                rows.extend(one.works.iter().map(|work| work.row(State::Moved, self.remark(&work.wanted))));
            } else {
                programs.give_up(&one.spot, &things(&one.works))?;
                let why = "it has changed or gone meanwhile; another call looks at it again";
                rows.extend(one.works.iter().map(|work| work.row(State::LeftAlone, why)));
            }
        }
        Ok(rows)
    }

    /// Tells the programs of a container, which is held. Else rows that say why not.
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
        let spot = match finder.spot(&things(&works)) {
            Ok(Ok(spot)) => spot,
            Ok(Err(left)) => return Err(all(State::LeftAlone, left.to_string())),
            Err(error) => return Err(failed(error)),
        };
        for work in &works {
            let (hash, kind) = work.key();
            match self.session.entry(hash, kind) {
                Ok(Some(_)) => {}
                Ok(None) => return Err(all(State::LeftAlone, "it was taken away meanwhile".to_owned())),
                Err(error) => return Err(failed(error)),
            }
        }
        let begun = programs.begin(&spot, &things(&works)).map_err(|error| {
            if let Err(left) = programs.give_up(&spot, &things(&works)) {
                log::warn!("take back what the BPF maps were told: {left}");
            }
            failed(error)
        })?;
        Ok(Passenger { works, spot, begun })
    }

    /// What has just come into our table, as it reads there.
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

    /// What there is to say of something that the programs serve.
    fn remark(&self, wanted: &Wanted) -> String {
        match (wanted, wanted.of_sctp().0) {
            (Wanted::Masquerade(_), _) => match self.order.settings.masquerade_ports.clash() {
                Some(why) => format!("nftables masquerades: {why}"),
                None => String::new(),
            },
            (Wanted::Ports(_), 0) => String::new(),
            (Wanted::Ports(_), _) => format!("nftables serves those of SCTP: {}", Left::Sctp),
        }
    }

    /// Has netfilter serve a group again. Returns what the programs no longer have, each with what is to be said
    /// of it, and rows about the rest.
    pub(super) fn leave_programs(
        &self,
        programs: &mut Moving,
        works: Vec<Work>,
    ) -> (Vec<(Work, String)>, Vec<Row>) {
        if works.is_empty() {
            return (Vec::new(), Vec::new());
        }
        match programs.withdraw(&things(&works)) {
            Ok(handed) => {
                let mut told: Vec<AttachmentHash> = Vec::new();
                let mut complaint = |work: &Work| {
                    // Once for each container.
                    if told.contains(&work.key().0) {
                        return String::new();
                    }
                    told.push(work.key().0);
                    handed.complaint(&work.wanted.thing().addresses()).unwrap_or_default()
                };
                let with_why = works.into_iter().map(|work| {
                    let why = complaint(&work);
                    (work, why)
                });
                (with_why.collect(), Vec::new())
            }
            Err(error) => {
                let rows = works.iter().map(|work| work.row(State::Failed, error.to_string()));
                (Vec::new(), rows.collect())
            }
        }
    }
}

/// Why the programs cannot serve an attachment, if they cannot.
fn obstacle(finder: &Finder, works: &[Work], programs: Option<&Moving>) -> Result<Option<Left>, Error> {
    match finder.spot(&things(works))? {
        Err(left) => Ok(Some(left)),
        Ok(spot) => match programs {
            Some(programs) if programs.leaves(&spot)? => Ok(Some(Left::Pod)),
            _ => Ok(None),
        },
    }
}

/// What is on its way into our table is in two places, and goes on from the old one.
fn without_copies(works: Vec<Work>) -> Vec<Work> {
    let elsewhere: Vec<Key> = works.iter().filter(|work| !work.is_in_table()).map(Work::key).collect();
    works.into_iter().filter(|work| !work.is_in_table() || !elsewhere.contains(&work.key())).collect()
}
