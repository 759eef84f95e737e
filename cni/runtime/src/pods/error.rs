// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of operations on pods.

use std::fmt;
use std::io;
use std::path::PathBuf;

use cni_kernel::netns::NetnsError;
use cni_kernel::route::RouteError;
use cni_spec::text;

use super::names::NameError;
use super::request::RequestError;
use crate::config::LoadError;
use crate::error::NetworkError;

/// A failed operation on a pod.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PodError {
    /// There is no default network.
    #[error("no CNI configuration file in {}. Has your network provider started?", .0.display())]
    NoDefault(PathBuf),
    /// The network is not in the configuration directory.
    #[error("failed to find requested network name {0}")]
    NoNetwork(String),
    /// The pod's interfaces cannot be named.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A parameter is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The sandbox already has an attachment with this interface. Tear the pod down first.
    #[error("sandbox {sandbox} is attached to network {} as {ifname} already", text::quote(network))]
    Attached {
        /// The sandbox.
        sandbox: String,
        /// The network.
        network: String,
        /// The interface.
        ifname: String,
    },
    /// The sandbox has no such attachment, and the pod names no namespace in which one could be looked for.
    #[error(
        "sandbox {sandbox} is not attached to network {}, as far as the cache knows",
        text::quote(network)
    )]
    NotAttached {
        /// The sandbox.
        sandbox: String,
        /// The network.
        network: String,
    },
    /// The operation on one network failed.
    #[error("error {verb} {} CNI network {}: {error}", verb.with(pod), text::quote(network))]
    Network {
        /// The operation.
        verb: PodVerb,
        /// The pod, `namespace_name`.
        pod: String,
        /// The network.
        network: String,
        /// The error of the operation.
        error: Box<NetworkError>,
    },
    /// The pod's namespace cannot be used.
    #[error("pod {pod}: {error}")]
    Sandbox {
        /// The pod, `namespace_name`.
        pod: String,
        /// The reason.
        error: SandboxError,
    },
    /// A failed set-up was undone, except for the attachments whose errors are given.
    #[error("{error}{}", lines("undo of the failed set-up: ", undo))]
    Undone {
        /// The error of the set-up.
        error: Box<PodError>,
        /// The errors of the undo. Parts of the pod's network may be left.
        undo: Vec<PodError>,
    },
    /// Several errors, which are printed one per line.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<PodError>),
    /// The locks or the cache cannot be used, or a plugin of an operation without a pod failed.
    #[error(transparent)]
    Runtime(#[from] NetworkError),
    /// The configuration directory cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The manager cannot be started.
    #[error("{action}: {error}")]
    Start {
        /// The operation.
        action: String,
        /// The system's error.
        error: io::Error,
    },
}

/// An operation on a pod's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodVerb {
    /// ADD.
    Adding,
    /// DEL.
    Removing,
    /// CHECK.
    Checking,
}

impl PodVerb {
    /// The words of a message before the network.
    fn with(self, pod: &str) -> String {
        let preposition = match self {
            Self::Adding => "to",
            Self::Removing => "from",
            Self::Checking => "for",
        };
        format!("pod {pod} {preposition}")
    }
}

impl fmt::Display for PodVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Adding => "adding",
            Self::Removing => "removing",
            Self::Checking => "checking",
        })
    }
}

/// The pod's namespace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The namespace cannot be opened.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel refused a request.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The interface has no address.
    #[error("interface {ifname} in {netns} has neither an IPv4 nor an IPv6 address")]
    NoAddress {
        /// The namespace.
        netns: String,
        /// The interface.
        ifname: String,
    },
    /// The loopback is down.
    #[error("the loopback in {0} is down")]
    LoopbackDown(String),
}

fn lines(prefix: &str, errors: &[PodError]) -> String {
    errors.iter().map(|error| format!("\n{prefix}{error}")).collect()
}

/// Turns no errors into success, one error into itself, and more into one error.
pub(crate) fn several(mut errors: Vec<PodError>) -> Result<(), PodError> {
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(PodError::Several(errors)),
    }
}
