// SPDX-License-Identifier: GPL-2.0-or-later

//! The differences that CHECK finds between a request and the kernel.

use std::net::IpAddr;

use cni_kernel::mac::Mac;
use cni_spec::Attachment;
use ipnet::IpNet;

use crate::Owner;

/// A difference between a request and the kernel's state.
#[derive(Debug, thiserror::Error)]
pub enum Difference {
    #[error("table {0} is missing")]
    NoTable(&'static str),
    #[error("chains of table {0} are emptied, changed or unhooked")]
    DamagedChains(&'static str),
    #[error("{element} is missing from map {map}")]
    NoElement {
        /// The port or address, with its owner.
        element: String,
        map: &'static str,
    },
    #[error("{element} belongs to {} in {map}", .owner.as_ref().map_or_else(|| "no owner".to_owned(), ToString::to_string))]
    OtherOwner {
        /// The port or address, and the owner that should have it.
        element: String,
        /// The owner of the element that was found, or none if the element was made by hand.
        owner: Option<Box<Owner>>,
        /// The map or set that was searched.
        map: &'static str,
    },
    #[error("{element} leads elsewhere in map {map}")]
    OtherTarget {
        /// The port or address, with its owner.
        element: String,
        map: &'static str,
    },
    /// The networks to which a container's packets keep their source are not those of the configuration.
    #[error("{element}: {difference}")]
    Exemption {
        /// The address, with its owner.
        element: String,
        difference: ExemptDifference,
    },
    /// In the chains of the iptables backend, packets to a network keep their source although they should not.
    #[error(transparent)]
    ExemptNetwork(ExemptDifference),
    #[error("chain {chain} of table {table} has {found} rules instead of {expected}")]
    RuleCount {
        chain: String,
        table: &'static str,
        found: usize,
        /// The number of rules that the request needs.
        expected: usize,
    },
    #[error("chain {chain} has {found} rules of container {container_id} instead of {expected}")]
    ReferenceRules {
        chain: String,
        container_id: String,
        found: usize,
        /// The number of the container's ports.
        expected: usize,
    },
    #[error("table {table} has no rule -A {chain} {rule}")]
    NoRule { table: String, chain: String, rule: String },
    #[error("expected {chain} rule [{rule}] not found in table {table}")]
    NoFirewallRule { chain: String, rule: String, table: String },
    #[error("table {0} is not complete")]
    IncompleteTable(&'static str),
    #[error("address {address} belongs to another attachment in table {table}")]
    OtherAttachment { address: IpAddr, table: &'static str },
    #[error("address {address} is missing from set {set} of table {table}")]
    NoAddress { address: IpAddr, set: &'static str, table: &'static str },
    /// The firewall has no record of an attachment, or a record with other settings.
    #[error("{owner} is missing from map {map} of table {table}")]
    NoRecord { owner: Box<Owner>, map: &'static str, table: &'static str },
    #[error("bridge {bridge} is missing from set {set} of table {table}")]
    NoBridge { bridge: String, set: String, table: &'static str },
    #[error("table {0} does not guard against spoofing")]
    NoSpoofingTable(&'static str),
    #[error("no spoofing guard for {link} with address {mac} in table {table}")]
    NoSpoofingGuard {
        link: String,
        /// The address that the container may send with.
        mac: Mac,
        table: &'static str,
    },
    /// [`crate::fake::Fake`] has other ports.
    #[error("the published ports of {0} differ")]
    Ports(Attachment),
    /// [`crate::fake::Fake`] has other addresses.
    #[error("the masqueraded addresses of {0} differ")]
    Masquerade(Attachment),
}

/// A difference between the networks that are exempt from a container's masquerade and those of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExemptDifference {
    /// The configuration has a network that the kernel does not exempt.
    #[error("packets to {0} are masqueraded, but nonMasqueradeCIDRs has {0}")]
    Missing(IpNet),
    /// The kernel exempts a network that the configuration does not have.
    #[error("packets to {0} are not masqueraded, but nonMasqueradeCIDRs does not have {0}")]
    More(IpNet),
}
