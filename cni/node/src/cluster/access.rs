// SPDX-License-Identifier: GPL-3.0-or-later

//! Access to the API server.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use kube::config::{Config, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client};
use tokio::time::timeout;

use super::object::NodeObject;

/// The variable with this node's name; in a pod the downward API sets it from `spec.nodeName`.
pub const NODE_NAME: &str = "NODE_NAME";

/// The time for a reply. The API server gives up after a minute (its `--request-timeout`): no reply comes later, and a
/// request that is sent again does not overlap with the first one.
const REPLY: Duration = Duration::from_secs(70);
/// The seconds after which the server ends a watch, which is then resumed.
pub(super) const WATCH: u32 = 150;
/// The time without a byte after which a connection is given up: longer than a watch without events takes.
const SILENCE: Duration = Duration::from_secs(WATCH as u64 + 10);

/// A failed request.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The source of the API server's address and of credentials, and the time limits for the API server, because `kube`
/// itself has none.
///
/// Credentials come from a kubeconfig file, or else from the files that the variable `KUBECONFIG` lists, or else from
/// the service account of the pod. Unlike kubectl, a daemon does not look for `~/.kube/config`.
#[derive(Debug, Clone)]
pub struct Access {
    /// The kubeconfig file of the command line.
    pub kubeconfig: Option<PathBuf>,
    /// The time for a reply, and for a page of a list.
    pub reply: Duration,
    /// The time without a byte after which a connection is given up. This also ends a watch that never begins.
    pub silence: Duration,
}

/// The API server did not reply in time.
#[derive(Debug, thiserror::Error)]
#[error("no reply within {} s", .0.as_secs_f32())]
struct NoReply(Duration);

/// No access to an API server.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig is missing or invalid.
    #[error("read kubeconfig{}: {source}", .path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Kubeconfig {
        /// The file of the command line; none for those of `KUBECONFIG`.
        path: Option<PathBuf>,
        /// The cause.
        source: Box<KubeconfigError>,
    },
    /// No kubeconfig is named, and the process has no service account.
    #[error(
        "no kubeconfig, and no service account of a pod ({0}); name a file with --kubeconfig or KUBECONFIG"
    )]
    InCluster(#[source] Box<InClusterError>),
    /// The client cannot be made: credentials or certificates are invalid.
    #[error("prepare the connection to the API server: {0}")]
    Client(#[source] Box<kube::Error>),
}

impl Access {
    /// Access with the usual time limits.
    #[must_use]
    pub fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self { kubeconfig, reply: REPLY, silence: SILENCE }
    }

    /// Waits for requests, for at most the time for a reply.
    ///
    /// # Errors
    /// The requests' own errors, or no reply in time.
    pub(super) async fn in_time<T>(
        &self,
        requests: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, BoxError> {
        let none = |_| Err(NoReply(self.reply).into());
        timeout(self.reply, requests).await.unwrap_or_else(none)
    }

    /// Reads the configuration and makes a client. Nothing is sent.
    ///
    /// # Errors
    /// [`AccessError`] if no configuration is found, or if it is invalid.
    pub(super) async fn client(&self) -> Result<Client, AccessError> {
        let mut config = self.config().await?;
        config.read_timeout = Some(self.silence);
        // The time for which a connection was idle before a request does not count.
        config.reset_reader_on_write = true;
        Client::try_from(config).map_err(|error| AccessError::Client(error.into()))
    }

    /// The API of Nodes, as [`Self::client`].
    ///
    /// # Errors
    /// [`AccessError`].
    pub(super) async fn nodes(&self) -> Result<Api<NodeObject>, AccessError> {
        self.client().await.map(Api::all)
    }

    /// Does the same as [`Self::nodes`], but with all fields of the Nodes.
    ///
    /// # Errors
    /// The errors of [`Self::nodes`].
    pub(super) async fn whole_nodes(&self) -> Result<Api<DynamicObject>, AccessError> {
        Ok(Api::all_with(self.client().await?, &ApiResource::erase::<NodeObject>(&())))
    }

    async fn config(&self) -> Result<Config, AccessError> {
        let path = self.kubeconfig.clone();
        let failed =
            |error| AccessError::Kubeconfig { path: self.kubeconfig.clone(), source: Box::new(error) };
        let kubeconfig = match path {
            Some(path) => Some(Kubeconfig::read_from(path).map_err(failed)?),
            None => Kubeconfig::from_env().map_err(failed)?,
        };
        match kubeconfig {
            Some(kubeconfig) => {
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)
            }
            None => Config::incluster().map_err(|error| AccessError::InCluster(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_that_is_missing_or_invalid_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let message = |path: PathBuf| {
            let access = Access::new(Some(path));
            runtime.block_on(access.config()).unwrap_err().to_string()
        };
        let missing = dir.path().join("missing");
        assert!(message(missing.clone()).starts_with(&format!("read kubeconfig {}: ", missing.display())));
        let torn = dir.path().join("torn");
        std::fs::write(&torn, "clusters: [").unwrap();
        assert!(message(torn.clone()).starts_with(&format!("read kubeconfig {}: ", torn.display())));
    }
}
