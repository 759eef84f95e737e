//! The result of an ADD, in the newest version's terms.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::wire;

/// What an ADD returns, in the terms of specification 1.1.0; older versions are conversions of it
/// at the edge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddResult {
    /// The links of the attachment, host side and container side.
    pub interfaces: Vec<Interface>,
    /// The addresses given to the container.
    pub ips: Vec<IpConfig>,
    /// The routes in the container.
    pub routes: Vec<Route>,
    /// What the runtime should write into the container's resolver configuration.
    pub dns: Dns,
}

/// One link in a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// The link's name.
    pub name: String,
    /// Its hardware address, empty where it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Its MTU in bytes, 0 where it is not told.
    #[serde(skip_serializing_if = "wire::is_zero")]
    pub mtu: u32,
    /// Path of the namespace it is in; empty for the host's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// Path of a socket that stands for the link.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// PCI ID of the device behind it.
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

/// One address in a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// Index into [`AddResult::interfaces`] of the link that has the address.
    pub interface: Option<usize>,
    /// The container's address with the length of its subnet's prefix, not masked.
    pub address: IpNet,
    /// The default gateway of the subnet.
    pub gateway: Option<IpAddr>,
}

/// One route in a result, and in the `routes` key of IPAM configurations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination, not masked.
    #[serde(deserialize_with = "wire::cidr")]
    pub dst: IpNet,
    /// Next hop; none means the gateway of the address's configuration.
    #[serde(default, deserialize_with = "wire::address", skip_serializing_if = "Option::is_none")]
    pub gw: Option<IpAddr>,
    /// Path MTU along the route in bytes, 0 for none.
    #[serde(default, skip_serializing_if = "wire::is_zero")]
    pub mtu: u32,
    /// TCP's maximal segment size to advertise in bytes, 0 for none.
    #[serde(default, skip_serializing_if = "wire::is_zero")]
    pub advmss: u32,
    /// Metric, 0 for the kernel's own choice.
    #[serde(default, skip_serializing_if = "wire::is_zero")]
    pub priority: u32,
    /// Routing table; none means the main one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// Scope by its rtnetlink number; none means the kernel's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// A route with everything else left to the kernel.
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
