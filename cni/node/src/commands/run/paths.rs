// SPDX-License-Identifier: GPL-3.0-or-later

//! The options about the paths between nodes, of which a deployment has the same.

use std::num::NonZeroU16;

use clap::{Args, ValueEnum};
use slipway_cli::number;
use slipwayd::cluster::desired::{Encryption, Settings, TunnelMode};

use crate::commands::values::{Prefixes, WithWords};
use crate::logging::LogFormat;

use super::conflict::ConflictError;
use super::garbage::GarbageOptions;

/// The largest VNI (RFC 7348, section 5).
const LARGEST_VNI: u32 = (1 << 24) - 1;
/// The least and the largest packet that IPv4 allows between nodes (RFC 791, section 3.2).
const PATH_MTU: std::ops::RangeInclusive<u32> = 576..=65535;

/// The options of the agent that `slipwayd render` takes as well.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeployedOptions {
    #[command(flatten)]
    pub(crate) paths: PathOptions,
    #[command(flatten)]
    pub(crate) garbage: GarbageOptions,
    /// The form of the log: text, or one JSON object per line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PathOptions {
    /// Addresses of all pods, which are not masqueraded; any number of times
    #[arg(long, value_name = "CIDR")]
    pub(crate) cluster_cidr: Vec<Prefixes>,
    /// Addresses of Services, to which pods keep theirs; any number of times
    #[arg(long, value_name = "CIDR")]
    pub(crate) service_cidr: Vec<Prefixes>,
    /// Addresses of nodes, to which pods keep theirs: only if all hosts there know the way to pods; any number of times
    #[arg(long, value_name = "CIDR")]
    pub(crate) node_cidr: Vec<Prefixes>,
    /// VXLAN: to nodes that are not on a link of this one (auto), to all, or to none
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    tunnel: Tunnel,
    /// The VXLAN network identifier
    #[arg(long, value_name = "VNI", default_value = "1", value_parser = number(1..=LARGEST_VNI))]
    vxlan_vni: u32,
    /// The UDP port of VXLAN (RFC 7348, section 8)
    #[arg(long, value_name = "PORT", default_value = "4789", value_parser = number(NonZeroU16::MIN..=NonZeroU16::MAX))]
    vxlan_port: NonZeroU16,
    /// Encrypt all traffic between pods of different nodes, and refuse what cannot be encrypted
    #[arg(long, value_name = "HOW", default_value = "none")]
    encrypt: Encrypt,
    /// The UDP port of WireGuard
    #[arg(long, value_name = "PORT", default_value = "51820", value_parser = number(NonZeroU16::MIN..=NonZeroU16::MAX))]
    wireguard_port: NonZeroU16,
    /// The largest packet between nodes, if a link between them carries less than the nodes' own links
    #[arg(long, value_name = "BYTES", value_parser = number(PATH_MTU))]
    path_mtu: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Tunnel {
    Auto,
    Always,
    Never,
}

impl From<Tunnel> for TunnelMode {
    fn from(tunnel: Tunnel) -> Self {
        match tunnel {
            Tunnel::Auto => Self::Auto,
            Tunnel::Always => Self::Always,
            Tunnel::Never => Self::Never,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Encrypt {
    None,
    Wireguard,
}

impl WithWords<DeployedOptions> {
    /// `pod_cidrs` are those of this node.
    pub(crate) fn path_settings(&self, pod_cidrs: Vec<ipnet::IpNet>) -> Result<Settings, ConflictError> {
        let PathOptions { cluster_cidr, service_cidr, tunnel, vxlan_vni, vxlan_port, path_mtu, .. } =
            &self.options.paths;
        Ok(Settings {
            tunnel: (*tunnel).into(),
            vni: *vxlan_vni,
            port: *vxlan_port,
            pod_cidrs,
            cluster_cidrs: Prefixes::all(cluster_cidr),
            service_cidrs: Prefixes::all(service_cidr),
            path_mtu: *path_mtu,
            encryption: self.encryption()?,
        })
    }

    /// The settings of encryption; none without it.
    fn encryption(&self) -> Result<Option<Encryption>, ConflictError> {
        let options = &self.options.paths;
        if options.encrypt == Encrypt::None {
            return match self.first_of(&["--wireguard-port"]) {
                Some(_) => Err(ConflictError::PortWithoutEncryption),
                None => Ok(None),
            };
        }
        if let Some(name) = self.first_of(&["--tunnel", "--vxlan-vni", "--vxlan-port"]) {
            return Err(ConflictError::NotByWireGuard(name));
        }
        if !options.node_cidr.is_empty() {
            return Err(ConflictError::NodesWithEncryption);
        }
        if options.cluster_cidr.is_empty() {
            return Err(ConflictError::EncryptionWithoutCluster);
        }
        Ok(Some(Encryption { port: options.wireguard_port }))
    }
}
