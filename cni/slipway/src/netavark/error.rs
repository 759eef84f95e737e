// SPDX-License-Identifier: GPL-2.0-or-later

//! The errors of the driver's commands.

use std::io;

use cni_kernel::dir::DirError;
use cni_kernel::lock::LockError;
use cni_kernel::netns::NetnsError;
use cni_kernel::route::RouteError;
use cni_kernel::sysctl::SysctlError;
use cni_runtime::NetworkError;
use cni_spec::{AttachmentError, CniError};
use ipnet::IpNet;

use super::options::OptionError;
use super::translate::TranslateError;

/// A call of the driver that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    /// The arguments are not those of a call by netavark or podman.
    #[error("{0}: invalid arguments: see netavark's interface for drivers")]
    Arguments(String),
    /// Standard input cannot be read.
    #[error("read the request: {0}")]
    Input(io::Error),
    /// Standard input is not the JSON of a request.
    #[error("decode the request: {0}")]
    Json(serde_json::Error),
    /// A new network cannot be made as requested.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// An option cannot be used.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The request cannot be carried out.
    #[error(transparent)]
    Translate(#[from] TranslateError),
    /// The container's ID, or the name of the network, of the bridge or of the interface is invalid.
    #[error(transparent)]
    Name(#[from] AttachmentError),
    /// A plugin failed.
    #[error(transparent)]
    Plugins(#[from] NetworkError),
    /// A file of the driver or of podman cannot be used.
    #[error(transparent)]
    Files(#[from] DirError),
    /// The lock of the bridge was not acquired.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The container's namespace cannot be opened.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// Links, addresses or routes of the node or of the container cannot be read.
    #[error(transparent)]
    Node(RouteError),
    /// The bridge of a network without containers could not be deleted.
    #[error("delete the unused bridge: {0}")]
    Bridge(RouteError),
    /// The bridge that another program should have made is missing, or its name belongs to a link of another kind.
    #[error("{0:?} is no bridge of the node, and mode=unmanaged makes none")]
    NoBridge(String),
    /// The bridge of an internal network still forwards packets.
    #[error(transparent)]
    Forwarding(#[from] SysctlError),
    /// Ports could not be published on the container's other network.
    #[error("publish the ports on network {network}: {error}")]
    Ports {
        /// The other network.
        network: String,
        /// The plugin's error.
        error: CniError,
    },
    /// Several errors, printed one after the other.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<DriverError>),
}

/// A new network that cannot be made as requested.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    #[error("subnet {subnet} is in use: {other}")]
    SubnetInUse { subnet: IpNet, other: IpNet },
    #[error("no subnet is free: name one")]
    NoSubnet,
    #[error("bridge {0} is another network's")]
    BridgeInUse(String),
    #[error("mode=unmanaged needs a bridge: name it with --interface-name")]
    NoBridge,
    #[error("IPAM driver {0:?} is not supported")]
    Ipam(String),
}
