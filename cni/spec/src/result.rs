//! The result of an ADD, in the newest version's terms.

use std::net::IpAddr;

use ipnet::IpNet;

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// The link's name.
    pub name: String,
    /// Its hardware address, empty where it has none.
    pub mac: String,
    /// Its MTU in bytes, 0 where it is not told.
    pub mtu: u32,
    /// Path of the namespace it is in; empty for the host's.
    pub sandbox: String,
    /// Path of a socket that stands for the link.
    pub socket_path: String,
    /// PCI ID of the device behind it.
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

/// One route in a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination, not masked.
    pub dst: IpNet,
    /// Next hop; none means the gateway of the address's configuration.
    pub gw: Option<IpAddr>,
    /// Path MTU along the route in bytes, 0 for none.
    pub mtu: u32,
    /// TCP's maximal segment size to advertise in bytes, 0 for none.
    pub advmss: u32,
    /// Metric, 0 for the kernel's own choice.
    pub priority: u32,
    /// Routing table; none means the main one.
    pub table: Option<u32>,
    /// Scope by its rtnetlink number; none means the kernel's own choice.
    pub scope: Option<u8>,
}

/// Resolver settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers, in order of preference.
    pub nameservers: Vec<String>,
    /// The local domain.
    pub domain: String,
    /// Domains to search.
    pub search: Vec<String>,
    /// Options of the resolver.
    pub options: Vec<String>,
}
