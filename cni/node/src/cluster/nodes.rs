// SPDX-License-Identifier: GPL-3.0-or-later

//! A Node, read field by field.
//!
//! Each kubelet writes its own Node: no field is trusted, and no value is assumed to be short or well formed. Unusable
//! values are left out and listed in [`Node::unusable`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use cni_kernel::mac::Mac;
use cni_spec::address::{UNUSABLE_NETWORKS, overlap};
use cni_spec::text::parse_net;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use k8s_openapi::jiff::Timestamp;

use super::annotations::{Annotations, VXLAN_MAC, VXLAN_PORT, WIREGUARD_KEY, WIREGUARD_PORT};
use super::key;
use super::node_name::{NodeName, NodeNameError};
use super::object::{AnnotationFields, Field, List, NodeObject, Spec, Text};
use super::problem::ProblemKind;
use crate::excerpt::Excerpt;

/// `status.addresses[].type` of addresses by which the nodes reach each other.
const INTERNAL_IP: &str = "InternalIP";
/// The shortest pod CIDRs, IPv4 and IPv6: a shorter one would draw most of the world's addresses into one node.
const SHORTEST: [u8; 2] = [8, 32];

/// Networks in which no host and no pod has an address, besides [`UNUSABLE_NETWORKS`]: link-local addresses, the limited
/// broadcast (RFC 6890), and all of `::/8`, where mapped and translated IPv4 addresses are (RFC 4291, RFC 6052).
const RESERVED: [IpNet; 3] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::BROADCAST, 32)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 8)),
];

/// All Nodes by name.
pub type Nodes = BTreeMap<NodeName, Arc<Node>>;

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
    pub unusable: Vec<ProblemKind>,
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
    pub(crate) fn seniority(&self) -> (i64, &NodeName) {
        (self.created.unwrap_or(i64::MAX), &self.name)
    }
}

/// The value of a field, if it is there.
fn value<'a, T>(field: &'a Field<T>, path: &'static str, unusable: &mut Vec<ProblemKind>) -> Option<&'a T> {
    match field {
        Field::Is(value) => return Some(value),
        Field::Other => unusable.push(ProblemKind::FieldType { field: path }),
        Field::Missing => {}
    }
    None
}

/// The elements of a list.
fn elements<'a, T>(
    field: &'a Field<List<T>>,
    path: &'static str,
    unusable: &mut Vec<ProblemKind>,
) -> &'a [T] {
    let Some(list) = value(field, path, unusable) else { return &[] };
    if list.more > 0 {
        unusable.push(ProblemKind::TooMany { field: path, count: list.more });
    }
    &list.items
}

fn announced(announced: &AnnotationFields, unusable: &mut Vec<ProblemKind>) -> Annotations {
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
    unusable: &mut Vec<ProblemKind>,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let Text(text) = value(field, name, unusable)?;
    let parsed = parse(text);
    if parsed.is_none() {
        unusable.push(ProblemKind::Annotation { name, text: Excerpt::new(text) });
    }
    parsed
}

fn pod_cidrs(spec: &Spec, unusable: &mut Vec<ProblemKind>) -> Vec<IpNet> {
    let mut texts: Vec<&Field<Text>> = elements(&spec.pod_cidrs, "spec.podCIDRs", unusable).iter().collect();
    if texts.is_empty() {
        texts.push(&spec.pod_cidr);
    }
    let mut prefixes: Vec<IpNet> = Vec::new();
    for text in texts {
        let Some(Text(text)) = value(text, "spec.podCIDRs", unusable) else { continue };
        let Some(prefix) = parse_net(text).and_then(of_pods) else {
            unusable.push(ProblemKind::PodCidr { text: Excerpt::new(text) });
            continue;
        };
        if prefixes.iter().any(|other| other.addr().is_ipv4() == prefix.addr().is_ipv4()) {
            unusable.push(ProblemKind::SecondPodCidr { prefix });
        } else {
            prefixes.push(prefix);
        }
    }
    prefixes
}

/// The prefix without host bits, which the API server accepts; none if no pods can have it.
fn of_pods(prefix: IpNet) -> Option<IpNet> {
    let prefix = prefix.trunc();
    let shortest = SHORTEST[usize::from(prefix.addr().is_ipv6())];
    let is_free = reserved().all(|network| !overlap(network, &prefix));
    (prefix.prefix_len() >= shortest && is_free).then_some(prefix)
}

fn addresses(object: &NodeObject, unusable: &mut Vec<ProblemKind>) -> Vec<IpAddr> {
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
            None => unusable.push(ProblemKind::Address { text: Excerpt::new(text) }),
        }
    }
    addresses
}

fn is_of_host(address: &IpAddr) -> bool {
    reserved().all(|network| !network.contains(address))
}

fn reserved() -> impl Iterator<Item = &'static IpNet> {
    UNUSABLE_NETWORKS.iter().map(|(network, _)| network).chain(&RESERVED)
}
