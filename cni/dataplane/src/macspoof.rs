// SPDX-License-Identifier: GPL-2.0-or-later

//! `macspoofchk`: a container may send only with its own link-layer address.
//!
//! ```text
//! table bridge slipway {
//!     set guarded { ifname }                      host sides of the containers' links
//!     set allowed { ifname . ether_addr }         the address that each may send with
//!     map owners  { attachment's hash : ifname . ether_addr }
//!     chain prerouting { iifname @guarded iifname . ether saddr != @allowed drop }
//! }
//! ```
//!
//! One rule serves all containers, so the cost of a frame, an ADD and a DEL does not grow with their number. The
//! reference plugin makes two chains for each container in `table bridge nat`, which are found by their comment and
//! removed together with our elements.

use std::collections::BTreeSet;

use cni_kernel::mac::Mac;
use cni_nftables::{
    BaseChain, Chain, ChainKind, DataType, Element, ElementData, ElementId, ElementInfo, Family, Field, Hook,
    Policy, Rule, Set, Stmt, Table, TableId, Transaction, Value, Verdict,
};
use cni_spec::Attachment;

use crate::owned_table::{Definition, OwnedTable, marker, unless_no_nf_tables};
use crate::owner::{AttachmentHash, NetworkHash};
use crate::{Difference, Error, Owner};

/// Family and name, for messages.
pub(crate) const TABLE: &str = "bridge slipway";
const DEFINITION: Definition =
    Definition { family: Family::Bridge, name: "slipway", label: TABLE, schema: 1 };
const PREROUTING: &str = "prerouting";
const GUARDED: &str = "guarded";
const ALLOWED: &str = "allowed";
const OWNERS: &str = "owners";

pub(crate) fn table() -> TableId {
    DEFINITION.id()
}

/// Before all other chains, like the chain of the reference plugin.
const BASE: BaseChain =
    BaseChain { kind: ChainKind::Filter, hook: Hook::Prerouting, priority: -300, policy: Policy::Accept };

/// The source address with which a container may send.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Guard {
    ifname: String,
    mac: Mac,
}

impl Guard {
    fn values(&self) -> Vec<Value> {
        vec![Value::Ifname(self.ifname.clone()), Value::Ether(self.mac.0)]
    }

    fn from_data(data: &ElementData) -> Option<Self> {
        match data {
            ElementData::Values(values) => Self::from_values(values),
            _ => None,
        }
    }

    fn from_values(values: &[Value]) -> Option<Self> {
        match values {
            [Value::Ifname(ifname), Value::Ether(mac)] => {
                Some(Self { ifname: ifname.clone(), mac: Mac(*mac) })
            }
            _ => None,
        }
    }

    fn guarded(&self) -> ElementId {
        ElementId::new(&table(), GUARDED, vec![Value::Ifname(self.ifname.clone())])
    }

    fn allowed(&self) -> ElementId {
        ElementId::new(&table(), ALLOWED, self.values())
    }
}

fn owner_id(hash: AttachmentHash) -> ElementId {
    ElementId::new(&table(), OWNERS, vec![Value::Ipv6(hash.0.into())])
}

/// Makes the whole table. Adding an existing object changes nothing, except for the rule, so the chain is flushed
/// first.
fn bootstrap() -> Transaction {
    let t = table();
    let both = [DataType::Ifname, DataType::EtherAddr];
    let mut batch = Transaction::new();
    batch
        .add_table(Table::new(&t).comment("slipway: source addresses that containers may use"))
        .add_chain(Chain::new(&t, &marker(DEFINITION.schema)))
        .add_set(Set::new(&t, GUARDED, &[DataType::Ifname]))
        .add_set(Set::new(&t, ALLOWED, &both))
        .add_set(Set::new(&t, OWNERS, &[DataType::Ipv6Addr]).data(&both))
        .add_chain(Chain::new(&t, PREROUTING).base(BASE))
        .flush_chain(&t, PREROUTING)
        .add_rule(Rule::new(
            &t,
            PREROUTING,
            vec![
                Stmt::in_set(&[Field::Iifname], GUARDED),
                Stmt::not_in_set(&[Field::Iifname, Field::EtherSaddr], ALLOWED),
                Stmt::Verdict(Verdict::Drop),
            ],
        ));
    batch
}

fn put(batch: &mut Transaction, owner: &Owner, guard: &Guard) {
    let comment = owner.to_comment();
    batch
        .add_element(Element::new(guard.guarded()).comment(&comment))
        .add_element(Element::new(guard.allowed()).comment(&comment))
        .add_element(Element::new(owner_id(owner.attachment_hash)).values(guard.values()).comment(&comment));
}

/// The table `bridge slipway`.
struct Guards {
    table: OwnedTable,
}

impl Guards {
    fn open() -> Result<Self, Error> {
        Ok(Self { table: OwnedTable::open(DEFINITION)? })
    }

    fn guard_of(&self, hash: AttachmentHash) -> Result<Option<Guard>, Error> {
        let found = self.table.element(&owner_id(hash))?;
        Ok(found.and_then(|element| Guard::from_data(&element.data)))
    }

    /// True if the table is present, hooked and has its rule.
    fn is_ready(&self) -> Result<bool, Error> {
        if self.table.schema()?.is_none() {
            return Ok(false);
        }
        Ok(self.table.chain(PREROUTING)?.is_some_and(|chain| chain.base == Some(BASE) && chain.uses == 1))
    }

    /// The attachment's elements that exist. Some may be missing, because another process has emptied a set.
    fn elements_of(&self, hash: AttachmentHash) -> Result<Vec<ElementId>, Error> {
        let Some(guard) = self.guard_of(hash)? else {
            return Ok(Vec::new());
        };
        let mut present = Vec::new();
        for id in [guard.guarded(), guard.allowed(), owner_id(hash)] {
            if self.table.element(&id)?.is_some_and(|element| is_of(&element, hash)) {
                present.push(id);
            }
        }
        Ok(present)
    }

    /// Removes an attachment's elements; true if it had any.
    fn remove(&self, hash: AttachmentHash) -> Result<bool, Error> {
        self.table.transact("remove the spoofing guard", |_| {
            let mut batch = Transaction::new();
            for id in self.elements_of(hash)? {
                batch.delete_element(id);
            }
            let is_there = !batch.is_empty();
            Ok((batch, is_there))
        })
    }

    fn retain(&self, network: &str, valid: &[Attachment]) -> Result<usize, Error> {
        let network = NetworkHash::of(network);
        let valid: BTreeSet<AttachmentHash> = valid.iter().map(AttachmentHash::of).collect();
        let is_obsolete =
            |owner: &Owner| owner.network_hash == network && !valid.contains(&owner.attachment_hash);
        let obsolete = self.list(is_obsolete)?.into_iter().map(|owner| owner.attachment_hash);
        let mut removed = 0;
        let mut failure = None;
        for hash in obsolete {
            match self.remove(hash) {
                Ok(was_there) => removed += usize::from(was_there),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(removed), Err)
    }

    fn owners(&self) -> Result<Option<Vec<Owner>>, Error> {
        // A kernel may have nf_tables without support for bridges.
        if self.table.info()?.is_none() || self.table.schema()?.is_none() {
            return Ok(None);
        }
        self.list(|_| true).map(Some)
    }

    /// The owners that pass, also while other processes change the ruleset.
    fn list(&self, pass: impl Fn(&Owner) -> bool) -> Result<Vec<Owner>, Error> {
        match self.table.socket.changing_elements(&table(), OWNERS, |_| true) {
            Err(e) if e.is_not_found() => Ok(Vec::new()),
            Err(e) => Err(Error::kernel(format!("list map {OWNERS} of table {TABLE}"), e)),
            Ok(found) => Ok(found.iter().filter_map(owner_of).filter(pass).collect()),
        }
    }
}

fn owner_of(element: &ElementInfo) -> Option<Owner> {
    element.comment.as_deref().and_then(Owner::from_comment)
}

fn is_of(element: &ElementInfo, hash: AttachmentHash) -> bool {
    owner_of(element).is_some_and(|owner| owner.attachment_hash == hash)
}

/// Drops frames that arrive on the host side `host_ifname` of the container's link with another source address than
/// `mac`. The guard is in force on return, and replaces the attachment's earlier guard.
///
/// Also replaces the guard of an earlier owner of the same interface name. That owner's link must be gone, because
/// the kernel has only one interface of a name.
///
/// # Errors
/// [`Error::NoNfTables`] if the kernel has no nf_tables for bridges, [`Error::ForeignTable`],
/// [`Error::NewerSchema`], [`Error::ConflictUnowned`] if an element without an owner is in the way,
/// [`Error::Busy`].
pub fn protect(attachment: &Attachment, host_ifname: &str, mac: Mac) -> Result<(), Error> {
    let guards = Guards::open()?;
    let owner = Owner::of(attachment);
    let wanted = Guard { ifname: host_ifname.to_owned(), mac };
    guards.table.transact("guard against spoofing", |_| {
        let mut batch = Transaction::new();
        if !guards.is_ready()? {
            batch.append(bootstrap());
        }
        for id in in_the_way(&guards, owner.attachment_hash, &wanted)? {
            batch.delete_element(id);
        }
        put(&mut batch, &owner, &wanted);
        Ok((batch, ()))
    })
}

/// The attachment's earlier elements, and those of another owner for the same interface.
fn in_the_way(guards: &Guards, hash: AttachmentHash, wanted: &Guard) -> Result<Vec<ElementId>, Error> {
    let mut obsolete = guards.elements_of(hash)?;
    for id in [wanted.guarded(), wanted.allowed()] {
        let Some(element) = guards.table.element(&id)? else { continue };
        let Some(holder) = owner_of(&element) else {
            let what = format!("interface {}", wanted.ifname);
            return Err(Error::ConflictUnowned { what, place: format!("set {} of table {TABLE}", id.set) });
        };
        if holder.attachment_hash != hash {
            obsolete.extend(guards.elements_of(holder.attachment_hash)?);
        }
        obsolete.push(id);
    }
    let mut unique = Vec::new();
    for id in obsolete {
        if !unique.contains(&id) {
            unique.push(id);
        }
    }
    Ok(unique)
}

/// Removes the attachment's guard, and that of the reference plugin.
pub fn release(attachment: &Attachment) -> Result<(), Error> {
    unless_no_nf_tables(Guards::open().and_then(|guards| {
        guards.remove(AttachmentHash::of(attachment))?;
        release_reference(&guards, attachment)
    }))
}

/// Checks that the guard is as [`protect`] makes it.
pub fn check(attachment: &Attachment, host_ifname: &str, mac: Mac) -> Result<(), Error> {
    let guards = Guards::open()?;
    if !guards.is_ready()? {
        return Err(Difference::NoSpoofingTable(TABLE).into());
    }
    let wanted = Guard { ifname: host_ifname.to_owned(), mac };
    let hash = AttachmentHash::of(attachment);
    let found = guards.guard_of(hash)?;
    let complete = found.as_ref() == Some(&wanted)
        && guards.table.element(&wanted.guarded())?.is_some_and(|element| is_of(&element, hash))
        && guards.table.element(&wanted.allowed())?.is_some_and(|element| is_of(&element, hash));
    if complete {
        return Ok(());
    }
    Err(Difference::NoSpoofingGuard { link: host_ifname.to_owned(), mac, table: TABLE }.into())
}

/// Removes the guards of this network's attachments that are not in `valid`. Returns their number.
pub fn retain(network: &str, valid: &[Attachment]) -> Result<usize, Error> {
    unless_no_nf_tables(Guards::open().and_then(|guards| guards.retain(network, valid)))
}

/// The owners of the guards in the table. None if there is no table.
pub(crate) fn owners() -> Result<Option<Vec<Owner>>, Error> {
    unless_no_nf_tables(Guards::open().and_then(|guards| guards.owners()))
}

/// Removes what the reference plugin made for the attachment in `table bridge nat`: a rule in PREROUTING with
/// the comment `macspoofchk-<container>-<interface>`, and the two chains that it leads to.
fn release_reference(guards: &Guards, attachment: &Attachment) -> Result<(), Error> {
    let nat = TableId::new(Family::Bridge, "nat");
    let id = format!("{}-{}", attachment.container_id(), attachment.ifname());
    let comment = format!("macspoofchk-{id}");
    let chains = [format!("cni-br-iface-{id}"), format!("cni-br-iface-{id}-mac")];
    let failed = |e| Error::kernel(format!("remove the reference plugin's spoofing guard {comment}"), e);
    guards.table.transact("remove the reference plugin's spoofing guard", |_| {
        let mut batch = Transaction::new();
        for rule in guards.table.socket.rules(&nat, "PREROUTING").map_err(failed)? {
            if rule.comment.as_deref() == Some(comment.as_str()) {
                batch.delete_rule(&nat, "PREROUTING", rule.handle);
            }
        }
        let mut present = Vec::new();
        for name in &chains {
            if guards.table.socket.chain(&nat, name).map_err(failed)?.is_some() {
                batch.flush_chain(&nat, name);
                present.push(name);
            }
        }
        for name in present {
            batch.delete_chain(&nat, name);
        }
        Ok((batch, ()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batch_of_a_first_container() {
        let attachment = Attachment::new("net", "c1", "eth0").unwrap();
        let mut batch = bootstrap();
        let guard = Guard { ifname: "veth01020304".into(), mac: Mac([2, 0, 0, 0, 0, 7]) };
        put(&mut batch, &Owner::of(&attachment), &guard);
        let hash = cni_spec::text::hex(&AttachmentHash::of(&attachment).0);
        expect_test::expect![[r#"
            add table bridge slipway { comment "slipway: source addresses that containers may use" ; }
            add chain bridge slipway schema-1
            add set bridge slipway guarded { type ifname ; }
            add set bridge slipway allowed { type ifname . ether_addr ; }
            add map bridge slipway owners { type ipv6_addr : ifname . ether_addr ; }
            add chain bridge slipway prerouting { type filter hook prerouting priority -300 ; policy accept ; }
            flush chain bridge slipway prerouting
            add rule bridge slipway prerouting iifname @guarded iifname . ether saddr != @allowed drop
        "#]]
        .assert_eq(&bootstrap().to_string());
        let text = batch.to_string();
        assert_eq!(text.lines().skip(8).filter(|line| line.contains(&hash)).count(), 3, "{text}");
    }

    #[test]
    fn a_guard_reads_back() {
        let guard = Guard { ifname: "veth0".into(), mac: Mac([2, 0, 0, 0, 0, 7]) };
        assert_eq!(Guard::from_values(&guard.values()).as_ref(), Some(&guard));
        assert_eq!(Guard::from_data(&ElementData::None), None);
    }
}
