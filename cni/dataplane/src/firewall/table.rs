// SPDX-License-Identifier: GPL-2.0-or-later

//! The table of the firewall plugin. It records the owner of each container's rules and, with nftables, contains the
//! rules themselves.
//!
//! ```text
//! table inet slipway-firewall {
//!     set pods4 { ipv4_addr }            addresses of containers, each with its owner; and pods6
//!     map addresses4 { attachment's hash . number : ipv4_addr }   addresses by owner; and addresses6
//!     map attachments { attachment's hash : bridge . means and policy }   firewalld's zone as private bytes
//!     set isolating { ifname }           bridges that packets of other such bridges do not reach
//!     set same { ifname . ifname }       each of them with itself
//!     set isolated { ifname . ifname }   with itself, where not even its own ports reach each other
//!     set strict { ifname }              bridges that packets to or from those of `listed` do not pass either
//!     set listed { ifname }              bridges that only those of `strict` are kept apart from
//!     chain admin { }                    an administrator's, never touched
//!     chain forward { type filter hook forward … }   once an attachment has rules here
//! }
//! ```
//!
//! The chains of iptables and the zones of firewalld cannot store an owner. So every attachment has an entry in this
//! table, by which DEL and GC find its rules without the configuration.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_nftables::{Element, ElementData, ElementId, ElementInfo, Socket, Transaction, Value};
use cni_spec::Attachment;

use super::layout::{
    ADDRESSES, ADMIN, ATTACHMENTS, BASE, Choice, DEFINITION, FORWARD, ISOLATED, ISOLATING, LISTED, PODS,
    STRICT, TABLE, attachment_id, bootstrap, bridge_id, hook, newer_sets, of_family, pair_id, pod_id, rules,
    slot_id, table,
};
use super::{FirewallRecord, IngressPolicy, Isolator, Means};
use crate::nftables::liveness::TLV_KIND;
use crate::owned_table::{OwnedTable, unless_no_nf_tables};
use crate::owner::{AttachmentHash, NetworkHash};
use crate::{Difference, Error, Owner};

thread_local! {
    /// For each bridge, the attachment that [`FirewallTable::needed_by_none`] has found last.
    static LAST_FOUND: RefCell<BTreeMap<String, AttachmentHash>> = const { RefCell::new(BTreeMap::new()) };
}

/// The entry of an attachment.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) owner: Owner,
    bridge: String,
    /// None if a later version wrote the entry in a form that is not known here.
    choice: Option<Choice>,
}

/// The table, in the network namespace of the thread that opened it.
pub(super) struct FirewallTable(OwnedTable);

impl FirewallTable {
    /// Opens the table. None if the kernel has no nf_tables, in which case nothing is recorded.
    pub(super) fn open() -> Result<Option<Self>, Error> {
        let opened = OwnedTable::open(DEFINITION).and_then(|table| table.generation().map(|_| table));
        unless_no_nf_tables(opened.map(|table| Some(Self(table))))
    }

    fn element(&self, id: &ElementId) -> Result<Option<ElementInfo>, Error> {
        self.0.element(id)
    }

    /// Builds the parts of the table that an attachment with these choices needs and that are missing.
    fn missing(&self, choice: Choice) -> Result<Transaction, Error> {
        let mut batch = Transaction::new();
        if self.0.schema()?.is_none() {
            batch.append(bootstrap());
        }
        let uses = u32::try_from(rules().len()).unwrap_or_default();
        let is_hooked =
            || Ok::<_, Error>(self.0.chain(FORWARD)?.is_some_and(|c| c.base == Some(BASE) && c.uses == uses));
        let is_new = !batch.is_empty();
        let hooks = choice.needs_rules() && (is_new || !is_hooked()?);
        // The rules use all sets, so a table with complete rules lacks none.
        if hooks && !is_new {
            batch.append(self.missing_sets()?);
        }
        if hooks {
            batch.append(hook());
        }
        Ok(batch)
    }

    fn missing_sets(&self) -> Result<Transaction, Error> {
        let read = self.0.socket.set(&table(), LISTED);
        let found = read.map_err(|e| Error::kernel(format!("read set {LISTED} of table {TABLE}"), e))?;
        Ok(if found.is_some() { Transaction::new() } else { newer_sets() })
    }

    /// Tries to make the missing parts of the table, without committing them.
    pub(super) fn try_out(
        &self,
        means: Means,
        policy: IngressPolicy,
        isolator: Isolator,
    ) -> Result<(), Error> {
        let missing = self.missing(Choice { means, policy, isolator })?;
        if missing.is_empty() {
            return Ok(());
        }
        match self.0.socket.dry_run(&missing) {
            // An ADD has made them meanwhile.
            Err(e) if e.is_exists() => Ok(()),
            tried => tried.map_err(|e| Error::kernel(format!("make table {TABLE}"), e)),
        }
    }

    /// True if attachments have their rules in this table.
    pub(super) fn holds_rules(&self) -> Result<bool, Error> {
        if !self.is_in_force()? {
            return Ok(false);
        }
        let all = self.list(|_| true)?;
        Ok(all.iter().any(|entry| entry.choice.is_some_and(|choice| choice.means == Means::Nftables)))
    }

    /// True if the table's rules are hooked.
    pub(super) fn is_in_force(&self) -> Result<bool, Error> {
        Ok(self.0.chain(FORWARD)?.is_some_and(|chain| chain.base == Some(BASE)))
    }

    /// The set that makes the rules drop packets from one link to another, unless they were translated.
    pub(super) fn separates(&self, from: &str, to: &str) -> Result<Option<&'static str>, Error> {
        if !self.is_in_force()? {
            return Ok(None);
        }
        let has = |id: &ElementId| Ok::<_, Error>(self.element(id)?.is_some());
        if from == to {
            return Ok(has(&pair_id(ISOLATED, from))?.then_some(ISOLATED));
        }
        for (of_from, of_to) in [(ISOLATING, ISOLATING), (STRICT, LISTED), (LISTED, STRICT)] {
            if has(&bridge_id(of_from, from))? && has(&bridge_id(of_to, to))? {
                // Names the set of the bridge that asks for the separation.
                return Ok(Some(if of_from == LISTED { of_to } else { of_from }));
            }
        }
        Ok(None)
    }

    pub(super) fn held(&self, hash: AttachmentHash) -> Result<Option<FirewallRecord>, Error> {
        let Some(found) = self.element(&attachment_id(hash))? else { return Ok(None) };
        let Some(Entry { owner, bridge, choice: Some(choice) }) = entry_of(&found) else {
            return Ok(None);
        };
        let Choice { means, policy, isolator } = choice;
        let mut addresses = Vec::new();
        for (_, element) in self.address_elements(hash)? {
            addresses.extend(address_of(&element.data));
        }
        // The zone is lost if the ruleset was loaded from an nft file.
        let zone = found.tlv(TLV_KIND).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let zone = zone.unwrap_or_default().to_owned();
        Ok(Some(FirewallRecord { owner, means, zone, policy, isolator, bridge, addresses }))
    }

    /// The elements with an attachment's addresses.
    fn address_elements(&self, hash: AttachmentHash) -> Result<Vec<(ElementId, ElementInfo)>, Error> {
        let mut all = Vec::new();
        for set in ADDRESSES {
            for slot in 0..u32::MAX {
                let id = slot_id(set, hash, slot);
                let Some(element) = self.element(&id)? else { break };
                all.push((id, element));
            }
        }
        Ok(all)
    }

    /// The owner of an address.
    pub(super) fn holder(&self, address: IpAddr) -> Result<Option<AttachmentHash>, Error> {
        Ok(self.element(&pod_id(address))?.as_ref().and_then(owner_of).map(|owner| owner.attachment_hash))
    }

    /// The entries of the owners that pass, also while other processes change the ruleset.
    pub(super) fn list(&self, pass: impl Fn(&Owner) -> bool) -> Result<Vec<Entry>, Error> {
        let is_wanted = |element: &ElementInfo| owner_of(element).is_some_and(|owner| pass(&owner));
        match self.0.socket.changing_elements(&table(), ATTACHMENTS, is_wanted) {
            Err(e) if e.is_not_found() => Ok(Vec::new()),
            Err(e) => Err(Error::kernel(format!("read table {TABLE}"), e)),
            Ok(found) => Ok(found.iter().filter_map(entry_of).collect()),
        }
    }

    /// The elements among these that no other attachment on the bridge needs. To be called for a batch that is
    /// committed only if the ruleset is still the same.
    ///
    /// Usually, the bridge has other containers with the same policy. One of them is enough to know, and it is found at
    /// the beginning of the list, so a DEL does not read the entries of all containers of the node, which takes longer
    /// the more there are, and does not succeed while many others start and stop. Each search leaves a socket with an
    /// unread list, so a GC looks at the container that it has found last before it searches for another one.
    fn needed_by_none(
        &self,
        shared: Vec<ElementId>,
        bridge: &str,
        hash: AttachmentHash,
    ) -> Result<Vec<ElementId>, Error> {
        if shared.is_empty() {
            return Ok(shared);
        }
        let isolation =
            |entry: Entry| entry.choice.map(|choice| choice.isolation(bridge)).unwrap_or_default();
        let is_other = |entry: &Entry| entry.bridge == bridge && entry.owner.attachment_hash != hash;
        let needs_all = |element: &ElementInfo| {
            let needed = entry_of(element).filter(is_other).map(isolation).unwrap_or_default();
            shared.iter().all(|id| needed.contains(id))
        };
        let last = LAST_FOUND.with_borrow(|found| found.get(bridge).copied());
        if let Some(last) = last
            && self.element(&attachment_id(last))?.is_some_and(|element| needs_all(&element))
        {
            return Ok(Vec::new());
        }
        let failed = |e: cni_nftables::Error| Error::kernel(format!("read table {TABLE}"), e);
        let socket = Socket::open().map_err(failed)?;
        match socket.find_element(&table(), ATTACHMENTS, needs_all) {
            Ok(Some(found)) => {
                if let Some(owner) = owner_of(&found) {
                    LAST_FOUND.with_borrow_mut(|all| all.insert(bridge.to_owned(), owner.attachment_hash));
                }
                return Ok(Vec::new());
            }
            Ok(None) => {}
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(failed(e)),
        }
        let keep = |kept: &mut Vec<ElementId>, element: ElementInfo| {
            kept.extend(entry_of(&element).filter(is_other).map(isolation).unwrap_or_default());
        };
        let kept = match self.0.socket.fold_elements(&table(), ATTACHMENTS, Vec::new, keep) {
            Err(e) if e.is_not_found() => Vec::new(),
            other => other.map_err(failed)?,
        };
        Ok(shared.into_iter().filter(|id| !kept.contains(id)).collect())
    }

    /// The policies that attachments on a bridge ask for in the chains of iptables, except those of one attachment.
    pub(super) fn policies_in_chains(
        &self,
        bridge: &str,
        except: Option<AttachmentHash>,
    ) -> Result<Vec<IngressPolicy>, Error> {
        let others = self.list(|owner| Some(owner.attachment_hash) != except)?;
        let choices = others.iter().filter(|entry| entry.bridge == bridge).filter_map(|entry| entry.choice);
        let in_chains = choices.filter(|choice| choice.isolator == Isolator::Iptables);
        Ok(in_chains.map(|choice| choice.policy).filter(|policy| *policy != IngressPolicy::Open).collect())
    }

    /// Replaces the record of an attachment. With nftables as the means, the rules are in force from then on.
    pub(super) fn put(&self, attachment: &Attachment, wanted: &FirewallRecord) -> Result<(), Error> {
        self.0.transact(&format!("write the firewall's entry of {attachment}"), |_| {
            let mut batch = self.missing(Choice::of(wanted))?;
            let replaced = self.replaced(wanted)?;
            for id in &replaced {
                batch.delete_element(id.clone());
            }
            self.add(&mut batch, wanted, &replaced)?;
            Ok((batch, ()))
        })
    }

    fn add(
        &self,
        batch: &mut Transaction,
        wanted: &FirewallRecord,
        deleted: &[ElementId],
    ) -> Result<(), Error> {
        let (hash, comment) = (wanted.owner.attachment_hash, wanted.owner.to_comment());
        for set in ADDRESSES {
            let of_set = wanted.addresses.iter().filter(|address| of_family(**address, &ADDRESSES) == set);
            for (slot, address) in (0..).zip(of_set) {
                let by_owner = Element::new(slot_id(set, hash, slot)).values(vec![Value::address(*address)]);
                batch.add_element(by_owner.comment(&comment));
                batch.add_element(Element::new(pod_id(*address)).comment(&comment));
            }
        }
        let bridge = wanted.bridge.clone();
        let data = vec![Value::Ifname(bridge.clone()), Value::Mark(Choice::of(wanted).encode())];
        let mut entry = Element::new(attachment_id(hash)).values(data).comment(&comment);
        if !wanted.zone.is_empty() {
            entry = entry.tlv(TLV_KIND, wanted.zone.clone().into_bytes());
        }
        batch.add_element(entry);
        for id in Choice::of(wanted).isolation(&bridge) {
            // All containers of a bridge share these elements.
            if deleted.contains(&id) || !self.has_shared(&id)? {
                batch.add_element(Element::new(id));
            }
        }
        Ok(())
    }

    /// The elements that a record replaces: the attachment's own, and those that assign one of its addresses to
    /// another attachment. That attachment must be gone, because otherwise IPAM would not have given out the address
    /// again.
    fn replaced(&self, wanted: &FirewallRecord) -> Result<Vec<ElementId>, Error> {
        let mut replaced = self.elements_of(wanted.owner.attachment_hash)?;
        for address in &wanted.addresses {
            let id = pod_id(*address);
            if !replaced.contains(&id) && self.element(&id)?.is_some() {
                replaced.push(id);
            }
        }
        Ok(replaced)
    }

    /// The existing elements of an attachment that no other attachment needs.
    fn elements_of(&self, hash: AttachmentHash) -> Result<Vec<ElementId>, Error> {
        let Some(held) = self.held(hash)? else { return Ok(Vec::new()) };
        let mut present = vec![attachment_id(hash)];
        present.extend(self.address_elements(hash)?.into_iter().map(|(id, _)| id));
        for address in &held.addresses {
            if self.holder(*address)? == Some(hash) {
                present.push(pod_id(*address));
            }
        }
        let shared = Choice::of(&held).isolation(&held.bridge);
        for id in self.needed_by_none(shared, &held.bridge, hash)? {
            if self.has_shared(&id)? {
                present.push(id);
            }
        }
        Ok(present)
    }

    /// True if an element for a bridge exists. Tables of earlier versions lack the newer sets.
    fn has_shared(&self, id: &ElementId) -> Result<bool, Error> {
        let is_newer = [STRICT, LISTED].contains(&id.set.as_str());
        if is_newer && !self.missing_sets()?.is_empty() {
            return Ok(false);
        }
        Ok(self.element(id)?.is_some())
    }

    /// Removes the elements of an attachment.
    pub(super) fn remove(&self, hash: AttachmentHash) -> Result<(), Error> {
        self.0.transact("remove an entry of the firewall", |_| {
            let mut batch = Transaction::new();
            for id in self.elements_of(hash)? {
                batch.delete_element(id);
            }
            Ok((batch, ()))
        })
    }

    /// Checks that no other attachment is recorded with one of these addresses.
    pub(super) fn check_free(&self, addresses: &[IpAddr], owner: AttachmentHash) -> Result<(), Error> {
        for address in addresses {
            if self.holder(*address)?.is_some_and(|holder| holder != owner) {
                return Err(Difference::OtherAttachment { address: *address, table: TABLE }.into());
            }
        }
        Ok(())
    }

    /// Compares the table with the record that should be there.
    pub(super) fn check(&self, wanted: &FirewallRecord) -> Result<(), Error> {
        if !self.missing(Choice::of(wanted))?.is_empty() {
            return Err(Difference::IncompleteTable(TABLE).into());
        }
        let hash = wanted.owner.attachment_hash;
        for address in &wanted.addresses {
            if self.holder(*address)? != Some(hash) {
                let set = of_family(*address, &PODS);
                return Err(Difference::NoAddress { address: *address, set, table: TABLE }.into());
            }
        }
        let held = self.held(hash)?;
        if held.is_none_or(|held| Choice::of(&held) != Choice::of(wanted)) {
            let owner = Box::new(wanted.owner.clone());
            return Err(Difference::NoRecord { owner, map: ATTACHMENTS, table: TABLE }.into());
        }
        // Earlier versions wrote no such elements for bridges that chains isolate.
        let is_isolated_here = wanted.isolator == Isolator::Nftables;
        for id in Choice::of(wanted).isolation(&wanted.bridge).into_iter().filter(|_| is_isolated_here) {
            if !self.has_shared(&id)? {
                let (bridge, set) = (wanted.bridge.clone(), id.set);
                return Err(Difference::NoBridge { bridge, set, table: TABLE }.into());
            }
        }
        Ok(())
    }

    pub(super) fn dead(&self, network: &str, valid: &[Attachment]) -> Result<Vec<FirewallRecord>, Error> {
        let network = NetworkHash::of(network);
        let valid: BTreeSet<AttachmentHash> = valid.iter().map(AttachmentHash::of).collect();
        let is_dead =
            |owner: &Owner| owner.network_hash == network && !valid.contains(&owner.attachment_hash);
        // In another order than the kernel's: a GC that removes them all then finds a container that is still there
        // (`needed_by_none`) without a search for each.
        let dead: BTreeSet<_> = self.list(is_dead)?.iter().map(|entry| entry.owner.attachment_hash).collect();
        let mut all = Vec::new();
        for hash in dead {
            all.extend(self.held(hash)?);
        }
        Ok(all)
    }
}

fn owner_of(element: &ElementInfo) -> Option<Owner> {
    element.comment.as_deref().and_then(Owner::from_comment)
}

fn entry_of(element: &ElementInfo) -> Option<Entry> {
    let ElementData::Values(values) = &element.data else { return None };
    let [Value::Ifname(bridge), Value::Mark(number)] = values.as_slice() else { return None };
    Some(Entry { owner: owner_of(element)?, bridge: bridge.clone(), choice: Choice::decode(*number) })
}

fn address_of(data: &ElementData) -> Option<IpAddr> {
    let ElementData::Values(values) = data else { return None };
    match values.as_slice() {
        [Value::Ipv4(address)] => Some((*address).into()),
        [Value::Ipv6(address)] => Some((*address).into()),
        _ => None,
    }
}

/// True if an administrator has rules in the table.
pub(crate) fn has_rules_of_others() -> Result<bool, Error> {
    let Some(table) = FirewallTable::open()? else { return Ok(false) };
    let uses = |name: &str| Ok::<_, Error>(table.0.chain(name)?.map_or(0, |chain| chain.uses));
    // Our own rules, if they exist, contain one jump to the chain.
    Ok(uses(ADMIN)? > u32::from(uses(FORWARD)? > 0))
}

/// The owners of the entries in the table. None if there is no table.
pub(crate) fn owners() -> Result<Option<Vec<Owner>>, Error> {
    let Some(table) = FirewallTable::open()? else { return Ok(None) };
    if table.0.schema()?.is_none() {
        return Ok(None);
    }
    Ok(Some(table.list(|_| true)?.into_iter().map(|entry| entry.owner).collect()))
}
