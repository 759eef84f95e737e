// SPDX-License-Identifier: MIT OR Apache-2.0

//! The decoders of routing netlink, for fuzzing.

use std::collections::VecDeque;
use std::fmt::Debug;

use cni_netlink::message::{find, u16_of};

use super::traffic::TokenBucket;
use super::{address, bridge, filter, link, neighbour, notify, path, rule, wireguard};

/// A link.
pub fn link(payload: &[u8]) -> impl Debug {
    link::decode(payload)
}

/// An address of a link.
pub fn address(payload: &[u8]) -> impl Debug {
    address::decode(payload)
}

/// A route: of any table, and of the main table only.
pub fn route(payload: &[u8]) -> impl Debug {
    let all = path::decode(payload, 0);
    let main = path::decode(payload, super::MAIN_TABLE);
    if let (Ok(all), Ok(main)) = (&all, &main) {
        assert!(main.iter().all(|route| all.contains(route)));
        // Each next hop takes eight bytes of the message.
        assert!(all.len() <= 1 + payload.len() / 8);
    }
    all
}

/// A rule of the policy database.
pub fn rule(payload: &[u8]) -> impl Debug {
    rule::decode(payload)
}

/// A neighbour, and an entry of a bridge's or tunnel's forwarding database. The first byte is the link's index.
pub fn neighbour(bytes: &[u8]) -> impl Debug {
    let (link, payload) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    (neighbour::decode_any(payload), neighbour::decode_fdb(payload, link.into()))
}

/// The VLANs of a bridge's port. The first byte is the link's index.
pub fn vlans(bytes: &[u8]) -> impl Debug {
    let (link, payload) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    bridge::decode_vlans(payload, link.into())
}

/// A filter at a link's ingress, and the parameters of a token bucket.
pub fn traffic_control(payload: &[u8]) -> impl Debug {
    let options = find(payload, 2).unwrap_or_default();
    (filter::ingress_filter(payload), TokenBucket::decode(options))
}

/// A WireGuard device with its peers.
pub fn wireguard(payload: &[u8]) -> impl Debug {
    wireguard::decode(payload)
}

/// A notification. The first two bytes are the message's type.
pub fn notification(bytes: &[u8]) -> impl Debug {
    let (kind, payload) = bytes.split_at_checked(2).unwrap_or_default();
    let mut found = VecDeque::new();
    let end = notify::decode(u16_of(kind), payload, &mut found);
    (end, found)
}
