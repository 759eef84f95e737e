// SPDX-License-Identifier: MIT OR Apache-2.0

//! The CNI driver: the first valid network of the configuration directory, and a loopback.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cni_spec::Version;
use serde_json::{Map, Value, json};

use super::{
    Bandwidth, BandwidthError, BoxError, HookFuture, Host, INTERFACE, InitSettings, NetworkPlugin,
    PLUGIN_DIRECTORY, Pod, PodNetworkStatus, is_gone, pod_addresses, pod_cidr, port_mappings,
};
use crate::asynchronous::Runtime;
use crate::config::{self, FileVerdict, LoadError};
use crate::container::Container;
use crate::error::NetworkError;
use crate::exec::{CallOptions, Exec};
use crate::network::Network;
use crate::rates::KUBELET_BURST;
use crate::{cache, runtime};

/// The time limit of a plugin's VERSION, which is called to validate the files.
const VERSION_LIMIT: Duration = Duration::from_secs(30);

/// An error of the CNI driver.
#[derive(Debug, thiserror::Error)]
pub enum CniDriverError {
    /// There is no valid network.
    #[error("cni config uninitialized{}", .0.as_ref().map_or_else(String::new, |why| format!(": {why}")))]
    Uninitialized(Option<String>),
    /// The configuration directory has no files.
    #[error("No networks found in {0}")]
    NoNetworks(String),
    /// No file of the configuration directory is valid.
    #[error("No valid networks found in {0}")]
    NoValidNetworks(String),
    /// The configuration directory cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The network needs the pod CIDR, which is not known yet.
    #[error("no PodCIDR set")]
    NoPodCidr,
    /// The runtime does not know the pod's namespace.
    #[error("CNI failed to retrieve network namespace path: {0}")]
    Netns(BoxError),
    /// The runtime does not know the pod's ports.
    #[error("could not retrieve port mappings: {0}")]
    PortMappings(BoxError),
    /// An annotation of the pod is not a rate.
    #[error("failed to get pod bandwidth from annotations: {0}")]
    Bandwidth(#[from] BandwidthError),
    /// The ADD, the DEL or the STATUS failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// Connects pods by CNI plugins.
pub struct CniDriver {
    directory: PathBuf,
    plugins: Vec<PathBuf>,
    vendor_prefix: PathBuf,
    cache: PathBuf,
    exec: Option<Arc<dyn Exec>>,
    host: Option<Arc<dyn Host>>,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    network: Option<Arc<Network>>,
    /// The reason why the last reading of the directory found no network.
    reason: Option<String>,
    /// The messages that the last reading logged about files that it passed over.
    passed_over: Vec<String>,
    pod_cidr: String,
}

impl std::fmt::Debug for CniDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CniDriver")
            .field("directory", &self.directory)
            .field("plugins", &self.plugins)
            .finish_non_exhaustive()
    }
}

impl CniDriver {
    /// The driver for a configuration directory and plugin directories. Empty paths are ignored. If no path is left,
    /// the defaults are `/etc/cni/net.d` and `/opt/cni/bin`.
    #[must_use]
    pub fn probe(directory: &Path, plugins: impl IntoIterator<Item = PathBuf>) -> Self {
        let named = |path: &Path| !path.as_os_str().is_empty();
        let mut plugins: Vec<PathBuf> = plugins.into_iter().filter(|path| named(path)).collect();
        if plugins.is_empty() {
            plugins.push(PLUGIN_DIRECTORY.into());
        }
        Self {
            directory: if named(directory) { directory.to_owned() } else { config::DIRECTORY.into() },
            plugins,
            vendor_prefix: PathBuf::from("/"),
            cache: cache::DIRECTORIES[0].into(),
            exec: None,
            host: None,
            state: RwLock::default(),
        }
    }

    /// Sets the directory before `opt/<type>/bin`, in which the plugins of a network are searched for last. `<type>`
    /// is the type of the network's first plugin. The default is `/`.
    #[must_use]
    pub fn vendor_prefix(self, prefix: impl Into<PathBuf>) -> Self {
        Self { vendor_prefix: prefix.into(), ..self }
    }

    /// Sets the directory of the cache of attachments.
    #[must_use]
    pub fn cache(self, directory: impl Into<PathBuf>) -> Self {
        Self { cache: directory.into(), ..self }
    }

    /// Sets how plugins are found and run. By default, they are run as processes.
    #[must_use]
    pub fn exec(self, exec: Arc<dyn Exec>) -> Self {
        Self { exec: Some(exec), ..self }
    }

    /// Reads the configuration directory. If there is no valid network, the one that was found earlier stays.
    /// Messages that an earlier reading has already logged are not repeated.
    async fn sync(&self) {
        let mut passed_over = Vec::new();
        let found = self.default_network(&mut passed_over).await;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for message in passed_over.iter().filter(|message| !state.passed_over.contains(message)) {
            log::warn!("{message}");
        }
        state.passed_over = passed_over;
        match found {
            Ok(network) => {
                state.network = Some(Arc::new(network));
                state.reason = None;
            }
            Err(error) => {
                let reason = error.to_string();
                if state.reason.as_ref() != Some(&reason) {
                    log::warn!("Unable to update cni config: {reason}");
                }
                state.reason = Some(reason);
            }
        }
    }

    /// The network of the first valid file, by file name. A file is valid if all of its plugins exist and support its
    /// version. A message for each file before it is added to `passed_over`.
    async fn default_network(&self, passed_over: &mut Vec<String>) -> Result<Network, CniDriverError> {
        let files = config::load_all(&self.directory)?;
        let shown = self.directory.display().to_string();
        if files.is_empty() {
            return Err(CniDriverError::NoNetworks(shown));
        }
        let options = CallOptions::new().limit(VERSION_LIMIT);
        for FileVerdict { path, network } in files {
            passed_over.push(match network {
                Ok(network) => match self.runtime(&network).with(options.clone()).validate(&network).await {
                    Ok(()) => return Ok(network),
                    Err(error) => {
                        let errors = error.to_string().replace('\n', "; ");
                        format!("Error validating CNI config file {}: {errors}", path.display())
                    }
                },
                Err(error) => {
                    format!("Error loading CNI config file {}: {}", path.display(), error.reason_in(&path))
                }
            });
        }
        Err(CniDriverError::NoValidNetworks(shown))
    }

    /// The default network.
    fn network(&self) -> Result<Arc<Network>, CniDriverError> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let network =
            state.network.clone().ok_or_else(|| CniDriverError::Uninitialized(state.reason.clone()))?;
        if state.pod_cidr.is_empty() && wants(&network, "ipRanges") {
            return Err(CniDriverError::NoPodCidr);
        }
        Ok(network)
    }

    /// A runtime that also searches the directory of the network's vendor, after the other plugin directories.
    fn runtime(&self, network: &Network) -> Runtime {
        let kind =
            network.list().plugins.first().and_then(|plugin| plugin.get("type")).and_then(Value::as_str);
        let vendor = kind.map(|kind| self.vendor_prefix.join("opt").join(kind).join("bin"));
        let mut builder = runtime::Runtime::builder()
            .plugin_dirs(self.plugins.iter().cloned().chain(vendor))
            .cache(&self.cache)
            .undo_failed_add()
            .keep_deleting();
        if let Some(exec) = &self.exec {
            builder = builder.exec(Arc::clone(exec));
        }
        builder.build_async()
    }

    fn host(&self) -> Result<&dyn Host, CniDriverError> {
        self.host.as_deref().ok_or(CniDriverError::Uninitialized(None))
    }

    fn with_capabilities(&self, mut container: Container, pod: &Pod) -> Result<Container, CniDriverError> {
        let mappings = self.host()?.port_mappings(&pod.sandbox_id).map_err(CniDriverError::PortMappings)?;
        container = container.capability("portMappings", port_mappings(&mappings));
        let bandwidth = Bandwidth::from_annotations(&pod.annotations)?;
        if bandwidth.is_limited() {
            container = container.capability("bandwidth", bandwidth.capability(|_| KUBELET_BURST));
        }
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        if !state.pod_cidr.is_empty() {
            let ranges: Vec<Value> =
                state.pod_cidr.split(',').map(|subnet| json!([{"subnet": subnet}])).collect();
            container = container.capability("ipRanges", ranges);
        }
        Ok(container)
    }

    async fn set_up(&self, pod: &Pod) -> Result<(), CniDriverError> {
        let network = self.network()?;
        let netns = self.host()?.netns(&pod.sandbox_id).map_err(CniDriverError::Netns)?;
        let container = self.with_capabilities(pod.container(INTERFACE, &netns), pod)?;
        let loopback = loopback();
        let lo = pod.container("lo", &netns);
        // If the container already has the interface, its loopback belongs to an earlier set-up as well.
        let had_interface = self.runtime(&network).refuse_attached(&network, &container).await?;
        self.runtime(&loopback).add(&loopback, &lo).await?;
        if let Err(error) = self.runtime(&network).add(&network, &container).await {
            if !had_interface && let Err(undo) = self.runtime(&loopback).del(&loopback, &lo).await {
                log::warn!("CNI failed to delete loopback network: {undo}");
            }
            return Err(error.into());
        }
        Ok(())
    }

    /// Deletes the pod's cached attachments, so that nothing is left behind after a change of the configuration. If
    /// there are none, detaches the pod from the default network.
    async fn tear_down(&self, pod: &Pod) -> Result<(), CniDriverError> {
        let loopback = loopback();
        let cached = self.runtime(&loopback).attachments(&pod.sandbox_id).await?;
        let (lo, others): (Vec<_>, Vec<_>) =
            cached.into_iter().partition(|one| one.attachment.network() == loopback.name());
        let mut todo: Vec<(Network, Container)> =
            others.iter().rev().map(|one| (one.network(), one.container())).collect();
        let mut lo = lo.first().map(|one| (one.network(), one.container()));
        if todo.is_empty() {
            let network = self.network()?;
            // Addresses and ports have to be removed even if the namespace is missing.
            let netns = self.host()?.netns(&pod.sandbox_id).unwrap_or_else(|error| {
                log::warn!("CNI failed to retrieve network namespace path: {error}");
                PathBuf::new()
            });
            let container = self.with_capabilities(pod.container(INTERFACE, &netns), pod)?;
            todo.push((Network::clone(&network), container));
            lo = lo.or_else(|| Some((loopback, pod.container("lo", &netns))));
        }
        if let Some((network, container)) = lo
            && let Err(error) = self.delete(&network, &container).await
        {
            log::warn!("CNI failed to delete loopback network: {error}");
        }
        let mut failure = None;
        for (network, container) in todo {
            if let Err(error) = self.delete(&network, &container).await {
                log::error!("Error deleting network: {error}");
                failure = failure.or(Some(error));
            }
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Runs DEL. A missing file counts as success, because an earlier teardown may have done its part.
    async fn delete(&self, network: &Network, container: &Container) -> Result<(), NetworkError> {
        match self.runtime(network).del(network, container).await {
            Err(error) if is_gone(&error) => {
                log::debug!("ignored: {error}");
                Ok(())
            }
            other => other,
        }
    }
}

/// True if a plugin of the network wants a capability.
fn wants(network: &Network, capability: &str) -> bool {
    network
        .list()
        .plugins
        .iter()
        .any(|plugin| plugin.get("capabilities").is_some_and(|all| all[capability] == true))
}

/// The built-in network for the pod's loopback.
fn loopback() -> Network {
    let list = json!({"cniVersion": Version::V0_3_1.as_str(), "name": "cni-loopback", "plugins": [{"type": "loopback"}]});
    #[allow(clippy::expect_used, reason = "a constant, and a test loads it")]
    Network::from_bytes(list.to_string()).expect("the built-in network is valid")
}

impl NetworkPlugin for CniDriver {
    fn init(&mut self, settings: InitSettings) -> HookFuture<'_, ()> {
        self.host = Some(settings.host);
        Box::pin(async {
            self.sync().await;
            Ok(())
        })
    }

    fn event<'a>(
        &'a self,
        name: &'a str,
        details: &'a Map<String, Value>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let Some(cidr) = pod_cidr(name, details) else { return };
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if state.pod_cidr.is_empty() {
                cidr.clone_into(&mut state.pod_cidr);
            } else {
                log::warn!("Ignoring subsequent pod CIDR update to {cidr}");
            }
        })
    }

    fn name(&self) -> &str {
        "cni"
    }

    fn set_up_pod<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, ()> {
        Box::pin(async { Ok(self.set_up(pod).await?) })
    }

    fn tear_down_pod<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, ()> {
        Box::pin(async { Ok(self.tear_down(pod).await?) })
    }

    fn pod_network_status<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, Option<PodNetworkStatus>> {
        Box::pin(async { Ok(PodNetworkStatus::new(pod_addresses("CNI", self.host()?, pod).await?)) })
    }

    fn status(&self) -> HookFuture<'_, ()> {
        Box::pin(async {
            self.sync().await;
            let network = self.network()?;
            self.runtime(&network).status(&network).await?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
