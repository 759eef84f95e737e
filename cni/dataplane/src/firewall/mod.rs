// SPDX-License-Identifier: GPL-2.0-or-later

//! The rules of the firewall plugin, which accept packets of containers and isolate bridges.
//!
//! There are three means: a table of our own in nftables, the chains of iptables that the reference plugin makes, and
//! zones of firewalld. The plugin itself calls firewalld over D-Bus; this module only records the zones.

mod choice;
pub(crate) mod layout;
mod lock;
mod separation;
pub(crate) mod table;

pub use choice::{default_means, isolator_for};
pub use lock::FirewallLock;
pub use separation::{Separation, between, has_rules_of_an_administrator};

use std::net::IpAddr;

use cni_spec::Attachment;

use crate::chain_name::ChainName;
use crate::iptables::filter::{self, FilterPlan, Isolation};
use crate::iptables::tools::Tools;
use crate::owner::AttachmentHash;
pub use crate::policy::IngressPolicy;
use crate::{AddressFamily, Error, NfTablesLack, Owner};
use table::FirewallTable;

/// How the packets of containers are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// A table of our own.
    Nftables,
    /// The reference plugin's chains.
    Iptables,
    /// A zone of firewalld, to which the plugin adds the addresses.
    Firewalld,
}

/// Which rules isolate a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolator {
    /// The sets of our own table.
    Nftables,
    /// The reference plugin's chains, also for containers that firewalld lets through.
    Iptables,
}

/// A request for the rules of a container.
#[derive(Debug, Clone)]
pub struct FirewallRequest {
    pub attachment: Attachment,
    pub means: Means,
    /// With firewalld, the zone to which the caller adds the addresses.
    pub zone: String,
    /// The container's addresses.
    pub addresses: Vec<IpAddr>,
    /// The container's bridge, or empty if it is unknown. Required if there is a policy.
    pub bridge: String,
    /// The policy of the bridge.
    pub policy: IngressPolicy,
    /// The rules that carry out the policy.
    pub isolator: Isolator,
    /// With iptables, the chain for an administrator's rules.
    pub admin_chain: ChainName,
}

/// The record of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirewallRecord {
    pub owner: Owner,
    pub means: Means,
    /// The firewalld zone that contains the addresses. Empty with other means, or if it is unknown.
    pub zone: String,
    pub policy: IngressPolicy,
    pub isolator: Isolator,
    /// The container's bridge; may be empty.
    pub bridge: String,
    pub addresses: Vec<IpAddr>,
}

impl FirewallRecord {
    /// True if the chains of iptables isolate the bridge because of this record.
    #[must_use]
    pub fn isolates_in_chains(&self) -> bool {
        self.policy != IngressPolicy::Open && self.isolator == Isolator::Iptables
    }

    /// True if the request leads to this record. The owner's names are not compared, because those in the record may
    /// be cut.
    fn is_for(&self, request: &FirewallRequest) -> bool {
        *self == Self { owner: self.owner.clone(), ..request.held() }
    }
}

/// The longest zone name that is recorded. firewalld allows only much shorter ones.
const LONGEST_ZONE: usize = 64;

impl FirewallRequest {
    fn held(&self) -> FirewallRecord {
        let in_zone = self.means == Means::Firewalld && self.zone.len() <= LONGEST_ZONE;
        let zone = in_zone.then_some(&self.zone);
        FirewallRecord {
            owner: Owner::of(&self.attachment),
            means: self.means,
            zone: zone.cloned().unwrap_or_default(),
            policy: self.policy,
            isolator: self.isolator,
            bridge: self.bridge.clone(),
            addresses: self.addresses.clone(),
        }
    }

    /// True if the chains of iptables isolate the bridge because of this request.
    fn isolates_in_chains(&self) -> bool {
        self.policy != IngressPolicy::Open && self.isolator == Isolator::Iptables
    }

    /// The iptables rules for a family.
    fn filter_plan(&self, family: AddressFamily, isolation: Option<Isolation>) -> FilterPlan {
        let own = filter::of_family(&self.addresses, family);
        let admitted = if self.means == Means::Iptables { own.collect() } else { Vec::new() };
        FilterPlan { family, admitted, dismissed: Vec::new(), isolation, admin: self.admin_chain.clone() }
    }

    /// Calls `work` with the iptables rules for each family that the request needs. `others` are the policies that
    /// the bridge's other containers ask for.
    fn with_iptables(
        &self,
        mut others: Vec<IngressPolicy>,
        work: impl Fn(&Tools, &FilterPlan) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let isolates = self.isolates_in_chains();
        if self.means != Means::Iptables && !isolates {
            return Ok(());
        }
        others.push(self.policy);
        let isolation = isolates.then(|| Isolation::new(&self.bridge, &others));
        let tools = filter::tools()?;
        let has = |family: &AddressFamily| filter::of_family(&self.addresses, *family).next().is_some();
        let mut families = AddressFamily::BOTH.into_iter().filter(has);
        families.try_for_each(|family| work(&tools, &self.filter_plan(family, isolation.clone())))
    }

    /// The policies that other containers on the bridge ask for. Empty if the request itself has none.
    fn policies_of_others(&self, table: Option<&FirewallTable>) -> Result<Vec<IngressPolicy>, Error> {
        match table {
            Some(table) if self.isolates_in_chains() => {
                table.policies_in_chains(&self.bridge, Some(AttachmentHash::of(&self.attachment)))
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Accepts the container's packets and isolates its bridge. A repeated ADD replaces the container's rules, except for
/// the zones of firewalld, for which the caller is responsible.
///
/// # Errors
/// [`Error::NoNfTables`] if the kernel lacks nf_tables and the means is nftables; [`Error::Kernel`],
/// [`Error::NoIptables`] or [`Error::Busy`] if rules could not be made. [`dismiss`] removes those that were made.
pub fn admit(request: &FirewallRequest, lock: &FirewallLock) -> Result<(), Error> {
    let table = FirewallTable::open()?;
    if table.is_none() {
        if request.means == Means::Nftables {
            return Err(NfTablesLack::UseIptables.into());
        }
        if request.policy != IngressPolicy::Open && request.isolator == Isolator::Nftables {
            return Err(NfTablesLack::Kernel.into());
        }
        log::warn!("this kernel has no nf_tables: the owners of rules are not recorded");
    }
    let policies = request.policies_of_others(table.as_ref())?;
    if let Some(table) = &table {
        let before = table.held(AttachmentHash::of(&request.attachment))?;
        if let Some(outdated) = before.filter(|before| !before.is_for(request)) {
            withdraw(Some(table), &outdated, BridgeUse::Unknown, lock)?;
        }
        table.put(&request.attachment, &request.held())?;
    }
    request.with_iptables(policies, filter::admit)
}

/// Whether containers without a record use a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeUse {
    /// No other container is on the bridge, so rules that no recorded container needs are removed.
    Unused,
    /// Other containers may be on the bridge, so such rules stay.
    Unknown,
}

/// Removes the attachment's rules: those in its record, and those for `addresses`, which the reference plugin may
/// have made.
///
/// # Errors
/// [`Error::Kernel`], [`Error::NoIptables`] or [`Error::Busy`] if rules could not be removed; the call can be
/// repeated.
pub fn dismiss(
    attachment: &Attachment,
    addresses: &[IpAddr],
    bridge: &str,
    bridge_use: BridgeUse,
    lock: &FirewallLock,
) -> Result<(), Error> {
    let table = FirewallTable::open()?;
    let hash = AttachmentHash::of(attachment);
    let held = table.as_ref().map_or(Ok(None), |table| table.held(hash))?;
    let mut held = held.unwrap_or_else(|| FirewallRecord {
        owner: Owner::of(attachment),
        means: Means::Iptables,
        zone: String::new(),
        policy: IngressPolicy::Open,
        isolator: Isolator::Iptables,
        bridge: bridge.to_owned(),
        addresses: Vec::new(),
    });
    let new: Vec<IpAddr> = addresses.iter().filter(|one| !held.addresses.contains(one)).copied().collect();
    held.addresses.extend(own_among(table.as_ref(), hash, &new)?);
    withdraw(table.as_ref(), &held, bridge_use, lock)
}

/// The addresses that are not recorded for another attachment. A released address may have a new owner by now.
pub fn own_addresses(owner: AttachmentHash, addresses: &[IpAddr]) -> Result<Vec<IpAddr>, Error> {
    own_among(FirewallTable::open()?.as_ref(), owner, addresses)
}

fn own_among(
    table: Option<&FirewallTable>,
    owner: AttachmentHash,
    addresses: &[IpAddr],
) -> Result<Vec<IpAddr>, Error> {
    let Some(table) = table else { return Ok(addresses.to_vec()) };
    let mut own = Vec::new();
    for address in addresses {
        if table.holder(*address)?.is_none_or(|holder| holder == owner) {
            own.push(*address);
        }
    }
    Ok(own)
}

pub fn held(attachment: &Attachment) -> Result<Option<FirewallRecord>, Error> {
    FirewallTable::open()?.map_or(Ok(None), |table| table.held(AttachmentHash::of(attachment)))
}

/// True if iptables rules may accept packets of these addresses. Runs no program.
pub fn may_have_rules(addresses: &[IpAddr]) -> Result<bool, Error> {
    filter::may_name_any(addresses)
}

/// True if iptables rules may isolate a bridge although no recorded attachment asks for that. Runs no program.
pub fn may_be_needlessly_separated(bridge: &str) -> Result<bool, Error> {
    Ok(filter::may_isolate(bridge)? && !is_needed(FirewallTable::open()?.as_ref(), bridge)?)
}

/// True if the kernel has nf_tables, without which our own table cannot exist.
pub fn has_nf_tables() -> Result<bool, Error> {
    Ok(FirewallTable::open()?.is_some())
}

pub fn recorded() -> Result<Vec<AttachmentHash>, Error> {
    let Some(table) = FirewallTable::open()? else { return Ok(Vec::new()) };
    Ok(table.list(|_| true)?.into_iter().map(|entry| entry.owner.attachment_hash).collect())
}

/// Removes the rules first and the record last, so that a call that was killed can be repeated. The bridge stays
/// isolated as the other attachments ask for, and is no longer isolated only if there are none.
fn withdraw(
    table: Option<&FirewallTable>,
    held: &FirewallRecord,
    bridge_use: BridgeUse,
    _lock: &FirewallLock,
) -> Result<(), Error> {
    let hash = held.owner.attachment_hash;
    let own = own_among(table, hash, &held.addresses)?;
    let may_isolate = held.isolates_in_chains() || bridge_use == BridgeUse::Unused;
    let may_isolate = may_isolate && !held.bridge.is_empty();
    let others = match table {
        Some(table) if may_isolate => table.policies_in_chains(&held.bridge, Some(hash))?,
        _ => Vec::new(),
    };
    let is_known = bridge_use == BridgeUse::Unused || !others.is_empty();
    let isolation = (is_known && may_isolate).then(|| Isolation::new(&held.bridge, &others));
    if held.means != Means::Nftables || isolation.is_some() {
        filter::dismiss(&own, isolation.as_ref())?;
    }
    table.map_or(Ok(()), |table| table.remove(hash))
}

/// Compares the rules with the request, whichever plugins made them: a container that the reference plugin attached
/// has no record. With nftables, the record itself makes up the rules.
pub fn check(request: &FirewallRequest) -> Result<(), Error> {
    let hash = AttachmentHash::of(&request.attachment);
    let Some(table) = FirewallTable::open()? else { return check_iptables(None, request) };
    if request.means == Means::Nftables || table.held(hash)?.is_some() {
        table.check(&request.held())?;
    } else {
        table.check_free(&request.addresses, hash)?;
    }
    check_iptables(Some(&table), request)
}

/// Records a container whose rules the reference plugin made, so that DEL and GC find them. Writes nothing if the
/// container has a record already, or lacks some of its rules.
pub fn adopt(request: &FirewallRequest, _lock: &FirewallLock) -> Result<(), Error> {
    check(request)?;
    let Some(table) = FirewallTable::open()? else { return Ok(()) };
    let hash = AttachmentHash::of(&request.attachment);
    if table.held(hash)?.is_some() {
        return Ok(());
    }
    table.put(&request.attachment, &request.held())?;
    // A DEL of the reference plugin takes no lock, and may have removed the rules since they were read.
    check(request).or_else(|gone| table.remove(hash).and(Err(gone)))
}

/// Compares the record and all rules, including those for published ports, which [`check`] does not demand because
/// the reference plugin and earlier versions did not make them.
pub fn check_record(request: &FirewallRequest) -> Result<(), Error> {
    let table = FirewallTable::open()?;
    table.as_ref().map_or(Ok(()), |table| table.check(&request.held()))?;
    request.with_iptables(request.policies_of_others(table.as_ref())?, filter::check_all)
}

fn check_iptables(table: Option<&FirewallTable>, request: &FirewallRequest) -> Result<(), Error> {
    request.with_iptables(request.policies_of_others(table)?, filter::check)
}

/// The records of the network's attachments that are not in `valid`. [`forget`] removes them.
pub fn dead(network: &str, valid: &[Attachment]) -> Result<Vec<FirewallRecord>, Error> {
    FirewallTable::open()?.map_or(Ok(Vec::new()), |table| table.dead(network, valid))
}

/// Removes the rules of a record, and the record.
pub fn forget(held: &FirewallRecord, bridge_use: BridgeUse, lock: &FirewallLock) -> Result<(), Error> {
    withdraw(FirewallTable::open()?.as_ref(), held, bridge_use, lock)
}

/// The bridges that iptables rules isolate although no recorded attachment asks for that.
pub fn needlessly_separated() -> Result<Vec<String>, Error> {
    let table = FirewallTable::open()?;
    let mut all = Vec::new();
    for bridge in filter::isolated_bridges()? {
        if !is_needed(table.as_ref(), &bridge)? {
            all.push(bridge);
        }
    }
    Ok(all)
}

fn is_needed(table: Option<&FirewallTable>, bridge: &str) -> Result<bool, Error> {
    let policies = table.map_or(Ok(Vec::new()), |table| table.policies_in_chains(bridge, None))?;
    Ok(!policies.is_empty())
}

/// Removes the rules that isolate a bridge, unless a recorded attachment asks for them by now.
pub fn rejoin(bridge: &str, _lock: &FirewallLock) -> Result<(), Error> {
    if is_needed(FirewallTable::open()?.as_ref(), bridge)? {
        return Ok(());
    }
    filter::dismiss(&[], Some(&Isolation::new(bridge, &[])))
}

/// Checks that the next [`admit`] can succeed.
pub fn status(means: Means, policy: IngressPolicy, isolator: Isolator) -> Result<(), Error> {
    let by_sets = policy != IngressPolicy::Open && isolator == Isolator::Nftables;
    match FirewallTable::open()? {
        // Rules are recorded in the table whatever the means.
        Some(table) => table.try_out(means, policy, isolator)?,
        None if means == Means::Nftables || by_sets => return Err(NfTablesLack::Kernel.into()),
        None => {}
    }
    let in_chains = policy != IngressPolicy::Open && isolator == Isolator::Iptables;
    if means == Means::Iptables || in_chains { filter::status() } else { Ok(()) }
}
