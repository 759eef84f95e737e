// SPDX-License-Identifier: GPL-2.0-or-later

//! The table of the firewall plugin: the owner of each container's rules, and the rules themselves if the
//! means is nftables.
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
//! The chains of iptables and the zones of firewalld have no place for an owner. So an attachment has an
//! entry here whatever its means: DEL and GC find its rules without the configuration.

use std::net::IpAddr;

use cni_nftables::{
    BaseChain, Chain, ChainKind, Cmp, DataType, Element, ElementData, ElementId, ElementInfo, Family, Field,
    Hook, Policy, Rule, Set, Stmt, Table, TableId, Transaction, Value, Verdict,
};
use cni_spec::Attachment;

use super::{FirewallRecord, IngressPolicy, Isolator, Means};
use crate::nftables::liveness::TLV_KIND;
use crate::owned_table::{Definition, OwnedTable, marker, unless_no_nf_tables};
use crate::owner::{AttachmentHash, NetworkHash};
use crate::{Difference, Error, Owner};

const DEFINITION: Definition =
    Definition { family: Family::Inet, name: "slipway-firewall", label: TABLE, schema: 1 };
/// Family and name, for messages.
pub(crate) const TABLE: &str = "inet slipway-firewall";
const FORWARD: &str = "forward";
const ADMIN: &str = "admin";
const PODS: [&str; 2] = ["pods4", "pods6"];
const ADDRESSES: [&str; 2] = ["addresses4", "addresses6"];
const ATTACHMENTS: &str = "attachments";
const ISOLATING: &str = "isolating";
const SAME: &str = "same";
const ISOLATED: &str = "isolated";
const STRICT: &str = "strict";
const LISTED: &str = "listed";

/// The hook and priority of iptables' FORWARD chain.
const BASE: BaseChain =
    BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: 0, policy: Policy::Accept };

pub(crate) fn table() -> TableId {
    DEFINITION.id()
}

fn of_family<'a>(address: IpAddr, names: &[&'a str; 2]) -> &'a str {
    names[usize::from(address.is_ipv6())]
}

fn hash_value(hash: AttachmentHash) -> Value {
    Value::Ipv6(hash.0.into())
}

fn pod_id(address: IpAddr) -> ElementId {
    ElementId::new(&table(), of_family(address, &PODS), vec![Value::address(address)])
}

fn slot_id(set: &str, hash: AttachmentHash, slot: u32) -> ElementId {
    ElementId::new(&table(), set, vec![hash_value(hash), Value::Mark(slot)])
}

fn attachment_id(hash: AttachmentHash) -> ElementId {
    ElementId::new(&table(), ATTACHMENTS, vec![hash_value(hash)])
}

fn bridge_id(set: &str, bridge: &str) -> ElementId {
    ElementId::new(&table(), set, vec![Value::Ifname(bridge.to_owned())])
}

fn pair_id(set: &str, bridge: &str) -> ElementId {
    let name = || Value::Ifname(bridge.to_owned());
    ElementId::new(&table(), set, vec![name(), name()])
}

/// The bit of an entry whose bridge is isolated by the sets of this table although its means has rules elsewhere. Versions
/// that do not know it take the entry for one of a later version.
const BY_SETS: u32 = 1 << 16;

/// The choices of an attachment that are in its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Choice {
    means: Means,
    policy: IngressPolicy,
    isolator: Isolator,
}

impl Choice {
    fn of(record: &FirewallRecord) -> Self {
        Self { means: record.means, policy: record.policy, isolator: record.isolator }
    }

    /// Encodes the choices as one number: the policy in the lowest byte.
    fn encode(self) -> u32 {
        let means = match self.means {
            Means::Nftables => 1,
            Means::Iptables => 2,
            Means::Firewalld => 3,
        };
        let policy = match self.policy {
            IngressPolicy::Open => 0,
            IngressPolicy::SameBridge => 1,
            IngressPolicy::Isolated => 2,
            IngressPolicy::Strict => 3,
            IngressPolicy::Listed => 4,
        };
        let by_sets = self.isolator == Isolator::Nftables && self.means != Means::Nftables;
        let by_sets = if by_sets { BY_SETS } else { 0 };
        by_sets | means << 8 | policy
    }

    fn decode(number: u32) -> Option<Self> {
        let means = match (number & !BY_SETS) >> 8 {
            1 => Means::Nftables,
            2 => Means::Iptables,
            3 => Means::Firewalld,
            _ => return None,
        };
        let policy = match number & 0xff {
            0 => IngressPolicy::Open,
            1 => IngressPolicy::SameBridge,
            2 => IngressPolicy::Isolated,
            3 => IngressPolicy::Strict,
            4 => IngressPolicy::Listed,
            _ => return None,
        };
        let by_sets = means == Means::Nftables || number & BY_SETS != 0;
        let isolator = if by_sets { Isolator::Nftables } else { Isolator::Iptables };
        Some(Self { means, policy, isolator })
    }

    /// True if the rules of this table decide about the attachment's packets.
    fn needs_rules(self) -> bool {
        self.means == Means::Nftables
            || (self.isolator == Isolator::Nftables && self.policy != IngressPolicy::Open)
    }

    /// The elements that a bridge needs because of it, also where chains of iptables isolate it: bridges that this table
    /// isolates are kept apart from it, too.
    fn isolation(self, bridge: &str) -> Vec<ElementId> {
        let own = |set: &str| bridge_id(set, bridge);
        match self.policy {
            IngressPolicy::Open => Vec::new(),
            IngressPolicy::SameBridge => vec![own(ISOLATING), pair_id(SAME, bridge)],
            IngressPolicy::Isolated => vec![own(ISOLATING), pair_id(SAME, bridge), pair_id(ISOLATED, bridge)],
            IngressPolicy::Strict => vec![own(ISOLATING), pair_id(SAME, bridge), own(STRICT)],
            IngressPolicy::Listed => vec![own(LISTED)],
        }
    }
}

/// The entry of an attachment.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) owner: Owner,
    bridge: String,
    /// None if a later version wrote the entry.
    choice: Option<Choice>,
}

/// The table without its rules.
fn bootstrap() -> Transaction {
    let t = table();
    let two = [DataType::Ifname, DataType::Ifname];
    let slot = [DataType::Ipv6Addr, DataType::Mark];
    let mut batch = Transaction::new();
    batch
        .add_table(Table::new(&t).comment("slipway: containers that the firewall plugin knows"))
        .add_chain(Chain::new(&t, &marker(DEFINITION.schema)))
        .add_set(Set::new(&t, PODS[0], &[DataType::Ipv4Addr]))
        .add_set(Set::new(&t, PODS[1], &[DataType::Ipv6Addr]))
        .add_set(Set::new(&t, ADDRESSES[0], &slot).data(&[DataType::Ipv4Addr]))
        .add_set(Set::new(&t, ADDRESSES[1], &slot).data(&[DataType::Ipv6Addr]))
        .add_set(Set::new(&t, ATTACHMENTS, &[DataType::Ipv6Addr]).data(&[DataType::Ifname, DataType::Mark]))
        .add_set(Set::new(&t, ISOLATING, &[DataType::Ifname]))
        .add_set(Set::new(&t, SAME, &two))
        .add_set(Set::new(&t, ISOLATED, &two))
        .add_chain(Chain::new(&t, ADMIN));
    batch.append(newer_sets());
    batch
}

/// The sets that tables of earlier versions lack. Adding one that exists changes nothing.
fn newer_sets() -> Transaction {
    let mut batch = Transaction::new();
    for set in [STRICT, LISTED] {
        batch.add_set(Set::new(&table(), set, &[DataType::Ifname]));
    }
    batch
}

/// The rules, whose number does not depend on the containers. An accept ends this chain alone, not those of other
/// tables.
fn rules() -> Vec<Vec<Stmt>> {
    let pair = [Field::Iifname, Field::Oifname];
    let known = Stmt::AnyBit {
        field: Field::CtState,
        bits: Value::CtState(Value::CT_ESTABLISHED | Value::CT_RELATED),
    };
    let accept = || Stmt::Verdict(Verdict::Accept);
    // Packets of both directions of a translated connection match. A translated packet belongs to a published port.
    let translated = || Stmt::AnyBit { field: Field::CtStatus, bits: Value::CtStatus(Value::CT_DNAT) };
    let untranslated = || Stmt::Masked {
        field: Field::CtStatus,
        mask: Value::CtStatus(Value::CT_DNAT),
        cmp: Cmp::Eq,
        value: Value::CtStatus(0),
    };
    let between = |from: &str, to: &str| {
        let (from, to) = (Stmt::in_set(&[Field::Iifname], from), Stmt::in_set(&[Field::Oifname], to));
        vec![from, to, untranslated(), Stmt::Verdict(Verdict::Drop)]
    };
    vec![
        vec![Stmt::in_set(&pair, ISOLATED), untranslated(), Stmt::Verdict(Verdict::Drop)],
        vec![
            Stmt::in_set(&[Field::Iifname], ISOLATING),
            Stmt::in_set(&[Field::Oifname], ISOLATING),
            Stmt::not_in_set(&pair, SAME),
            untranslated(),
            Stmt::Verdict(Verdict::Drop),
        ],
        between(STRICT, LISTED),
        between(LISTED, STRICT),
        vec![Stmt::Verdict(Verdict::Jump(ADMIN.to_owned()))],
        vec![translated(), Stmt::in_set(&[Field::IpDaddr], PODS[0]), accept()],
        vec![translated(), Stmt::in_set(&[Field::Ip6Daddr], PODS[1]), accept()],
        vec![known.clone(), Stmt::in_set(&[Field::IpDaddr], PODS[0]), accept()],
        vec![known, Stmt::in_set(&[Field::Ip6Daddr], PODS[1]), accept()],
        vec![Stmt::in_set(&[Field::IpSaddr], PODS[0]), accept()],
        vec![Stmt::in_set(&[Field::Ip6Saddr], PODS[1]), accept()],
    ]
}

/// The chain with its rules, in place of those that are there.
fn hook() -> Transaction {
    let t = table();
    let mut batch = Transaction::new();
    batch.add_chain(Chain::new(&t, FORWARD).base(BASE)).flush_chain(&t, FORWARD);
    for stmts in rules() {
        batch.add_rule(Rule::new(&t, FORWARD, stmts));
    }
    batch
}

/// The table, in the network namespace of the thread that opened it.
pub(super) struct FirewallTable(OwnedTable);

impl FirewallTable {
    /// Opens the table; none if the kernel has no nf_tables, and so no record.
    pub(super) fn open() -> Result<Option<Self>, Error> {
        let opened = OwnedTable::open(DEFINITION).and_then(|table| table.generation().map(|_| table));
        unless_no_nf_tables(opened.map(|table| Some(Self(table))))
    }

    fn element(&self, id: &ElementId) -> Result<Option<ElementInfo>, Error> {
        self.0.element(id)
    }

    /// The parts of the table that an attachment with these choices needs and that are missing.
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
        // Rules that are complete use all sets.
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
        self.0.socket.dry_run(&missing).map_err(|e| Error::kernel(format!("make table {TABLE}"), e))
    }

    /// True if attachments have their rules in this table.
    pub(super) fn holds_rules(&self) -> Result<bool, Error> {
        if !self.is_in_force() {
            return Ok(false);
        }
        let all = self.list(|_| true)?;
        Ok(all.iter().any(|entry| entry.choice.is_some_and(|choice| choice.means == Means::Nftables)))
    }

    /// True if its rules are hooked.
    pub(super) fn is_in_force(&self) -> bool {
        self.0.chain(FORWARD).is_ok_and(|chain| chain.is_some_and(|chain| chain.base == Some(BASE)))
    }

    /// The set because of which a packet from one link to another is dropped, unless it was translated.
    pub(super) fn separates(&self, from: &str, to: &str) -> Result<Option<&'static str>, Error> {
        if !self.is_in_force() {
            return Ok(None);
        }
        let has = |id: &ElementId| Ok::<_, Error>(self.element(id)?.is_some());
        if from == to {
            return Ok(has(&pair_id(ISOLATED, from))?.then_some(ISOLATED));
        }
        for (of_from, of_to) in [(ISOLATING, ISOLATING), (STRICT, LISTED), (LISTED, STRICT)] {
            if has(&bridge_id(of_from, from))? && has(&bridge_id(of_to, to))? {
                // The one that asks for it.
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
        // The zone is lost if the ruleset was loaded from a file of nft.
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

    pub(super) fn list(&self, pass: impl Fn(&Owner) -> bool) -> Result<Vec<Entry>, Error> {
        let keep = |found: &mut Vec<_>, element: ElementInfo| {
            found.extend(entry_of(&element).filter(|entry| pass(&entry.owner)));
        };
        match self.0.socket.fold_elements(&table(), ATTACHMENTS, Vec::new, keep) {
            Err(e) if e.is_not_found() => Ok(Vec::new()),
            other => other.map_err(|e| Error::kernel(format!("read table {TABLE}"), e)),
        }
    }

    /// The choices of the attachments on a bridge, without those of one attachment.
    fn choices(&self, bridge: &str, except: Option<AttachmentHash>) -> Result<Vec<Choice>, Error> {
        let others = self.list(|owner| Some(owner.attachment_hash) != except)?;
        Ok(others.iter().filter(|entry| entry.bridge == bridge).filter_map(|entry| entry.choice).collect())
    }

    /// The policies that attachments ask for on a bridge in the chains of iptables, without those of one attachment.
    pub(super) fn policies_in_chains(
        &self,
        bridge: &str,
        except: Option<AttachmentHash>,
    ) -> Result<Vec<IngressPolicy>, Error> {
        let choices = self.choices(bridge, except)?;
        let in_chains = choices.iter().filter(|choice| choice.isolator == Isolator::Iptables);
        Ok(in_chains.map(|choice| choice.policy).filter(|policy| *policy != IngressPolicy::Open).collect())
    }

    /// Replaces the record of an attachment. With nftables as means its rules are in force from then on.
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
            // Containers of one bridge share these elements.
            if deleted.contains(&id) || !self.has_shared(&id)? {
                batch.add_element(Element::new(id));
            }
        }
        Ok(())
    }

    /// The elements that a record replaces: the attachment's own, and those of its addresses that name
    /// another attachment. The other attachment is gone, because otherwise IPAM would not have given out its addresses again.
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

    /// The elements of an attachment that exist and that no other attachment needs.
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
        if !shared.is_empty() {
            let others = self.choices(&held.bridge, Some(hash))?;
            let kept: Vec<_> = others.iter().flat_map(|choice| choice.isolation(&held.bridge)).collect();
            for id in shared {
                if !kept.contains(&id) && self.has_shared(&id)? {
                    present.push(id);
                }
            }
        }
        Ok(present)
    }

    /// True if an element of a bridge exists. Tables of earlier versions lack the newer sets.
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
        // Where chains isolate the bridge, earlier versions wrote no such elements.
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
        let valid: Vec<AttachmentHash> = valid.iter().map(AttachmentHash::of).collect();
        let is_dead =
            |owner: &Owner| owner.network_hash == network && !valid.contains(&owner.attachment_hash);
        let mut all = Vec::new();
        for entry in self.list(is_dead)? {
            all.extend(self.held(entry.owner.attachment_hash)?);
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
    // Our own rules, where there are any, jump to the chain once.
    Ok(uses(ADMIN)? > u32::from(uses(FORWARD)? > 0))
}

/// The owners of entries in the table; none if there is no table.
pub(crate) fn owners() -> Result<Option<Vec<Owner>>, Error> {
    let Some(table) = FirewallTable::open()? else { return Ok(None) };
    if table.0.schema()?.is_none() {
        return Ok(None);
    }
    Ok(Some(table.list(|_| true)?.into_iter().map(|entry| entry.owner).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_as_text() {
        let mut batch = bootstrap();
        batch.append(hook());
        let text = batch.to_string();
        assert_eq!(text.matches("add rule ").count(), 11, "{text}");
        for line in [
            "add rule inet slipway-firewall forward iifname . oifname @isolated ct status & dnat == 0x0 drop",
            "add rule inet slipway-firewall forward iifname @isolating oifname @isolating iifname . oifname != @same ct status & dnat == 0x0 drop",
            "add rule inet slipway-firewall forward iifname @strict oifname @listed ct status & dnat == 0x0 drop",
            "add rule inet slipway-firewall forward iifname @listed oifname @strict ct status & dnat == 0x0 drop",
            "add rule inet slipway-firewall forward jump admin",
            "add set inet slipway-firewall pods4 { type ipv4_addr ; }",
            "add map inet slipway-firewall attachments { type ipv6_addr : ifname . mark ; }",
        ] {
            assert!(text.lines().any(|is| is == line), "{line}: {text}");
        }
    }

    const POLICIES: [IngressPolicy; 5] = [
        IngressPolicy::Open,
        IngressPolicy::SameBridge,
        IngressPolicy::Isolated,
        IngressPolicy::Strict,
        IngressPolicy::Listed,
    ];

    #[test]
    fn choices_read_back() {
        for policy in POLICIES {
            for (means, isolator) in [
                (Means::Nftables, Isolator::Nftables),
                (Means::Iptables, Isolator::Nftables),
                (Means::Iptables, Isolator::Iptables),
                (Means::Firewalld, Isolator::Nftables),
                (Means::Firewalld, Isolator::Iptables),
            ] {
                let choice = Choice { means, policy, isolator };
                assert_eq!(Choice::decode(choice.encode()), Some(choice));
            }
        }
        // As versions before the sets of iptables' means wrote them.
        let same = |means, isolator| Some(Choice { means, policy: IngressPolicy::SameBridge, isolator });
        assert_eq!(Choice::decode(1 << 8 | 1), same(Means::Nftables, Isolator::Nftables));
        assert_eq!(Choice::decode(3 << 8 | 1), same(Means::Firewalld, Isolator::Iptables));
        assert_eq!(Choice::decode(0), None);
        assert_eq!(Choice::decode(1 << 8 | 9), None);
        assert_eq!(Choice::decode(1 << 17 | 1 << 8), None);
    }

    #[test]
    fn a_bridge_has_the_elements_of_its_policies() {
        let sets = POLICIES.map(|policy| {
            let choice = Choice { means: Means::Nftables, policy, isolator: Isolator::Nftables };
            choice.isolation("br0").into_iter().map(|id| id.set).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(
            sets,
            ["", "isolating same", "isolating same isolated", "isolating same strict", "listed"]
        );
    }
}
