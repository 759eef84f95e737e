// SPDX-License-Identifier: GPL-2.0-or-later

//! The decoders of the kernel's messages, for fuzzing. Each takes arbitrary bytes and returns what it has read. The
//! first byte of a message is the family, as in `struct nfgenmsg`; the attributes follow.

use std::fmt::Debug;

use cni_netlink::message::{be32, messages};

use crate::nfnetlink::split;
use crate::object::Family;
use crate::value::{concat_from_id, decode_concat, encode_concat};
use crate::{conntrack, intervals, notify, parse, trace, udata};

fn split_family(bytes: &[u8]) -> (Option<Family>, &[u8]) {
    let (family, body) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    (Family::from_number(family), body)
}

/// A table, a chain and a flowtable.
pub fn objects(bytes: &[u8]) -> impl Debug {
    let (family, body) = split_family(bytes);
    (parse::table(family, body), parse::chain(family, body), parse::flowtable(family, body))
}

/// A rule.
pub fn rule(bytes: &[u8]) -> impl Debug {
    let (family, body) = split_family(bytes);
    let rule = parse::rule(family, body);
    let statements = rule.iter().flat_map(|rule| &rule.stmts).flatten();
    // Printed, because `slipway explain` prints statements for people.
    let printed: Vec<String> = statements.map(ToString::to_string).collect();
    (rule, printed)
}

/// A set and its elements. The first half of the input is the message about the set, the second half the list.
pub fn elements(bytes: &[u8]) -> impl Debug {
    let (family, rest) = split_family(bytes);
    let (about, list) = match rest.split_first_chunk::<2>() {
        Some((length, rest)) => rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len())),
        None => (rest, &[][..]),
    };
    let set = parse::set(family, about);
    let mut found = Vec::new();
    if let Some(set) = &set {
        parse::elements(list, set, |element| {
            assert_eq!(Some(element.key.len()), set.key.as_ref().map(Vec::len), "{element:?}");
            found.push(element);
        });
    }
    let mut bounds = std::collections::BTreeMap::new();
    parse::bounds(list, |key, is_end| {
        bounds.insert(key, is_end);
    });
    let kind = set.as_ref().and_then(|set| set.key.as_deref()).and_then(|types| types.first().copied());
    let ranges = kind.map(|kind| intervals::ranges(kind, &bounds));
    assert!(ranges.as_ref().is_none_or(|ranges| ranges.len() <= bounds.len()));
    (set, found, ranges)
}

/// A value of a set's key. The first four bytes name the types.
pub fn key(bytes: &[u8]) -> Option<impl Debug> {
    let (id, value) = bytes.split_at_checked(4).unwrap_or_default();
    let types = be32(id).and_then(concat_from_id)?;
    let values = decode_concat(&types, value)?;
    let again = decode_concat(&types, &encode_concat(&values));
    assert_eq!(again.as_ref(), Some(&values), "a key is another one when it is written again");
    Some(values)
}

/// The userdata of an object: its comment, and an owner's entries.
pub fn userdata(bytes: &[u8]) -> impl Debug {
    let (comment, tlvs) = (udata::comment(bytes), udata::tlvs(bytes));
    if let Ok(encoded) = udata::encode(comment.as_deref(), tlvs.first()) {
        assert_eq!(udata::comment(&encoded), comment);
        assert!(tlvs.first().is_none_or(|first| udata::tlvs(&encoded).first() == Some(first)));
    }
    (comment, tlvs)
}

/// The notifications in a datagram.
pub fn notifications(datagram: &[u8]) -> impl Debug {
    let messages = messages(datagram).map(|(header, payload)| {
        let (family, body) = split(payload);
        (header.kind & 0xff, family, body)
    });
    notify::read(messages)
}

/// An event of a packet's trace.
pub fn trace_event(bytes: &[u8]) -> impl Debug {
    let (family, body) = split_family(bytes);
    trace::event(family, body)
}

/// A flow of conntrack.
pub fn flow(body: &[u8]) -> impl Debug {
    conntrack::flow(body)
}
