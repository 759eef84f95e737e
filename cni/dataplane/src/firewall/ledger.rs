//! Who has what, and the rules for those that asked for them here: one table.
//!
//! ```text
//! table inet slipway-firewall {
//!     set pods4 { ipv4_addr }            addresses of containers, each with its owner; and pods6
//!     map addresses4 { attachment's hash . number : ipv4_addr }   the way back; and addresses6
//!     map attachments { attachment's hash : bridge . means and policy }   with firewalld's zone as private bytes
//!     set isolating { ifname }           bridges that packets of other such bridges do not reach
//!     set same { ifname . ifname }       each of them with itself
//!     set isolated { ifname . ifname }   with itself, where not even its own ports reach each other
//!     chain admin { }                    an administrator's, never touched
//!     chain forward { type filter hook forward … }   only once somebody asked for rules here
//! }
//! ```
//!
//! The chains of iptables and the zones of firewalld have no place for an owner. So an attachment has an
//! entry here whatever means it has chosen: DEL and GC know what to take away without being told.

use std::net::IpAddr;

use cni_nftables::{
    BaseChain, Chain, ChainKind, DataType, Element, ElementData, ElementId, ElementInfo, Family, Field, Hook,
    Policy, Rule, Set, Socket, Stmt, Table, TableId, Transaction, Value, Verdict,
};
use cni_spec::Attachment;

use super::{Held, IngressPolicy, Means};
use crate::nftables::liveness::TLV_KIND;
use crate::owned_table::Patience;
use crate::owner::{AttachmentHash, NetworkHash};
use crate::{Error, Owner};

/// Family and name, for messages.
pub(crate) const TABLE: &str = "inet slipway-firewall";
/// An empty chain whose name tells that the table is ours, and its layout.
const MARKER: &str = "schema-1";
const FORWARD: &str = "forward";
const ADMIN: &str = "admin";
const PODS: [&str; 2] = ["pods4", "pods6"];
const ADDRESSES: [&str; 2] = ["addresses4", "addresses6"];
const ATTACHMENTS: &str = "attachments";
const ISOLATING: &str = "isolating";
const SAME: &str = "same";
const ISOLATED: &str = "isolated";

/// Where iptables' own FORWARD chain is.
const BASE: BaseChain =
    BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: 0, policy: Policy::Accept };

pub(crate) fn table() -> TableId {
    TableId::new(Family::Inet, "slipway-firewall")
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

fn bridge_id(bridge: &str) -> ElementId {
    ElementId::new(&table(), ISOLATING, vec![Value::Ifname(bridge.to_owned())])
}

fn pair_id(set: &str, bridge: &str) -> ElementId {
    let name = || Value::Ifname(bridge.to_owned());
    ElementId::new(&table(), set, vec![name(), name()])
}

/// Means and policy as one number: the latter in the lowest byte.
fn encode(means: Means, policy: IngressPolicy) -> u32 {
    let means = match means {
        Means::Nftables => 1,
        Means::Iptables => 2,
        Means::Firewalld => 3,
    };
    let policy = match policy {
        IngressPolicy::Open => 0,
        IngressPolicy::SameBridge => 1,
        IngressPolicy::Isolated => 2,
    };
    means << 8 | policy
}

fn decode(number: u32) -> Option<(Means, IngressPolicy)> {
    let means = match number >> 8 {
        1 => Means::Nftables,
        2 => Means::Iptables,
        3 => Means::Firewalld,
        _ => return None,
    };
    let policy = match number & 0xff {
        0 => IngressPolicy::Open,
        1 => IngressPolicy::SameBridge,
        2 => IngressPolicy::Isolated,
        _ => return None,
    };
    Some((means, policy))
}

/// What keeps bridges apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeptBy {
    /// The sets here.
    Nftables,
    /// Chains of iptables, also for those that firewalld lets through.
    Iptables,
}

impl KeptBy {
    fn of(means: Means) -> Self {
        match means {
            Means::Nftables => Self::Nftables,
            Means::Iptables | Means::Firewalld => Self::Iptables,
        }
    }
}

/// The table without its rules.
fn bootstrap() -> Transaction {
    let t = table();
    let two = [DataType::Ifname, DataType::Ifname];
    let slot = [DataType::Ipv6Addr, DataType::Mark];
    let mut batch = Transaction::new();
    batch
        .add_table(Table::new(&t).comment("slipway: containers that the firewall plugin knows"))
        .add_chain(Chain::new(&t, MARKER))
        .add_set(Set::new(&t, PODS[0], &[DataType::Ipv4Addr]))
        .add_set(Set::new(&t, PODS[1], &[DataType::Ipv6Addr]))
        .add_set(Set::new(&t, ADDRESSES[0], &slot).data(&[DataType::Ipv4Addr]))
        .add_set(Set::new(&t, ADDRESSES[1], &slot).data(&[DataType::Ipv6Addr]))
        .add_set(Set::new(&t, ATTACHMENTS, &[DataType::Ipv6Addr]).data(&[DataType::Ifname, DataType::Mark]))
        .add_set(Set::new(&t, ISOLATING, &[DataType::Ifname]))
        .add_set(Set::new(&t, SAME, &two))
        .add_set(Set::new(&t, ISOLATED, &two))
        .add_chain(Chain::new(&t, ADMIN));
    batch
}

/// The rules: the same for one container and for a thousand. An accept here ends this chain, and nobody
/// else's.
fn rules() -> Vec<Vec<Stmt>> {
    let pair = [Field::Iifname, Field::Oifname];
    let known = Stmt::AnyBit {
        field: Field::CtState,
        bits: Value::CtState(Value::CT_ESTABLISHED | Value::CT_RELATED),
    };
    let accept = || Stmt::Verdict(Verdict::Accept);
    vec![
        vec![Stmt::in_set(&pair, ISOLATED), Stmt::Verdict(Verdict::Drop)],
        vec![
            Stmt::in_set(&[Field::Iifname], ISOLATING),
            Stmt::in_set(&[Field::Oifname], ISOLATING),
            Stmt::not_in_set(&pair, SAME),
            Stmt::Verdict(Verdict::Drop),
        ],
        vec![Stmt::Verdict(Verdict::Jump(ADMIN.to_owned()))],
        vec![known.clone(), Stmt::in_set(&[Field::IpDaddr], PODS[0]), accept()],
        vec![known, Stmt::in_set(&[Field::Ip6Daddr], PODS[1]), accept()],
        vec![Stmt::in_set(&[Field::IpSaddr], PODS[0]), accept()],
        vec![Stmt::in_set(&[Field::Ip6Saddr], PODS[1]), accept()],
    ]
}

/// The chain with its rules, made anew.
fn hook() -> Transaction {
    let t = table();
    let mut batch = Transaction::new();
    batch.add_chain(Chain::new(&t, FORWARD).base(BASE)).flush_chain(&t, FORWARD);
    for stmts in rules() {
        batch.add_rule(Rule::new(&t, FORWARD, stmts));
    }
    batch
}

/// The table, in the namespace of the thread that opened it.
pub(super) struct Ledger {
    socket: Socket,
}

impl Ledger {
    /// None where the kernel has no nf_tables: then there is no record, and nothing of ours.
    pub(super) fn open() -> Result<Option<Self>, Error> {
        let opened = Socket::open().and_then(|socket| socket.generation().map(|_| socket));
        match opened {
            Ok(socket) => Ok(Some(Self { socket })),
            Err(error) if error.unsupported().is_some() => Ok(None),
            Err(error) => Err(Error::kernel("reach nf_tables", error)),
        }
    }

    fn generation(&self) -> Result<u32, Error> {
        self.socket.generation().map_err(|e| Error::kernel("read the ruleset's generation", e))
    }

    fn read(e: cni_nftables::Error) -> Error {
        Error::kernel(format!("read table {TABLE}"), e)
    }

    fn element(&self, id: &ElementId) -> Result<Option<ElementInfo>, Error> {
        self.socket.element(id).map_err(Self::read)
    }

    /// What is missing of the table, for that means.
    fn missing(&self, means: Means) -> Result<Transaction, Error> {
        let chain = |name: &str| self.socket.chain(&table(), name).map_err(Self::read);
        let mut batch = Transaction::new();
        if !self.is_there()? {
            batch.append(bootstrap());
        }
        let uses = u32::try_from(rules().len()).unwrap_or_default();
        let hooked =
            || Ok::<_, Error>(chain(FORWARD)?.is_some_and(|c| c.base == Some(BASE) && c.uses == uses));
        if means == Means::Nftables && (!batch.is_empty() || !hooked()?) {
            batch.append(hook());
        }
        Ok(batch)
    }

    /// Whether what is missing of the table, for that means, can be made; without making it.
    pub(super) fn try_out(&self, means: Means) -> Result<(), Error> {
        let missing = self.missing(means)?;
        if missing.is_empty() {
            return Ok(());
        }
        self.socket.dry_run(&missing).map_err(|e| Error::kernel(format!("make table {TABLE}"), e))
    }

    /// What the attachment has.
    pub(super) fn held(&self, hash: AttachmentHash) -> Result<Option<Held>, Error> {
        let Some(found) = self.element(&attachment_id(hash))? else { return Ok(None) };
        let Some((bridge, means, policy)) = entry_of(&found.data) else { return Ok(None) };
        let Some(owner) = owner_of(&found) else { return Ok(None) };
        let mut addresses = Vec::new();
        for set in ADDRESSES {
            for slot in 0..u32::MAX {
                let Some(found) = self.element(&slot_id(set, hash, slot))? else { break };
                addresses.extend(address_of(&found.data));
            }
        }
        // Lost where somebody has loaded the ruleset from a file of nft's.
        let zone = found.tlv(TLV_KIND).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let zone = zone.unwrap_or_default().to_owned();
        Ok(Some(Held { owner, means, zone, policy, bridge, addresses }))
    }

    /// Whose an address is; none if it is nobody's.
    pub(super) fn holder(&self, address: IpAddr) -> Result<Option<AttachmentHash>, Error> {
        Ok(self.element(&pod_id(address))?.as_ref().and_then(owner_of).map(|owner| owner.attachment_hash))
    }

    /// All attachments that pass.
    pub(super) fn list(&self, pass: impl Fn(&Owner) -> bool) -> Result<Vec<(Owner, String, u32)>, Error> {
        let keep = |found: &mut Vec<_>, element: ElementInfo| {
            if let (Some(owner), Some((bridge, number))) = (owner_of(&element), raw_entry(&element.data))
                && pass(&owner)
            {
                found.push((owner, bridge, number));
            }
        };
        match self.socket.fold_elements(&table(), ATTACHMENTS, Vec::new, keep) {
            Err(e) if e.is_not_found() => Ok(Vec::new()),
            other => other.map_err(Self::read),
        }
    }

    /// The policies that attachments ask for on a bridge, but for one of them.
    pub(super) fn policies(
        &self,
        bridge: &str,
        kept_by: KeptBy,
        but: Option<AttachmentHash>,
    ) -> Result<Vec<IngressPolicy>, Error> {
        let others = self.list(|owner| Some(owner.attachment_hash) != but)?;
        let of_bridge = others.iter().filter(|(_, name, _)| name == bridge);
        let policies = of_bridge.filter_map(|(_, _, number)| decode(*number));
        let wanted = policies.filter(|(means, _)| KeptBy::of(*means) == kept_by);
        Ok(wanted.map(|(_, policy)| policy).filter(|policy| *policy != IngressPolicy::Open).collect())
    }

    /// Writes what an attachment has, in place of what it had; with our own means its rules are in force.
    pub(super) fn put(&self, attachment: &Attachment, wanted: &Held) -> Result<(), Error> {
        let hash = wanted.owner.attachment_hash;
        let mut patience = Patience::new();
        loop {
            let generation = self.generation()?;
            let missing = self.missing(wanted.means)?;
            let mut batch = Transaction::new();
            if !missing.is_empty() {
                batch.append(missing);
            }
            let doomed = self.in_the_way(hash, wanted)?;
            for id in &doomed {
                batch.delete_element(id.clone());
            }
            self.add(&mut batch, wanted, &doomed)?;
            match self.socket.commit(&batch, Some(generation)) {
                Ok(()) => return Ok(()),
                Err(failure) => {
                    patience.wait(&format!("write the firewall's entry of {attachment}"), failure)?;
                }
            }
        }
    }

    fn add(&self, batch: &mut Transaction, wanted: &Held, deleted: &[ElementId]) -> Result<(), Error> {
        let (hash, comment) = (wanted.owner.attachment_hash, wanted.owner.to_comment());
        for set in ADDRESSES {
            let of_set = wanted.addresses.iter().filter(|address| of_family(**address, &ADDRESSES) == set);
            for (slot, address) in (0..).zip(of_set) {
                let way_back = Element::new(slot_id(set, hash, slot)).values(vec![Value::address(*address)]);
                batch.add_element(way_back.comment(&comment));
                batch.add_element(Element::new(pod_id(*address)).comment(&comment));
            }
        }
        let bridge = wanted.bridge.clone();
        let data = vec![Value::Ifname(bridge.clone()), Value::Mark(encode(wanted.means, wanted.policy))];
        let mut entry = Element::new(attachment_id(hash)).values(data).comment(&comment);
        if !wanted.zone.is_empty() {
            entry = entry.tlv(TLV_KIND, wanted.zone.clone().into_bytes());
        }
        batch.add_element(entry);
        if wanted.means == Means::Nftables {
            for id in isolation(&bridge, &[wanted.policy]) {
                // What is there for others is there for this one.
                if deleted.contains(&id) || self.element(&id)?.is_none() {
                    batch.add_element(Element::new(id));
                }
            }
        }
        Ok(())
    }

    /// What the attachment had before, and its addresses where another one had them: that one is gone, or
    /// they would not have been given out again.
    fn in_the_way(&self, hash: AttachmentHash, wanted: &Held) -> Result<Vec<ElementId>, Error> {
        let mut doomed = self.elements_of(hash)?;
        for address in &wanted.addresses {
            let id = pod_id(*address);
            if !doomed.contains(&id) && self.element(&id)?.is_some() {
                doomed.push(id);
            }
        }
        Ok(doomed)
    }

    /// The attachment's elements that are there.
    fn elements_of(&self, hash: AttachmentHash) -> Result<Vec<ElementId>, Error> {
        let Some(held) = self.held(hash)? else { return Ok(Vec::new()) };
        let mut present = vec![attachment_id(hash)];
        for set in ADDRESSES {
            for slot in 0..u32::MAX {
                let id = slot_id(set, hash, slot);
                if self.element(&id)?.is_none() {
                    break;
                }
                present.push(id);
            }
        }
        for address in &held.addresses {
            if self.holder(*address)? == Some(hash) {
                present.push(pod_id(*address));
            }
        }
        if held.means == Means::Nftables && held.policy != IngressPolicy::Open {
            let kept = isolation(&held.bridge, &self.policies(&held.bridge, KeptBy::Nftables, Some(hash))?);
            for id in isolation(&held.bridge, &[held.policy]) {
                if !kept.contains(&id) && self.element(&id)?.is_some() {
                    present.push(id);
                }
            }
        }
        Ok(present)
    }

    /// Removes what the attachment has here.
    pub(super) fn remove(&self, hash: AttachmentHash) -> Result<(), Error> {
        let mut patience = Patience::new();
        loop {
            let generation = self.generation()?;
            let mut batch = Transaction::new();
            for id in self.elements_of(hash)? {
                batch.delete_element(id);
            }
            if batch.is_empty() {
                return Ok(());
            }
            match self.socket.commit(&batch, Some(generation)) {
                Ok(()) => return Ok(()),
                Err(failure) => patience.wait("remove an entry of the firewall", failure)?,
            }
        }
    }

    /// Checks that no other attachment is recorded to have one of these addresses.
    pub(super) fn check_free(&self, addresses: &[IpAddr], owner: AttachmentHash) -> Result<(), Error> {
        for address in addresses {
            if self.holder(*address)?.is_some_and(|holder| holder != owner) {
                let msg = format!("address {address} belongs to another attachment in table {TABLE}");
                return Err(Error::Missing(msg));
            }
        }
        Ok(())
    }

    /// Compares what is there with what should be.
    pub(super) fn check(&self, wanted: &Held) -> Result<(), Error> {
        let missing = |what: String| Err(Error::Missing(what));
        if !self.missing(wanted.means)?.is_empty() {
            return missing(format!("table {TABLE} is not complete"));
        }
        let hash = wanted.owner.attachment_hash;
        for address in &wanted.addresses {
            if self.holder(*address)? != Some(hash) {
                let set = of_family(*address, &PODS);
                return missing(format!("address {address} is missing from set {set} of table {TABLE}"));
            }
        }
        let held = self.held(hash)?;
        if held.is_none_or(|held| (held.means, held.policy) != (wanted.means, wanted.policy)) {
            return missing(format!("{} is missing from map {ATTACHMENTS} of table {TABLE}", wanted.owner));
        }
        if wanted.means == Means::Nftables {
            for id in isolation(&wanted.bridge, &[wanted.policy]) {
                if self.element(&id)?.is_none() {
                    let msg =
                        format!("bridge {} is missing from set {} of table {TABLE}", wanted.bridge, id.set);
                    return missing(msg);
                }
            }
        }
        Ok(())
    }

    /// The attachments of the network that are not valid.
    pub(super) fn dead(&self, network: &str, valid: &[Attachment]) -> Result<Vec<Held>, Error> {
        let network = NetworkHash::of(network);
        let valid: Vec<AttachmentHash> = valid.iter().map(AttachmentHash::of).collect();
        let dead =
            self.list(|owner| owner.network_hash == network && !valid.contains(&owner.attachment_hash))?;
        let mut all = Vec::new();
        for (owner, _, _) in dead {
            all.extend(self.held(owner.attachment_hash)?);
        }
        Ok(all)
    }

    /// Whether there is a table of ours.
    fn is_there(&self) -> Result<bool, Error> {
        let mut patience = Patience::new();
        loop {
            let generation = self.generation()?;
            if self.socket.table(&table()).map_err(Self::read)?.is_none() {
                return Ok(false);
            }
            if self.socket.chain(&table(), MARKER).map_err(Self::read)?.is_some() {
                return Ok(true);
            }
            // Table and chain may have been of two moments.
            if self.generation()? == generation {
                return Err(Error::ForeignTable { table: TABLE });
            }
            patience.pause(&format!("read table {TABLE}"))?;
        }
    }
}

/// The elements that a bridge needs for these policies.
fn isolation(bridge: &str, policies: &[IngressPolicy]) -> Vec<ElementId> {
    let mut ids = Vec::new();
    if policies.iter().any(|policy| *policy != IngressPolicy::Open) {
        ids.extend([bridge_id(bridge), pair_id(SAME, bridge)]);
    }
    if policies.contains(&IngressPolicy::Isolated) {
        ids.push(pair_id(ISOLATED, bridge));
    }
    ids
}

fn owner_of(element: &ElementInfo) -> Option<Owner> {
    element.comment.as_deref().and_then(Owner::from_comment)
}

fn raw_entry(data: &ElementData) -> Option<(String, u32)> {
    match data {
        ElementData::Values(values) => match values.as_slice() {
            [Value::Ifname(bridge), Value::Mark(number)] => Some((bridge.clone(), *number)),
            _ => None,
        },
        _ => None,
    }
}

fn entry_of(data: &ElementData) -> Option<(String, Means, IngressPolicy)> {
    let (bridge, number) = raw_entry(data)?;
    let (means, policy) = decode(number)?;
    Some((bridge, means, policy))
}

fn address_of(data: &ElementData) -> Option<IpAddr> {
    match data {
        ElementData::Values(values) => match values.as_slice() {
            [Value::Ipv4(address)] => Some((*address).into()),
            [Value::Ipv6(address)] => Some((*address).into()),
            _ => None,
        },
        _ => None,
    }
}

/// Whether an administrator has rules in the table.
pub(crate) fn has_rules_of_others() -> Result<bool, Error> {
    let Some(ledger) = Ledger::open()? else { return Ok(false) };
    let uses = |name: &str| {
        let chain = ledger.socket.chain(&table(), name).map_err(Ledger::read)?;
        Ok::<_, Error>(chain.map_or(0, |chain| chain.uses))
    };
    // One of our own rules leads there, where there are any.
    Ok(uses(ADMIN)? > u32::from(uses(FORWARD)? > 0))
}

/// Whose entries are in the table; none if there is no table.
pub(crate) fn owners() -> Result<Option<Vec<Owner>>, Error> {
    let Some(ledger) = Ledger::open()? else { return Ok(None) };
    if !ledger.is_there()? {
        return Ok(None);
    }
    Ok(Some(ledger.list(|_| true)?.into_iter().map(|(owner, _, _)| owner).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_as_text() {
        let mut batch = bootstrap();
        batch.append(hook());
        let text = batch.to_string();
        assert_eq!(text.matches("add rule ").count(), 7, "{text}");
        for line in [
            "add rule inet slipway-firewall forward iifname . oifname @isolated drop",
            "add rule inet slipway-firewall forward iifname @isolating oifname @isolating iifname . oifname != @same drop",
            "add rule inet slipway-firewall forward jump admin",
            "add set inet slipway-firewall pods4 { type ipv4_addr ; }",
            "add map inet slipway-firewall attachments { type ipv6_addr : ifname . mark ; }",
        ] {
            assert!(text.lines().any(|is| is == line), "{line}: {text}");
        }
    }

    #[test]
    fn means_and_policy_read_back() {
        for means in [Means::Nftables, Means::Iptables, Means::Firewalld] {
            for policy in [IngressPolicy::Open, IngressPolicy::SameBridge, IngressPolicy::Isolated] {
                assert_eq!(decode(encode(means, policy)), Some((means, policy)));
            }
        }
        assert_eq!(decode(0), None);
        assert_eq!(decode(1 << 8 | 9), None);
    }

    #[test]
    fn a_bridge_is_isolated_as_its_strictest_pod_asks() {
        use IngressPolicy::{Isolated, Open, SameBridge};
        assert!(isolation("br0", &[Open]).is_empty() && isolation("br0", &[]).is_empty());
        assert_eq!(isolation("br0", &[Open, SameBridge]).len(), 2);
        assert_eq!(isolation("br0", &[SameBridge, Isolated]).len(), 3);
    }
}
