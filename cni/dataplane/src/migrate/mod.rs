// SPDX-License-Identifier: GPL-2.0-or-later

//! Moves the ports and masquerades of running containers from one backend to another. At no moment is a port unserved
//! or a connection cut.
//!
//! Each request (the ports or the masquerade of one attachment) is first served in the new place as well. As long as
//! both places serve it, the place that sees a packet first translates it, to the same container, and the other place
//! finds the connection already translated. Both use the same bit of the mark, and our chains at postrouting precede
//! those at the usual priority, so a packet that either of them translated is masqueraded. When every packet that may
//! have missed the new place has been processed, the old place is emptied: first the rules that translate and, after
//! waiting once more, the rules for packets that were translated. Existing connections are in conntrack, which is
//! left alone.
//!
//! The state of a migration is stored in the owner's entry in our table (`Transit`). An ADD rewrites the entry and a
//! DEL removes it, so either ends the request's migration. If a call was killed, a later call continues where it
//! ended.
//!
//! The BPF programs serve what is in our table, so a move to them first moves requests into the table
//! (`to_programs`).

mod survey;
mod table_reader;
mod to_chains;
mod to_programs;
mod to_table;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};

use cni_kernel::grace::wait_for_packets;
use cni_spec::Attachment;
use ipnet::IpNet;

use crate::ebpf::Settings;
use crate::ebpf::migrate::{self as ebpf, Programs};
use crate::iptables::chain_reader;
use crate::iptables::{Purpose, SharedChains};
use crate::nftables::migration::{self, Key, Transit};
use crate::nftables::owner_entry;
use crate::nftables::session::Session;
use crate::owner::AttachmentHash;
use crate::reference::{self, Reference, ReferenceRules};
use crate::{AddressFamily, BackendName, ContainerNetns, Error, Owner, PortRequest};
use transfer::{OldObjects, Transfer};

/// How many requests are moved together, so that they share the waiting times.
const GROUP: usize = 64;

/// Why rules without ports are left alone.
const NOTHING: &str = "nothing is published by it";
/// Why requests that a DEL has removed are left alone.
const REMOVED: &str = "it was removed concurrently";
/// Why requests that an ADD or DEL has changed are left alone.
const CHANGED: &str = "it was changed or removed concurrently; the next call looks at it again";

/// Where published ports and masquerades are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Our own table.
    Nftables,
    /// The chains of iptables, made by Slipway or the reference plugins.
    Iptables,
    /// The tables of the reference plugins' nftables backend.
    Reference,
    /// The BPF programs, on top of our own table.
    Ebpf,
}

impl Place {
    /// The name in output and arguments.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Reference => "reference",
            Self::Ebpf => "ebpf",
        }
    }
}

/// An attachment to which objects in a ruleset may belong. Chains and rules of the reference plugins do not name the
/// interface, and some do not name the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownAttachment {
    pub attachment: Attachment,
    /// The container's addresses with the prefixes of their networks, or as single addresses if the prefixes are
    /// unknown. Empty if the addresses are unknown.
    pub addresses: Vec<IpNet>,
    pub netns: Option<ContainerNetns>,
}

#[derive(Debug, Clone)]
pub struct Order {
    /// The places from which requests are moved. If the destination is among them, it is ignored.
    pub from: Vec<Place>,
    pub to: BackendName,
    /// The networks whose requests are moved, or empty for all networks.
    pub networks: Vec<String>,
    /// The attachments that are known from other sources than the ruleset.
    pub known: Vec<KnownAttachment>,
    pub settings: Settings,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A dry run: the item would be moved.
    Planned,
    Moved,
    LeftAlone,
    Failed,
    /// The item belonged to no container, and was removed.
    Removed,
    /// A dry run: the item stays where it is, and would be recorded.
    ToRecord,
    /// The item stays where it is, and was recorded.
    Recorded,
}

#[derive(Debug, Clone)]
pub struct Row {
    /// The owner, if known.
    pub owner: Option<Attachment>,
    /// Describes the published ports, the masquerade or the objects.
    pub item: String,
    pub from: Place,
    pub state: State,
    /// The reason, or empty.
    pub reason: String,
    /// The mappings of published ports that were moved.
    pub ports: Option<PortRequest>,
}

/// Moves the requests that the order names, or lists what would be moved. Calls `progress` with the number of
/// requests that are done and the number of all requests.
///
/// # Errors
/// [`Error::Kernel`] and other errors of reading the places or of waiting. An error that concerns one request is
/// reported in its row.
pub fn migrate(order: &Order, mode: Mode, progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<Row>, Error> {
    let mover = Mover { order, session: Session::open()? };
    // Fails if a later version or another program made the table.
    mover.session.state()?;
    let (transfers, mut rows) = mover.survey()?;
    if mode == Mode::DryRun {
        if order.to == BackendName::Ebpf && !transfers.is_empty() {
            ebpf::possible()?;
        }
        rows.extend(transfers.iter().map(|transfer| transfer.row(State::Planned, "")));
        return Ok(rows);
    }
    let total = transfers.len();
    let programs = match order.to {
        // Fails before anything is moved if this node cannot run the programs.
        BackendName::Ebpf if total > 0 => Some(Programs::set_up(&order.settings)?),
        _ => Programs::find()?,
    };
    mover.finish_interrupted(&transfers)?;
    let mut done = 0;
    for group in groups(transfers) {
        progress(done, total);
        done += group.len();
        rows.extend(mover.move_group(group, programs.as_ref())?);
    }
    progress(total, total);
    if order.to != BackendName::Iptables && order.networks.is_empty() {
        rows.extend(mover.remove_shared_chains()?);
    }
    if order.networks.is_empty() && order.from.contains(&Place::Reference) {
        rows.extend(mover.remove_empty_tables()?);
    }
    Ok(rows)
}

/// Groups the requests that are moved together. Both kinds of requests of an attachment are in the same group.
fn groups(transfers: Vec<Transfer>) -> Vec<Vec<Transfer>> {
    let mut groups: Vec<Vec<Transfer>> = Vec::new();
    for of_one in by_attachment(transfers).into_values() {
        match groups.last_mut() {
            Some(group) if group.len() + of_one.len() <= GROUP => group.extend(of_one),
            _ => groups.push(of_one),
        }
    }
    groups
}

fn by_attachment(transfers: Vec<Transfer>) -> BTreeMap<AttachmentHash, Vec<Transfer>> {
    let mut all: BTreeMap<AttachmentHash, Vec<Transfer>> = BTreeMap::new();
    for transfer in transfers {
        all.entry(transfer.key().hash).or_default().push(transfer);
    }
    all
}

/// What [`migrate`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Lists what would be moved, and changes nothing.
    DryRun,
    Migrate,
}

struct Mover<'a> {
    order: &'a Order,
    session: Session,
}

impl Mover<'_> {
    /// True if requests are moved away from this place.
    fn moves_from(&self, place: Place) -> bool {
        let destination = match self.order.to {
            BackendName::Nftables => Place::Nftables,
            BackendName::Ebpf => Place::Ebpf,
            BackendName::Iptables => Place::Iptables,
        };
        place != destination && self.order.from.contains(&place)
    }

    fn moves_network(&self, network: &str) -> bool {
        self.order.networks.is_empty() || self.order.networks.iter().any(|wanted| wanted == network)
    }

    fn move_group(&self, group: Vec<Transfer>, programs: Option<&Programs>) -> Result<Vec<Row>, Error> {
        match (self.order.to, programs) {
            (BackendName::Ebpf, Some(programs)) => self.to_programs(programs, group),
            (BackendName::Ebpf | BackendName::Nftables, None) => self.only_to_table(group),
            (BackendName::Nftables, Some(programs)) => {
                let (of_programs, others) =
                    group.into_iter().partition(|transfer| transfer.place == Place::Ebpf);
                let mut rows = Vec::new();
                let moved = Self::leave_programs(programs, of_programs, &mut rows);
                rows.extend(moved.iter().map(|transfer| transfer.row(State::Moved, "")));
                rows.extend(self.only_to_table(others)?);
                Ok(rows)
            }
            (BackendName::Iptables, None) => self.to_chains(group),
            (BackendName::Iptables, Some(programs)) => {
                let (of_programs, mut others): (Vec<Transfer>, Vec<Transfer>) =
                    group.into_iter().partition(|transfer| transfer.place == Place::Ebpf);
                let mut rows = Vec::new();
                others.extend(Self::leave_programs(programs, of_programs, &mut rows));
                rows.extend(self.to_chains(others)?);
                Ok(rows)
            }
        }
    }

    /// Finishes what a killed call has left behind: requests in migration whose old place is already empty.
    fn finish_interrupted(&self, transfers: &[Transfer]) -> Result<(), Error> {
        let to_table = self.order.to != BackendName::Iptables;
        let still_there = transfers.iter().filter(|transfer| !to_table || !transfer.is_in_table());
        let at_work: BTreeSet<Key> =
            still_there.map(|transfer| if to_table { transfer.key() } else { transfer.record() }).collect();
        let mut begun: Vec<(Key, Owner, Transit)> = Vec::new();
        if to_table {
            let all = table_reader::all(&self.session)?;
            begun.extend(all.into_iter().map(|(key, elements)| (key, elements.owner, elements.transit)));
        } else {
            for one in owner_entry::list(&self.session, |_| true)? {
                let key = Key { hash: one.owner.attachment_hash, kind: one.kind };
                begun.push((key, one.owner, one.transit));
            }
        }
        begun.retain(|(key, owner, transit)| {
            *transit != Transit::Settled && !at_work.contains(key) && self.moves_network(&owner.network)
        });
        // The old place of a request may not have been read yet, or may be unreadable.
        let old_places = OldPlaces::read(self)?;
        for (key, owner, transit) in begun {
            if old_places.have(&owner) {
                continue;
            }
            match transit {
                Transit::Verified => self.mark(&[key], &[transit], Transit::Settled).map(drop)?,
                _ if to_table => self.unmake_in_table(&[key])?,
                _ => self.remove_owners_chains(&owner, key.kind)?,
            }
        }
        Ok(())
    }

    /// Changes the migration state of the entries whose state is in `from`. Returns the entries that are now in state
    /// `to`.
    fn mark(&self, keys: &[Key], from: &[Transit], to: Transit) -> Result<BTreeSet<Key>, Error> {
        migration::mark(&self.session, keys, from, to, &|_| Vec::new())
    }

    /// Reads the places again, and calls `unmake` for copies whose original has changed or is gone. Returns the other
    /// transfers.
    fn verify(
        &self,
        made: Vec<Transfer>,
        rows: &mut Vec<Row>,
        unmake: impl Fn(&[Transfer]) -> Result<(), Error>,
    ) -> Result<Vec<Transfer>, Error> {
        if made.is_empty() {
            return Ok(made);
        }
        let (now, _) = self.everything()?;
        let is_there = |transfer: &Transfer| now.iter().any(|other| other.same(transfer));
        let (verified, changed): (Vec<Transfer>, Vec<Transfer>) = made.into_iter().partition(is_there);
        unmake(&changed)?;
        rows.extend(changed.iter().map(|transfer| transfer.row(State::LeftAlone, CHANGED)));
        Ok(verified)
    }

    /// True if an entry of the iptables backend that the migration removed exists again, because an ADD writes the
    /// entry first.
    fn is_added_again(&self, record: &Key) -> Result<bool, Error> {
        Ok(self.session.entry(record.hash, record.kind)?.is_some())
    }

    /// Empties the old places outside our table. Returns true if no ADD can have lost its chains.
    fn empty_old_places(&self, transfers: &[Transfer]) -> Result<bool, Error> {
        let chains: Vec<(&chain_reader::ContainerChains, Key)> = transfers
            .iter()
            .filter_map(|transfer| match &transfer.old {
                OldObjects::Chains(chains) => Some((chains.as_ref(), transfer.record())),
                _ => None,
            })
            .collect();
        // Chains are named after the container, so the chains of a later ADD have the same names.
        let locked = chain_reader::remove_chains_of(&chains, |record| Ok(!self.is_added_again(record)?))?;
        let rules: Vec<&ReferenceRules> = transfers
            .iter()
            .filter_map(|transfer| match &transfer.old {
                OldObjects::Rules(rules) => Some(rules),
                _ => None,
            })
            .flatten()
            .collect();
        if !rules.is_empty()
            && let Some(reference) = Reference::find()?
        {
            reference.take_away(&rules, reference::Part::Translation)?;
            wait_for_packets();
            reference.take_away(&rules, reference::Part::All)?;
        }
        Ok(locked)
    }

    /// Removes the chains that all containers shared, unless something still needs them.
    fn remove_shared_chains(&self) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        if !self.moves_from(Place::Iptables) {
            return Ok(rows);
        }
        for chains in SharedChains::all(Purpose::Ports)? {
            if chains.needed()?.is_some() || chains.remove()?.is_some() {
                continue;
            }
            let family = match chains.place.family {
                AddressFamily::V4 => "iptables",
                AddressFamily::V6 => "ip6tables",
            };
            let item = format!("the chains that containers shared in {family}-{}", chains.place.variant);
            rows.push(removed(item, Place::Iptables));
        }
        Ok(rows)
    }

    fn remove_empty_tables(&self) -> Result<Vec<Row>, Error> {
        let Some(reference) = Reference::find()? else { return Ok(Vec::new()) };
        let names = reference.remove_empty()?;
        Ok(names.into_iter().map(|name| removed(format!("table {name}"), Place::Reference)).collect())
    }
}

fn removed(item: String, from: Place) -> Row {
    Row { owner: None, item, from, state: State::Removed, reason: String::new(), ports: None }
}

/// What all old places contain.
struct OldPlaces {
    chains: Vec<chain_reader::ContainerChains>,
    table: BTreeSet<AttachmentHash>,
    rules: Vec<ReferenceRules>,
    to: BackendName,
}

impl OldPlaces {
    fn read(mover: &Mover<'_>) -> Result<Self, Error> {
        let rules = Reference::find()?.map(|reference| reference.survey()).transpose()?.unwrap_or_default();
        let table = table_reader::all(&mover.session)?.into_keys().map(|key| key.hash).collect();
        Ok(Self { chains: chain_reader::all()?, table, rules, to: mover.order.to })
    }

    /// True if an old place may contain something that belongs to the owner.
    fn have(&self, owner: &Owner) -> bool {
        let in_rules = self.rules.iter().any(|rules| {
            rules.comment == owner.container_id
                || rules.comment.contains(&format!("id: {}", owner.container_id))
        });
        in_rules
            || match self.to {
                BackendName::Nftables | BackendName::Ebpf => {
                    self.chains.iter().any(|chains| chains.owner.may_be(owner))
                }
                BackendName::Iptables => self.table.contains(&owner.attachment_hash),
            }
    }
}
