// SPDX-License-Identifier: GPL-2.0-or-later

//! The compatibility backend, which uses the chains, rules and comments of the reference plugins. Slipway, the
//! reference plugins, and tools that read these chains can find, check and remove each other's rules.
//!
//! No other backend runs programs. This one runs those of iptables: for each family, one that prints the relevant
//! chains and one that changes them. The chains have no place for the guard of the node's loopback and the owners'
//! namespaces, which are in the table of the nftables backend.
//!
//! Each file uses only the files before it: `names` and `quote`; `rule`, `listing`, `batch` (values); `legacy`,
//! `tools`, `trial`, `detect` (the kernel and the programs); `conditions`, `plan` (pure); `publish`, `check`,
//! `networks`, `withdraw`, `filter`, `dropping`, `forward`, `shared_chains`, `chain_reader` (the operations).

mod batch;
pub(crate) mod chain_reader;
mod check;
mod conditions;
mod detect;
pub(crate) mod dropping;
pub(crate) mod filter;
pub mod forward;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod legacy;
mod listing;
mod names;
pub(crate) mod networks;
mod plan;
mod publish;
mod quote;
mod rule;
mod shared_chains;
#[cfg(test)]
mod tests;
pub(crate) mod tools;
mod trial;
mod withdraw;

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_spec::Attachment;

use crate::nftables::conntrack::{self, Selection};
use crate::nftables::migration::Transit;
use crate::nftables::owner_entry::{
    self, KIND_IPTABLES_MASQUERADE, KIND_IPTABLES_PORTS, NewEntry, OwnerRecord,
};
use crate::nftables::session::Session;
use crate::owner::{AttachmentHash, Life, NetworkHash};
use crate::{
    AddressFamily, Backend, BackendName, Before, ContainerNetns, Error, HostAddress, HostPorts, Kinds,
    Listed, MasqueradeRequest, Owner, PortRequest, PublishedPort, Withdrawal,
};
use listing::Listing;
use names::CommentOwner;
use plan::PortPlan;
use publish::{ChainUse, Conflict, Position};
use tools::Tools;

pub use crate::chain_name::ChainName;
pub use conditions::check as check_conditions;
pub(crate) use conditions::{Untranslatable, to_iptables};
use detect::chosen_variant;
pub use detect::{containers_places, working_variant};
pub(crate) use legacy::has_nat as legacy_has_nat;
pub use shared_chains::{Purpose, SharedChains};
pub use tools::{Place, Variant};

/// The iptables backend, which acts on the network namespace of the calling thread.
#[derive(Debug, Default)]
pub struct Iptables {}

impl Iptables {
    /// Makes the backend, without opening or running anything.
    #[must_use]
    pub fn new() -> Self {
        Self {}
    }

    /// True if the attachment has a chain of these kinds. Runs no program.
    pub fn holds(&self, attachment: &Attachment, kinds: Kinds) -> Result<bool, Error> {
        Ok(!detect::places_of(attachment, kinds)?.is_empty())
    }

    /// Refuses the request if a chain of a living container has one of its ports, whichever backend the request is
    /// for. Runs a program only if there are such chains.
    ///
    /// # Errors
    /// [`Error::Conflict`] or [`Error::Taken`], or the chains cannot be read.
    pub(crate) fn refuse_taken(&self, request: &PortRequest) -> Result<(), Error> {
        let places = detect::places_with_ports()?;
        if places.is_empty() {
            return Ok(());
        }
        let publisher = Publisher { request, owners: Owners::open_silently()? };
        for plan in plan::ports(request) {
            for place in places.iter().filter(|place| place.family == plan.family) {
                publisher.refuse_conflicts(&Tools::nat(*place), &plan, None)?;
            }
        }
        Ok(())
    }
}

/// The steps of a migration to this backend. Recording the owner and ending flows is left to the caller.
impl Iptables {
    /// True if another living attachment of the container has rules of this kind in the same chains.
    pub(crate) fn shares_chains(
        session: &Session,
        attachment: &Attachment,
        kind: u32,
    ) -> Result<bool, Error> {
        chain_use(session, kind, attachment).map(|chain_use| chain_use == ChainUse::Shared)
    }

    /// Publishes ports.
    pub(crate) fn make_ports(request: &PortRequest) -> Result<(), Error> {
        check_request(request)?;
        Publisher { request, owners: Owners::open()? }.publish(chosen_variant()?)
    }

    /// Masquerades addresses.
    pub(crate) fn make_masquerade(request: &MasqueradeRequest) -> Result<(), Error> {
        masquerade(request, chosen_variant()?, ChainUse::Exclusive)
    }

    /// Removes the attachment's chains of the entry's kind.
    pub(crate) fn unmake(attachment: &Attachment, kind: u32) -> Result<(), Error> {
        in_each_place(attachment, &[kind], withdraw::remove_chains).map(drop)
    }
}

fn check_request(request: &PortRequest) -> Result<(), Error> {
    conditions::check_request(request)?;
    plan::refuse_contradictions(request)
}

/// The owners of chains, which are recorded in the table of the nftables backend. None if the kernel has no
/// nf_tables.
struct Owners(Option<Session>);

impl Owners {
    /// Opens the table. Warns if the kernel has no nf_tables.
    fn open() -> Result<Self, Error> {
        owner_entry::open().map(Self)
    }

    fn open_silently() -> Result<Self, Error> {
        match Session::open() {
            Ok(session) => Ok(Self(Some(session))),
            Err(Error::NoNfTables(_)) => Ok(Self(None)),
            Err(error) => Err(error),
        }
    }

    fn put(&self, kind: u32, attachment: &Attachment, netns: &ContainerNetns) -> Result<(), Error> {
        let new = NewEntry { attachment, netns, kind, transit: Transit::Settled };
        self.0.as_ref().map_or(Ok(()), |session| owner_entry::put(session, &new))
    }

    fn remove(&self, hash: AttachmentHash, kinds: &[u32]) -> Result<(), Error> {
        self.0.as_ref().map_or(Ok(()), |session| owner_entry::remove(session, hash, kinds))
    }

    fn list(&self, pass: impl Fn(&Owner) -> bool) -> Result<Vec<OwnerRecord>, Error> {
        self.0.as_ref().map_or(Ok(Vec::new()), |session| owner_entry::list(session, pass))
    }

    /// True if a record of the attachment names another namespace. Without nf_tables, nothing tells whose the chains
    /// are.
    fn is_elsewhere(&self, attachment: &Attachment, netns: &ContainerNetns) -> Result<bool, Error> {
        self.0.as_ref().map_or(Ok(true), |session| owner_entry::is_of_another(session, attachment, netns))
    }

    fn chain_use(&self, kind: u32, attachment: &Attachment) -> Result<ChainUse, Error> {
        self.0.as_ref().map_or(Ok(ChainUse::Exclusive), |session| chain_use(session, kind, attachment))
    }
}

/// Who uses an attachment's chains of the entry's kind.
fn chain_use(session: &Session, kind: u32, attachment: &Attachment) -> Result<ChainUse, Error> {
    let own = Owner::of(attachment);
    let is_other = |owner: &Owner| {
        owner.network_hash == own.network_hash
            && owner.attachment_hash != own.attachment_hash
            && own.may_be_of_one_container(owner)
    };
    let others = owner_entry::list(session, is_other)?;
    let is_shared = others.iter().any(|other| other.kind == kind && other.life != Life::Dead);
    Ok(if is_shared { ChainUse::Shared } else { ChainUse::Exclusive })
}

/// The kinds of owners' entries that correspond to these kinds.
pub(crate) fn record_kinds(kinds: Kinds) -> Vec<u32> {
    let ports = kinds.ports().then_some(KIND_IPTABLES_PORTS);
    ports.into_iter().chain(kinds.masquerade().then_some(KIND_IPTABLES_MASQUERADE)).collect()
}

fn kinds_of(records: &[u32]) -> Kinds {
    match records {
        [KIND_IPTABLES_PORTS] => Kinds::Ports,
        [KIND_IPTABLES_MASQUERADE] => Kinds::Masquerade,
        _ => Kinds::All,
    }
}

/// Ends flows through these ports. A failure is only logged, because the flows time out eventually.
fn flush(ports: &[PublishedPort], which: impl Fn(IpAddr) -> Selection) {
    let ports: Vec<_> = ports.iter().map(|port| (port.host, which(port.container))).collect();
    if let Err(e) = conntrack::flush(&ports) {
        log::warn!("{e}");
    }
}

/// Publishes a request's ports.
struct Publisher<'a> {
    request: &'a PortRequest,
    owners: Owners,
}

impl Publisher<'_> {
    /// Publishes the families one after the other.
    fn publish(&self, variant: Variant) -> Result<(), Error> {
        let attachment = &self.request.attachment;
        let chain_use = self.owners.chain_use(KIND_IPTABLES_PORTS, attachment)?;
        let tools = Tools::nat(Place { variant, family: AddressFamily::V4 });
        for plan in plan::ports(self.request) {
            let tools = tools.with_family(plan.family);
            let seen = self.refuse_conflicts(&tools, &plan, None)?;
            let position = publish::publish(&tools, &plan, attachment, chain_use, seen)?;
            self.refuse_conflicts(&tools, &plan, Some(position))?;
        }
        Ok(())
    }

    /// Refuses ports of living containers, and removes the chains of dead containers that have the plan's ports.
    /// Returns the plan's chains as they are afterwards. `published` is the position of the plan's own entry rules if
    /// they are already committed.
    fn refuse_conflicts(
        &self,
        tools: &Tools,
        plan: &PortPlan,
        published: Option<Position>,
    ) -> Result<Listing, Error> {
        let listing = publish::read_for_ports(tools, plan)?;
        let mut removed: Vec<String> = Vec::new();
        for conflict in publish::conflicts(tools, &listing, plan)? {
            // If two ADDs run concurrently, the second one sees the rules of the first one and gives way. The first
            // one continues, unless its rules were inserted before others, which may have been committed without
            // seeing them.
            if published == Some(Position::Last) && conflict.is_behind {
                continue;
            }
            // A container that is joined to several networks publishes the same ports on each of them. The first
            // network serves the ports, and the next one takes over when the container leaves the first.
            let id = self.request.attachment.container_id();
            if conflict.owner.as_ref().is_some_and(|owner| owner.container_id == id && !owner.cut) {
                continue;
            }
            if !removed.contains(&conflict.chain) {
                removed.push(conflict.chain.clone());
                self.remove_if_dead(tools, conflict)?;
            }
        }
        if removed.is_empty() { Ok(listing) } else { publish::read_for_ports(tools, plan) }
    }

    fn remove_if_dead(&self, tools: &Tools, conflict: Conflict) -> Result<(), Error> {
        let Conflict { key, family, chain, owner, .. } = conflict;
        let address = key.address.map_or(HostAddress::Any(family), HostAddress::One);
        let host = HostPorts { protocol: key.protocol, address, first: key.port, last: key.port };
        let what = format!("host port {host}");
        let Some(owner) = owner else {
            let by = format!("chain {chain} of iptables, which names no owner");
            return Err(Error::Taken { what, by, command: emptying(tools, &chain) });
        };
        let records = self.owners.list(|recorded| owner.may_be(recorded))?;
        if let Some(living) = records.iter().find(|record| record.life != Life::Dead) {
            return Err(Error::Conflict { what, owner: Box::new(living.owner.clone()) });
        }
        if records.is_empty() {
            let CommentOwner { network, container_id, .. } = owner;
            let by = format!("network {network}, container {container_id} (chain {chain} of iptables)");
            return Err(Error::Taken { what, by, command: emptying(tools, &chain) });
        }
        let chains: Vec<ChainName> = ChainName::new(&chain).into_iter().collect();
        for family in AddressFamily::BOTH {
            flush(&withdraw::remove_chains(&tools.with_family(family), &chains)?, Selection::ToVanished);
        }
        let kinds = record_kinds(Kinds::All);
        records.iter().try_for_each(|record| self.owners.remove(record.owner.attachment_hash, &kinds))
    }
}

/// The command that empties a chain in each family that has the chain, for people.
fn emptying(tools: &Tools, chain: &str) -> String {
    let all = AddressFamily::BOTH.map(|family| tools.with_family(family));
    let present = all.iter().filter(|tools| tools.read(&[chain]).is_ok_and(|listing| listing.has(chain)));
    let commands = present.map(|tools| tools.emptying(chain)).filter(|command| !command.is_empty());
    commands.collect::<Vec<_>>().join(" && ")
}

fn masquerade(request: &MasqueradeRequest, variant: Variant, chain_use: ChainUse) -> Result<(), Error> {
    let tools = Tools::nat(Place { variant, family: AddressFamily::V4 });
    let mut plans = plan::masquerade(request).into_iter();
    plans.try_for_each(|plan| {
        publish::masquerade(&tools.with_family(plan.family), &plan, &request.attachment, chain_use)
    })
}

/// In each place where the attachment has a chain of these kinds, removes the chain or rules in it. Returns the ports
/// that are no longer published.
fn in_each_place(
    attachment: &Attachment,
    kinds: &[u32],
    remove: impl Fn(&Tools, &[ChainName]) -> Result<Vec<PublishedPort>, Error>,
) -> Result<Vec<PublishedPort>, Error> {
    let mut unpublished = Vec::new();
    if kinds.is_empty() {
        return Ok(unpublished);
    }
    let kinds = kinds_of(kinds);
    let chains = names::own_chains(attachment, kinds);
    for place in detect::places_of(attachment, kinds)? {
        unpublished.extend(remove(&Tools::nat(place), &chains)?);
    }
    Ok(unpublished)
}

impl Backend for Iptables {
    fn publish(&self, request: &PortRequest) -> Result<Before, Error> {
        check_request(request)?;
        let variant = chosen_variant()?;
        let publisher = Publisher { request, owners: Owners::open()? };
        let attachment = &request.attachment;
        if let Some(session) = &publisher.owners.0 {
            let hosts: Vec<_> = request.ports.iter().map(|port| port.host).collect();
            if let Some((what, owner)) = owner_entry::owner_of_a_port(session, attachment, &hosts)? {
                return Err(Error::Conflict { what, owner: Box::new(owner) });
            }
        }
        let is_repeated = self.holds(attachment, Kinds::Ports)?;
        let _lock = publish::lock_for_writing();
        // Writing the owner also creates the guard of the loopback, which must exist before the ports.
        publisher.owners.put(KIND_IPTABLES_PORTS, attachment, &request.netns)?;
        let published = publisher.publish(variant);
        if published.is_err()
            && !is_repeated
            && let Err(left) = self.withdraw(&Withdrawal::of(attachment, Kinds::Ports))
        {
            log::warn!("remove the ports of {attachment} after a failed ADD: {left}");
        }
        published?;
        flush(&request.ports, Selection::NotTo);
        Ok(Before::of(is_repeated))
    }

    fn masquerade(&self, request: &MasqueradeRequest) -> Result<Before, Error> {
        let variant = chosen_variant()?;
        let before = Before::of(self.holds(&request.attachment, Kinds::Masquerade)?);
        let owners = Owners::open()?;
        let _lock = publish::lock_for_writing();
        owners.put(KIND_IPTABLES_MASQUERADE, &request.attachment, &request.netns)?;
        masquerade(request, variant, owners.chain_use(KIND_IPTABLES_MASQUERADE, &request.attachment)?)?;
        Ok(before)
    }

    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error> {
        let attachment = withdrawal.attachment;
        let owners = Owners::open()?;
        let _lock = withdrawal.only_in.map(|_| publish::lock_for_condition()).transpose()?;
        if let Some(netns) = withdrawal.only_in
            && owners.is_elsewhere(attachment, netns)?
        {
            return Ok(());
        }
        let kinds = match withdrawal.kinds {
            Kinds::AllIfPorts if self.holds(attachment, Kinds::Ports)? => Kinds::All,
            Kinds::AllIfPorts => Kinds::Ports,
            kinds => kinds,
        };
        let (mut exclusive, mut shared, mut unpublished) = (Vec::new(), Vec::new(), Vec::new());
        // Other attachments of the container may have rules of only one kind.
        for kind in record_kinds(kinds) {
            if owners.chain_use(kind, attachment)? == ChainUse::Exclusive {
                exclusive.push(kind);
                continue;
            }
            shared.push(kind);
            unpublished.extend(in_each_place(attachment, &[kind], |tools, chains| {
                withdraw::remove_addresses(tools, chains, withdrawal.addresses)
            })?);
        }
        unpublished.extend(in_each_place(attachment, &exclusive, withdraw::remove_chains)?);
        owners.remove(AttachmentHash::of(attachment), &record_kinds(kinds))?;
        // Two attachments that are removed concurrently see each other in the check above. Here, the one whose entry
        // is removed last finds no other attachment.
        for kind in shared {
            if owners.chain_use(kind, attachment)? == ChainUse::Exclusive {
                unpublished.extend(in_each_place(attachment, &[kind], withdraw::remove_chains)?);
            }
        }
        flush(&unpublished, |container| Selection::withdrawn(container, withdrawal.has_vanished));
        Ok(())
    }

    fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        let places = detect::places_of(&request.attachment, Kinds::Ports)?;
        for plan in plan::ports(request) {
            let tools = Tools::nat(detect::place_of(&places, plan.family)?);
            check::ports(&tools, &publish::read_for_ports(&tools, &plan)?, &plan)?;
        }
        Ok(())
    }

    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        let places = detect::places_of(&request.attachment, Kinds::Masquerade)?;
        for plan in plan::masquerade(request) {
            let tools = Tools::nat(detect::place_of(&places, plan.family)?);
            check::masquerade(&publish::read_for_masquerade(&tools, &plan)?, &plan)?;
        }
        Ok(())
    }

    fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error> {
        let mut unpublished = Vec::new();
        for place in containers_places()? {
            unpublished.extend(withdraw::retain(&Tools::nat(place), network, valid, kinds)?);
        }
        let owners = Owners::open()?;
        let network = NetworkHash::of(network);
        let valid: BTreeSet<AttachmentHash> = valid.iter().map(AttachmentHash::of).collect();
        let kinds = record_kinds(kinds);
        let is_dead =
            |owner: &Owner| owner.network_hash == network && !valid.contains(&owner.attachment_hash);
        for recorded in owners.list(is_dead)?.iter().filter(|recorded| kinds.contains(&recorded.kind)) {
            owners.remove(recorded.owner.attachment_hash, &[recorded.kind])?;
        }
        flush(&unpublished, Selection::ToVanished);
        Ok(())
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        let recorded = Owners::open()?.list(|_| true)?;
        let mut all = Vec::new();
        for place in containers_places()? {
            let (listing, owned) = withdraw::read_owned_chains(&Tools::nat(place), &[], |chain| chain.ports)?;
            for chain in &owned {
                let owner = owner_of(&chain.owner, &recorded);
                let ports = listing.rules(&chain.chain).iter().filter_map(rule::Rule::published);
                let backend = BackendName::Iptables;
                all.extend(ports.map(|port| Listed { owner: Some(owner.clone()), port, backend }));
            }
        }
        all.sort_by(|a, b| (a.port, &a.owner).cmp(&(b.port, &b.owner)));
        all.dedup();
        Ok(all)
    }

    fn status(&self) -> Result<(), Error> {
        working_variant().map(drop)
    }
}

/// The recorded owner counts. Without a record, it is the owner in the comment, which does not name the interface.
fn owner_of(named: &CommentOwner, recorded: &[OwnerRecord]) -> Owner {
    let found = recorded.iter().find(|recorded| named.may_be(&recorded.owner));
    found.map(|recorded| recorded.owner.clone()).unwrap_or_else(|| Owner {
        network_hash: NetworkHash::of(&named.network),
        attachment_hash: AttachmentHash([0; 16]),
        network: named.network.clone(),
        ifname: "-".to_owned(),
        container_id: named.container_id.clone(),
    })
}
