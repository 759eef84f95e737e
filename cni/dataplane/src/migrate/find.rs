//! What is there to be moved, and whose it is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_spec::Attachment;
use ipnet::IpNet;

use super::{Clue, Mover, Place, Row, Source, State, Wanted, Work, request, table};
use crate::ebpf::Left;
use crate::ebpf::migrate::{Known, Moving};
use crate::iptables::read_back::{self, What};
use crate::nftables::migration::Key;
use crate::nftables::owner_entry as record;
use crate::nftables::schema::KIND_PORTS;
use crate::owner::AttachmentHash;
use crate::reference::{Piece, Reference};
use crate::{BackendName, ContainerNetns, Error};

impl Mover<'_> {
    /// Everything that is to be moved, and rows about what cannot be.
    pub(super) fn survey(&self) -> Result<(Vec<Work>, Vec<Row>), Error> {
        let (mut works, mut rows) = self.everything()?;
        if self.order.to == BackendName::Ebpf {
            works = self.for_programs(works, &mut rows)?;
        }
        works.retain(|work| self.from(work.place));
        rows.retain(|row| self.from(row.from));
        Ok((works, rows))
    }

    /// Everything that is where it may be moved from or to.
    pub(super) fn everything(&self) -> Result<(Vec<Work>, Vec<Row>), Error> {
        let (mut works, mut rows) = (Vec::new(), Vec::new());
        let programs = Moving::find()?;
        let to = self.order.to;
        if to != BackendName::Nftables || programs.is_some() {
            self.survey_table(programs.as_ref(), &mut works, &mut rows)?;
        }
        if to == BackendName::Ebpf || self.from(Place::Iptables) {
            self.survey_chains(&mut works, &mut rows)?;
        }
        if (to == BackendName::Ebpf || self.from(Place::Reference))
            && let Some(reference) = Reference::find()?
        {
            self.survey_rules(reference.survey()?, &mut works, &mut rows);
        }
        Ok((works, rows))
    }

    /// Who serves what is in our table.
    fn place(&self, programs: Option<&Moving>, wanted: &Wanted) -> Result<Place, Error> {
        let Some(programs) = programs else { return Ok(Place::Nftables) };
        Ok(match programs.knows(wanted.thing())? {
            Known::Yes => Place::Ebpf,
            // What a call has left that was cut off is gone on with in either direction.
            Known::Partly if self.order.to != BackendName::Ebpf => Place::Ebpf,
            Known::Partly | Known::No => Place::Nftables,
        })
    }

    fn survey_table(
        &self,
        programs: Option<&Moving>,
        works: &mut Vec<Work>,
        rows: &mut Vec<Row>,
    ) -> Result<(), Error> {
        for (key, found) in table::all(&self.session)? {
            if !self.of_network(&found.owner.network) {
                continue;
            }
            let named =
                Attachment::new(&found.owner.network, &found.owner.container_id, &found.owner.ifname).ok();
            let clues = self.order.clues.iter().map(|clue| clue.attachment.clone());
            let mut candidates = named.iter().cloned().chain(clues);
            let attachment = candidates.find(|attachment| AttachmentHash::of(attachment) == key.0);
            let place = match (attachment.as_ref().or(named.as_ref()), &found.what) {
                (Some(name), Ok(what)) => {
                    self.place(programs, &request(self.order.to, name, found.netns.clone(), what.clone()))?
                }
                _ => Place::Nftables,
            };
            let left = |owner: Option<Attachment>, why: String| Row {
                what: format!("{} of {}", kind_name(key.1), found.owner),
                from: place,
                state: State::LeftAlone,
                ports: None,
                owner,
                why,
            };
            match (attachment, found.what.clone()) {
                (Some(attachment), Ok(what)) => {
                    let netns = self.netns(&attachment, Some(found.netns.clone()));
                    let wanted = request(self.order.to, &attachment, netns, what);
                    works.push(Work { attachment, wanted, source: Source::Table, place });
                }
                (owner @ Some(_), Err(why)) if self.order.to == BackendName::Ebpf => {
                    rows.push(left(owner, format!("{}: {why}", Left::Conditions)));
                }
                (owner @ Some(_), Err(why)) => rows.push(left(owner, why.to_string())),
                (None, _) => rows.push(left(
                    None,
                    "its names are cut in the table, and neither the runtime's cache nor a reservation has them"
                        .to_owned(),
                )),
            }
        }
        Ok(())
    }

    /// The namespace: as recorded, else as the runtime remembers it.
    fn netns(&self, attachment: &Attachment, recorded: Option<ContainerNetns>) -> ContainerNetns {
        let remembered =
            || self.order.clues.iter().find(|clue| clue.attachment == *attachment)?.netns.clone();
        let recorded = recorded.filter(|netns| *netns != ContainerNetns::unknown());
        recorded.or_else(remembered).unwrap_or_else(ContainerNetns::unknown)
    }

    fn survey_chains(&self, works: &mut Vec<Work>, rows: &mut Vec<Row>) -> Result<(), Error> {
        let recorded = record::list(&self.session, |_| true)?;
        for found in read_back::all()? {
            if !self.of_network(&found.owner.network) {
                continue;
            }
            let left = |owner, why| Row {
                what: format!(
                    "chains {} of network {}, container {}",
                    found.chains.iter().map(String::as_str).collect::<Vec<_>>().join(" "),
                    found.owner.network,
                    found.owner.container_id
                ),
                from: Place::Iptables,
                state: State::LeftAlone,
                ports: None,
                owner,
                why,
            };
            let of_record = recorded.iter().filter(|record| found.owner.may_be(&record.owner));
            let of_record: Vec<Candidate> = of_record.filter_map(Candidate::of_record).collect();
            let of_clues = self.order.clues.iter().map(Candidate::of_clue);
            let all = of_record.into_iter().chain(of_clues);
            let all: Vec<Candidate> = all.filter(|one| found.owner.is(&one.attachment)).collect();
            let what = match &found.what {
                Ok(what) => what.clone(),
                Err(why) => {
                    rows.push(left(all.first().map(|one| one.attachment.clone()), why.to_string()));
                    continue;
                }
            };
            match choose(&all, &addresses(&what)) {
                Ok(one) => {
                    let netns = self.netns(&one.attachment, one.netns.clone());
                    let wanted =
                        request(self.order.to, &one.attachment, netns, with_prefixes(what, &one.addresses));
                    works.push(Work {
                        attachment: one.attachment.clone(),
                        wanted,
                        source: Source::Chains(found),
                        place: Place::Iptables,
                    });
                }
                Err(why) => rows.push(left(None, why)),
            }
        }
        Ok(())
    }

    fn survey_rules(&self, pieces: Vec<Piece>, works: &mut Vec<Work>, rows: &mut Vec<Row>) {
        let named: Vec<Candidate> = pieces
            .iter()
            .filter_map(|piece| {
                let net = match &piece.what {
                    Ok(What::Masquerade(nets)) => nets.first().copied()?,
                    _ => return None,
                };
                Some(Candidate { attachment: piece.named()?, addresses: vec![net], netns: None })
            })
            .collect();
        let mut found: BTreeMap<Key, Work> = BTreeMap::new();
        for piece in pieces {
            let clues = self.order.clues.iter().map(Candidate::of_clue);
            let all = named.iter().cloned().chain(clues).filter(|one| piece.may_be_of(&one.attachment));
            let all: Vec<Candidate> = all.collect();
            let left = |owner, why| Row {
                what: format!(
                    "rules of the reference about {} of container {}",
                    piece.address, piece.comment
                ),
                from: Place::Reference,
                state: State::LeftAlone,
                ports: None,
                owner,
                why,
            };
            let one = match choose(&all, &[piece.address]) {
                Ok(one) if self.of_network(one.attachment.network()) => one,
                Ok(_) => continue,
                Err(_) if !self.order.networks.is_empty() => continue,
                Err(why) => {
                    rows.push(left(None, why));
                    continue;
                }
            };
            let what = match piece.what.clone() {
                Ok(what) => with_prefixes(what, &one.addresses),
                Err(why) => {
                    rows.push(left(Some(one.attachment.clone()), why));
                    continue;
                }
            };
            let netns = self.netns(&one.attachment, one.netns.clone());
            let wanted = request(self.order.to, &one.attachment, netns, what);
            let attachment = one.attachment.clone();
            let (source, place) = (Source::Rules(vec![piece]), Place::Reference);
            let work = Work { attachment, wanted, source, place };
            match found.get_mut(&work.key()) {
                Some(before) => before.join(work),
                None => drop(found.insert(work.key(), work)),
            }
        }
        works.extend(found.into_values());
    }
}

impl Work {
    /// Takes in more of the same kind of the same attachment.
    fn join(&mut self, other: Self) {
        match (&mut self.wanted, other.wanted) {
            (Wanted::Ports(all), Wanted::Ports(more)) => {
                all.ports.extend(more.ports);
                all.networks.extend(more.networks);
                let new: Vec<_> = more
                    .iptables
                    .entry_ports
                    .into_iter()
                    .filter(|m| !all.iptables.entry_ports.contains(m))
                    .collect();
                all.iptables.entry_ports.extend(new);
            }
            (Wanted::Masquerade(all), Wanted::Masquerade(more)) => all.addresses.extend(more.addresses),
            _ => {}
        }
        if let (Source::Rules(all), Source::Rules(more)) = (&mut self.source, other.source) {
            all.extend(more);
        }
    }
}

/// An attachment that something may belong to.
#[derive(Debug, Clone)]
struct Candidate {
    attachment: Attachment,
    /// Empty where they are not known.
    addresses: Vec<IpNet>,
    netns: Option<ContainerNetns>,
}

impl Candidate {
    fn of_clue(clue: &Clue) -> Self {
        let Clue { attachment, addresses, netns } = clue.clone();
        Self { attachment, addresses, netns }
    }

    fn of_record(record: &record::Recorded) -> Option<Self> {
        let owner = &record.owner;
        let attachment = Attachment::new(&owner.network, &owner.container_id, &owner.ifname).ok()?;
        let same = AttachmentHash::of(&attachment) == owner.attachment_hash;
        same.then(|| Self { attachment, addresses: Vec::new(), netns: record.netns.clone() })
    }
}

fn kind_name(kind: u32) -> &'static str {
    if kind == KIND_PORTS { "published ports" } else { "masquerade" }
}

fn addresses(what: &What) -> Vec<IpAddr> {
    match what {
        What::Masquerade(nets) => nets.iter().map(IpNet::addr).collect(),
        What::Ports(ports) => ports.ports.iter().map(|port| port.container).collect(),
    }
}

/// The one attachment that has these addresses; the only one there is, if nothing is known of addresses.
fn choose<'a>(all: &'a [Candidate], addresses: &[IpAddr]) -> Result<&'a Candidate, String> {
    let has = |one: &Candidate| addresses.iter().any(|a| one.addresses.iter().any(|net| net.addr() == *a));
    let names =
        |some: &[&Candidate]| some.iter().map(|one| one.attachment.clone()).collect::<BTreeSet<_>>().len();
    let with: Vec<&Candidate> = all.iter().filter(|one| has(one)).collect();
    // Those that tell the networks' prefixes first.
    let best = |some: &[&'a Candidate]| {
        some.iter()
            .copied()
            .max_by_key(|one| one.addresses.iter().any(|n| n.prefix_len() < n.max_prefix_len()))
    };
    if let (1, Some(one)) = (names(&with), best(&with)) {
        return Ok(one);
    }
    let without: Vec<&Candidate> = all.iter().filter(|one| one.addresses.is_empty()).collect();
    match (names(&with), names(&without), best(&without)) {
        (0, 1, Some(one)) => Ok(one),
        (0, 0, _) => {
            Err("which network or interface it belongs to is neither in the runtime's cache nor in a \
             reservation"
                .to_owned())
        }
        _ => Err("it may belong to several interfaces of the container".to_owned()),
    }
}

/// Networks that the rules do not tell have the prefix that is known of the address.
fn with_prefixes(what: What, known: &[IpNet]) -> What {
    let better = |net: IpNet| {
        let alone = net.prefix_len() == net.max_prefix_len();
        let other = known.iter().find(|other| other.addr() == net.addr());
        other.copied().filter(|_| alone).unwrap_or(net)
    };
    match what {
        What::Ports(mut ports) => {
            ports.networks = ports.networks.into_iter().map(better).collect();
            What::Ports(ports)
        }
        other => other,
    }
}
