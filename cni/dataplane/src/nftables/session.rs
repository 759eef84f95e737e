// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads the table and its elements.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::ops::Deref;

use cni_nftables::{
    ChainInfo, Element, ElementData, ElementId, ElementInfo, FlowtableInfo, Socket, Value, Verdict,
};

use super::liveness::{Record, TLV_KIND};
use super::migration_state::{self, Transit};
use super::plan;
use super::schema::{self, Layout, Map, SharedChain, addresses, flowtable};
use crate::owned_table::OwnedTable;
use crate::owner::{AttachmentHash, Life};
use crate::{AddressFamily, Error, Owner};

/// The table `inet slipway`, read as its maps and elements.
#[derive(Debug)]
pub(crate) struct Session(OwnedTable);

impl Deref for Session {
    type Target = OwnedTable;

    fn deref(&self) -> &OwnedTable {
        &self.0
    }
}

/// The elements with an owner that an operation has found, for all its attempts to commit.
#[derive(Debug, Default)]
pub(crate) struct Known(OnceCell<Vec<OwnedElement>>);

/// How the elements of a map are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listing {
    /// Lists the elements of one generation of the ruleset. On a busy node with thousands of elements this fails, because
    /// other processes change the ruleset before the list is complete.
    OneGeneration,
    /// Lists the elements that exist all the time, and maybe some that come or go meanwhile
    /// ([`Socket::changing_elements`]).
    Changing,
}

/// An element of one of our maps, possibly made by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnedElement {
    pub(crate) map: Map,
    pub(crate) key: Vec<Value>,
    /// The last key of the element's interval.
    pub(crate) end: Option<Vec<Value>>,
    pub(crate) data: ElementData,
    /// The owner that the comment names. None if Slipway did not write the comment.
    pub(crate) owner: Option<Owner>,
    /// The owner's namespace, which only the map of owners contains.
    pub(crate) record: Option<Record>,
}

impl OwnedElement {
    pub(crate) fn new(map: Map, info: ElementInfo) -> Self {
        let owner = info.comment.as_deref().and_then(Owner::from_comment);
        let record = info.tlv(TLV_KIND).and_then(Record::decode);
        Self {
            map,
            key: info.key,
            end: info.key_end.filter(|_| map.intervals()),
            data: info.data,
            owner,
            record,
        }
    }

    pub(crate) fn is_of(&self, hash: AttachmentHash) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.attachment_hash == hash)
    }

    /// The map and key, in the form that a batch needs.
    pub(crate) fn id(&self) -> ElementId {
        element_id(self.map, &self.key, self.end.as_deref())
    }

    /// The address that is the element's key.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        plan::as_address(self.key.first()?)
    }

    /// Gives another element the same owner.
    pub(crate) fn owned_by_the_same(&self, element: Element) -> Element {
        match &self.owner {
            Some(owner) => element.comment(&owner.to_comment()),
            None => element,
        }
    }

    /// The number of elements in an entry of the map of owners.
    pub(crate) fn count(&self) -> usize {
        match &self.data {
            ElementData::Values(values) => match values.as_slice() {
                [Value::Mark(count)] => usize::try_from(migration_state::plain(*count)).unwrap_or(usize::MAX),
                _ => 0,
            },
            _ => 0,
        }
    }

    /// The migration state in an entry of the map of owners.
    pub(crate) fn transit(&self) -> Transit {
        match &self.data {
            ElementData::Values(values) => match values.as_slice() {
                [Value::Mark(number)] => Transit::of(*number),
                _ => Transit::Settled,
            },
            _ => Transit::Settled,
        }
    }

    /// The shared chain to which the element leads.
    pub(crate) fn shared_chain(&self) -> Option<SharedChain> {
        match &self.data {
            ElementData::Verdict(Verdict::Jump(name) | Verdict::Goto(name)) => SharedChain::from_name(name),
            _ => None,
        }
    }

    /// Describes the element for people.
    pub(crate) fn describe(&self) -> String {
        describe(self.map, &self.key, self.end.as_deref())
    }
}

/// Describes an element for people, by its port or address.
pub(crate) fn describe(map: Map, key: &[Value], end: Option<&[Value]>) -> String {
    let port = plan::host_ports(map, key, end);
    match (port, key) {
        (Some(port), _) => format!("host port {port}"),
        (None, [address]) => format!("container address {address}"),
        _ => format!("an element of map {}", map.name()),
    }
}

/// The map and key of an element, in the form that a batch needs.
pub(crate) fn element_id(map: Map, key: &[Value], end: Option<&[Value]>) -> ElementId {
    let id = ElementId::new(&schema::table(), map.name(), key.to_vec());
    match end {
        Some(end) => id.to(end.to_vec()),
        None => id,
    }
}

/// The optional parts of a table that has these chains.
pub(super) fn layout_of(present: &[ChainInfo]) -> Layout {
    let chain = |name: &str| present.iter().find(|chain| chain.name == name);
    let addresses = chain(addresses::name(AddressFamily::V4)).is_some();
    let layout = Layout { addresses, ..Layout::PLAIN };
    if chain(flowtable::CHAIN).is_some() { layout.offloading() } else { layout }
}

impl Session {
    /// Opens the socket in the calling thread's network namespace.
    pub(crate) fn open() -> Result<Self, Error> {
        OwnedTable::open(schema::DEFINITION).map(Self)
    }

    /// Returns the socket, without what was read of the table.
    pub(crate) fn into_socket(self) -> Socket {
        self.0.socket
    }

    /// Finds out which optional parts the table has.
    pub(crate) fn layout(&self) -> Result<Layout, Error> {
        self.chains_named(&schema::OPTIONAL_CHAINS).map(|present| layout_of(&present))
    }

    pub(crate) fn flowtable(&self) -> Result<Option<FlowtableInfo>, Error> {
        let found = self.socket.flowtable(&self.table, flowtable::FLOWTABLE);
        found.map_err(|e| Error::kernel(format!("read flowtable {}", flowtable::FLOWTABLE), e))
    }

    /// Lists the chains to which the elements of several attachments lead.
    pub(crate) fn shared_chains(&self) -> Result<Vec<SharedChain>, Error> {
        Ok(self.chains()?.iter().filter_map(|chain| SharedChain::from_name(&chain.name)).collect())
    }

    /// Reads the element with this key or, in a map of intervals, the element that contains the key.
    pub(crate) fn get(&self, map: Map, key: &[Value]) -> Result<Option<OwnedElement>, Error> {
        let read = self.socket.element(&element_id(map, key, None));
        let info = read.map_err(|e| Error::kernel(format!("read {}", describe(map, key, None)), e))?;
        Ok(info.map(|info| OwnedElement::new(map, info)))
    }

    /// Reads an attachment's entry of one kind in the map of owners.
    pub(crate) fn entry(&self, hash: AttachmentHash, kind: u32) -> Result<Option<OwnedElement>, Error> {
        self.get(Map::Owners, &plan::owner_key(hash, kind))
    }

    /// Lists the elements of these maps that pass the filter, in one generation of the ruleset.
    pub(crate) fn dump(
        &self,
        maps: impl IntoIterator<Item = Map>,
        pass: impl Fn(&OwnedElement) -> bool,
    ) -> Result<Vec<OwnedElement>, Error> {
        self.list(Listing::OneGeneration, maps, pass)
    }

    /// Lists the elements of these maps that pass the filter.
    pub(crate) fn list(
        &self,
        listing: Listing,
        maps: impl IntoIterator<Item = Map>,
        pass: impl Fn(&OwnedElement) -> bool,
    ) -> Result<Vec<OwnedElement>, Error> {
        let mut all = Vec::new();
        for map in maps {
            let keep = |out: &mut Vec<OwnedElement>, info: ElementInfo| {
                let held = OwnedElement::new(map, info);
                if pass(&held) {
                    out.push(held);
                }
            };
            let OwnedTable { socket, table, .. } = &self.0;
            let listed = match listing {
                Listing::OneGeneration => socket.fold_elements(table, map.name(), Vec::new, keep),
                Listing::Changing => socket.changing_elements(table, map.name(), |_| true).map(|infos| {
                    let mut some = Vec::new();
                    for info in infos {
                        keep(&mut some, info);
                    }
                    some
                }),
            };
            match listed {
                Ok(mut some) => all.append(&mut some),
                Err(e) if e.is_not_found() => {}
                Err(e) => {
                    return Err(Error::kernel(
                        format!("list map {} of table {}", map.name(), schema::TABLE),
                        e,
                    ));
                }
            }
        }
        Ok(all)
    }

    /// Finds the elements with an owner that pass the filter, for a batch that deletes or replaces them. An
    /// operation's first attempt lists all elements, also if other processes change the ruleset meanwhile. Each
    /// attempt then reads those that passed again, one by one. So what an attempt finds is true in the generation of
    /// its commit, and the time from one to the other does not grow with the number of elements on the node.
    ///
    /// Elements that are added after the first attempt are missing. That is right for most of them: a runtime does not
    /// make two calls for an attachment at the same time, and an owner that is dead gets no new elements. But `slipway
    /// restore` may put elements back, so callers that know the keys also look these up.
    pub(crate) fn owned(
        &self,
        known: &Known,
        pass: impl Fn(&OwnedElement) -> bool,
    ) -> Result<Vec<OwnedElement>, Error> {
        let all = match known.0.get() {
            Some(all) => all,
            None => {
                let all = self.list(Listing::Changing, Map::all(), |held| held.owner.is_some())?;
                known.0.get_or_init(|| all)
            }
        };
        self.read_again(all.iter().filter(|held| pass(held)))
    }

    /// Reads these elements again. Those that are gone, or have another owner now, are left out.
    pub(crate) fn read_again<'a>(
        &self,
        known: impl IntoIterator<Item = &'a OwnedElement>,
    ) -> Result<Vec<OwnedElement>, Error> {
        let mut present = Vec::new();
        for held in known {
            let same =
                |now: &OwnedElement| (&now.key, &now.end, &now.owner) == (&held.key, &held.end, &held.owner);
            present.extend(self.get(held.map, &held.key)?.filter(same));
        }
        Ok(present)
    }

    /// Lists the intervals of a map whose key is a single value. None if the map is missing.
    pub(crate) fn ranges(&self, map: Map) -> Result<Vec<(Value, Value)>, Error> {
        match self.socket.ranges(&self.table, map.name()) {
            Err(e) if e.is_not_found() => Ok(Vec::new()),
            read => read
                .map_err(|e| Error::kernel(format!("list map {} of table {}", map.name(), schema::TABLE), e)),
        }
    }

    /// True if the owner is provably dead.
    pub(crate) fn is_dead(&self, owner: &Owner) -> Result<bool, Error> {
        let mut records = 0;
        for kind in [schema::KIND_PORTS, schema::KIND_MASQUERADE] {
            let Some(entry) = self.entry(owner.attachment_hash, kind)? else { continue };
            match entry.record.map(|record| record.life()) {
                Some(Life::Dead) => records += 1,
                Some(Life::NotProvenDead) | None => return Ok(false),
            }
        }
        Ok(records > 0)
    }
}
