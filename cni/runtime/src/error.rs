// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of operations on networks, of single calls of plugins, and of the cache. All are in one file because an
//! operation's error contains the others, while the cache, the configuration and the calls need these on their own.

use std::io;
use std::time::Duration;

use cni_kernel::dir::DirError;
use cni_kernel::lock::LockError;
use cni_kernel::route::RouteError;
use cni_spec::{Attachment, AttachmentError, CniError, ResultError, text};

/// A failed call of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The plugin failed. This is either its own error, or one made from its exit status and output.
    #[error(transparent)]
    Failed(CniError),
    /// There is no such plugin in the directories, or its name is invalid.
    #[error(transparent)]
    NotFound(CniError),
    /// The plugin did not finish in time. The plugin and the processes of its group were killed.
    #[error("no result after {} s: killed", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The caller cancelled the operation. A running plugin and the processes of its group were killed.
    #[error("cancelled")]
    Cancelled,
}

impl CallError {
    /// The error as a plugin would print it: the plugin's own error, code 11 (try again later) if the call timed out,
    /// or code 999 if it was cancelled.
    #[must_use]
    pub fn to_cni(&self) -> CniError {
        match self {
            Self::Failed(error) | Self::NotFound(error) => error.clone(),
            Self::TimedOut(_) => CniError::new(cni_spec::ErrorCode::TryAgainLater, self.to_string()),
            Self::Cancelled => CniError::internal(self.to_string()),
        }
    }
}

/// A failed operation on a network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// A plugin of a list failed, or was not found.
    #[error("plugin {} failed ({verb}): {error}", .which)]
    Plugin {
        /// `type="bridge"`, and its name if the configuration has one.
        which: String,
        /// `add` or `delete`.
        verb: &'static str,
        /// The error of the call.
        error: CallError,
    },
    /// The error of a plugin's call, unchanged.
    #[error(transparent)]
    FromPlugin(#[from] CallError),
    /// The container's ID, the network's name or the interface's name is invalid.
    #[error(transparent)]
    Name(#[from] AttachmentError),
    /// The command does not exist in the network's version.
    #[error("configuration version {} does not support the {verb} command", text::quote(version))]
    TooOld {
        /// The version.
        version: String,
        /// The command.
        verb: &'static str,
    },
    /// The cached result cannot be read.
    #[error("failed to get network {} cached result: {error}", text::quote(network))]
    Remembered {
        /// The network.
        network: String,
        /// The cache's error.
        error: CacheError,
    },
    /// The cache's directory cannot be used.
    #[error(transparent)]
    Cache(#[from] DirError),
    /// The result could not be cached.
    #[error(transparent)]
    Remember(#[from] StoreError),
    /// The lock of the container or of the network was not acquired.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The caller cancelled the operation while no plugin was running.
    #[error("cancelled")]
    Cancelled,
    /// The system has no descriptor for the pipe that ends a wait.
    #[error("make a pipe: {0}")]
    Pipe(io::Error),
    /// The system refused the event loop of a blocking call.
    #[error("start the event loop: {0}")]
    EventLoop(io::Error),
    /// The attachment is cached, and its interface is in the container, so no plugin was called.
    #[error("{0} is attached already, and nothing was changed: call DEL before another ADD")]
    Attached(Attachment),
    /// Whether the container has the interface already could not be found out, so no plugin was called.
    #[error(transparent)]
    Interface(#[from] RouteError),
    /// A plugin does not support the network's version.
    #[error("plugin {plugin} does not support config version {}", text::quote(version))]
    UnsupportedVersion {
        /// The plugin.
        plugin: String,
        /// The version.
        version: String,
    },
    /// Several errors, which are printed one per line.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<NetworkError>),
    /// A failed ADD was undone by a DEL of the plugins that had been called.
    #[error("{error}{}", undo.as_ref().map_or_else(String::new, |undo| format!("\nundo of the failed add: {undo}")))]
    Undone {
        /// The error of the ADD.
        error: Box<NetworkError>,
        /// The error of the DEL, if that failed as well. Then parts of the attachment may be left.
        undo: Option<Box<NetworkError>>,
    },
    /// A stale attachment could not be deleted.
    #[error("failed to delete stale attachment {container} {ifname}: {error}")]
    Stale {
        /// The container's ID.
        container: String,
        /// The interface.
        ifname: String,
        /// The error of its DEL.
        error: Box<NetworkError>,
    },
    /// A plugin's GC failed.
    #[error("failed to GC plugin {plugin}: {error}")]
    Gc {
        /// The plugin's type.
        plugin: String,
        /// The error of the call.
        error: CallError,
    },
}

impl NetworkError {
    /// The error of the DEL of a stale attachment.
    pub(crate) fn stale(attachment: &Attachment, error: Self) -> Self {
        Self::Stale {
            container: attachment.container_id().to_owned(),
            ifname: attachment.ifname().to_owned(),
            error: Box::new(error),
        }
    }

    /// The errors from calls of plugins that this error contains, in the order of the calls.
    #[must_use]
    pub fn calls(&self) -> Vec<&CallError> {
        match self {
            Self::Plugin { error, .. } | Self::FromPlugin(error) | Self::Gc { error, .. } => vec![error],
            Self::Several(all) => all.iter().flat_map(Self::calls).collect(),
            Self::Undone { error, undo } => {
                error.calls().into_iter().chain(undo.iter().flat_map(|undo| undo.calls())).collect()
            }
            Self::Stale { error, .. } => error.calls(),
            _ => Vec::new(),
        }
    }
}

/// The reason why a file of the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The file cannot be opened or read.
    #[error(transparent)]
    Directory(#[from] DirError),
    /// The file is larger than a cache file can be.
    #[error("larger than {0} bytes")]
    TooLarge(u64),
    /// The file is not JSON of the format.
    #[error("not a cached attachment: {0}")]
    Form(String),
    /// The file was written by libcni before 0.8.
    #[error("only a result, as written by libcni before 0.8, without the request")]
    BareResult,
    /// The file was written by a later libcni.
    #[error("unknown kind {0:?}")]
    Kind(String),
    /// The file's name is not that of the attachment inside.
    #[error("file name does not match the attachment inside ({0})")]
    Name(Attachment),
}

impl CacheError {
    /// True if the file may be in order, and could not be read for lack of descriptors or memory
    /// ([`DirError::is_transient`]).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Directory(error) if error.is_transient())
    }
}

/// An attachment that could not be cached.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be written.
    #[error(transparent)]
    Directory(#[from] DirError),
    /// The result cannot be encoded in that version.
    #[error(transparent)]
    Result(#[from] ResultError),
}

/// Turns no errors into success, one error into itself, and more into one error.
pub(crate) fn several(mut errors: Vec<NetworkError>) -> Result<(), NetworkError> {
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(NetworkError::Several(errors)),
    }
}
