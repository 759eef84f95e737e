// SPDX-License-Identifier: MIT OR Apache-2.0

//! The result of an ADD.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::field;

/// The result of an ADD in the form of specification 1.1.0; other versions are converted from and to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddResult {
    /// The links of the attachment, host side and container side.
    pub interfaces: Vec<Interface>,
    /// The addresses given to the container.
    pub ips: Vec<IpConfig>,
    /// The routes in the container.
    pub routes: Vec<Route>,
    /// Resolver settings for the container.
    pub dns: Dns,
}

/// One link in a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// The link's name.
    pub name: String,
    /// Its hardware address; empty if it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Its MTU in bytes; 0 if unknown.
    #[serde(skip_serializing_if = "field::is_zero")]
    pub mtu: u32,
    /// Path of its namespace; empty for the host's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// Path of a socket in place of the link.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// PCI ID of its device.
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

/// One address in a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// Index of its link in [`AddResult::interfaces`].
    pub interface: Option<usize>,
    /// The address, not masked, with the length of its subnet's prefix.
    pub address: IpNet,
    /// The default gateway of the subnet.
    pub gateway: Option<IpAddr>,
}

/// One route in a result, and in the `routes` key of IPAM configurations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination, not masked.
    #[serde(deserialize_with = "field::cidr")]
    pub dst: IpNet,
    /// Next hop; none for the gateway of the address.
    #[serde(default, deserialize_with = "field::address", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Path MTU in bytes; 0 for none.
    #[serde(default, skip_serializing_if = "field::is_zero")]
    pub mtu: u32,
    /// Maximum TCP segment to advertise in bytes; 0 for none.
    #[serde(default, skip_serializing_if = "field::is_zero")]
    pub advmss: u32,
    /// Metric; 0 for the kernel's choice.
    #[serde(default, skip_serializing_if = "field::is_zero")]
    pub priority: u32,
    /// Routing table; none for the main one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Scope, by its rtnetlink number; none for the kernel's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// A route with all else left to the kernel.
    #[must_use]
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Self { dst, gw, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

/// Resolver settings, in a result and in the `dns` key of configurations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Addresses of name servers, in order of preference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Domains to search.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options of the resolver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}
