// SPDX-License-Identifier: MIT OR Apache-2.0

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// `slipway ports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    pub ports: Vec<Port>,
}

/// A published port, or a range of them. Without an owner in its element's comment, the owner's fields are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    pub network: Option<String>,
    pub container: Option<String>,
    pub interface: Option<String>,
    pub protocol: String,
    /// The unspecified address for all of a family.
    pub host_ip: IpAddr,
    pub host_port: u16,
    pub host_port_end: u16,
    pub container_ip: IpAddr,
    pub container_port: u16,
    pub backend: String,
    /// None if conntrack cannot be read.
    pub connections: Option<u64>,
    /// None if nothing counts packets and bytes.
    pub packets: Option<u64>,
    pub bytes: Option<u64>,
}
