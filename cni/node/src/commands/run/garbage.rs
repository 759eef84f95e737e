// SPDX-License-Identifier: GPL-3.0-or-later

//! The options about garbage.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use slipwayd::cluster::reconcile::Settings;
use slipwayd::garbage;
use slipwayd::garbage::cri::Runtimes;
use slipwayd::garbage::inventory::Directories;

use super::conflict::ConflictError;
use crate::commands::values::{ValueError, time};

/// The node's root directory, as a container with the host's PIDs sees it.
const HOST_ROOT: &str = "/proc/1/root";

#[derive(Debug, Clone, Args)]
pub(crate) struct GarbageOptions {
    /// A socket of the container runtime [default: those of containerd and CRI-O that exist]; none: leave its garbage;
    /// any number of times
    #[arg(long, value_name = "PATH|none")]
    cri_socket: Vec<Socket>,
    /// The time for which the runtime must not have listed a pod before its attachment is garbage, such as 90s or 10m
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time, allow_hyphen_values = true)]
    gc_grace: Duration,
}

/// A socket of a container runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Socket {
    None,
    Path(PathBuf),
}

impl FromStr for Socket {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "none" => Ok(Self::None),
            path if path.starts_with('/') => Ok(Self::Path(path.into())),
            _ => Err(ValueError::Socket),
        }
    }
}

impl GarbageOptions {
    /// The container runtimes; none if garbage is left.
    ///
    /// # Errors
    /// [`ConflictError::RuntimeAndNone`].
    fn runtimes(&self) -> Result<Option<Runtimes>, ConflictError> {
        let path = |socket: &Socket| match socket {
            Socket::Path(path) => Ok(path.clone()),
            Socket::None => Err(ConflictError::RuntimeAndNone),
        };
        match &self.cri_socket[..] {
            [] => Ok(Some(Runtimes::usual())),
            [Socket::None] => Ok(None),
            sockets => sockets.iter().map(path).collect::<Result<_, _>>().map(|all| Some(Runtimes::at(all))),
        }
    }

    /// The settings; none if garbage is left.
    ///
    /// # Errors
    /// [`ConflictError`] if the options do not go together.
    pub(crate) fn settings(&self, settings: &Settings) -> Result<Option<garbage::Settings>, ConflictError> {
        Ok(self.runtimes()?.map(|runtimes| garbage::Settings {
            directories: Directories::usual(&settings.network),
            conflist: settings.conflist.clone(),
            // A container has no mount of the sockets: a runtime that starts again makes new ones.
            runtimes: if settings.in_host_mounts { runtimes.below(HOST_ROOT) } else { runtimes },
            grace: self.gc_grace,
        }))
    }

    /// Checks that the options go together.
    ///
    /// # Errors
    /// [`ConflictError`] if they do not.
    pub(crate) fn check(&self) -> Result<(), ConflictError> {
        self.runtimes().map(drop)
    }
}
