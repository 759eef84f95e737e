// SPDX-License-Identifier: GPL-2.0-or-later

//! Encodes changes as netlink messages.
#![allow(unsafe_code, reason = "libnftnl writes messages through pointers")]

use std::ffi::{CString, c_char, c_void};

use cni_netlink::Attributes;
use cni_netlink::message::flag;
use nftnl::nftnl_sys as sys;
use nftnl::{MsgType, NlMsg, nft_nlmsg_maxsize};

use crate::expr::verdict_code;
use crate::flowtable::{Flowtable, Links};
use crate::intervals::{Content, successor};
use crate::invalid::Invalid;
use crate::lower::{ANONYMOUS_NAME, AnonymousSet, Expr, Lowered};
use crate::nfnetlink;
use crate::object::{
    Chain, Create, Element, ElementData, ElementId, Family, Keys, MapData, Rule, Set, Table, TableId,
};
use crate::raw;
use crate::stmt::Verdict;
use crate::transaction::Op;
use crate::uapi;
use crate::udata;
use crate::value::{DataType, concat_id, concat_len, encode_concat};

/// `NFT_NAME_MAXLEN` in `linux/netfilter/nf_tables.h`, with the closing NUL.
const MAX_NAME: usize = 256;
/// `NFT_DATA_VALUE_MAXLEN`: bytes of a key or of data.
const MAX_VALUE: usize = 64;
/// How many elements of an anonymous set one message contains: far less than the 64 KB of an attribute.
const ELEMENTS_PER_MESSAGE: usize = 500;

// enum nf_tables_msg_types
const NEW_TABLE: u16 = 0;
const DEL_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const DEL_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DEL_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const DEL_SET: u16 = 11;
const NEW_ELEMENT: u16 = 12;
const DEL_ELEMENT: u16 = 14;
const NEW_FLOWTABLE: u16 = 22;
const DEL_FLOWTABLE: u16 = 24;

/// `NF_NETDEV_INGRESS` in `linux/netfilter.h`.
const INGRESS: u32 = 0;
/// One less than `NFT_NETDEVICE_MAX`: the devices that the kernel accepts in one message.
const MAX_DEVICES: usize = 255;
/// `IFNAMSIZ` in `linux/if.h`, with the closing NUL.
const MAX_LINK_NAME: usize = 16;

// enum nft_set_flags
const SET_CONSTANT: u32 = 0x2;
const SET_TIMEOUT: u32 = 0x10;
const SET_CONCAT: u32 = 0x80;
/// `NFT_SET_EVAL`.
const SET_UPDATED: u32 = 0x20;

/// `NFT_TABLE_F_OWNER`.
const TABLE_OWNER: u32 = 0x2;

/// The object of a message.
#[derive(Debug)]
enum Body {
    Table(raw::Table),
    Chain(raw::Chain),
    Rule(raw::Rule),
    Set(raw::Set),
    Elements(raw::Set),
    Flowtable(raw::Flowtable),
    /// Encoded attributes, used where older versions of libnftnl that must be supported lack an attribute.
    Attributes(Vec<u8>),
}

/// One message of a batch, without its sequence number.
#[derive(Debug)]
pub(crate) struct Message {
    family: Family,
    kind: u16,
    flags: u16,
    body: Body,
}

/// Encodes changes as messages.
///
/// Each change is one message, so that an error can be attributed to one change. The kernel would accept many
/// elements in one message, but a message per element costs only a microsecond. Only an anonymous set has messages
/// besides that of its rule.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    next_set_id: u32,
}

impl Encoder {
    /// Encodes one change.
    pub(crate) fn encode(&mut self, op: &Op) -> Result<Vec<Message>, Invalid> {
        Ok(match op {
            Op::AddTable(table) => vec![add_table(table)?],
            Op::DeleteTable(table) => vec![Message::del(table, DEL_TABLE, Body::Table(raw_table(table)?))],
            Op::AddChain(chain) => vec![add_chain(chain)?],
            Op::FlushChain { table, chain } => {
                vec![Message::del(table, DEL_RULE, Body::Rule(raw_rule(table, chain)?))]
            }
            Op::DeleteChain { table, chain } => {
                vec![Message::del(table, DEL_CHAIN, Body::Chain(raw_chain(table, chain)?))]
            }
            Op::AddRule(rule) => self.add_rule(rule)?,
            Op::DeleteRule { table, chain, handle } => {
                let mut raw = raw_rule(table, chain)?;
                raw.u64(sys::NFTNL_RULE_HANDLE, *handle);
                vec![Message::del(table, DEL_RULE, Body::Rule(raw))]
            }
            Op::AddSet(set) => vec![self.add_set(set)?],
            Op::FlushSet { table, set } => {
                vec![Message::del(table, DEL_ELEMENT, Body::Elements(raw_set(table, set)?))]
            }
            Op::DeleteSet { table, set } => {
                vec![Message::del(table, DEL_SET, Body::Set(raw_set(table, set)?))]
            }
            Op::AddFlowtable(flowtable) => vec![add_flowtable(flowtable)?],
            Op::DeleteFlowtable { table, flowtable } => {
                let raw = raw_flowtable(table, flowtable)?;
                vec![Message::del(table, DEL_FLOWTABLE, Body::Flowtable(raw))]
            }
            Op::AddElement(element) => vec![add_element(element)?],
            Op::DeleteElement(id) => vec![delete_element(id)?],
        })
    }

    /// Lowers a rule. The set IDs are unique in this batch.
    pub(crate) fn lower(&mut self, rule: &Rule) -> Result<Lowered, Invalid> {
        crate::lower::lower(rule.table.family, &rule.stmts, &mut self.next_set_id)
    }

    /// A rule that contains only these expressions, to test whether the kernel has them.
    pub(crate) fn bare_rule(table: &TableId, chain: &str, exprs: &[Expr]) -> Result<Message, Invalid> {
        Ok(Message::append_rule(table, rule_of(table, chain, exprs)?))
    }

    fn add_rule(&mut self, rule: &Rule) -> Result<Vec<Message>, Invalid> {
        let lowered = self.lower(rule)?;
        let mut messages = Vec::new();
        for set in &lowered.sets {
            add_anonymous_set(&rule.table, set, &mut messages)?;
        }
        let mut raw = rule_of(&rule.table, &rule.chain, &lowered.exprs)?;
        if let Some(comment) = &rule.comment {
            raw.data(sys::NFTNL_RULE_USERDATA, &udata::encode(Some(comment), None)?);
        }
        messages.push(Message::append_rule(&rule.table, raw));
        Ok(messages)
    }

    fn add_set(&mut self, set: &Set) -> Result<Message, Invalid> {
        self.next_set_id += 1;
        let concatenated = set.key.len() > 1;
        let intervals = set.keys == Keys::Intervals;
        let mut flags = if set.timeouts { SET_TIMEOUT } else { 0 };
        if intervals {
            flags |= uapi::SET_INTERVAL;
        }
        if intervals && concatenated {
            flags |= SET_CONCAT;
        }
        if set.data != MapData::None {
            flags |= uapi::SET_MAP;
        }
        if set.is_updated {
            flags |= SET_UPDATED;
        }
        let mut raw = raw_set(&set.table, &set.name)?;
        raw.u32(sys::NFTNL_SET_ID, self.next_set_id)
            .u32(sys::NFTNL_SET_FLAGS, flags)
            .u32(sys::NFTNL_SET_KEY_TYPE, concat_id(&set.key))
            .u32(sys::NFTNL_SET_KEY_LEN, value_len(&set.key)?);
        match &set.data {
            MapData::None => {}
            MapData::Verdict => {
                raw.u32(sys::NFTNL_SET_DATA_TYPE, uapi::TYPE_VERDICT).u32(sys::NFTNL_SET_DATA_LEN, 0);
            }
            MapData::Values(types) => {
                raw.u32(sys::NFTNL_SET_DATA_TYPE, concat_id(types))
                    .u32(sys::NFTNL_SET_DATA_LEN, value_len(types)?);
            }
        }
        if intervals && concatenated {
            let lengths: Vec<u8> = set.key.iter().map(|part| length_byte(*part)).collect();
            raw.data(sys::NFTNL_SET_DESC_CONCAT, &lengths);
        }
        if let Some(size) = set.size {
            raw.u32(sys::NFTNL_SET_DESC_SIZE, size);
        }
        let ranges = intervals && concatenated;
        let data = udata::encode_set(&set.key, &set.data, ranges, set.comment.as_deref());
        raw.data(sys::NFTNL_SET_USERDATA, &data?);
        Ok(Message::add(&set.table, NEW_SET, set.create, Body::Set(raw)))
    }
}

impl Message {
    fn add(table: &TableId, kind: u16, create: Create, body: Body) -> Self {
        let exclusive = if create == Create::Exclusive { flag::EXCLUSIVE } else { 0 };
        Self { family: table.family, kind, flags: flag::CREATE | exclusive, body }
    }

    fn append_rule(table: &TableId, rule: raw::Rule) -> Self {
        let flags = flag::CREATE | flag::APPEND;
        Self { family: table.family, kind: NEW_RULE, flags, body: Body::Rule(rule) }
    }

    fn del(table: &TableId, kind: u16, body: Body) -> Self {
        Self { family: table.family, kind, flags: 0, body }
    }

    /// Requests an acknowledgement.
    pub(crate) const fn acknowledge(&mut self) {
        self.flags |= flag::ACK;
    }

    pub(crate) fn append_to(&self, batch: &mut Vec<u8>, scratch: &mut Scratch, sequence: u32) {
        let is_add =
            matches!(self.kind, NEW_TABLE | NEW_CHAIN | NEW_RULE | NEW_SET | NEW_ELEMENT | NEW_FLOWTABLE);
        let direction = if is_add { MsgType::Add } else { MsgType::Del };
        let start = scratch.words.as_mut_ptr().cast::<c_void>();
        // SAFETY: the scratch buffer has the size that the trait asks for, and nothing else uses it.
        unsafe { self.write(start, sequence, direction) };
        batch.extend_from_slice(scratch.message());
    }
}

// SAFETY: the largest message is a rule with all its expressions (at most 128, each of a few hundred bytes at
// most, as names are checked), 500 small elements, or the 255 devices of a flowtable (20 bytes each): all
// less than the maximum of 64 KB and a page.
unsafe impl NlMsg for Message {
    unsafe fn write(&self, buf: *mut c_void, seq: u32, _direction: MsgType) {
        let (family, kind) = (u16::from(self.family.number()), self.kind);
        let flags = self.flags;
        // SAFETY: the caller guarantees the size of the buffer; the header is its first 20 bytes, and the
        // payload functions append the bodies' attributes. They only read the objects, which are alive.
        // `nftnl_nlmsg_build_hdr` adds the subsystem to the type and NLM_F_REQUEST to the flags.
        unsafe {
            let header = sys::nftnl_nlmsg_build_hdr(buf.cast::<c_char>(), kind, family, flags, seq);
            match &self.body {
                Body::Table(table) => sys::nftnl_table_nlmsg_build_payload(header, table.as_ptr()),
                Body::Chain(chain) => sys::nftnl_chain_nlmsg_build_payload(header, chain.as_ptr()),
                Body::Rule(rule) => sys::nftnl_rule_nlmsg_build_payload(header, rule.as_ptr()),
                Body::Set(set) => sys::nftnl_set_nlmsg_build_payload(header, set.as_ptr()),
                Body::Elements(set) => sys::nftnl_set_elems_nlmsg_build_payload(header, set.as_ptr()),
                Body::Flowtable(table) => sys::nftnl_flowtable_nlmsg_build_payload(header, table.as_ptr()),
                Body::Attributes(bytes) => {
                    let end = buf.cast::<u8>().add(nfnetlink::BODY);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), end, bytes.len());
                    (*header).nlmsg_len += u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                }
            }
        }
    }
}

/// A buffer for one message of the largest size.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// 32-bit words, for the alignment of netlink headers.
    words: Vec<u32>,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { words: vec![0; nft_nlmsg_maxsize() as usize / 4 + 1] }
    }

    /// The last message that was written, padded to the alignment of the next one.
    fn message(&self) -> &[u8] {
        let len = self.words.first().copied().unwrap_or_default() as usize;
        let words = self.words.get(..len.div_ceil(4)).unwrap_or_default();
        // SAFETY: initialised words are initialised bytes, four to a word, and bytes need no alignment.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 4) }
    }
}

fn name(text: &str) -> Result<CString, Invalid> {
    if text.is_empty() {
        return Err(Invalid::NameEmpty);
    }
    if text.len() >= MAX_NAME {
        return Err(Invalid::NameTooLong);
    }
    CString::new(text).map_err(|_| Invalid::NameHasNul)
}

fn value_len(types: &[DataType]) -> Result<u32, Invalid> {
    match concat_len(types) {
        0 => Err(Invalid::NoType),
        len if len > MAX_VALUE => Err(Invalid::ValueTooLong),
        len => Ok(u32::try_from(len).unwrap_or(u32::MAX)),
    }
}

fn length_byte(part: DataType) -> u8 {
    u8::try_from(part.size()).unwrap_or(u8::MAX)
}

fn value(values: &[crate::value::Value]) -> Result<Vec<u8>, Invalid> {
    let types: Vec<DataType> = values.iter().map(crate::value::Value::data_type).collect();
    value_len(&types)?;
    Ok(encode_concat(values))
}

fn raw_table(table: &TableId) -> Result<raw::Table, Invalid> {
    let mut raw = raw::Table::new();
    raw.text(sys::NFTNL_TABLE_NAME, &name(&table.name)?);
    Ok(raw)
}

fn raw_chain(table: &TableId, chain: &str) -> Result<raw::Chain, Invalid> {
    let mut raw = raw::Chain::new();
    raw.text(sys::NFTNL_CHAIN_TABLE, &name(&table.name)?).text(sys::NFTNL_CHAIN_NAME, &name(chain)?);
    Ok(raw)
}

fn raw_rule(table: &TableId, chain: &str) -> Result<raw::Rule, Invalid> {
    let mut raw = raw::Rule::new();
    raw.text(sys::NFTNL_RULE_TABLE, &name(&table.name)?).text(sys::NFTNL_RULE_CHAIN, &name(chain)?);
    Ok(raw)
}

fn rule_of(table: &TableId, chain: &str, exprs: &[Expr]) -> Result<raw::Rule, Invalid> {
    let mut raw = raw_rule(table, chain)?;
    for expr in exprs {
        match expr {
            Expr::Lookup { set, .. } | Expr::Update { set, .. } => drop(name(set)?),
            Expr::Offload { flowtable } => drop(name(flowtable)?),
            Expr::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => drop(name(chain)?),
            _ => {}
        }
        raw.push(expr.build().into_raw());
    }
    Ok(raw)
}

fn raw_set(table: &TableId, set: &str) -> Result<raw::Set, Invalid> {
    let mut raw = raw::Set::new();
    raw.text(sys::NFTNL_SET_TABLE, &name(&table.name)?).text(sys::NFTNL_SET_NAME, &name(set)?);
    Ok(raw)
}

fn raw_flowtable(table: &TableId, flowtable: &str) -> Result<raw::Flowtable, Invalid> {
    let mut raw = raw::Flowtable::new();
    raw.text(sys::NFTNL_FLOWTABLE_TABLE, &name(&table.name)?)
        .text(sys::NFTNL_FLOWTABLE_NAME, &name(flowtable)?);
    Ok(raw)
}

fn add_flowtable(flowtable: &Flowtable) -> Result<Message, Invalid> {
    for text in [&flowtable.table.name, &flowtable.name] {
        name(text)?;
    }
    if flowtable.devices.len() > MAX_DEVICES {
        return Err(Invalid::TooManyLinks);
    }
    let mut devices = Vec::new();
    for links in &flowtable.devices {
        let (kind, text) = match links {
            Links::Named(text) => (uapi::DEVICE_NAME, text),
            Links::Beginning(text) => (uapi::DEVICE_PREFIX, text),
        };
        if name(text)?.as_bytes_with_nul().len() > MAX_LINK_NAME {
            return Err(Invalid::LinkNameTooLong);
        }
        devices.push((kind, text));
    }
    let body = Attributes::encode(|body| {
        body.text(uapi::FLOWTABLE_TABLE, &flowtable.table.name);
        body.text(uapi::FLOWTABLE_NAME, &flowtable.name);
        body.nest(uapi::FLOWTABLE_HOOK, |hook| {
            hook.be32(uapi::HOOK_NUMBER, INGRESS).be32(uapi::HOOK_PRIORITY, 0);
            if !devices.is_empty() {
                hook.nest(uapi::HOOK_DEVICES, |list| {
                    for (kind, text) in devices {
                        list.text(kind, text);
                    }
                });
            }
        });
        if flowtable.counter {
            body.be32(uapi::FLOWTABLE_FLAGS, uapi::FLOWTABLE_COUNTER);
        }
    });
    Ok(Message::add(&flowtable.table, NEW_FLOWTABLE, Create::OrKeep, Body::Attributes(body)))
}

fn add_table(table: &Table) -> Result<Message, Invalid> {
    let mut raw = raw_table(&table.id)?;
    // Sent like nft does, because this activates a dormant table.
    raw.u32(sys::NFTNL_TABLE_FLAGS, if table.owned { TABLE_OWNER } else { 0 });
    if let Some(comment) = &table.comment {
        let data = udata::encode(Some(comment), None)?;
        raw.data(sys::NFTNL_TABLE_USERDATA, &data);
    }
    Ok(Message::add(&table.id, NEW_TABLE, table.create, Body::Table(raw)))
}

fn add_chain(chain: &Chain) -> Result<Message, Invalid> {
    let mut raw = raw_chain(&chain.table, &chain.name)?;
    if let Some(base) = chain.base {
        raw.u32(sys::NFTNL_CHAIN_HOOKNUM, base.hook.number())
            .u32(sys::NFTNL_CHAIN_PRIO, base.priority.cast_unsigned())
            .u32(sys::NFTNL_CHAIN_POLICY, u32::from(base.policy == crate::object::Policy::Accept))
            .text(sys::NFTNL_CHAIN_TYPE, &name(base.kind.name())?);
    }
    if let Some(comment) = &chain.comment {
        let data = udata::encode(Some(comment), None)?;
        raw.data(sys::NFTNL_CHAIN_USERDATA, &data);
    }
    Ok(Message::add(&chain.table, NEW_CHAIN, chain.create, Body::Chain(raw)))
}

fn raw_element(id: &ElementId) -> Result<raw::SetElement, Invalid> {
    let mut raw = raw::SetElement::new();
    raw.data(sys::NFTNL_SET_ELEM_KEY, &value(&id.key)?);
    // A range of single values is stored as two elements instead, see `range_end`.
    if let (Some(end), [_, _, ..]) = (&id.key_end, id.key.as_slice()) {
        raw.data(sys::NFTNL_SET_ELEM_KEY_END, &value(end)?);
    }
    Ok(raw)
}

/// The end of a range in a set whose key is a single value. The kernel stores such a range as its first key and, with
/// a flag, the first key after the range.
fn range_end(id: &ElementId) -> Result<Option<raw::SetElement>, Invalid> {
    let (Some(end), [_]) = (&id.key_end, id.key.as_slice()) else {
        return Ok(None);
    };
    if end.len() != 1 || end.iter().any(|value| value.data_type().is_host_order()) {
        return Err(Invalid::NotOrdered);
    }
    let Some(after) = successor(&value(end)?) else {
        return Ok(None);
    };
    let mut raw = raw::SetElement::new();
    raw.data(sys::NFTNL_SET_ELEM_KEY, &after).u32(sys::NFTNL_SET_ELEM_FLAGS, uapi::INTERVAL_END);
    Ok(Some(raw))
}

fn elements(id: &ElementId, first: raw::SetElement) -> Result<Body, Invalid> {
    let mut set = raw_set(&id.table, &id.set)?;
    set.push(first);
    if let Some(end) = range_end(id)? {
        set.push(end);
    }
    Ok(Body::Elements(set))
}

fn add_element(element: &Element) -> Result<Message, Invalid> {
    let mut raw = raw_element(&element.id)?;
    match &element.data {
        ElementData::None => {}
        ElementData::Values(values) => {
            raw.data(sys::NFTNL_SET_ELEM_DATA, &value(values)?);
        }
        ElementData::Verdict(verdict) => {
            let (code, chain) = verdict_code(verdict);
            raw.u32(sys::NFTNL_SET_ELEM_VERDICT, code.cast_unsigned());
            if let Some(chain) = chain {
                raw.text(sys::NFTNL_SET_ELEM_CHAIN, &name(chain)?);
            }
        }
    }
    if let Some(time) = element.timeout {
        raw.u64(sys::NFTNL_SET_ELEM_TIMEOUT, u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    }
    let data = udata::encode(element.comment.as_deref(), element.tlv.as_ref());
    let data = data?;
    if !data.is_empty() {
        raw.data(sys::NFTNL_SET_ELEM_USERDATA, &data);
    }
    let body = elements(&element.id, raw)?;
    Ok(Message::add(&element.id.table, NEW_ELEMENT, element.create, body))
}

fn delete_element(id: &ElementId) -> Result<Message, Invalid> {
    Ok(Message::del(&id.table, DEL_ELEMENT, elements(id, raw_element(id)?)?))
}

fn add_anonymous_set(
    table: &TableId,
    set: &AnonymousSet,
    messages: &mut Vec<Message>,
) -> Result<(), Invalid> {
    let mut elements = Vec::new();
    let mut flags = uapi::SET_ANONYMOUS | SET_CONSTANT;
    let mut push = |key: &[u8], element_flags: u32| {
        let mut raw = raw::SetElement::new();
        raw.data(sys::NFTNL_SET_ELEM_KEY, key);
        if element_flags != 0 {
            raw.u32(sys::NFTNL_SET_ELEM_FLAGS, element_flags);
        }
        elements.push(raw);
    };
    match &set.content {
        Content::Values(values) => values.iter().for_each(|key| push(key, 0)),
        Content::Intervals(intervals) => {
            flags |= uapi::SET_INTERVAL;
            for (from, end) in intervals {
                push(from, 0);
                if let Some(end) = end {
                    push(end, uapi::INTERVAL_END);
                }
            }
        }
    }
    let mut raw = raw_set(table, ANONYMOUS_NAME)?;
    let data = udata::encode_set(&[set.key], &MapData::None, false, None)?;
    raw.u32(sys::NFTNL_SET_ID, set.id)
        .u32(sys::NFTNL_SET_FLAGS, flags)
        .u32(sys::NFTNL_SET_KEY_TYPE, concat_id(&[set.key]))
        .u32(sys::NFTNL_SET_KEY_LEN, value_len(&[set.key])?)
        .u32(sys::NFTNL_SET_DESC_SIZE, u32::try_from(elements.len()).unwrap_or(u32::MAX))
        .data(sys::NFTNL_SET_USERDATA, &data);
    messages.push(Message::add(table, NEW_SET, Create::OrKeep, Body::Set(raw)));
    let mut elements = elements.into_iter().peekable();
    while elements.peek().is_some() {
        let mut raw = raw_set(table, ANONYMOUS_NAME)?;
        raw.u32(sys::NFTNL_SET_ID, set.id);
        for element in elements.by_ref().take(ELEMENTS_PER_MESSAGE) {
            raw.push(element);
        }
        messages.push(Message::add(table, NEW_ELEMENT, Create::OrKeep, Body::Elements(raw)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn the_counter_flag_of_a_flowtable_decodes_to_the_same() {
        let table = TableId::new(Family::Inet, "t");
        for counter in [false, true] {
            let devices = [Links::Named("eth0".to_owned()), Links::Beginning("veth".to_owned())];
            let flowtable = Flowtable::new(&table, "flows", &devices).counter(counter);
            let Body::Attributes(body) = add_flowtable(&flowtable).unwrap().body else {
                panic!("attributes")
            };
            let read = parse::flowtable(Some(Family::Inet), &body).unwrap();
            assert_eq!((read.name.as_str(), read.counter), ("flows", counter));
            assert_eq!(read.devices, devices);
        }
    }
}
