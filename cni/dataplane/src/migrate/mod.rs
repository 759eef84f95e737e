//! Moving what running containers have from one backend to another, without a moment in which a port is
//! not served or a connection is cut.
//!
//! Each thing (the ports or the masquerade of one attachment) is made in the new place first. Both places
//! serve then; whichever sees a packet first translates it, to the same container, and what the other would
//! do finds the connection translated already. The mark's bit is the same in both, and our chains at
//! postrouting come before those at the usual place: a packet that either of them translated is masqueraded
//! as it must be. When every packet that may have missed the new place is through, the old one is taken away:
//! what translates first, and after another such moment what takes care of packets that were translated.
//! Connections that exist are in conntrack, which is not touched.
//!
//! How far a thing is stands in its owner's entry in our table (`Transit`): an ADD writes it anew and a DEL
//! removes it, by which they take the thing over, and a later call goes on where a killed one ended.
//!
//! The programs of the eBPF backend stand on our table: what they are to serve is made there first. Whose
//! conversation is whose is told then by the maps of flows and by conntrack (`programs`).

mod chains;
mod find;
mod programs;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use cni_kernel::grace::wait_for_packets;
use cni_spec::Attachment;
use ipnet::IpNet;

use crate::ebpf::migrate::{self as moving, Moving};
use crate::ebpf::{Programs, Settings};
use crate::iptables::read_back::{self, What};
use crate::iptables::{Purpose, SharedChains};
use crate::nftables::migration::{self as transit, Key, Transit};
use crate::nftables::owner_entry::{self as record, KIND_IPTABLES_MASQUERADE, KIND_IPTABLES_PORTS};
use crate::nftables::schema::{KIND_MASQUERADE, KIND_PORTS};
use crate::nftables::session::Writer;
use crate::nftables::{masquerade_job, ports_job};
use crate::owner::AttachmentHash;
use crate::reference::{self, Piece, Reference};
use crate::{
    BackendName, Conditions, ContainerNetns, EntryPort, Error, IptablesOptions, MasqueradeRequest,
    NftablesOptions, PortRequest,
};

/// So many things are moved side by side: they share the moments of waiting.
const GROUP: usize = 64;

/// Why rules without ports are left alone.
const NOTHING: &str = "nothing is published by it";

/// Where things can be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Our own table.
    Nftables,
    /// The chains of iptables, whoever made them.
    Iptables,
    /// The tables of the reference plugins' nftables backend.
    Reference,
    /// The programs of the eBPF backend, on top of our own table.
    Ebpf,
}

impl Place {
    /// The name for people and in arguments.
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

/// What is known of an attachment beside the ruleset. Chains and rules of the reference plugins do not tell
/// the interface, and some not the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clue {
    /// Who.
    pub attachment: Attachment,
    /// Its addresses with the prefixes of their networks; without, if those are not known, as single ones.
    pub addresses: Vec<IpNet>,
    /// The container's namespace.
    pub netns: Option<ContainerNetns>,
}

/// What is to be moved.
#[derive(Debug, Clone)]
pub struct Order {
    /// From where; the destination is passed over.
    pub from: Vec<Place>,
    /// Where to.
    pub to: BackendName,
    /// The networks that are meant; none means all.
    pub networks: Vec<String>,
    /// What is known beside the ruleset.
    pub clues: Vec<Clue>,
    /// What the programs are to know of the node.
    pub settings: Settings,
}

/// What became of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It would be moved.
    Planned,
    /// It was moved.
    Moved,
    /// It stays where it is.
    LeftAlone,
    /// Moving it failed.
    Failed,
    /// It was no container's, and is gone.
    Removed,
    /// It stays where it is, and would be recorded.
    ToRecord,
    /// It stays where it is, and is recorded now.
    Recorded,
}

/// One thing and what became of it.
#[derive(Debug, Clone)]
pub struct Row {
    /// Whose it is, if that is known.
    pub owner: Option<Attachment>,
    /// What it is.
    pub what: String,
    /// Where it is or was.
    pub from: Place,
    /// What became of it.
    pub state: State,
    /// Why, where there is something to say.
    pub why: String,
    /// The mappings of published ports that were moved.
    pub ports: Option<PortRequest>,
}

/// What an attachment has of one kind, as a request for another backend.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Ports(PortRequest),
    Masquerade(MasqueradeRequest),
}

/// Where it is now.
#[derive(Debug, Clone)]
enum Source {
    Table,
    Chains(read_back::Found),
    Rules(Vec<Piece>),
}

#[derive(Debug, Clone)]
struct Work {
    attachment: Attachment,
    wanted: Wanted,
    source: Source,
    /// Where it was at the beginning.
    place: Place,
}

impl Wanted {
    fn kind(&self) -> u32 {
        match self {
            Self::Ports(_) => KIND_PORTS,
            Self::Masquerade(_) => KIND_MASQUERADE,
        }
    }

    fn who(&self) -> (&Attachment, &ContainerNetns) {
        match self {
            Self::Ports(request) => (&request.attachment, &request.netns),
            Self::Masquerade(request) => (&request.attachment, &request.netns),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, all): (_, Vec<String>) = match self {
            Self::Ports(request) => {
                ("published ports", request.ports.iter().map(ToString::to_string).collect())
            }
            Self::Masquerade(request) => {
                ("masquerade of", request.addresses.iter().map(|net| net.addr().to_string()).collect())
            }
        };
        let shown: Vec<&str> = all.iter().take(4).map(String::as_str).collect();
        write!(f, "{what} {}", shown.join(", "))?;
        if all.len() > 4 { write!(f, " and {} more", all.len() - 4) } else { Ok(()) }
    }
}

impl Work {
    fn key(&self) -> Key {
        (AttachmentHash::of(&self.attachment), self.wanted.kind())
    }

    /// The entry that the iptables backend has for it.
    fn record(&self) -> Key {
        (AttachmentHash::of(&self.attachment), record_kind(self.wanted.kind()))
    }

    /// Whether nothing is published by it.
    fn is_empty(&self) -> bool {
        matches!(&self.wanted, Wanted::Ports(request) if request.ports.is_empty())
    }

    fn row(&self, state: State, why: impl Into<String>) -> Row {
        let ports = match &self.wanted {
            Wanted::Ports(request) => Some(request.clone()),
            Wanted::Masquerade(_) => None,
        };
        let (what, from) = (self.wanted.to_string(), self.place);
        Row { owner: Some(self.attachment.clone()), what, from, state, why: why.into(), ports }
    }

    fn same(&self, other: &Self) -> bool {
        let source = |work: &Self| std::mem::discriminant(&work.source);
        self.key() == other.key() && source(self) == source(other) && self.wanted == other.wanted
    }

    fn is_in_table(&self) -> bool {
        matches!(self.source, Source::Table)
    }
}

fn record_kind(kind: u32) -> u32 {
    if kind == KIND_PORTS { KIND_IPTABLES_PORTS } else { KIND_IPTABLES_MASQUERADE }
}

/// The conditions are in the grammar of the backend that the order names.
fn request(to: BackendName, attachment: &Attachment, netns: ContainerNetns, what: What) -> Wanted {
    let attachment = attachment.clone();
    match what {
        What::Masquerade(addresses) => Wanted::Masquerade(MasqueradeRequest { attachment, netns, addresses }),
        What::Ports(all) => {
            let conditions = |family| all.conditions.get(&family).cloned().unwrap_or_default();
            let conditions = Conditions {
                v4: conditions(crate::AddressFamily::V4),
                v6: conditions(crate::AddressFamily::V6),
            };
            let none = Conditions::default();
            let (nftables, iptables) =
                if to == BackendName::Iptables { (none, conditions) } else { (conditions, none) };
            let entry = |(protocol, port)| EntryPort { protocol, port };
            Wanted::Ports(PortRequest {
                attachment,
                netns,
                nftables: NftablesOptions { conditions: nftables },
                iptables: IptablesOptions {
                    conditions: iptables,
                    entry_ports: all.mapped.into_iter().map(entry).collect(),
                    set_mark_chain: None,
                },
                ports: all.ports,
                networks: all.networks,
                snat: all.snat,
                loopback: all.loopback,
                mark_bit: all.bit,
            })
        }
    }
}

/// Moves what an order names, or says what it would move. `progress` hears how many of how many are done.
///
/// # Errors
/// What could not be read or waited for; what concerns one thing alone is in its row.
pub fn migrate(
    order: &Order,
    plan_only: Plan,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Row>, Error> {
    let mover = Mover { order, session: Writer::open(&Programs)? };
    // A table of a later version, or of somebody else, is refused.
    mover.session.state()?;
    let (works, mut rows) = mover.survey()?;
    if plan_only == Plan::Only {
        if order.to == BackendName::Ebpf && !works.is_empty() {
            moving::possible()?;
        }
        rows.extend(works.iter().map(|work| work.row(State::Planned, "")));
        return Ok(rows);
    }
    let total = works.len();
    let mut programs = match order.to {
        // What keeps the node from it is said before anything is moved.
        BackendName::Ebpf if total > 0 => Some(Moving::set_up(&order.settings)?),
        _ => Moving::find()?,
    };
    mover.finish_what_was_begun(&works)?;
    let mut done = 0;
    for group in groups(works) {
        progress(done, total);
        done += group.len();
        rows.extend(mover.move_group(group, programs.as_mut())?);
    }
    progress(total, total);
    if order.to != BackendName::Iptables && order.networks.is_empty() {
        rows.extend(mover.remove_frames()?);
    }
    if order.networks.is_empty() && order.from.contains(&Place::Reference) {
        rows.extend(mover.remove_empty_tables()?);
    }
    Ok(rows)
}

/// What is moved side by side. Both kinds of an attachment are in one group.
fn groups(works: Vec<Work>) -> Vec<Vec<Work>> {
    let mut groups: Vec<Vec<Work>> = Vec::new();
    for of_one in by_attachment(works).into_values() {
        match groups.last_mut() {
            Some(group) if group.len() + of_one.len() <= GROUP => group.extend(of_one),
            _ => groups.push(of_one),
        }
    }
    groups
}

fn by_attachment(works: Vec<Work>) -> BTreeMap<AttachmentHash, Vec<Work>> {
    let mut all: BTreeMap<AttachmentHash, Vec<Work>> = BTreeMap::new();
    for work in works {
        all.entry(work.key().0).or_default().push(work);
    }
    all
}

/// Whether anything is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// No: it is said what would be.
    Only,
    /// Yes.
    AndDo,
}

struct Mover<'a> {
    order: &'a Order,
    session: Writer,
}

impl Mover<'_> {
    fn from(&self, place: Place) -> bool {
        let there = match self.order.to {
            BackendName::Nftables => Place::Nftables,
            BackendName::Ebpf => Place::Ebpf,
            BackendName::Iptables => Place::Iptables,
        };
        place != there && self.order.from.contains(&place)
    }

    fn of_network(&self, network: &str) -> bool {
        self.order.networks.is_empty() || self.order.networks.iter().any(|wanted| wanted == network)
    }

    fn move_group(&self, group: Vec<Work>, programs: Option<&mut Moving>) -> Result<Vec<Row>, Error> {
        match (self.order.to, programs) {
            (BackendName::Ebpf, Some(programs)) => self.to_programs(programs, group),
            (BackendName::Ebpf | BackendName::Nftables, None) => self.only_to_table(group),
            (BackendName::Nftables, Some(programs)) => {
                let (theirs, others) = group.into_iter().partition(|work| work.place == Place::Ebpf);
                let (moved, mut rows) = self.leave_programs(programs, theirs);
                rows.extend(moved.iter().map(|(work, why)| work.row(State::Moved, why.as_str())));
                rows.extend(self.only_to_table(others)?);
                Ok(rows)
            }
            (BackendName::Iptables, None) => self.to_chains(group),
            (BackendName::Iptables, Some(programs)) => {
                let (theirs, mut others): (Vec<Work>, Vec<Work>) =
                    group.into_iter().partition(|work| work.place == Place::Ebpf);
                let (free, mut rows) = self.leave_programs(programs, theirs);
                let (free, whys): (Vec<Work>, Vec<String>) = free.into_iter().unzip();
                let complaints: BTreeMap<String, String> =
                    free.iter().map(|work| work.wanted.to_string()).zip(whys).collect();
                others.extend(free);
                for mut row in self.to_chains(others)? {
                    if let Some(why) = complaints.get(&row.what).filter(|_| row.why.is_empty()) {
                        row.why.clone_from(why);
                    }
                    rows.push(row);
                }
                Ok(rows)
            }
        }
    }

    fn only_to_table(&self, group: Vec<Work>) -> Result<Vec<Row>, Error> {
        if group.is_empty() {
            return Ok(Vec::new());
        }
        let (moved, mut rows) = self.to_table(group)?;
        rows.extend(moved.iter().map(|work| work.row(State::Moved, "")));
        Ok(rows)
    }

    /// What a killed call has left: things on their way whose old place is empty.
    fn finish_what_was_begun(&self, works: &[Work]) -> Result<(), Error> {
        let to_table = self.order.to != BackendName::Iptables;
        let still_there = works.iter().filter(|work| !to_table || !work.is_in_table());
        let at_work: BTreeSet<Key> =
            still_there.map(|work| if to_table { work.key() } else { work.record() }).collect();
        // Those whose old place was not looked at, or could not be read, are not judged.
        let mut begun: Vec<(Key, crate::Owner, Transit)> = Vec::new();
        if to_table {
            let all = table::all(&self.session)?;
            begun.extend(all.into_iter().map(|(key, found)| (key, found.owner, found.transit)));
        } else {
            for one in record::list(&self.session, |_| true)? {
                begun.push(((one.owner.attachment_hash, one.kind), one.owner, one.transit));
            }
        }
        begun.retain(|(key, owner, transit)| {
            *transit != Transit::Settled && !at_work.contains(key) && self.of_network(&owner.network)
        });
        let elsewhere = Everywhere::look(self)?;
        for (key, owner, transit) in begun {
            if elsewhere.has(&owner) {
                continue;
            }
            match transit {
                Transit::Verified => {
                    transit::mark(&self.session, &[key], (&[transit], Transit::Settled), &|_| Vec::new())?;
                }
                _ if to_table => self.take_back(&[key])?,
                _ => self.take_chains_back(&owner, key.1)?,
            }
        }
        Ok(())
    }

    /// Takes away what was made for things that have gone from their old place meanwhile.
    fn take_back(&self, keys: &[Key]) -> Result<(), Error> {
        let made = |entry: &crate::nftables::session::Held| Ok(entry.transit() == Transit::Made);
        transit::take_away(&self.session, keys, transit::Part::All, (&made, &|_| None)).map(drop)
    }

    /// Returns what is there now, and rows about the rest.
    fn to_table(&self, group: Vec<Work>) -> Result<(Vec<Work>, Vec<Row>), Error> {
        let mut rows = Vec::new();
        let mut made = Vec::new();
        let here = table::all(&self.session)?;
        for work in group {
            match self.make_in_table(&work, here.get(&work.key())) {
                Ok(None) => made.push(work),
                Ok(Some(why)) => rows.push(work.row(State::LeftAlone, why)),
                Err(error) => rows.push(work.row(State::Failed, error.to_string())),
            }
        }
        wait_for_packets();
        let verified = self.verify(made, &mut rows, |works| {
            self.take_back(&works.iter().map(Work::key).collect::<Vec<_>>())
        })?;
        let keys: Vec<Key> = verified.iter().map(Work::key).collect();
        let from = [Transit::Made, Transit::Verified, Transit::Settled];
        let marked =
            transit::mark(&self.session, &keys, (&from, Transit::Verified), &|kind| vec![record_kind(kind)])?;
        let (going, gone): (Vec<Work>, Vec<Work>) =
            verified.into_iter().partition(|work| marked.contains(&work.key()));
        rows.extend(gone.iter().map(|work| work.row(State::LeftAlone, "it was taken away meanwhile")));
        let alone = self.empty_old_places(&going)?;
        let keys: Vec<Key> = going.iter().map(Work::key).collect();
        // An ADD for the old place that came just now has an entry of its own again.
        let added: Vec<&Work> = going
            .iter()
            .filter(|work| matches!(work.source, Source::Chains(_)) && self.is_added_again(&work.record()))
            .collect();
        let (state, why) = if alone {
            (State::LeftAlone, "it was added again meanwhile; another call looks at it again")
        } else {
            (
                State::Failed,
                "it was added again meanwhile: `slipway restore` looks whether anything is missing",
            )
        };
        rows.extend(added.iter().map(|work| work.row(state, why)));
        let added: BTreeSet<Key> = added.iter().map(|work| work.key()).collect();
        transit::mark(&self.session, &keys, (&[Transit::Verified], Transit::Settled), &|_| Vec::new())?;
        let moved = going.into_iter().filter(|work| !added.contains(&work.key())).collect();
        Ok((moved, rows))
    }

    /// Makes it in our table. Says why it is better left alone.
    fn make_in_table(&self, work: &Work, here: Option<&table::Found>) -> Result<Option<String>, Error> {
        let record = work.record();
        let way_back = self.session.entry(record.0, record.1)?.map(|entry| entry.transit());
        match (here, way_back) {
            // A way back that was hardly begun: what is here is whole, what is there may not be.
            (Some(_), Some(Transit::Made)) => return Ok(None),
            // One that had come so far that what is here may be taken away in part.
            (_, Some(Transit::Verified)) => {}
            // The old place may be emptied in part.
            (Some(found), _) if found.transit != Transit::Made => {
                let there = What::from(&work.wanted);
                let whole = found.what.as_ref().is_ok_and(|here| table::covers(here, &there));
                return Ok((!whole).then(|| "our table has something else of the same attachment".to_owned()));
            }
            _ => {}
        }
        if work.is_empty() {
            return Ok(Some(NOTHING.to_owned()));
        }
        let job = match &work.wanted {
            Wanted::Ports(request) => ports_job(request)?,
            Wanted::Masquerade(request) => masquerade_job(request),
        };
        job.in_transit(Transit::Made).run(&self.session)?;
        Ok(None)
    }

    /// Looks whether what was copied is still what is there. What is not is taken back.
    fn verify(
        &self,
        made: Vec<Work>,
        rows: &mut Vec<Row>,
        take_back: impl Fn(&[Work]) -> Result<(), Error>,
    ) -> Result<Vec<Work>, Error> {
        if made.is_empty() {
            return Ok(made);
        }
        let (now, _) = self.everything()?;
        let there = |work: &Work| now.iter().any(|other| other.same(work));
        let (verified, changed): (Vec<Work>, Vec<Work>) = made.into_iter().partition(there);
        take_back(&changed)?;
        let why = "it has changed or gone meanwhile; another call looks at it again";
        rows.extend(changed.iter().map(|work| work.row(State::LeftAlone, why)));
        Ok(verified)
    }

    /// Whether the iptables backend has it, which migrate has taken it from: an ADD writes that down first.
    fn is_added_again(&self, record: &Key) -> bool {
        matches!(self.session.entry(record.0, record.1), Ok(Some(_)))
    }

    /// Empties the old places outside our table. Returns whether nothing was taken away of what was written meanwhile.
    fn empty_old_places(&self, works: &[Work]) -> Result<bool, Error> {
        let chains: Vec<(&read_back::Found, Key)> = works
            .iter()
            .filter_map(|work| match &work.source {
                Source::Chains(found) => Some((found, work.record())),
                _ => None,
            })
            .collect();
        // Chains have their names from the container: those of an ADD that came since are called the same.
        let alone = read_back::remove_found(&chains, |record| !self.is_added_again(record))?;
        let pieces: Vec<&Piece> = works
            .iter()
            .filter_map(|work| match &work.source {
                Source::Rules(pieces) => Some(pieces),
                _ => None,
            })
            .flatten()
            .collect();
        if !pieces.is_empty()
            && let Some(reference) = Reference::find()?
        {
            reference.take_away(&pieces, reference::Part::Translation)?;
            wait_for_packets();
            reference.take_away(&pieces, reference::Part::All)?;
        }
        Ok(alone)
    }

    /// The chains that all containers shared, when nobody needs them any longer.
    fn remove_frames(&self) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for frame in SharedChains::all(Purpose::Ports)?.into_iter().filter(|_| self.from(Place::Iptables)) {
            if frame.needed()?.is_some() || frame.remove()?.is_some() {
                continue;
            }
            let family = match frame.place.family {
                crate::AddressFamily::V4 => "iptables",
                crate::AddressFamily::V6 => "ip6tables",
            };
            let what = format!("the chains that containers shared in {family}-{}", frame.place.variant);
            rows.push(removed(what, Place::Iptables));
        }
        Ok(rows)
    }

    fn remove_empty_tables(&self) -> Result<Vec<Row>, Error> {
        let Some(reference) = Reference::find()? else { return Ok(Vec::new()) };
        let names = reference.remove_empty()?;
        Ok(names.into_iter().map(|name| removed(format!("table {name}"), Place::Reference)).collect())
    }
}

fn removed(what: String, from: Place) -> Row {
    Row { owner: None, what, from, state: State::Removed, why: String::new(), ports: None }
}

/// Where else anybody has anything: nothing is judged of those.
struct Everywhere {
    chains: Vec<read_back::Found>,
    table: BTreeSet<AttachmentHash>,
    rules: Vec<Piece>,
    to: BackendName,
}

impl Everywhere {
    fn look(mover: &Mover<'_>) -> Result<Self, Error> {
        let rules = Reference::find()?.map(|reference| reference.survey()).transpose()?.unwrap_or_default();
        let table = table::all(&mover.session)?.into_keys().map(|(hash, _)| hash).collect();
        Ok(Self { chains: read_back::all()?, table, rules, to: mover.order.to })
    }

    fn has(&self, owner: &crate::Owner) -> bool {
        let in_rules = self.rules.iter().any(|piece| {
            piece.comment == owner.container_id
                || piece.comment.contains(&format!("id: {}", owner.container_id))
        });
        in_rules
            || match self.to {
                BackendName::Nftables | BackendName::Ebpf => {
                    self.chains.iter().any(|found| found.owner.may_be(owner))
                }
                BackendName::Iptables => self.table.contains(&owner.attachment_hash),
            }
    }
}

impl From<&Wanted> for What {
    fn from(wanted: &Wanted) -> Self {
        match wanted {
            Wanted::Masquerade(request) => Self::Masquerade(request.addresses.clone()),
            Wanted::Ports(request) => {
                Self::Ports(read_back::Ports { ports: request.ports.clone(), ..read_back::Ports::default() })
            }
        }
    }
}
