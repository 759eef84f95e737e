// SPDX-License-Identifier: GPL-2.0-or-later

//! The objects of netavark's interface for drivers, as far as the driver reads them. Other keys are ignored.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_spec::text::hex;
use ipnet::IpNet;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest as _, Sha256};

/// The beginning of the bridges' names.
const PREFIX: &str = "sw";
/// The number of hexadecimal digits after it: a link `<bridge>.<vlan>` must have 15 characters at most.
const DIGITS: usize = 8;

/// Options of a network or of a container in it.
pub(super) type Words = BTreeMap<String, String>;

/// A network of podman's.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Network {
    pub(super) name: String,
    #[serde(default)]
    pub(super) id: String,
    /// The bridge.
    #[serde(default)]
    pub(super) network_interface: Option<String>,
    #[serde(default)]
    pub(super) internal: bool,
    #[serde(default)]
    pub(super) ipv6_enabled: bool,
    #[serde(default)]
    pub(super) subnets: Option<Vec<Subnet>>,
    #[serde(default)]
    pub(super) routes: Option<Vec<Route>>,
    #[serde(default)]
    pub(super) options: Option<Words>,
    #[serde(default)]
    pub(super) ipam_options: Option<Words>,
    #[serde(default)]
    pub(super) created: Presence,
    #[serde(default)]
    pub(super) network_dns_servers: Presence,
}

impl Network {
    /// The subnets; empty if it has none.
    pub(super) fn subnets(&self) -> &[Subnet] {
        self.subnets.as_deref().unwrap_or_default()
    }

    /// The name of a bridge that was not named, after the network's ID.
    pub(super) fn default_bridge(&self) -> String {
        let is_hex = self.id.len() >= DIGITS && self.id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digits = if is_hex { self.id.clone() } else { hex(&Sha256::digest(&self.name)) };
        format!("{PREFIX}{}", digits.get(..DIGITS).unwrap_or_default())
    }

    /// podman's IPAM driver: `host-local`, also if it is unset, `none` or `dhcp`.
    pub(super) fn ipam_driver(&self) -> &str {
        let driver = self.ipam_options.as_ref().and_then(|options| options.get("driver"));
        driver.map(String::as_str).filter(|driver| !driver.is_empty()).unwrap_or("host-local")
    }
}

/// The presence of a key that netavark 1 always writes: as `null` if it has no value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Presence {
    #[default]
    Absent,
    Null,
    Given,
}

impl<'de> Deserialize<'de> for Presence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value: Option<IgnoredAny> = Option::deserialize(deserializer)?;
        Ok(if value.is_some() { Self::Given } else { Self::Null })
    }
}

/// A subnet. podman chooses the containers' addresses in it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Subnet {
    pub(super) subnet: IpNet,
    #[serde(default)]
    pub(super) gateway: Option<IpAddr>,
}

/// A route for the containers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Route {
    pub(super) destination: IpNet,
    #[serde(default)]
    pub(super) gateway: Option<IpAddr>,
    #[serde(default)]
    pub(super) metric: Option<u32>,
}

/// The input of a set-up and of a teardown.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Exec {
    pub(super) container_id: String,
    #[serde(default)]
    pub(super) port_mappings: Option<Vec<PortMapping>>,
    pub(super) network: Network,
    pub(super) network_options: ContainerOptions,
}

/// The container's part in a network.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ContainerOptions {
    pub(super) interface_name: String,
    /// The addresses that podman has chosen, or was asked for.
    #[serde(default)]
    pub(super) static_ips: Option<Vec<IpAddr>>,
    #[serde(default)]
    pub(super) static_mac: Option<String>,
    #[serde(default)]
    pub(super) options: Option<Words>,
}

/// A published port, or a range of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct PortMapping {
    pub(super) container_port: u16,
    pub(super) host_port: u16,
    /// An address of the node; empty for all.
    #[serde(default)]
    pub(super) host_ip: String,
    /// Protocols, separated by commas; empty for TCP.
    #[serde(default)]
    pub(super) protocol: String,
    /// The number of ports; 0 counts as 1.
    #[serde(default)]
    pub(super) range: u16,
}

/// The output of a set-up.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Status {
    pub(super) dns_search_domains: Vec<String>,
    pub(super) dns_server_ips: Vec<IpAddr>,
    pub(super) interfaces: BTreeMap<String, Interface>,
}

/// An interface of the container.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Interface {
    pub(super) mac_address: String,
    pub(super) subnets: Vec<Address>,
}

/// An address of an interface, with the length of its subnet.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Address {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gateway: Option<IpAddr>,
    pub(super) ipnet: IpNet,
}
