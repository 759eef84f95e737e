// SPDX-License-Identifier: MIT OR Apache-2.0

//! The result of an ADD.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::field;

/// The result of an ADD in the form of specification 1.1.0. Results of other versions are converted from and to this
/// form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddResult {
    /// The links of the attachment, on the host and in the container.
    pub interfaces: Vec<Interface>,
    /// The addresses that the container was given.
    pub ips: Vec<IpConfig>,
    /// The routes in the container.
    pub routes: Vec<Route>,
    /// The resolver settings for the container.
    pub dns: Dns,
}

/// A link in a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// The link's name.
    pub name: String,
    /// The link's hardware address, empty if it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The link's MTU in bytes, 0 if unknown.
    #[serde(skip_serializing_if = "field::is_zero")]
    pub mtu: u32,
    /// The path of the link's namespace, empty for the host's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// The path of a socket that takes the place of the link.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// The PCI ID of the link's device.
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

/// An address in a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// The index of the address's link in [`AddResult::interfaces`].
    pub interface: Option<usize>,
    /// The address with the prefix length of its subnet. Host bits are kept.
    pub address: IpNet,
    /// The default gateway of the subnet.
    pub gateway: Option<IpAddr>,
}

/// A route in a result or in the `routes` key of IPAM configurations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination. Host bits are kept.
    #[serde(deserialize_with = "field::cidr")]
    pub dst: IpNet,
    /// The next hop, or none for the gateway of the address.
    #[serde(default, deserialize_with = "field::address", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// The path MTU in bytes, 0 for none.
    #[serde(default, skip_serializing_if = "field::is_zero")]
    pub mtu: u32,
    /// The maximum TCP segment size to advertise in bytes, 0 for none.
    #[serde(default, skip_serializing_if = "field::is_zero")]
    pub advmss: u32,
    /// The metric, 0 for the kernel's choice.
    #[serde(default, skip_serializing_if = "field::is_zero")]
    pub priority: u32,
    /// The routing table, or none for the main table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The scope as an rtnetlink number, or none for the kernel's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// Creates a route that leaves everything else to the kernel.
    #[must_use]
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Self { dst, gw, mtu: 0, advmss: 0, priority: 0, table: None, scope: None }
    }
}

/// Resolver settings in a result or in the `dns` key of configurations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// The addresses of name servers, in order of preference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// The domains to search.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// The options of the resolver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}
