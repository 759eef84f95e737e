//! The compatibility backend: the chains, rules and comments of the reference plugins, so that each
//! side finds, checks and removes what the other has made, and so do tools that read them.
//!
//! This backend alone runs programs, those of iptables: one that prints the chains that matter and
//! one that changes them, for each family. What has no place in those chains, the guard of the node's
//! loopback and the owners' namespaces, is in the table of the nftables backend.

mod apply;
mod check;
mod conditions;
pub(crate) mod filter;
mod frame;
mod legacy;
mod listing;
mod moving;
mod names;
mod plan;
mod presence;
mod quote;
mod rule;
pub(crate) mod survey;
#[cfg(test)]
mod tests;
pub(crate) mod tools;
mod withdraw;

use cni_spec::Attachment;

use crate::nftables::conntrack::{self as flows, Which};
use crate::nftables::owner_entry as record;
use crate::nftables::session::Session;
use crate::owner::{AttachmentHash, Life};
use crate::{
    AddressFamily, Backend, BackendName, ContainerNetns, Error, Kinds, Listed, MasqueradeRequest, Owner,
    PortRequest, PublishedPort, Withdrawal,
};
use apply::{Clash, Others, Place};
use listing::Listing;
use names::CommentOwner;
use plan::PortPlan;
use tools::Tools;

pub use conditions::check as check_conditions;
pub use frame::{Frame, Purpose};
pub(crate) use legacy::has_nat as legacy_has_nat;
pub use names::ChainName;
pub(crate) use presence::any_chain_in;
pub use presence::{Presence, chosen_variant, of_anyone as containers_chains};
pub(crate) use rule::TableName;
pub use tools::Variant;

/// The iptables backend, on the network namespace of the thread that calls it.
#[derive(Debug, Default)]
pub struct Iptables {}

impl Iptables {
    /// The backend. Opens and runs nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {}
    }

    /// Whether there is a chain of this attachment, of these kinds. No program is run.
    ///
    /// # Errors
    /// What could not be read.
    pub fn holds(&self, attachment: &Attachment, kinds: Kinds) -> Result<bool, Error> {
        Ok(presence::of(attachment, kinds)?.any())
    }

    /// The programs that this variant needs: where they are, or the error that names the first one
    /// that is not installed.
    ///
    /// # Errors
    /// [`Error::NoIptables`].
    pub fn programs(variant: Variant) -> Result<Vec<std::path::PathBuf>, Error> {
        let tools = Tools::new(variant);
        let all = AddressFamily::BOTH.into_iter().flat_map(|family| [(family, "restore"), (family, "save")]);
        all.map(|(family, what)| tools.find(family, what)).collect()
    }

    /// Refuses the request if a chain of a living container has one of its ports, whichever backend
    /// the request is for. A program is run only where there are such chains.
    ///
    /// # Errors
    /// [`Error::Taken`], or what could not be read.
    pub fn refuse_taken(&self, request: &PortRequest) -> Result<(), Error> {
        let places: Vec<_> = presence::of_ports()?.places().collect();
        if places.is_empty() {
            return Ok(());
        }
        let recorder = Recorder::quiet()?;
        for plan in plan::ports(request) {
            for (variant, _) in places.iter().filter(|(_, family)| *family == plan.family) {
                let (tools, who) = (Tools::new(*variant), (request, &recorder));
                Self::yield_to_the_living(&tools, &plan, who, Moment::Before)?;
            }
        }
        Ok(())
    }
}

/// Somebody who records owners, where the kernel has the means.
struct Recorder(Option<Session>);

impl Recorder {
    fn open() -> Result<Self, Error> {
        record::open().map(Self)
    }

    /// Without a word about a kernel that has not the means.
    fn quiet() -> Result<Self, Error> {
        match Session::open() {
            Ok(session) => Ok(Self(Some(session))),
            Err(Error::NoNfTables(_)) => Ok(Self(None)),
            Err(error) => Err(error),
        }
    }

    fn put(&self, kind: u32, who: (&Attachment, &ContainerNetns)) -> Result<(), Error> {
        self.0.as_ref().map_or(Ok(()), |session| record::put(session, kind, who))
    }

    fn remove(&self, attachment: &Attachment, kinds: &[u32]) -> Result<(), Error> {
        let hash = AttachmentHash::of(attachment);
        self.0.as_ref().map_or(Ok(()), |session| record::remove(session, hash, kinds))
    }

    /// Whether another attachment of the same container to the same network lives, and has an entry of
    /// that kind.
    fn others(&self, kind: u32, attachment: &Attachment) -> Result<Others, Error> {
        self.0.as_ref().map_or(Ok(Others::None), |session| Self::others_in(session, kind, attachment))
    }

    fn others_in(session: &Session, kind: u32, attachment: &Attachment) -> Result<Others, Error> {
        let own = Owner::of(attachment);
        let is_other = |owner: &Owner| {
            owner.network_hash == own.network_hash
                && owner.attachment_hash != own.attachment_hash
                && own.may_be_of_one_container(owner)
        };
        let mut found = record::list(session, is_other)?.into_iter();
        let living = found.any(|record| record.kind == kind && record.life != Life::Dead);
        Ok(if living { Others::Living } else { Others::None })
    }

    /// What is recorded of the container that a comment names.
    fn of(&self, named: &CommentOwner) -> Result<Vec<record::Recorded>, Error> {
        let Some(session) = &self.0 else { return Ok(Vec::new()) };
        record::list(session, |owner| named.may_be(owner))
    }
}

/// The kinds of entries that stand for these kinds.
pub(crate) fn record_kinds(kinds: Kinds) -> Vec<u32> {
    let ports = kinds.ports().then_some(record::KIND_IPTABLES_PORTS);
    ports.into_iter().chain(kinds.masquerade().then_some(record::KIND_IPTABLES_MASQUERADE)).collect()
}

fn kinds_of(records: &[u32]) -> Kinds {
    match records {
        [record::KIND_IPTABLES_PORTS] => Kinds::Ports,
        [record::KIND_IPTABLES_MASQUERADE] => Kinds::Masquerade,
        _ => Kinds::All,
    }
}

/// Failing to flush is no failure of the mapping: it is said, and the flows end by themselves.
fn flush(ports: impl Iterator<Item = PublishedPort>, which: fn(std::net::IpAddr) -> Which) {
    let ports: Vec<_> = ports.map(|port| (port.host, which(port.container))).collect();
    if let Err(e) = flows::flush(&ports) {
        log::warn!("{e}");
    }
}

impl Iptables {
    /// Publishes the families one after the other.
    fn publish_all(tools: &Tools, request: &PortRequest, recorder: &Recorder) -> Result<(), Error> {
        let others = recorder.others(record::KIND_IPTABLES_PORTS, &request.attachment)?;
        for plan in plan::ports(request) {
            let look = |moment| Self::yield_to_the_living(tools, &plan, (request, recorder), moment);
            let seen = look(Moment::Before)?;
            let place = apply::publish(tools, &plan, (&request.attachment, others), seen)?;
            look(Moment::After(place))?;
        }
        Ok(())
    }

    /// Refuses what a living container has. What a dead one has is removed, with the rest of it. Returns
    /// what the plan's chains hold.
    fn yield_to_the_living(
        tools: &Tools,
        plan: &PortPlan,
        (request, recorder): (&PortRequest, &Recorder),
        moment: Moment,
    ) -> Result<Listing, Error> {
        let listing = apply::read_for_ports(tools, plan)?;
        let mut removed: Vec<String> = Vec::new();
        for clash in apply::clashes(tools, &listing, plan)? {
            // Both are there. Of two that went to the end the second sees the first; one that went
            // ahead may not have been seen by the others.
            if moment == Moment::After(Place::Behind) && clash.behind {
                continue;
            }
            // A container that is joined to several networks, with the same ports on each, has them on
            // the first, and on the next when it leaves that one.
            let id = request.attachment.container_id();
            if clash.owner.as_ref().is_some_and(|owner| owner.container_id == id && !owner.cut) {
                continue;
            }
            if !removed.contains(&clash.chain) {
                removed.push(clash.chain.clone());
                Self::remove_if_dead(tools, clash, recorder)?;
            }
        }
        if removed.is_empty() { Ok(listing) } else { apply::read_for_ports(tools, plan) }
    }

    fn remove_if_dead(tools: &Tools, clash: Clash, recorder: &Recorder) -> Result<(), Error> {
        let Clash { key, family, chain, owner, .. } = clash;
        let address = key.address.map_or(crate::HostAddress::Any(family), crate::HostAddress::One);
        let host = crate::HostPorts { protocol: key.protocol, address, first: key.port, last: key.port };
        let taken = |by: String| Error::Taken { what: format!("host port {host}"), by };
        let Some(owner) = owner else {
            return Err(taken(format!("chain {chain} of iptables, which names no owner")));
        };
        let records = recorder.of(&owner)?;
        if let Some(living) = records.iter().find(|record| record.life != Life::Dead) {
            let (what, owner) = (format!("host port {host}"), Box::new(living.owner.clone()));
            return Err(Error::Conflict { what, owner });
        }
        if records.is_empty() {
            let named = format!("network {}, container {}", owner.network, owner.container_id);
            return Err(taken(format!("{named} (chain {chain} of iptables)")));
        }
        for record in records {
            let chains: Vec<ChainName> = ChainName::new(&chain).into_iter().collect();
            for family in AddressFamily::BOTH {
                withdraw::remove_chains(tools, family, &chains)?;
            }
            if let Some(session) = &recorder.0 {
                record::remove(session, record.owner.attachment_hash, &record_kinds(Kinds::All))?;
            }
        }
        Ok(())
    }

    /// Each place where the attachment has something is cleared.
    fn withdraw_from(
        presence: &Presence,
        withdrawal: &Withdrawal<'_>,
        others: Others,
    ) -> Result<Vec<PublishedPort>, Error> {
        let chains = withdraw::own_chains(withdrawal.attachment, withdrawal.kinds);
        let mut gone = Vec::new();
        for (variant, family) in presence.places() {
            let tools = Tools::new(variant);
            gone.extend(match others {
                Others::None => withdraw::remove_chains(&tools, family, &chains)?,
                Others::Living => {
                    withdraw::remove_addresses(&tools, family, (&chains, withdrawal.addresses))?
                }
            });
        }
        Ok(gone)
    }
}

/// When a conflict is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Before,
    After(Place),
}

impl Backend for Iptables {
    fn publish(&self, request: &PortRequest) -> Result<(), Error> {
        conditions::check_request(request)?;
        plan::refuse_contradictions(request)?;
        let tools = Tools::new(chosen_variant()?);
        let recorder = Recorder::open()?;
        if let Some(session) = &recorder.0 {
            let hosts: Vec<_> = request.ports.iter().map(|port| port.host).collect();
            if let Some((what, owner)) = record::owner_of_a_port(session, &request.attachment, &hosts)? {
                return Err(Error::Conflict { what, owner: Box::new(owner) });
            }
        }
        let had = presence::of(&request.attachment, Kinds::Ports)?.any();
        let _writing = apply::writing();
        // The guard of the loopback, and the owner: before there is anything to guard or to own.
        recorder.put(record::KIND_IPTABLES_PORTS, (&request.attachment, &request.netns))?;
        let published = Self::publish_all(&tools, request, &recorder);
        if let (Err(_), false) = (&published, had)
            && let Err(left) = self.withdraw(&Withdrawal::of(&request.attachment, Kinds::Ports))
        {
            log::warn!("take the ports of {} back: {left}", request.attachment);
        }
        published?;
        flush(request.ports.iter().copied(), Which::NotTo);
        Ok(())
    }

    fn masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        let tools = Tools::new(chosen_variant()?);
        let recorder = Recorder::open()?;
        let _writing = apply::writing();
        recorder.put(record::KIND_IPTABLES_MASQUERADE, (&request.attachment, &request.netns))?;
        let others = recorder.others(record::KIND_IPTABLES_MASQUERADE, &request.attachment)?;
        let plans = plan::masquerade(request);
        plans.iter().try_for_each(|plan| apply::masquerade(&tools, plan, (&request.attachment, others)))
    }

    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error> {
        let attachment = withdrawal.attachment;
        let recorder = Recorder::open()?;
        let mut kinds = withdrawal.kinds;
        if kinds == Kinds::AllIfPorts {
            let ports = presence::of(attachment, Kinds::Ports)?.any();
            kinds = if ports { Kinds::All } else { Kinds::Ports };
        }
        let mut gone = Vec::new();
        // Each kind for itself: other attachments may have the one and not the other.
        let mut rest = Vec::new();
        for kind in record_kinds(kinds) {
            match recorder.others(kind, attachment)? {
                Others::None => rest.push(kind),
                Others::Living => {
                    let one = Withdrawal { kinds: kinds_of(&[kind]), ..withdrawal.clone() };
                    let presence = presence::of(attachment, one.kinds)?;
                    gone.extend(Self::withdraw_from(&presence, &one, Others::Living)?);
                }
            }
        }
        if !rest.is_empty() {
            let all = Withdrawal { kinds: kinds_of(&rest), ..withdrawal.clone() };
            let presence = presence::of(attachment, all.kinds)?;
            gone.extend(Self::withdraw_from(&presence, &all, Others::None)?);
        }
        recorder.remove(attachment, &record_kinds(kinds))?;
        flush(gone.into_iter(), Which::To);
        Ok(())
    }

    fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        let presence = presence::of(&request.attachment, Kinds::Ports)?;
        for plan in plan::ports(request) {
            let variant = presence.variant(plan.family).map_or_else(chosen_variant, Ok)?;
            let tools = Tools::new(variant);
            check::ports(&tools, &apply::read_for_ports(&tools, &plan)?, &plan)?;
        }
        Ok(())
    }

    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        let presence = presence::of(&request.attachment, Kinds::Masquerade)?;
        for plan in plan::masquerade(request) {
            let variant = presence.variant(plan.family).map_or_else(chosen_variant, Ok)?;
            let tools = Tools::new(variant);
            check::masquerade(&apply::read_for_masquerade(&tools, &plan)?, &plan)?;
        }
        Ok(())
    }

    fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error> {
        let mut gone = Vec::new();
        for (variant, family) in presence::of_anyone()?.places() {
            gone.extend(withdraw::retain(&Tools::new(variant), family, (network, valid), kinds)?);
        }
        let recorder = Recorder::open()?;
        if let Some(session) = &recorder.0 {
            let hash = crate::owner::NetworkHash::of(network);
            let valid: Vec<AttachmentHash> = valid.iter().map(AttachmentHash::of).collect();
            let kinds = record_kinds(kinds);
            let dead = |owner: &Owner| owner.network_hash == hash && !valid.contains(&owner.attachment_hash);
            for recorded in record::list(session, dead)?.iter().filter(|r| kinds.contains(&r.kind)) {
                record::remove(session, recorded.owner.attachment_hash, &[recorded.kind])?;
            }
        }
        flush(gone.into_iter(), Which::To);
        Ok(())
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        let recorder = Recorder::open()?;
        let mut all = Vec::new();
        for (variant, family) in presence::of_anyone()?.places() {
            all.extend(list(&Tools::new(variant), family, &recorder)?);
        }
        all.sort_by(|a, b| (a.port, &a.owner).cmp(&(b.port, &b.owner)));
        all.dedup();
        Ok(all)
    }

    fn status(&self) -> Result<(), Error> {
        Self::programs(chosen_variant()?).map(drop)
    }
}

/// What is published in one family's chains.
fn list(tools: &Tools, family: AddressFamily, recorder: &Recorder) -> Result<Vec<Listed>, Error> {
    let mut listing = tools.read(family, &withdraw::LEADING)?;
    let known: Vec<withdraw::Known> = withdraw::known(&listing).into_iter().filter(|k| k.ports).collect();
    let chains: Vec<&str> = known.iter().map(|known| known.chain.as_str()).collect();
    if chains.iter().any(|chain| !listing.has(chain)) {
        listing.merge(tools.read(family, &chains)?);
    }
    let mut all = Vec::new();
    for known in &known {
        let owner = owner_of(&known.owner, recorder)?;
        let ports = listing.rules(&known.chain).iter().filter_map(withdraw::published);
        all.extend(ports.map(|port| Listed {
            owner: Some(owner.clone()),
            port,
            backend: BackendName::Iptables,
        }));
    }
    Ok(all)
}

/// The owner as the record has it, else what the comment says: it names no interface.
fn owner_of(named: &CommentOwner, recorder: &Recorder) -> Result<Owner, Error> {
    let recorded = recorder.of(named)?.into_iter().next().map(|record| record.owner);
    Ok(recorded.unwrap_or_else(|| Owner {
        network_hash: crate::owner::NetworkHash::of(&named.network),
        attachment_hash: AttachmentHash([0; 16]),
        network: named.network.clone(),
        ifname: "-".to_owned(),
        container_id: named.container_id.clone(),
    }))
}
