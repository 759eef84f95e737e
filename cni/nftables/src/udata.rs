// SPDX-License-Identifier: GPL-2.0-or-later

//! Userdata that nft stores with its objects: entries of type, length and value, where type and length are one byte
//! each (`libnftnl/udata.h`). The kernel does not interpret userdata.

use crate::invalid::Invalid;
use crate::object::{MapData, Tlv};
use crate::value::{DataType, concat_len};

/// The most bytes of userdata that the kernel stores with a rule or element (`NFT_USERDATA_MAXLEN` in
/// `linux/netfilter/nf_tables.h`).
pub(crate) const MAX_LEN: usize = 256;

/// The longest comment that nft accepts (`NFTNL_UDATA_COMMENT_MAXLEN`).
pub(crate) const MAX_COMMENT: usize = 128;

/// Type of the comments of tables, chains, rules and elements
/// (`NFTNL_UDATA_{TABLE,CHAIN,RULE,SET_ELEM}_COMMENT`).
const COMMENT: u8 = 0;
/// `NFTNL_UDATA_SET_ELEM_FLAGS`.
const ELEMENT_FLAGS: u8 = 1;
/// `NFTNL_UDATA_SET_KEYBYTEORDER`.
const SET_KEY_BYTEORDER: u8 = 0;
/// `NFTNL_UDATA_SET_DATABYTEORDER`.
const SET_DATA_BYTEORDER: u8 = 1;
/// `NFTNL_UDATA_SET_COMMENT`.
const SET_COMMENT: u8 = 7;

fn put(out: &mut Vec<u8>, kind: u8, value: &[u8]) -> Result<(), Invalid> {
    let len = u8::try_from(value.len()).map_err(|_| Invalid::UserdataTooLong)?;
    out.extend([kind, len]);
    out.extend(value);
    if out.len() > MAX_LEN { Err(Invalid::UserdataTooLong) } else { Ok(()) }
}

fn put_comment(out: &mut Vec<u8>, kind: u8, comment: &str) -> Result<(), Invalid> {
    if comment.len() > MAX_COMMENT {
        return Err(Invalid::CommentTooLong);
    }
    if comment.contains('\0') {
        return Err(Invalid::CommentHasNul);
    }
    let mut text = comment.as_bytes().to_vec();
    text.push(0);
    put(out, kind, &text)
}

/// Encodes the userdata of a table, chain, rule or element.
pub(crate) fn encode(comment: Option<&str>, tlv: Option<&Tlv>) -> Result<Vec<u8>, Invalid> {
    let mut out = Vec::new();
    if let Some(comment) = comment {
        put_comment(&mut out, COMMENT, comment)?;
    }
    if let Some(Tlv { kind, bytes }) = tlv {
        put(&mut out, *kind, bytes)?;
    }
    Ok(out)
}

/// Encodes the userdata of a set: the byte orders that nft needs to print the elements, then the comment.
pub(crate) fn encode_set(
    key: &[DataType],
    data: &MapData,
    ranges: bool,
    comment: Option<&str>,
) -> Result<Vec<u8>, Invalid> {
    let mut out = Vec::new();
    put(&mut out, SET_KEY_BYTEORDER, &byteorder(key, ranges).to_ne_bytes())?;
    let data = match data {
        MapData::Values(types) => byteorder(types, false),
        MapData::None | MapData::Verdict => 0,
    };
    put(&mut out, SET_DATA_BYTEORDER, &data.to_ne_bytes())?;
    if let Some(comment) = comment {
        put_comment(&mut out, SET_COMMENT, comment)?;
    }
    Ok(out)
}

/// nft's `enum byteorder`: 0 is unknown (as for concatenations of exact keys), 1 is host, 2 is network.
fn byteorder(types: &[DataType], ranges: bool) -> u32 {
    match types {
        [single] if single.is_host_order() => 1,
        [single] => u32::from(concat_len(&[*single]) > 0) * 2,
        _ if ranges => 2,
        _ => 0,
    }
}

/// Iterates over the entries, as type and value. Ends at the first entry that is longer than the remaining bytes.
fn entries(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, len, rest @ ..] = bytes else {
            return None;
        };
        let (value, rest) = rest.split_at_checked(usize::from(*len))?;
        bytes = rest;
        Some((*kind, value))
    })
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

/// The comment in the userdata of a table, chain, rule or element.
pub(crate) fn comment(bytes: &[u8]) -> Option<String> {
    entries(bytes).find(|(kind, _)| *kind == COMMENT).map(|(_, value)| text(value))
}

/// The entries of an element's userdata, except for the comment and nft's flags.
pub(crate) fn tlvs(bytes: &[u8]) -> Vec<Tlv> {
    let others = entries(bytes).filter(|(kind, _)| *kind != COMMENT && *kind != ELEMENT_FLAGS);
    others.map(|(kind, value)| Tlv { kind, bytes: value.to_vec() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_and_tlv_round_trip() {
        let tlv = Tlv { kind: 200, bytes: vec![1, 2, 3] };
        let bytes = encode(Some("net a"), Some(&tlv)).unwrap();
        assert_eq!(bytes, b"\x00\x06net a\x00\xc8\x03\x01\x02\x03");
        assert_eq!(comment(&bytes).as_deref(), Some("net a"));
        assert_eq!(tlvs(&bytes), [tlv]);
    }

    #[test]
    fn limits_are_enforced() {
        assert_eq!(encode(Some(&"x".repeat(129)), None), Err(Invalid::CommentTooLong));
        assert_eq!(encode(Some("a\0b"), None), Err(Invalid::CommentHasNul));
        let tlv = Tlv { kind: 200, bytes: vec![0; 130] };
        assert_eq!(encode(Some(&"x".repeat(128)), Some(&tlv)), Err(Invalid::UserdataTooLong));
        assert_eq!(encode(None, Some(&Tlv { kind: 1, bytes: vec![0; 256] })), Err(Invalid::UserdataTooLong));
        assert!(encode(Some(&"x".repeat(128)), None).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_userdata_never_panics(bytes: Vec<u8>) {
            let total: usize = tlvs(&bytes).iter().map(|tlv| tlv.bytes.len() + 2).sum();
            proptest::prop_assert!(total <= bytes.len());
            let _ = comment(&bytes);
        }
    }
}
