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
    /// A table is missing.
    #[error("table {0} is missing")]
    NoTable(&'static str),
    /// Another program changed the chains of a table.
    #[error("chains of table {0} are emptied, changed or unhooked")]
    DamagedChains(&'static str),
    /// An element is missing.
    #[error("{element} is missing from map {map}")]
    NoElement {
        /// The port or address, and its owner.
        element: String,
        /// The map.
        map: &'static str,
    },
    /// Another attachment has an element.
    #[error("{element} belongs to {} in map {map}", .owner.as_ref().map_or_else(|| "no owner".to_owned(), ToString::to_string))]
    OtherOwner {
        /// The port or address, and the owner that should have it.
        element: String,
        /// The owner; none for an element that was made by hand.
        owner: Option<Box<Owner>>,
        /// The map.
        map: &'static str,
    },
    /// An element leads to another container or chain.
    #[error("{element} leads elsewhere in map {map}")]
    OtherTarget {
        /// The port or address, and its owner.
        element: String,
        /// The map.
        map: &'static str,
    },
    /// A container's packets to other networks keep their source.
    #[error("{element}: {difference}")]
    Exemption {
        /// The address, and its owner.
        element: String,
        /// The network.
        difference: ExemptDifference,
    },
    /// The rules of the iptables backend do not masquerade packets to a network.
    #[error(transparent)]
    ExemptNetwork(ExemptDifference),
    /// A chain has more or fewer rules.
    #[error("chain {chain} of table {table} has {found} rules instead of {expected}")]
    RuleCount {
        /// The chain.
        chain: String,
        /// The table.
        table: &'static str,
        /// The number of its rules.
        found: usize,
        /// The number of rules that the request needs.
        expected: usize,
    },
    /// The reference's chain has too few rules of a container.
    #[error("chain {chain} has {found} rules of container {container_id} instead of {expected}")]
    ReferenceRules {
        /// Table and chain.
        chain: String,
        /// The container.
        container_id: String,
        /// The number of its rules.
        found: usize,
        /// The number of its ports.
        expected: usize,
    },
    /// A chain of iptables lacks a rule.
    #[error("table {table} has no rule -A {chain} {rule}")]
    NoRule {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
        /// The rule's words.
        rule: String,
    },
    /// A chain of the firewall lacks a rule.
    #[error("expected {chain} rule [{rule}] not found in table {table}")]
    NoFirewallRule {
        /// The chain.
        chain: String,
        /// The rule's words.
        rule: String,
        /// The table.
        table: String,
    },
    /// The firewall's table lacks chains, sets or rules.
    #[error("table {0} is not complete")]
    IncompleteTable(&'static str),
    /// The firewall has another attachment with the address.
    #[error("address {address} belongs to another attachment in table {table}")]
    OtherAttachment {
        /// The address.
        address: IpAddr,
        /// The table.
        table: &'static str,
    },
    /// The firewall does not admit an address.
    #[error("address {address} is missing from set {set} of table {table}")]
    NoAddress {
        /// The address.
        address: IpAddr,
        /// The set.
        set: &'static str,
        /// The table.
        table: &'static str,
    },
    /// The firewall has no record of an attachment, or a record with other settings.
    #[error("{owner} is missing from map {map} of table {table}")]
    NoRecord {
        /// The attachment.
        owner: Box<Owner>,
        /// The map.
        map: &'static str,
        /// The table.
        table: &'static str,
    },
    /// The firewall does not isolate a bridge.
    #[error("bridge {bridge} is missing from set {set} of table {table}")]
    NoBridge {
        /// The bridge.
        bridge: String,
        /// The set.
        set: String,
        /// The table.
        table: &'static str,
    },
    /// The chains of the guard against spoofing are missing or changed.
    #[error("table {0} does not guard against spoofing")]
    NoSpoofingTable(&'static str),
    /// A link has no guard against spoofing, or a guard with another address.
    #[error("no spoofing guard for {link} with address {mac} in table {table}")]
    NoSpoofingGuard {
        /// The link.
        link: String,
        /// The address that the container may send with.
        mac: Mac,
        /// The table.
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
