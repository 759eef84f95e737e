// SPDX-License-Identifier: GPL-2.0-or-later

//! Decodes the kernel's replies into plain values.
//!
//! Attribute numbers are those of `linux/netfilter/nf_tables.h` (`enum nft_*_attributes`).

use cni_netlink::message::{attributes, be32, be64, find, text};

use crate::decode::{decode_verdict, statements};
use crate::flowtable::Links;
use crate::object::{BaseChain, ChainKind, ElementData, Family, Hook, Keys, MapData, Policy, TableId};
use crate::read::{ChainInfo, ElementInfo, FlowtableInfo, RuleInfo, SetInfo, TableInfo};
use crate::stmt::Verdict;
use crate::uapi;
use crate::udata;
use crate::value::{concat_from_id, decode_concat};

fn id(family: Option<Family>, name: &[u8]) -> Option<TableId> {
    Some(TableId { family: family?, name: text(name) })
}

pub(crate) fn table(family: Option<Family>, body: &[u8]) -> Option<TableInfo> {
    const FLAGS: u16 = 2;
    const USE: u16 = 3;
    const HANDLE: u16 = 4;
    const USERDATA: u16 = 6;
    Some(TableInfo {
        id: id(family, find(body, uapi::TABLE_NAME)?)?,
        handle: find(body, HANDLE).and_then(be64).unwrap_or_default(),
        uses: find(body, USE).and_then(be32).unwrap_or_default(),
        flags: find(body, FLAGS).and_then(be32).unwrap_or_default(),
        comment: find(body, USERDATA).and_then(udata::comment),
    })
}

pub(crate) fn chain(family: Option<Family>, body: &[u8]) -> Option<ChainInfo> {
    const HANDLE: u16 = 2;
    const USE: u16 = 6;
    const USERDATA: u16 = 12;
    Some(ChainInfo {
        table: id(family, find(body, uapi::CHAIN_TABLE)?)?,
        name: text(find(body, uapi::CHAIN_NAME)?),
        handle: find(body, HANDLE).and_then(be64).unwrap_or_default(),
        base: base(body),
        uses: find(body, USE).and_then(be32).unwrap_or_default(),
        comment: find(body, USERDATA).and_then(udata::comment),
    })
}

fn base(body: &[u8]) -> Option<BaseChain> {
    const HOOK: u16 = 4;
    const POLICY: u16 = 5;
    const TYPE: u16 = 7;
    let hook = find(body, HOOK)?;
    let kind = text(find(body, TYPE)?);
    let kinds = [ChainKind::Filter, ChainKind::Nat, ChainKind::Route];
    let policy = find(body, POLICY).and_then(be32);
    Some(BaseChain {
        kind: kinds.into_iter().find(|known| known.name() == kind)?,
        hook: Hook::from_number(find(hook, uapi::HOOK_NUMBER).and_then(be32)?)?,
        priority: find(hook, uapi::HOOK_PRIORITY).and_then(be32)?.cast_signed(),
        policy: if policy == Some(0) { Policy::Drop } else { Policy::Accept },
    })
}

pub(crate) fn flowtable(family: Option<Family>, body: &[u8]) -> Option<FlowtableInfo> {
    const USE: u16 = 4;
    const HANDLE: u16 = 5;
    let devices =
        find(body, uapi::FLOWTABLE_HOOK).and_then(|hook| find(hook, uapi::HOOK_DEVICES)).unwrap_or_default();
    Some(FlowtableInfo {
        table: id(family, find(body, uapi::FLOWTABLE_TABLE)?)?,
        name: text(find(body, uapi::FLOWTABLE_NAME)?),
        handle: find(body, HANDLE).and_then(be64).unwrap_or_default(),
        uses: find(body, USE).and_then(be32).unwrap_or_default(),
        counter: find(body, uapi::FLOWTABLE_FLAGS)
            .and_then(be32)
            .is_some_and(|flags| flags & uapi::FLOWTABLE_COUNTER != 0),
        devices: attributes(devices)
            .map(|(kind, name)| match kind {
                uapi::DEVICE_PREFIX => Links::Beginning(text(name)),
                _ => Links::Named(text(name)),
            })
            .collect(),
    })
}

pub(crate) fn rule(family: Option<Family>, body: &[u8]) -> Option<RuleInfo> {
    const HANDLE: u16 = 3;
    const USERDATA: u16 = 7;
    Some(RuleInfo {
        table: id(family, find(body, uapi::RULE_TABLE)?)?,
        chain: text(find(body, uapi::RULE_CHAIN)?),
        handle: find(body, HANDLE).and_then(be64)?,
        comment: find(body, USERDATA).and_then(udata::comment),
        target: find(body, uapi::RULE_EXPRESSIONS).and_then(target),
        map: find(body, uapi::RULE_EXPRESSIONS).and_then(map),
        stmts: statements(family, find(body, uapi::RULE_EXPRESSIONS).unwrap_or_default()),
        packets: find(body, uapi::RULE_EXPRESSIONS).and_then(packets),
    })
}

/// The number of packets that the first counter of a rule has counted.
fn packets(expressions: &[u8]) -> Option<u64> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    const COUNTER_PACKETS: u16 = 2;
    let is_counter = |expression: &&[u8]| find(expression, NAME).map(text).as_deref() == Some("counter");
    let counter = attributes(expressions).map(|(_, expression)| expression).find(is_counter)?;
    find(find(counter, DATA)?, COUNTER_PACKETS).and_then(be64)
}

/// The chain of the last `jump` or `goto` verdict of a rule.
fn target(expressions: &[u8]) -> Option<String> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    const IMMEDIATE_DATA: u16 = 2;
    let last = attributes(expressions).map(|(_, expression)| expression).last()?;
    if find(last, NAME).map(text).as_deref() != Some("immediate") {
        return None;
    }
    let data = find(find(last, DATA)?, IMMEDIATE_DATA)?;
    match decode_verdict(find(data, uapi::DATA_VERDICT)?)? {
        Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
        _ => None,
    }
}

/// The last map that a rule looks up: a lookup (`enum nft_lookup_attributes`) with a register for the data.
fn map(expressions: &[u8]) -> Option<String> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    const SET: u16 = 1;
    const TARGET: u16 = 3;
    let lookups = attributes(expressions).filter_map(|(_, expression)| {
        (find(expression, NAME).map(text)? == "lookup").then(|| find(expression, DATA))?
    });
    let maps = lookups.filter(|lookup| find(lookup, TARGET).is_some());
    maps.filter_map(|lookup| find(lookup, SET).map(text)).last()
}

pub(crate) fn set(family: Option<Family>, body: &[u8]) -> Option<SetInfo> {
    const FLAGS: u16 = 3;
    const KEY_TYPE: u16 = 4;
    const KEY_LEN: u16 = 5;
    const DATA_TYPE: u16 = 6;
    const DATA_LEN: u16 = 7;
    const DESCRIPTION: u16 = 9;
    const DESCRIPTION_SIZE: u16 = 1;
    const HANDLE: u16 = 16;
    let number = |kind| find(body, kind).and_then(be32);
    let flags = number(FLAGS).unwrap_or_default();
    let data = match number(DATA_TYPE) {
        _ if flags & uapi::SET_MAP == 0 => Some(MapData::None),
        Some(uapi::TYPE_VERDICT) => Some(MapData::Verdict),
        Some(types) => concat_from_id(types).map(MapData::Values),
        None => None,
    };
    Some(SetInfo {
        table: id(family, find(body, uapi::SET_TABLE)?)?,
        name: text(find(body, uapi::SET_NAME)?),
        handle: find(body, HANDLE).and_then(be64).unwrap_or_default(),
        key: number(KEY_TYPE).and_then(concat_from_id),
        data,
        keys: if flags & uapi::SET_INTERVAL == 0 { Keys::Exact } else { Keys::Intervals },
        size: find(body, DESCRIPTION).and_then(|inner| find(inner, DESCRIPTION_SIZE)).and_then(be32),
        key_len: number(KEY_LEN).unwrap_or_default(),
        data_len: number(DATA_LEN).unwrap_or_default(),
        flags,
    })
}

pub(crate) const fn is_anonymous(set: &SetInfo) -> bool {
    set.flags & uapi::SET_ANONYMOUS != 0
}

/// Calls `each` for the elements of a message, except for those whose types [`crate::DataType`] lacks.
pub(crate) fn elements(body: &[u8], set: &SetInfo, mut each: impl FnMut(ElementInfo)) {
    let list = find(body, uapi::LIST_ELEMENTS).unwrap_or_default();
    for (_, item) in attributes(list) {
        if let Some(element) = element(item, set) {
            each(element);
        }
    }
}

/// Calls `each` for the bounds in a message about a set of ranges whose key is a single value. A bound is an encoded
/// key, with true for the first key after a range.
pub(crate) fn bounds(body: &[u8], mut each: impl FnMut(Vec<u8>, bool)) {
    let list = find(body, uapi::LIST_ELEMENTS).unwrap_or_default();
    for (_, item) in attributes(list) {
        let found = Item::read(item);
        if let Some(key) = found.key.and_then(|key| find(key, uapi::DATA_VALUE)) {
            each(key.to_vec(), found.flags & uapi::INTERVAL_END != 0);
        }
    }
}

fn element(item: &[u8], set: &SetInfo) -> Option<ElementInfo> {
    let found = Item::read(item);
    if found.flags & uapi::INTERVAL_END != 0 {
        return None;
    }
    let types = set.key.as_ref()?;
    let decode = |data: &[u8]| decode_concat(types, find(data, uapi::DATA_VALUE)?);
    let data = match (set.data.as_ref()?, found.data) {
        (MapData::Verdict, Some(data)) => {
            ElementData::Verdict(decode_verdict(find(data, uapi::DATA_VERDICT)?)?)
        }
        (MapData::Values(types), Some(data)) => {
            ElementData::Values(decode_concat(types, find(data, uapi::DATA_VALUE)?)?)
        }
        _ => ElementData::None,
    };
    Some(ElementInfo {
        key: decode(found.key?)?,
        key_end: found.key_end.and_then(decode),
        data,
        comment: udata::comment(found.userdata),
        tlvs: udata::tlvs(found.userdata),
    })
}

/// The attributes of an element (`enum nft_set_elem_attributes`).
#[derive(Default)]
struct Item<'a> {
    key: Option<&'a [u8]>,
    key_end: Option<&'a [u8]>,
    data: Option<&'a [u8]>,
    flags: u32,
    userdata: &'a [u8],
}

impl<'a> Item<'a> {
    fn read(item: &'a [u8]) -> Self {
        let mut found = Self::default();
        for (kind, value) in attributes(item) {
            found.set(kind, value);
        }
        found
    }

    fn set(&mut self, kind: u16, value: &'a [u8]) {
        const DATA: u16 = 2;
        const FLAGS: u16 = 3;
        const USERDATA: u16 = 6;
        match kind {
            uapi::ELEMENT_KEY => self.key = Some(value),
            uapi::ELEMENT_KEY_END => self.key_end = Some(value),
            DATA => self.data = Some(value),
            FLAGS => self.flags = be32(value).unwrap_or_default(),
            USERDATA => self.userdata = value,
            _ => {}
        }
    }
}
