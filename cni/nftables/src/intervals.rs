//! Right-hand sides as bytes: values, prefixes, ranges, and sets of these.

use std::collections::BTreeMap;

use crate::stmt::Operand;
use crate::value::{DataType, Value, encode_concat};

/// The elements of an anonymous set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Values(Vec<Vec<u8>>),
    /// Sorted, disjoint: the first key in, the first key out (none if the interval never ends).
    Intervals(Vec<(Vec<u8>, Option<Vec<u8>>)>),
}

/// The value's bytes, if it is of that type.
pub(crate) fn checked(value: &Value, data_type: DataType) -> Result<Vec<u8>, &'static str> {
    if value.data_type() != data_type {
        return Err("a value is of another type than its field");
    }
    Ok(encode_concat(std::slice::from_ref(value)))
}

/// A mask of that many leading bits.
pub(crate) fn prefix_mask(len: usize, bits: u8) -> Result<Vec<u8>, &'static str> {
    if usize::from(bits) > len * 8 {
        return Err("the prefix is longer than the address");
    }
    let full = usize::from(bits / 8);
    let mut mask = vec![0xff; full];
    if !bits.is_multiple_of(8) {
        mask.push(0xff << (8 - bits % 8));
    }
    mask.resize(len, 0);
    Ok(mask)
}

/// First and last value of a range.
pub(crate) fn interval(
    data_type: DataType,
    from: &Value,
    to: &Value,
) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
    if data_type.is_host_order() {
        return Err("values of this type have no order");
    }
    let (from, to) = (checked(from, data_type)?, checked(to, data_type)?);
    if from > to { Err("the range ends before it begins") } else { Ok((from, to)) }
}

/// What an anonymous set holds: plain values, or, if there is any prefix or range, intervals.
pub(crate) fn content(key: DataType, elements: &[Operand]) -> Result<Content, &'static str> {
    let plain = elements.iter().all(|element| matches!(element, Operand::Value(_)));
    if plain {
        let mut values = Vec::with_capacity(elements.len());
        for element in elements {
            match element {
                Operand::Value(Value::IfnamePrefix(_)) => return Err("a set cannot hold a pattern"),
                Operand::Value(value) => values.push(checked(value, key)?),
                _ => return Err("unexpected element"),
            }
        }
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
            Operand::OneOf(_) | Operand::Set(_) => return Err("a set cannot hold a set"),
        };
        let end = intervals.entry(from).or_insert_with(|| to.clone());
        *end = to.max(end.clone());
    }
    Ok(Content::Intervals(merge(intervals)))
}

/// Joins intervals that overlap or touch.
fn merge(intervals: BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut merged: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
    for (from, to) in intervals {
        let end = successor(&to);
        match merged.last_mut() {
            // An end of none is beyond everything.
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

/// The next number, big-endian; none after the last.
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
    fn intervals_are_merged() {
        let port = |from, to| Operand::Range(Value::Port(from), Value::Port(to));
        let elements =
            [port(5, 9), Operand::Value(Value::Port(10)), port(7, 8), port(100, u16::MAX), port(200, 300)];
        let merged = content(DataType::InetService, &elements).unwrap();
        let expected = vec![(vec![0, 5], Some(vec![0, 11])), (vec![0, 100], None)];
        assert_eq!(merged, Content::Intervals(expected));
    }
}
