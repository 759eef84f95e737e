// SPDX-License-Identifier: GPL-3.0-or-later

//! Options of the agent that exclude or need each other.

/// Options that do not go together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConflictError {
    #[error("{0} and --encrypt wireguard exclude each other: WireGuard is the path to all nodes")]
    NotByWireGuard(&'static str),
    #[error(
        "--node-cidr and --encrypt wireguard exclude each other: a node's replies to pods come by WireGuard, which \
         accepts the addresses of pods only"
    )]
    NodesWithEncryption,
    #[error(
        "--encrypt wireguard needs --cluster-cidr: packets to pods without an encrypted path are refused there"
    )]
    EncryptionWithoutCluster,
    #[error("--wireguard-port is only for --encrypt wireguard")]
    PortWithoutEncryption,
    #[error("--cri-socket none and a path exclude each other")]
    RuntimeAndNone,
}
