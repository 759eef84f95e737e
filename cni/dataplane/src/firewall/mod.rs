//! What the firewall plugin asks for: that packets of a container pass, and that bridges are kept apart.
//!
//! Two means are here: rules of our own in nftables, and the chains of iptables that the reference plugin
//! makes. The third, firewalld, is asked over D-Bus by the plugin itself; what an attachment has there is
//! recorded here all the same.

pub(crate) mod ledger;
mod turn;

pub use turn::Turn;

use std::net::IpAddr;

use cni_spec::Attachment;

use crate::chain_name::ChainName;
use crate::iptables::filter::{self, Isolation};
use crate::iptables::tools::Tools;
use crate::owner::AttachmentHash;
pub use crate::policy::IngressPolicy;
use crate::{Error, Owner};
use ledger::{KeptBy, Ledger};

/// How packets are let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// A table of our own.
    Nftables,
    /// The reference's chains.
    Iptables,
    /// A zone of firewalld, which is not touched here.
    Firewalld,
}

/// What is asked for a container.
#[derive(Debug, Clone)]
pub struct FirewallRequest {
    /// Who it is.
    pub attachment: Attachment,
    /// How.
    pub means: Means,
    /// With firewalld: the zone that the addresses are put into, by the caller.
    pub zone: String,
    /// The container's addresses.
    pub addresses: Vec<IpAddr>,
    /// The bridge that it is on; empty when none is known. A policy needs it.
    pub bridge: String,
    /// Which packets reach it.
    pub policy: IngressPolicy,
    /// With iptables: the chain that an administrator decides in.
    pub admin_chain: ChainName,
}

/// What an attachment has, as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Who it is.
    pub owner: Owner,
    /// How it was made.
    pub means: Means,
    /// The zone of firewalld that its addresses are in; empty with other means, or when it is not known.
    pub zone: String,
    /// Its policy.
    pub policy: IngressPolicy,
    /// Its bridge; may be empty.
    pub bridge: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

impl Held {
    /// Whether this is what is asked for. (The owner's name may be cut; whose it is, is known.)
    fn is_for(&self, request: &FirewallRequest) -> bool {
        *self == Self { owner: self.owner.clone(), ..request.held() }
    }
}

/// firewalld has no zones with longer names, by far.
const LONGEST_ZONE: usize = 64;

impl FirewallRequest {
    fn held(&self) -> Held {
        let in_zone = self.means == Means::Firewalld && self.zone.len() <= LONGEST_ZONE;
        let zone = in_zone.then_some(&self.zone);
        Held {
            owner: Owner::of(&self.attachment),
            means: self.means,
            zone: zone.cloned().unwrap_or_default(),
            policy: self.policy,
            bridge: self.bridge.clone(),
            addresses: self.addresses.clone(),
        }
    }

    fn families(&self) -> Vec<crate::AddressFamily> {
        let has = |family: &crate::AddressFamily| {
            self.addresses.iter().any(|address| crate::AddressFamily::of(*address) == *family)
        };
        crate::AddressFamily::BOTH.into_iter().filter(has).collect()
    }

    /// The rules of iptables that this needs for a family.
    fn filter(&self, family: crate::AddressFamily, isolation: Option<Isolation>) -> filter::Wanted {
        let own = self.addresses.iter().filter(|address| crate::AddressFamily::of(**address) == family);
        let admitted = if self.means == Means::Iptables { own.copied().collect() } else { Vec::new() };
        filter::Wanted { family, admitted, dismissed: Vec::new(), isolation, admin: self.admin_chain.clone() }
    }

    /// Does something with the rules of iptables that this needs, if any; `others` are the policies of the bridge's other
    /// containers.
    fn with_iptables(
        &self,
        mut others: Vec<IngressPolicy>,
        work: impl Fn(&Tools, &filter::Wanted) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !needs_iptables(self.means, self.policy) {
            return Ok(());
        }
        others.push(self.policy);
        let isolation = (self.policy != IngressPolicy::Open).then(|| Isolation::new(&self.bridge, &others));
        let tools = filter::tools()?;
        self.families()
            .into_iter()
            .try_for_each(|family| work(&tools, &self.filter(family, isolation.clone())))
    }
}

fn needs_iptables(means: Means, policy: IngressPolicy) -> bool {
    means == Means::Iptables || (means == Means::Firewalld && policy != IngressPolicy::Open)
}

/// Lets the container's packets through, and keeps its bridge apart. ADD again changes what is there, but for
/// zones of firewalld, which the caller has to do with.
///
/// # Errors
/// What could not be made; [`dismiss`] takes away what was.
pub fn admit(request: &FirewallRequest, turn: &Turn) -> Result<(), Error> {
    let ledger = Ledger::open()?;
    let (before, policies) = match &ledger {
        Some(ledger) => {
            let hash = AttachmentHash::of(&request.attachment);
            let others = match request.policy {
                IngressPolicy::Open => Vec::new(),
                _ => ledger.policies(&request.bridge, KeptBy::Iptables, Some(hash))?,
            };
            (ledger.held(hash)?, others)
        }
        None if request.means == Means::Nftables => {
            return Err(Error::NoNfTables(
                "this kernel has no nf_tables: use backend \"iptables\"".to_owned(),
            ));
        }
        None => {
            log::warn!("this kernel has no nf_tables: no record of who has which rules");
            (None, Vec::new())
        }
    };
    // What the configuration asked for before and does not ask for now.
    if let Some(before) = before.filter(|before| !before.is_for(request)) {
        withdraw(ledger.as_ref(), &before, (BridgeUse::Unknown, turn))?;
    }
    if let Some(ledger) = &ledger {
        ledger.put(&request.attachment, &request.held())?;
    }
    request.with_iptables(policies, filter::bring_about)
}

/// Whether others are on a bridge, of whom nothing is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeUse {
    /// Nobody is: rules that nobody recorded is known to need may go.
    Unused,
    /// Somebody may be: they stay.
    Unknown,
}

/// Takes away what the attachment has: what is recorded, and rules for `told` addresses, which a container
/// of the reference's may have.
///
/// # Errors
/// What could not be removed; the call can be repeated.
pub fn dismiss(
    attachment: &Attachment,
    told: &[IpAddr],
    bridge: (&str, BridgeUse),
    turn: &Turn,
) -> Result<(), Error> {
    let ledger = Ledger::open()?;
    let hash = AttachmentHash::of(attachment);
    let held = match &ledger {
        Some(ledger) => ledger.held(hash)?,
        None => None,
    };
    let mut whole = held.unwrap_or_else(|| Held {
        owner: Owner::of(attachment),
        means: Means::Iptables,
        zone: String::new(),
        policy: IngressPolicy::Open,
        bridge: bridge.0.to_owned(),
        addresses: Vec::new(),
    });
    let told: Vec<IpAddr> = told.iter().filter(|told| !whole.addresses.contains(told)).copied().collect();
    whole.addresses.extend(own_among(ledger.as_ref(), hash, &told)?);
    withdraw(ledger.as_ref(), &whole, (bridge.1, turn))
}

/// Those of the addresses that nobody else is recorded to have: one that was given to somebody else meanwhile is
/// that one's.
///
/// # Errors
/// What could not be read.
pub fn own_addresses(owner: AttachmentHash, addresses: &[IpAddr]) -> Result<Vec<IpAddr>, Error> {
    own_among(Ledger::open()?.as_ref(), owner, addresses)
}

fn own_among(
    ledger: Option<&Ledger>,
    owner: AttachmentHash,
    addresses: &[IpAddr],
) -> Result<Vec<IpAddr>, Error> {
    let Some(ledger) = ledger else { return Ok(addresses.to_vec()) };
    let mut own = Vec::new();
    for address in addresses {
        if ledger.holder(*address)?.is_none_or(|holder| holder == owner) {
            own.push(*address);
        }
    }
    Ok(own)
}

/// What the attachment has, as far as it was recorded.
///
/// # Errors
/// What could not be read.
pub fn held(attachment: &Attachment) -> Result<Option<Held>, Error> {
    Ledger::open()?.map_or(Ok(None), |ledger| ledger.held(AttachmentHash::of(attachment)))
}

/// True if rules of iptables may let packets of these addresses through. Reads only, and runs no program.
///
/// # Errors
/// [`Error::Kernel`] if the chains cannot be read.
pub fn may_have_rules(addresses: &[IpAddr]) -> Result<bool, Error> {
    filter::may_name_any(addresses)
}

/// True if rules of iptables may keep a bridge apart that no recorded attachment needs apart. Reads only, and runs no
/// program.
///
/// # Errors
/// [`Error::Kernel`] if the chains or the record cannot be read.
pub fn may_be_needlessly_separated(bridge: &str) -> Result<bool, Error> {
    Ok(filter::may_separate(bridge)? && !is_needed(Ledger::open()?.as_ref(), bridge)?)
}

/// All attachments of whom something is recorded.
///
/// # Errors
/// What could not be read.
pub fn recorded() -> Result<Vec<AttachmentHash>, Error> {
    let Some(ledger) = Ledger::open()? else { return Ok(Vec::new()) };
    Ok(ledger.list(|_| true)?.into_iter().map(|(owner, _, _)| owner.attachment_hash).collect())
}

/// Rules first, the record last: a call that was cut off can be repeated. What keeps the bridge apart goes
/// when nobody else needs it.
fn withdraw(ledger: Option<&Ledger>, held: &Held, (bridge, _turn): (BridgeUse, &Turn)) -> Result<(), Error> {
    let hash = held.owner.attachment_hash;
    let own = own_among(ledger, hash, &held.addresses)?;
    let asked = held.policy != IngressPolicy::Open || bridge == BridgeUse::Unused;
    let separates = asked && !held.bridge.is_empty();
    let others = match ledger {
        Some(ledger) if separates => ledger.policies(&held.bridge, KeptBy::Iptables, Some(hash))?,
        _ => Vec::new(),
    };
    // As the others ask for it; not at all only if there is nobody who may.
    let known = bridge == BridgeUse::Unused || !others.is_empty();
    let isolation = (known && separates).then(|| Isolation::new(&held.bridge, &others));
    if held.means != Means::Nftables || isolation.is_some() {
        filter::clear(&own, isolation.as_ref())?;
    }
    ledger.map_or(Ok(()), |ledger| ledger.remove(hash))
}

/// Compares the rules with what is asked for, no matter which plugin set made them: of a container that the reference attached,
/// nothing is recorded. Rules in nftables are the record.
///
/// # Errors
/// [`Error::Missing`] with the first difference.
pub fn check(request: &FirewallRequest) -> Result<(), Error> {
    let hash = AttachmentHash::of(&request.attachment);
    let Some(ledger) = Ledger::open()? else { return check_iptables(None, request) };
    if request.means == Means::Nftables || ledger.held(hash)?.is_some() {
        ledger.check(&request.held())?;
    } else {
        ledger.check_free(&request.addresses, hash)?;
    }
    check_iptables(Some(&ledger), request)
}

/// Records a container whose rules the reference made, so that DEL and GC find them. Nothing is written for one
/// that has a record, or not all of its rules.
///
/// # Errors
/// As for [`check`], and what nf_tables refused.
pub fn adopt(request: &FirewallRequest, _turn: &Turn) -> Result<(), Error> {
    check(request)?;
    let Some(ledger) = Ledger::open()? else { return Ok(()) };
    let hash = AttachmentHash::of(&request.attachment);
    if ledger.held(hash)?.is_some() {
        return Ok(());
    }
    ledger.put(&request.attachment, &request.held())?;
    // The reference's DEL takes no lock: it may have removed the rules since they were read.
    check(request).or_else(|gone| ledger.remove(hash).and(Err(gone)))
}

/// Compares the record, and the rules as [`check`] does.
///
/// # Errors
/// [`Error::Missing`] with the first difference.
pub fn check_record(request: &FirewallRequest) -> Result<(), Error> {
    let ledger = Ledger::open()?;
    ledger.as_ref().map_or(Ok(()), |ledger| ledger.check(&request.held()))?;
    check_iptables(ledger.as_ref(), request)
}

fn check_iptables(ledger: Option<&Ledger>, request: &FirewallRequest) -> Result<(), Error> {
    let hash = AttachmentHash::of(&request.attachment);
    let others = match ledger {
        Some(ledger) if request.policy != IngressPolicy::Open => {
            ledger.policies(&request.bridge, KeptBy::Iptables, Some(hash))?
        }
        _ => Vec::new(),
    };
    request.with_iptables(others, filter::check)
}

/// What attachments of the network have that are not valid. [`forget`] takes it away.
///
/// # Errors
/// What could not be read.
pub fn dead(network: &str, valid: &[Attachment]) -> Result<Vec<Held>, Error> {
    Ledger::open()?.map_or(Ok(Vec::new()), |ledger| ledger.dead(network, valid))
}

/// Takes away what was recorded.
///
/// # Errors
/// What could not be removed; the call can be repeated.
pub fn forget(held: &Held, bridge: BridgeUse, turn: &Turn) -> Result<(), Error> {
    withdraw(Ledger::open()?.as_ref(), held, (bridge, turn))
}

/// Bridges that rules of iptables keep apart though nobody recorded needs them.
///
/// # Errors
/// What could not be read.
pub fn needlessly_separated() -> Result<Vec<String>, Error> {
    let ledger = Ledger::open()?;
    let mut all = Vec::new();
    for bridge in filter::separated()? {
        if !is_needed(ledger.as_ref(), &bridge)? {
            all.push(bridge);
        }
    }
    Ok(all)
}

fn is_needed(ledger: Option<&Ledger>, bridge: &str) -> Result<bool, Error> {
    let policies = ledger.map_or(Ok(Vec::new()), |ledger| ledger.policies(bridge, KeptBy::Iptables, None))?;
    Ok(!policies.is_empty())
}

/// Lets a bridge be reached again, if still nobody recorded needs it apart.
///
/// # Errors
/// What could not be removed.
pub fn rejoin(bridge: &str, _turn: &Turn) -> Result<(), Error> {
    if is_needed(Ledger::open()?.as_ref(), bridge)? {
        return Ok(());
    }
    filter::clear(&[], Some(&Isolation::new(bridge, &[])))
}

/// Tells whether the next [`admit`] can succeed.
///
/// # Errors
/// What is missing.
pub fn status(means: Means, policy: IngressPolicy) -> Result<(), Error> {
    match Ledger::open()? {
        // Whatever the means, it is written down who has what.
        Some(ledger) => ledger.try_out(means)?,
        None if means == Means::Nftables => {
            return Err(Error::NoNfTables("this kernel has no nf_tables".to_owned()));
        }
        None => {}
    }
    if needs_iptables(means, policy) { filter::status() } else { Ok(()) }
}
