// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds the things to move, and their owners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_spec::Attachment;
use ipnet::IpNet;

use super::work::{Source, Wanted, Work};
use super::{Clue, Mover, Place, Row, State, read_table};
use crate::ebpf::migrate::Programs;
use crate::iptables::read_back::{self, What};
use crate::nftables::migration::Key;
use crate::nftables::owner_entry::{self, Recorded};
use crate::nftables::schema::KIND_PORTS;
use crate::owner::AttachmentHash;
use crate::reference::{Piece, Reference};
use crate::{BackendName, ContainerNetns, Error};

/// The things found, and rows about those that cannot be moved.
#[derive(Default)]
struct Findings {
    works: Vec<Work>,
    rows: Vec<Row>,
}

impl Findings {
    fn leave(&mut self, from: Place, what: String, owner: Option<Attachment>, why: &impl ToString) {
        let (state, why) = (State::LeftAlone, why.to_string());
        self.rows.push(Row { owner, what, from, state, why, ports: None });
    }
}

/// A reason why the owner of a thing is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Unowned {
    #[error(
        "its names are cut in the table, and neither the runtime's cache nor a reservation has the full names"
    )]
    Cut,
    #[error("its network or interface is neither in the runtime's cache nor in a reservation")]
    Unknown,
    #[error("it may belong to several interfaces of the container")]
    Ambiguous,
}

impl Mover<'_> {
    /// The things to move, and rows about those that cannot be moved.
    pub(super) fn survey(&self) -> Result<(Vec<Work>, Vec<Row>), Error> {
        let (mut works, mut rows) = self.everything()?;
        if self.order.to == BackendName::Ebpf {
            works = self.for_programs(works, &mut rows)?;
        }
        works.retain(|work| self.moves_from(work.place));
        rows.retain(|row| self.moves_from(row.from));
        Ok((works, rows))
    }

    /// The things in all places that the move is from or to.
    pub(super) fn everything(&self) -> Result<(Vec<Work>, Vec<Row>), Error> {
        let mut findings = Findings::default();
        let programs = Programs::find();
        let to = self.order.to;
        if to != BackendName::Nftables || programs.is_some() {
            self.survey_table(programs.as_ref(), &mut findings)?;
        }
        if to == BackendName::Ebpf || self.moves_from(Place::Iptables) {
            self.survey_chains(&mut findings)?;
        }
        if (to == BackendName::Ebpf || self.moves_from(Place::Reference))
            && let Some(reference) = Reference::find()?
        {
            self.survey_rules(reference.survey()?, &mut findings);
        }
        Ok((findings.works, findings.rows))
    }

    /// The place that serves a thing in our table.
    fn place(programs: Option<&Programs>, wanted: &Wanted) -> Result<Place, Error> {
        let serve = programs.map_or(Ok(false), |programs| programs.serve(wanted.thing()))?;
        Ok(if serve { Place::Ebpf } else { Place::Nftables })
    }

    fn survey_table(&self, programs: Option<&Programs>, findings: &mut Findings) -> Result<(), Error> {
        for (key, found) in read_table::all(&self.session)? {
            if !self.moves_network(&found.owner.network) {
                continue;
            }
            let named =
                Attachment::new(&found.owner.network, &found.owner.container_id, &found.owner.ifname).ok();
            let clues = self.order.clues.iter().map(|clue| clue.attachment.clone());
            let mut candidates = named.iter().cloned().chain(clues);
            let attachment = candidates.find(|attachment| AttachmentHash::of(attachment) == key.hash);
            let place = match (attachment.as_ref().or(named.as_ref()), &found.what) {
                (Some(name), Ok(what)) => {
                    Self::place(programs, &self.wanted(name, found.netns.clone(), what.clone()))?
                }
                _ => Place::Nftables,
            };
            let kind = if key.kind == KIND_PORTS { "published ports" } else { "masquerade" };
            let description = format!("{kind} of {}", found.owner);
            match (attachment, found.what) {
                (Some(attachment), Ok(what)) => {
                    let netns = self.netns(&attachment, Some(found.netns));
                    let wanted = self.wanted(&attachment, netns, what);
                    findings.works.push(Work { attachment, wanted, source: Source::Table, place });
                }
                (owner @ Some(_), Err(why)) => findings.leave(place, description, owner, &why),
                (None, _) => findings.leave(place, description, None, &Unowned::Cut),
            }
        }
        Ok(())
    }

    /// The request for the destination.
    fn wanted(&self, attachment: &Attachment, netns: ContainerNetns, what: What) -> Wanted {
        Wanted::new(self.order.to, attachment, netns, what)
    }

    /// The recorded namespace, else the one in the runtime's cache.
    fn netns(&self, attachment: &Attachment, recorded: Option<ContainerNetns>) -> ContainerNetns {
        let cached = || self.order.clues.iter().find(|clue| clue.attachment == *attachment)?.netns.clone();
        let recorded = recorded.filter(|netns| *netns != ContainerNetns::unknown());
        recorded.or_else(cached).unwrap_or_else(ContainerNetns::unknown)
    }

    fn survey_chains(&self, findings: &mut Findings) -> Result<(), Error> {
        let recorded = owner_entry::list(&self.session, |_| true)?;
        for found in read_back::all()? {
            let owner = &found.owner;
            if !self.moves_network(&owner.network) {
                continue;
            }
            let names: Vec<&str> = found.chains.iter().map(String::as_str).collect();
            let (names, network, id) = (names.join(" "), &owner.network, &owner.container_id);
            let description = format!("chains {names} of network {network}, container {id}");
            let of_records = recorded.iter().filter(|record| owner.may_be(&record.owner));
            let of_clues = self.order.clues.iter().map(Candidate::of_clue);
            let candidates: Vec<Candidate> = of_records
                .filter_map(Candidate::of_record)
                .chain(of_clues)
                .filter(|one| owner.is(&one.attachment))
                .collect();
            let what = match &found.what {
                Ok(what) => what.clone(),
                Err(why) => {
                    let owner = candidates.first().map(|one| one.attachment.clone());
                    findings.leave(Place::Iptables, description, owner, why);
                    continue;
                }
            };
            match choose(&candidates, &addresses(&what)) {
                Ok(one) => {
                    let netns = self.netns(&one.attachment, one.netns.clone());
                    let wanted = self.wanted(&one.attachment, netns, with_prefixes(what, &one.addresses));
                    findings.works.push(Work {
                        attachment: one.attachment.clone(),
                        wanted,
                        source: Source::Chains(found),
                        place: Place::Iptables,
                    });
                }
                Err(why) => findings.leave(Place::Iptables, description, None, &why),
            }
        }
        Ok(())
    }

    fn survey_rules(&self, pieces: Vec<Piece>, findings: &mut Findings) {
        let named: Vec<Candidate> = pieces.iter().filter_map(Candidate::of_masquerade).collect();
        let mut works: BTreeMap<Key, Work> = BTreeMap::new();
        for piece in pieces {
            let clues = self.order.clues.iter().map(Candidate::of_clue);
            let candidates: Vec<Candidate> =
                named.iter().cloned().chain(clues).filter(|one| piece.may_be_of(&one.attachment)).collect();
            let description =
                format!("rules of the reference about {} of container {}", piece.address, piece.comment);
            let one = match choose(&candidates, &[piece.address]) {
                Ok(one) if self.moves_network(one.attachment.network()) => one,
                Ok(_) => continue,
                Err(_) if !self.order.networks.is_empty() => continue,
                Err(why) => {
                    findings.leave(Place::Reference, description, None, &why);
                    continue;
                }
            };
            let attachment = one.attachment.clone();
            let what = match piece.what.clone() {
                Ok(what) => with_prefixes(what, &one.addresses),
                Err(why) => {
                    findings.leave(Place::Reference, description, Some(attachment), &why);
                    continue;
                }
            };
            let netns = self.netns(&attachment, one.netns.clone());
            let wanted = self.wanted(&attachment, netns, what);
            let (source, place) = (Source::Rules(vec![piece]), Place::Reference);
            let work = Work { attachment, wanted, source, place };
            match works.get_mut(&work.key()) {
                Some(before) => before.join(work),
                None => drop(works.insert(work.key(), work)),
            }
        }
        findings.works.extend(works.into_values());
    }
}

/// An attachment that a thing may belong to.
#[derive(Debug, Clone)]
struct Candidate {
    attachment: Attachment,
    /// Empty if they are unknown.
    addresses: Vec<IpNet>,
    netns: Option<ContainerNetns>,
}

impl Candidate {
    fn of_clue(clue: &Clue) -> Self {
        let Clue { attachment, addresses, netns } = clue.clone();
        Self { attachment, addresses, netns }
    }

    /// The owner in a record, if its names are not cut.
    fn of_record(record: &Recorded) -> Option<Self> {
        let owner = &record.owner;
        let attachment = Attachment::new(&owner.network, &owner.container_id, &owner.ifname).ok()?;
        let is_whole = AttachmentHash::of(&attachment) == owner.attachment_hash;
        is_whole.then(|| Self { attachment, addresses: Vec::new(), netns: record.netns.clone() })
    }

    /// The attachment that the comment of a masquerade names.
    fn of_masquerade(piece: &Piece) -> Option<Self> {
        let Ok(What::Masquerade(found)) = &piece.what else { return None };
        let addresses = vec![found.addresses.first().copied()?];
        Some(Self { attachment: piece.named()?, addresses, netns: None })
    }
}

fn addresses(what: &What) -> Vec<IpAddr> {
    match what {
        What::Masquerade(found) => found.addresses.iter().map(IpNet::addr).collect(),
        What::Ports(ports) => ports.ports.iter().map(|port| port.container).collect(),
    }
}

/// The only candidate with one of the addresses, else the only one whose addresses are unknown.
fn choose<'a>(all: &'a [Candidate], addresses: &[IpAddr]) -> Result<&'a Candidate, Unowned> {
    let has = |one: &Candidate| addresses.iter().any(|a| one.addresses.iter().any(|net| net.addr() == *a));
    let attachments =
        |some: &[&Candidate]| some.iter().map(|one| one.attachment.clone()).collect::<BTreeSet<_>>().len();
    let with: Vec<&Candidate> = all.iter().filter(|one| has(one)).collect();
    // Candidates with the networks' prefixes are preferred.
    let best = |some: &[&'a Candidate]| {
        some.iter()
            .copied()
            .max_by_key(|one| one.addresses.iter().any(|n| n.prefix_len() < n.max_prefix_len()))
    };
    if let (1, Some(one)) = (attachments(&with), best(&with)) {
        return Ok(one);
    }
    let without: Vec<&Candidate> = all.iter().filter(|one| one.addresses.is_empty()).collect();
    match (attachments(&with), attachments(&without), best(&without)) {
        (0, 1, Some(one)) => Ok(one),
        (0, 0, _) => Err(Unowned::Unknown),
        _ => Err(Unowned::Ambiguous),
    }
}

/// Replaces networks that are single addresses by the known ones of the same address.
fn with_prefixes(what: What, known: &[IpNet]) -> What {
    let better = |net: IpNet| {
        let is_single = net.prefix_len() == net.max_prefix_len();
        let other = known.iter().find(|other| other.addr() == net.addr());
        other.copied().filter(|_| is_single).unwrap_or(net)
    };
    match what {
        What::Ports(mut ports) => {
            ports.networks = ports.networks.into_iter().map(better).collect();
            What::Ports(ports)
        }
        other => other,
    }
}
