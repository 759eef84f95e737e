// SPDX-License-Identifier: GPL-3.0-or-later

//! A Node, read field by field.
//!
//! Each kubelet writes its own Node: no field is trusted, and no value is assumed to be short or well formed. Unusable
//! values are left out and listed in [`Node::unusable`].

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::str::FromStr;
use std::sync::Arc;

use cni_kernel::mac::Mac;
use cni_kernel::route::PublicKey;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use k8s_openapi::jiff::Timestamp;

use super::key;
use super::object::{Announced, Field, List, NodeObject, Spec, Text};
use super::problem::{Excerpt, What};

/// The annotation with the MAC address of the node's VXLAN device.
///
/// All annotations of the project have the prefix `slipway.internal`. The prefix must be a domain name; `internal` is
/// reserved for private use (ICANN, resolution 2024.07.29.06), so that no other project can own it.
pub const VXLAN_MAC: &str = "slipway.internal/vxlan-mac";
/// The annotation with the UDP port on which the node's VXLAN device receives.
pub const VXLAN_PORT: &str = "slipway.internal/vxlan-port";
/// The annotation with the public key of the node's WireGuard device, 32 bytes in base64 (RFC 4648, section 4).
pub const WIREGUARD_KEY: &str = "slipway.internal/wireguard-key";
/// The annotation with the UDP port on which the node's WireGuard device receives.
pub const WIREGUARD_PORT: &str = "slipway.internal/wireguard-port";

/// `status.addresses[].type` of addresses by which the nodes reach each other.
const INTERNAL_IP: &str = "InternalIP";
/// The most characters of an object's name (RFC 1123, section 2.1, less the length byte and the root).
const NAME: usize = 253;
/// The shortest pod CIDRs, IPv4 and IPv6: a shorter one would draw most of the world's addresses into one node.
const SHORTEST: [u8; 2] = [8, 32];

/// Addresses that no host and no pod has: "this network", the loopback, link-local addresses and groups (RFC 6890); and
/// with IPv6 all of `::/8`, where mapped and translated IPv4 addresses are (RFC 4291, RFC 6052).
const RESERVED: [IpNet; 8] = [
    v4([0, 0, 0, 0], 8),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([224, 0, 0, 0], 4),
    v4([255, 255, 255, 255], 32),
    v6(0, 8),
    v6(0xfe80, 10),
    v6(0xff00, 8),
];

const fn v4([a, b, c, d]: [u8; 4], length: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length))
}

const fn v6(first: u16, length: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0), length))
}

/// All Nodes by name.
pub type Nodes = BTreeMap<NodeName, Arc<Node>>;

/// The name of a Node: a DNS subdomain (RFC 1123), as the API server demands it. Clones share the text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

/// An invalid name of a Node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node name {0}: not a DNS subdomain of lower-case letters, digits, \"-\" and \".\"")]
pub struct NodeNameError(Excerpt);

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(text: &str) -> Result<Self, NodeNameError> {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_label = |label: &str| {
            let ends = [label.bytes().next(), label.bytes().last()];
            ends.iter().all(|end| end.is_some_and(is_inner))
                && label.bytes().all(|byte| is_inner(byte) || byte == b'-')
        };
        if text.len() <= NAME && text.split('.').all(is_label) {
            Ok(Self(text.into()))
        } else {
            Err(NodeNameError(Excerpt::new(text)))
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A Node, as far as routes and tunnels need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: NodeName,
    /// `metadata.uid`, which no two Nodes have; empty if it is missing.
    pub uid: Box<str>,
    /// `metadata.creationTimestamp` in seconds since 1970. The API server sets it, and no client can change it.
    pub created: Option<i64>,
    /// `spec.podCIDRs`, or else `spec.podCIDR`: one prefix of each family at most, in order, without host bits.
    pub pod_cidrs: Vec<IpNet>,
    /// The InternalIPs of `status.addresses`, in order.
    pub addresses: Vec<IpAddr>,
    /// The node's own annotations.
    pub annotations: Annotations,
    /// The values that were left out.
    pub unusable: Vec<What>,
}

/// A node's announcement of its tunnels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Annotations {
    /// The MAC address of its VXLAN device.
    pub vxlan_mac: Option<Mac>,
    /// The port on which its VXLAN device receives.
    pub vxlan_port: Option<NonZeroU16>,
    /// The public key of its WireGuard device.
    pub wireguard_key: Option<PublicKey>,
    /// The port on which its WireGuard device receives.
    pub wireguard_port: Option<NonZeroU16>,
}

impl Annotations {
    /// Names and values for the Node. Values that are missing are none: they delete the annotation in a merge patch.
    #[must_use]
    pub fn values(&self) -> [(&'static str, Option<String>); 4] {
        [
            (VXLAN_MAC, self.vxlan_mac.map(|mac| mac.to_string())),
            (VXLAN_PORT, self.vxlan_port.map(|port| port.to_string())),
            (WIREGUARD_KEY, self.wireguard_key.map(|key| key::text(&key))),
            (WIREGUARD_PORT, self.wireguard_port.map(|port| port.to_string())),
        ]
    }
}

impl Node {
    /// Reads a Node.
    ///
    /// # Errors
    /// [`NodeNameError`] if it has no valid name.
    pub(super) fn read(object: &NodeObject) -> Result<Self, NodeNameError> {
        let mut unusable = Vec::new();
        let metadata = value(&object.metadata, "metadata", &mut unusable);
        let name = metadata.and_then(|metadata| metadata.name.text()).unwrap_or_default().parse()?;
        let uid = metadata.and_then(|metadata| metadata.uid.text()).unwrap_or_default().into();
        let created = metadata.and_then(|metadata| metadata.creation_timestamp.text());
        let created = created.and_then(|text| text.parse::<Timestamp>().ok()).map(Timestamp::as_second);
        let annotations =
            metadata.and_then(|it| value(&it.annotations, "metadata.annotations", &mut unusable));
        let annotations = annotations.map(|it| announced(it, &mut unusable)).unwrap_or_default();
        let spec = value(&object.spec, "spec", &mut unusable);
        let pod_cidrs = spec.map(|spec| pod_cidrs(spec, &mut unusable)).unwrap_or_default();
        let addresses = addresses(object, &mut unusable);
        Ok(Self { name, uid, created, pod_cidrs, addresses, annotations, unusable })
    }

    /// The order in which Nodes claim prefixes and addresses: the oldest first, those without a time last.
    #[must_use]
    pub fn seniority(&self) -> (i64, &NodeName) {
        (self.created.unwrap_or(i64::MAX), &self.name)
    }
}

/// The value of a field, if it is there.
fn value<'a, T>(field: &'a Field<T>, path: &'static str, unusable: &mut Vec<What>) -> Option<&'a T> {
    match field {
        Field::Is(value) => return Some(value),
        Field::Other => unusable.push(What::FieldType { field: path }),
        Field::Missing => {}
    }
    None
}

/// The elements of a list.
fn elements<'a, T>(field: &'a Field<List<T>>, path: &'static str, unusable: &mut Vec<What>) -> &'a [T] {
    let Some(list) = value(field, path, unusable) else { return &[] };
    if list.more > 0 {
        unusable.push(What::TooMany { field: path, count: list.more });
    }
    &list.items
}

fn announced(announced: &Announced, unusable: &mut Vec<What>) -> Annotations {
    let is_of_link = |mac: &Mac| !mac.is_zero() && !mac.is_multicast();
    Annotations {
        vxlan_mac: annotation(&announced.mac, VXLAN_MAC, unusable, |text| {
            text.parse().ok().filter(is_of_link)
        }),
        vxlan_port: annotation(&announced.port, VXLAN_PORT, unusable, |text| text.parse().ok()),
        wireguard_key: annotation(&announced.wireguard_key, WIREGUARD_KEY, unusable, key::parse),
        wireguard_port: annotation(&announced.wireguard_port, WIREGUARD_PORT, unusable, |text| {
            text.parse().ok()
        }),
    }
}

fn annotation<T>(
    field: &Field<Text>,
    name: &'static str,
    unusable: &mut Vec<What>,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let Text(text) = value(field, name, unusable)?;
    let parsed = parse(text);
    if parsed.is_none() {
        unusable.push(What::Annotation { name, text: Excerpt::new(text) });
    }
    parsed
}

fn pod_cidrs(spec: &Spec, unusable: &mut Vec<What>) -> Vec<IpNet> {
    let mut texts: Vec<&Field<Text>> = elements(&spec.pod_cidrs, "spec.podCIDRs", unusable).iter().collect();
    if texts.is_empty() {
        texts.push(&spec.pod_cidr);
    }
    let mut prefixes: Vec<IpNet> = Vec::new();
    for text in texts {
        let Some(Text(text)) = value(text, "spec.podCIDRs", unusable) else { continue };
        let Some(prefix) = parse_prefix(text).and_then(of_pods) else {
            unusable.push(What::PodCidr { text: Excerpt::new(text) });
            continue;
        };
        if prefixes.iter().any(|other| other.addr().is_ipv4() == prefix.addr().is_ipv4()) {
            unusable.push(What::SecondPodCidr { prefix });
        } else {
            prefixes.push(prefix);
        }
    }
    prefixes
}

/// A prefix. `IpNet` itself reads parts with leading zeros as decimal numbers, where other programs read octal ones.
fn parse_prefix(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    let is_number = length.bytes().all(|byte| byte.is_ascii_digit());
    let length = length.parse().ok().filter(|_| is_number)?;
    IpNet::new(address.parse().ok()?, length).ok()
}

/// The prefix without host bits, which the API server accepts; none if no pods can have it.
fn of_pods(prefix: IpNet) -> Option<IpNet> {
    let prefix = prefix.trunc();
    let shortest = SHORTEST[usize::from(prefix.addr().is_ipv6())];
    let is_free = RESERVED.iter().all(|reserved| !overlap(reserved, &prefix));
    (prefix.prefix_len() >= shortest && is_free).then_some(prefix)
}

fn addresses(object: &NodeObject, unusable: &mut Vec<What>) -> Vec<IpAddr> {
    const PATH: &str = "status.addresses";
    let Some(status) = value(&object.status, "status", unusable) else { return Vec::new() };
    let mut addresses = Vec::new();
    for element in elements(&status.addresses, PATH, unusable) {
        let Some(element) = value(element, PATH, unusable) else { continue };
        if element.kind.text() != Some(INTERNAL_IP) {
            continue;
        }
        let Some(Text(text)) = value(&element.address, PATH, unusable) else { continue };
        match text.parse().ok().filter(is_of_host) {
            Some(address) if addresses.contains(&address) => {}
            Some(address) => addresses.push(address),
            None => unusable.push(What::Address { text: Excerpt::new(text) }),
        }
    }
    addresses
}

fn is_of_host(address: &IpAddr) -> bool {
    RESERVED.iter().all(|reserved| !reserved.contains(address))
}

/// True if two prefixes have an address in common.
pub(super) fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}
