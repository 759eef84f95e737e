// SPDX-License-Identifier: GPL-2.0-or-later

//! Encodes operands: values, prefixes, ranges, and sets of these.

use std::collections::BTreeMap;

use crate::invalid::Invalid;
use crate::stmt::Operand;
use crate::value::{DataType, Value, encode_concat};

/// The elements of an anonymous set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Values(Vec<Vec<u8>>),
    /// Sorted and disjoint intervals, each with its first key and the first key after it (none if the interval has no
    /// end).
    Intervals(Vec<(Vec<u8>, Option<Vec<u8>>)>),
}

/// Encodes a value of the given type.
pub(crate) fn checked(value: &Value, data_type: DataType) -> Result<Vec<u8>, Invalid> {
    if value.data_type() != data_type {
        return Err(Invalid::WrongType);
    }
    Ok(encode_concat(std::slice::from_ref(value)))
}

/// A mask of `bits` leading ones in `len` bytes.
pub(crate) fn prefix_mask(len: usize, bits: u8) -> Result<Vec<u8>, Invalid> {
    if usize::from(bits) > len * 8 {
        return Err(Invalid::PrefixTooLong);
    }
    let full = usize::from(bits / 8);
    let mut mask = vec![0xff; full];
    if !bits.is_multiple_of(8) {
        mask.push(0xff << (8 - bits % 8));
    }
    mask.resize(len, 0);
    Ok(mask)
}

/// Encodes the first and the last value of a range.
pub(crate) fn interval(data_type: DataType, from: &Value, to: &Value) -> Result<(Vec<u8>, Vec<u8>), Invalid> {
    if data_type.is_host_order() {
        return Err(Invalid::NotOrdered);
    }
    let (from, to) = (checked(from, data_type)?, checked(to, data_type)?);
    if from > to { Err(Invalid::RangeBackwards) } else { Ok((from, to)) }
}

/// Encodes the elements of an anonymous set. They become intervals if any element is a prefix or range.
pub(crate) fn content(key: DataType, elements: &[Operand]) -> Result<Content, Invalid> {
    fn single(element: &Operand) -> Option<&Value> {
        match element {
            Operand::Value(value) => Some(value),
            _ => None,
        }
    }
    if let Some(plain) = elements.iter().map(single).collect::<Option<Vec<&Value>>>() {
        if plain.iter().any(|value| matches!(value, Value::IfnamePrefix(_))) {
            return Err(Invalid::PatternInSet);
        }
        let mut values = plain.into_iter().map(|value| checked(value, key)).collect::<Result<Vec<_>, _>>()?;
        values.sort();
        values.dedup();
        return Ok(Content::Values(values));
    }
    let mut intervals: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for element in elements {
        let (from, to) = match element {
            Operand::Value(value) => interval(key, value, value)?,
            Operand::Range(from, to) => interval(key, from, to)?,
            Operand::Prefix(value, bits) => {
                let from = interval(key, value, value)?.0;
                let mask = prefix_mask(from.len(), *bits)?;
                let to = from.iter().zip(&mask).map(|(byte, mask)| byte | !mask).collect();
                (from, to)
            }
            Operand::OneOf(_) | Operand::Set(_) => return Err(Invalid::SetInSet),
        };
        let end = intervals.entry(from).or_insert_with(|| to.clone());
        *end = to.max(end.clone());
    }
    Ok(Content::Intervals(merge(intervals)))
}

/// Merges intervals that overlap or touch.
fn merge(intervals: BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut merged: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
    for (from, to) in intervals {
        let end = successor(&to);
        match merged.last_mut() {
            // An interval without an end contains everything that follows.
            Some((_, last)) if last.as_ref().is_none_or(|last| from <= *last) => {
                if last.is_some() && (end.is_none() || end > *last) {
                    *last = end;
                }
            }
            _ => merged.push((from, end)),
        }
    }
    merged
}

/// The first and the last key of each range, from the bounds of a set. `bounds` has the encoded keys, with true for a
/// key with which no range begins. The last range may have no end.
pub(crate) fn ranges(kind: DataType, bounds: &BTreeMap<Vec<u8>, bool>) -> Vec<(Value, Value)> {
    let mut found = Vec::new();
    let mut next = bounds.keys().skip(1);
    for (from, is_end) in bounds {
        let last = next.next().map_or_else(|| Some(vec![0xff; from.len()]), |after| predecessor(after));
        let range = last.and_then(|last| Some((Value::decode(kind, from)?, Value::decode(kind, &last)?)));
        found.extend(range.filter(|_| !is_end));
    }
    found
}

/// The preceding big-endian number. None for the first one.
fn predecessor(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut previous = bytes.to_vec();
    for byte in previous.iter_mut().rev() {
        let (rest, borrow) = byte.overflowing_sub(1);
        *byte = rest;
        if !borrow {
            return Some(previous);
        }
    }
    None
}

/// The next big-endian number. None for the last one.
pub(crate) fn successor(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut next = bytes.to_vec();
    for byte in next.iter_mut().rev() {
        let (sum, carry) = byte.overflowing_add(1);
        *byte = sum;
        if !carry {
            return Some(next);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_from_their_bounds() {
        let bounds = |all: &[([u8; 4], bool)]| all.iter().map(|(key, end)| (key.to_vec(), *end)).collect();
        let read = |all: &[([u8; 4], bool)]| ranges(DataType::Ipv4Addr, &bounds(all));
        let range = |from: [u8; 4], to: [u8; 4]| (Value::Ipv4(from.into()), Value::Ipv4(to.into()));
        assert_eq!(read(&[]), []);
        assert_eq!(
            read(&[
                ([10, 0, 0, 0], false),
                ([11, 0, 0, 0], true),
                ([192, 0, 2, 0], false),
                ([192, 0, 3, 0], true)
            ]),
            [range([10, 0, 0, 0], [10, 255, 255, 255]), range([192, 0, 2, 0], [192, 0, 2, 255])]
        );
        // The kernel's dump may begin with the end of a range at zero.
        let open = [([0, 0, 0, 0], true), ([10, 0, 0, 0], false), ([10, 0, 1, 0], false)];
        assert_eq!(read(&open), [range([10, 0, 0, 0], [10, 0, 0, 255]), range([10, 0, 1, 0], [255; 4])]);
        assert_eq!(read(&[([0, 0, 0, 0], false)]), [range([0; 4], [255; 4])]);
    }

    #[test]
    fn intervals_are_merged() {
        let port = |from, to| Operand::Range(Value::Port(from), Value::Port(to));
        let elements =
            [port(5, 9), Operand::Value(Value::Port(10)), port(7, 8), port(100, u16::MAX), port(200, 300)];
        let merged = content(DataType::InetService, &elements).unwrap();
        let expected = vec![(vec![0, 5], Some(vec![0, 11])), (vec![0, 100], None)];
        assert_eq!(merged, Content::Intervals(expected));
    }
}
