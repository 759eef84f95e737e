// SPDX-License-Identifier: MIT OR Apache-2.0

//! Decodes and encodes single fields of documents, for use in serde's attributes, and formats decoding errors.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

use crate::text::parse_canonical_net;

/// Decodes an address with its prefix length. An IPv4-mapped address becomes the IPv4 address, as in the reference.
pub(crate) fn cidr<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNet, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_canonical_net(&text).ok_or_else(|| de::Error::custom(format!("invalid CIDR address: {text}")))
}

/// Decodes an optional address. The empty string means none, as in the reference.
pub(crate) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    let address: IpAddr =
        text.parse().map_err(|_| de::Error::custom(format!("invalid IP address: {text}")))?;
    Ok(Some(address.to_canonical()))
}

/// True for 0, which is omitted from the output.
pub(crate) fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The message of a JSON error. The most frequent one has the wording of the reference.
pub(crate) fn json_error(error: &serde_json::Error) -> String {
    if error.is_eof() { "unexpected end of JSON input".to_owned() } else { error.to_string() }
}
