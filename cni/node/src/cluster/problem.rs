// SPDX-License-Identifier: GPL-3.0-or-later

//! The reasons for which a Node, or a part of it, is left out.

use std::fmt;
use std::net::IpAddr;

use cni_kernel::AddressFamily;
use cni_kernel::mac::Mac;
use cni_kernel::route::PublicKey;
use ipnet::IpNet;

use super::key;
use super::node_name::NodeName;
use crate::excerpt::Excerpt;

/// Something unusable in a Node. Its length is bounded, whatever the Node contains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The Node.
    pub node: NodeName,
    /// The part of it, and the reason.
    pub kind: ProblemKind,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}: {}", self.node, self.kind)
    }
}

/// The part of a Node that is left out, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemKind {
    /// A field whose JSON value has another type than the API defines.
    FieldType {
        /// The field's path.
        field: &'static str,
    },
    /// A pod CIDR that is not a prefix, or that pods cannot have.
    PodCidr {
        /// The pod CIDR as the Node has it.
        text: Excerpt,
    },
    /// A second pod CIDR of a family, which the API forbids. The first counts.
    SecondPodCidr {
        /// The prefix that is left out.
        prefix: IpNet,
    },
    /// More pod CIDRs or addresses than are read.
    TooMany {
        /// The field's path.
        field: &'static str,
        /// The number that is left out.
        count: usize,
    },
    /// No pod CIDR: it was not allocated yet, or nothing allocates them.
    NoPodCidr,
    /// An InternalIP that is not an address, or that a host cannot have.
    Address {
        /// The InternalIP as the Node has it.
        text: Excerpt,
    },
    /// The network or broadcast address of an uplink's prefix as InternalIP.
    ReservedAddress {
        /// The InternalIP.
        address: IpAddr,
    },
    /// No InternalIP of the family that is needed.
    NoAddress {
        /// The family.
        family: AddressFamily,
    },
    /// An annotation of ours whose value is invalid.
    Annotation {
        /// The annotation's name.
        name: &'static str,
        /// The annotation's value.
        text: Excerpt,
    },
    /// An address of this node as InternalIP of another one, which is left out as a whole if the address is an InternalIP
    /// of this node or an uplink's with a subnet.
    OwnAddress {
        /// The address.
        address: IpAddr,
    },
    /// An InternalIP among the pods of a Node.
    AddressOfPods {
        /// The InternalIP.
        address: IpAddr,
        /// The pod CIDR that contains it.
        prefix: IpNet,
        /// The Node with this pod CIDR.
        of: NodeName,
    },
    /// An InternalIP among the addresses of Services.
    AddressOfServices {
        /// The InternalIP.
        address: IpAddr,
        /// The Services' prefix that contains it.
        prefix: IpNet,
    },
    /// An InternalIP within a prefix of the cluster's pods to which packets without an encrypted path are refused.
    AddressInCluster {
        /// The InternalIP.
        address: IpAddr,
        /// The prefix that contains it.
        prefix: IpNet,
    },
    /// An InternalIP that an older Node announces, too. It is used for both.
    SharedAddress {
        /// The InternalIP.
        address: IpAddr,
        /// The other Node.
        of: NodeName,
    },
    /// A pod CIDR that overlaps one of this node, or one that another Node holds.
    Overlap {
        /// The prefix that is left out.
        prefix: IpNet,
        /// The other prefix, which holds.
        with: IpNet,
        /// The Node with the other prefix.
        of: NodeName,
    },
    /// A pod CIDR that is not within those of the cluster, which are set for its family.
    OutsideCluster {
        /// The prefix that is left out.
        prefix: IpNet,
    },
    /// A pod CIDR that overlaps the prefix of an uplink of this node.
    OverlapsUplink {
        /// The prefix that is left out.
        prefix: IpNet,
        /// The uplink's prefix.
        with: IpNet,
    },
    /// A pod CIDR that overlaps the addresses of Services.
    OverlapsServices {
        /// The prefix that is left out.
        prefix: IpNet,
        /// The Services' prefix.
        with: IpNet,
    },
    /// A pod CIDR that contains an address of this node.
    ContainsAddress {
        /// The prefix that is left out.
        prefix: IpNet,
        /// The address.
        address: IpAddr,
        /// The Node with this address.
        of: NodeName,
    },
    /// A Node that is not on a link of this node, without tunnels.
    OffLink {
        /// The other node's InternalIP.
        address: IpAddr,
    },
    /// A Node that needs a tunnel and has no annotation with its MAC address.
    NoTunnel,
    /// A tunnel with another MAC address than the one that follows from the Node's name: it may be another node's.
    ForeignMac {
        /// The MAC address.
        mac: Mac,
        /// The MAC address that belongs to the name.
        expected: Mac,
    },
    /// A tunnel whose MAC address an older Node, or this one, has, too.
    SameMac {
        /// The MAC address.
        mac: Mac,
        /// The Node that keeps it.
        of: NodeName,
    },
    /// A Node without an annotation with a WireGuard key, where all traffic is to be encrypted.
    NoKey,
    /// A WireGuard key that another Node, or this one, held before.
    SameKey {
        /// The public key.
        key: PublicKey,
        /// The Node that keeps it.
        of: NodeName,
    },
    /// This node's own Node is missing.
    OwnNodeMissing,
    /// This node needs a tunnel, and none of its InternalIPs is on an uplink.
    NoUnderlay,
    /// The MTU that is left for pods is less than IPv6 needs (RFC 8200, section 5).
    SmallMtu {
        /// The MTU, in bytes.
        mtu: u32,
    },
}

impl ProblemKind {
    /// The Node whose claim holds, where another Node's is left out for it.
    #[must_use]
    pub const fn holder(&self) -> Option<&NodeName> {
        match self {
            Self::AddressOfPods { of, .. }
            | Self::SharedAddress { of, .. }
            | Self::Overlap { of, .. }
            | Self::ContainsAddress { of, .. }
            | Self::SameMac { of, .. }
            | Self::SameKey { of, .. } => Some(of),
            _ => None,
        }
    }

    /// The reason as one word, for metrics and JSON.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::FieldType { .. } => "field_type",
            Self::PodCidr { .. } => "pod_cidr",
            Self::SecondPodCidr { .. } => "second_pod_cidr",
            Self::TooMany { .. } => "too_many",
            Self::NoPodCidr => "no_pod_cidr",
            Self::Address { .. } => "address",
            Self::ReservedAddress { .. } => "reserved_address",
            Self::NoAddress { .. } => "no_address",
            Self::Annotation { .. } => "annotation",
            Self::OwnAddress { .. } => "own_address",
            Self::AddressOfPods { .. } => "address_of_pods",
            Self::AddressOfServices { .. } => "address_of_services",
            Self::AddressInCluster { .. } => "address_in_cluster",
            Self::SharedAddress { .. } => "shared_address",
            Self::Overlap { .. } => "overlap",
            Self::OutsideCluster { .. } => "outside_cluster",
            Self::OverlapsUplink { .. } => "overlaps_uplink",
            Self::OverlapsServices { .. } => "overlaps_services",
            Self::ContainsAddress { .. } => "contains_address",
            Self::OffLink { .. } => "off_link",
            Self::NoTunnel => "no_tunnel",
            Self::ForeignMac { .. } => "foreign_mac",
            Self::SameMac { .. } => "same_mac",
            Self::NoKey => "no_key",
            Self::SameKey { .. } => "same_key",
            Self::OwnNodeMissing => "own_node_missing",
            Self::NoUnderlay => "no_underlay",
            Self::SmallMtu { .. } => "small_mtu",
        }
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FieldType { field } => write!(f, "{field}: not of the type that the API defines"),
            Self::PodCidr { text } => write!(f, "pod CIDR {text}: not a prefix that pods can have"),
            Self::SecondPodCidr { prefix } => write!(f, "pod CIDR {prefix}: the second of its family"),
            Self::TooMany { field, count } => write!(f, "{field}: {count} more than are read"),
            Self::NoPodCidr => write!(f, "no pod CIDR"),
            Self::Address { text } => write!(f, "InternalIP {text}: not an address that a host can have"),
            Self::ReservedAddress { address } => {
                write!(f, "InternalIP {address}: the network or broadcast address of an uplink's prefix")
            }
            Self::NoAddress { family } => write!(f, "no InternalIP of family {family}"),
            Self::Annotation { name, text } => write!(f, "annotation {name}: invalid value {text}"),
            Self::OwnAddress { address } => write!(f, "InternalIP {address} is an address of this node"),
            Self::AddressOfPods { address, prefix, of } => {
                write!(f, "InternalIP {address} is within pod CIDR {prefix} of node {of}")
            }
            Self::AddressOfServices { address, prefix } => {
                write!(f, "InternalIP {address} is within --service-cidr {prefix}")
            }
            Self::AddressInCluster { address, prefix } => write!(
                f,
                "InternalIP {address} is within --cluster-cidr {prefix}, where packets without an encrypted path are refused"
            ),
            Self::SharedAddress { address, of } => {
                write!(f, "InternalIP {address} is announced by node {of}, too")
            }
            Self::Overlap { prefix, with, of } => {
                write!(f, "pod CIDR {prefix} overlaps pod CIDR {with} of node {of}")
            }
            Self::OutsideCluster { prefix } => {
                write!(f, "pod CIDR {prefix} is not within --cluster-cidr")
            }
            Self::OverlapsUplink { prefix, with } => {
                write!(f, "pod CIDR {prefix} overlaps prefix {with} of an uplink of this node")
            }
            Self::OverlapsServices { prefix, with } => {
                write!(f, "pod CIDR {prefix} overlaps --service-cidr {with}")
            }
            Self::ContainsAddress { prefix, address, of } => {
                write!(f, "pod CIDR {prefix} contains address {address} of node {of}")
            }
            Self::OffLink { address } => {
                write!(f, "InternalIP {address} is on no link of this node, and tunnels are off")
            }
            Self::NoTunnel => write!(f, "does not announce a tunnel"),
            Self::ForeignMac { mac, expected } => {
                write!(f, "tunnel MAC {mac} is not {expected}, which follows from the node's name")
            }
            Self::SameMac { mac, of } => write!(f, "tunnel MAC {mac} is announced by node {of}, too"),
            Self::NoKey => {
                write!(
                    f,
                    "does not announce a WireGuard key: packets to its pods are refused, not sent in clear text"
                )
            }
            Self::SameKey { key, of } => {
                write!(f, "WireGuard key {} is announced by node {of}, too", key::text(key))
            }
            Self::OwnNodeMissing => write!(f, "the API server has no Node of this name"),
            Self::NoUnderlay => write!(f, "tunnels are needed, and no InternalIP is on an uplink"),
            Self::SmallMtu { mtu } => write!(f, "MTU {mtu} is below the 1280 bytes that IPv6 needs"),
        }
    }
}
