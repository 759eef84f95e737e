// SPDX-License-Identifier: GPL-3.0-or-later

//! kubenet: a bridge with the node's pod CIDR, without a configuration file.
//!
//! The driver of kubelet (`--network-plugin=kubenet`) made of Slipway's parts: the plugins loopback, bridge and
//! host-local connect a pod, portmap and bandwidth serve the pods that ask for ports and rates, and the
//! dataplane masquerades. Messages are kubelet's.

mod bridge;
mod config;
mod mtu;
mod repeated_set_up;

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cni_dataplane::duplicates;
use cni_kernel::netns::{Netns, NetnsError};
use cni_kernel::route::RouteError;
use cni_kernel::sysctl::{self, SysctlError};
use cni_runtime::asynchronous::Runtime;
use cni_runtime::kubelet::{
    Bandwidth, BandwidthError, BoxError, HairpinMode, HookFuture, Host, INTERFACE, InitSettings,
    NetworkPlugin, PLUGIN_DIRECTORY, Pod, PodNetworkStatus, Purpose, bridge_netfilter, is_gone,
    pod_addresses, pod_cidr, port_mappings,
};
use cni_runtime::rates::burst;
use cni_runtime::{Container, Network, NetworkError};
use cni_spec::{ListError, PortMapping, text};
use ipnet::IpNet;
use serde_json::{Map, Value};

pub use crate::host::bridge::BridgeError;
use crate::repair::program::Program;
pub use config::{BRIDGE, CidrError, LOOPBACK, NETWORK};
use config::{CidrFault, PodNetwork};

/// The plugins without which no pod can be connected.
const REQUIRED: [&str; 3] = ["bridge", "host-local", "loopback"];

/// An error of kubenet.
#[derive(Debug, thiserror::Error)]
pub enum KubenetError {
    /// The pod CIDR is not known yet, or none of those given was usable.
    #[error("kubenet does not have netConfig. This is most likely due to lack of PodCIDR")]
    NoPodCidr,
    /// No pod can be set up, for this reason.
    #[error("kubenet cannot SetUpPod: {0}")]
    NotReady(Box<KubenetError>),
    /// The pod CIDR is not known yet, in a teardown.
    #[error("kubenet needs a PodCIDR to tear down pods")]
    NoPodCidrForTeardown,
    /// No directory has all required plugins.
    #[error("could not locate kubenet required CNI plugins [{}] at {}", REQUIRED.join(" "), text::quote_all(.0))]
    NoPlugins(Vec<String>),
    /// The driver has not been started.
    #[error("kubenet is not initialised")]
    NotInitialised,
    /// The non-masquerade CIDR is invalid.
    #[error("non-masquerade CIDR: {0}")]
    NonMasqueradeCidr(CidrError),
    /// The links of the node cannot be listed.
    #[error("find the MTU of the bridge: {0}")]
    Mtu(RouteError),
    /// The runtime does not know the pod's namespace.
    #[error("Kubenet failed to retrieve network namespace path: {0}")]
    Netns(BoxError),
    /// The runtime does not know the pod's ports.
    #[error("could not retrieve port mappings: {0}")]
    PortMappings(BoxError),
    /// An annotation of the pod is not a rate.
    #[error("error reading pod bandwidth annotations: {0}")]
    Bandwidth(#[from] BandwidthError),
    /// The pod CIDR differs from that of running pods, which would lose their gateway.
    #[error(
        "pod CIDR {wanted} differs from {used}, which {BRIDGE} has and {pods} running pods use: delete these pods first, or \
         keep {used}"
    )]
    CidrInUse {
        /// The pod CIDR.
        wanted: String,
        /// The bridge's subnets that pods use and that `wanted` lacks.
        used: String,
        /// The number of these pods.
        pods: usize,
    },
    /// The bridge could not be made.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// The ADD failed.
    #[error("error adding container to network: {0}")]
    Add(NetworkError),
    /// The DEL failed.
    #[error("error removing container from network: {0}")]
    Del(NetworkError),
    /// The plugins reported no address.
    #[error("cni didn't report ipv4 ipv6")]
    NoAddress,
    /// The cache of attachments cannot be read.
    #[error(transparent)]
    Cache(NetworkError),
    /// A network that kubenet makes is invalid.
    #[error(transparent)]
    List(#[from] ListError),
    /// A thread for blocking work ended early: the process is shutting down.
    #[error("{0}")]
    Interrupted(tokio::task::JoinError),
    /// Several errors of a teardown.
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<KubenetError>),
}

/// Duplicate address detection cannot be turned off.
#[derive(Debug, thiserror::Error)]
enum DetectionError {
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

/// kubenet.
pub struct Kubenet {
    directories: Vec<PathBuf>,
    cache: PathBuf,
    settings: Option<Settings>,
    state: Mutex<State>,
}

/// The settings of [`NetworkPlugin::init`].
struct Settings {
    host: Arc<dyn Host>,
    hairpin_mode: HairpinMode,
    masquerade: Option<Vec<IpNet>>,
    mtu: u32,
    purpose: Purpose,
}

#[derive(Default)]
struct State {
    network: Option<Arc<PodNetwork>>,
    /// The addresses of pods, by sandbox.
    pods: HashMap<String, Vec<IpAddr>>,
}

impl std::fmt::Debug for Kubenet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubenet").field("directories", &self.directories).finish_non_exhaustive()
    }
}

impl Kubenet {
    /// The driver with plugin directories, `/opt/cni/bin` without any, and a vendor's directory, which is searched after
    /// them. Empty paths are ignored.
    #[must_use]
    pub fn new(plugins: impl IntoIterator<Item = PathBuf>, vendor: &Path) -> Self {
        let named = |path: &PathBuf| !path.as_os_str().is_empty();
        let mut directories: Vec<PathBuf> = plugins.into_iter().filter(named).collect();
        if directories.is_empty() {
            directories.push(PLUGIN_DIRECTORY.into());
        }
        directories.extend(Some(vendor.to_owned()).filter(named));
        Self {
            directories,
            cache: cni_runtime::cache::DIRECTORIES[0].into(),
            settings: None,
            state: Mutex::default(),
        }
    }

    /// Sets the directory of the cache of attachments.
    #[must_use]
    pub fn cache(self, directory: impl Into<PathBuf>) -> Self {
        Self { cache: directory.into(), ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settings(&self) -> Result<&Settings, KubenetError> {
        self.settings.as_ref().ok_or(KubenetError::NotInitialised)
    }

    fn runtime(&self) -> Runtime {
        let builder = cni_runtime::Runtime::builder().plugin_dirs(&self.directories).cache(&self.cache);
        builder.undo_failed_add().keep_deleting().build_async()
    }

    /// The pods' network, if pods can be set up.
    fn ready(&self) -> Result<Arc<PodNetwork>, KubenetError> {
        let network = self.state().network.clone().ok_or(KubenetError::NoPodCidr)?;
        if self.directories.iter().any(|directory| has_plugins(directory)) {
            return Ok(network);
        }
        let shown = self.directories.iter().map(|directory| directory.display().to_string());
        Err(KubenetError::NoPlugins(shown.collect()))
    }

    async fn start(&mut self, settings: InitSettings) -> Result<(), KubenetError> {
        let InitSettings { host, hairpin_mode, non_masquerade_cidr, mtu, purpose } = settings;
        let masquerade = config::masquerade(&non_masquerade_cidr).map_err(KubenetError::NonMasqueradeCidr)?;
        let mtu = match mtu {
            Some(mtu) => mtu,
            None => blocking(mtu::least).await?.map_err(KubenetError::Mtu)?,
        };
        if purpose == Purpose::SetUp {
            bridge_netfilter().await;
        }
        self.settings = Some(Settings { host, hairpin_mode, masquerade, mtu, purpose });
        Ok(())
    }

    /// Takes the first usable pod CIDR, and makes the bridge if pods are to be set up.
    async fn set_pod_cidr(&self, cidr: &str) {
        let Some(network) = self.accept(cidr) else { return };
        log::info!("kubenet: PodCIDR is set to {}", text::quote(cidr));
        if self.settings().is_ok_and(|settings| settings.purpose != Purpose::SetUp) {
            return;
        }
        // Every set-up makes the bridge again.
        if let Err(error) = bridge::ensure(&network, &self.cache).await {
            log::warn!("make {BRIDGE}: {error}");
        }
    }

    /// The pods' network, if this pod CIDR is the first usable one. Logs why it is not.
    fn accept(&self, cidr: &str) -> Option<Arc<PodNetwork>> {
        let settings =
            self.settings().inspect_err(|error| log::warn!("Ignoring pod CIDR {cidr}: {error}")).ok()?;
        let mut state = self.state();
        if let Some(network) = &state.network {
            let nets: Vec<String> = network.subnets.iter().map(|subnet| subnet.net.to_string()).collect();
            log::warn!("Ignoring subsequent pod CIDR update to {cidr}: pods get {}", nets.join(","));
            return None;
        }
        let subnets = config::parse_subnets(cidr)
            .inspect_err(|CidrFault { text, at, error }| {
                log::warn!("Failed to generate CNI network config with cidr {text} at index {at}: {error}");
            })
            .ok()?;
        let Settings { hairpin_mode, mtu, masquerade, .. } = settings;
        let network =
            PodNetwork { subnets, mtu: *mtu, hairpin_mode: *hairpin_mode, masquerade: masquerade.clone() };
        Some(Arc::clone(state.network.insert(Arc::new(network))))
    }

    async fn set_up(&self, pod: &Pod) -> Result<(), KubenetError> {
        let network = self.ready().map_err(|error| KubenetError::NotReady(Box::new(error)))?;
        let had_interface = self.refuse_connected(pod, &network).await?;
        if let Err(error) = self.connect(pod, &network).await {
            if !had_interface && let Err(undo) = self.delete(pod, &network).await {
                let Pod { namespace, name, .. } = pod;
                log::info!("Failed to clean up {namespace}/{name} after SetUpPod failure: {undo}");
            }
            return Err(error);
        }
        self.verify_masquerade(&pod.sandbox_id).await;
        Ok(())
    }

    async fn connect(&self, pod: &Pod, network: &Arc<PodNetwork>) -> Result<(), KubenetError> {
        let host = &self.settings()?.host;
        let netns = host.netns(&pod.sandbox_id).map_err(KubenetError::Netns)?;
        let ports = host.port_mappings(&pod.sandbox_id).map_err(KubenetError::PortMappings)?;
        let ports: Vec<PortMapping> = ports.into_iter().filter(|mapping| mapping.host_port != 0).collect();
        let rates = Bandwidth::from_annotations(&pod.annotations)?;
        skip_duplicate_detection(&netns).await;
        let mac = bridge::ensure(network, &self.cache).await?;
        let container = |ifname| pod.container(ifname, &netns);
        let runtime = self.runtime();
        runtime.add(&config::loopback()?, &container("lo")).await.map_err(KubenetError::Add)?;
        let mut eth0 = container(INTERFACE);
        if !ports.is_empty() {
            eth0 = eth0.capability("portMappings", port_mappings(&ports));
        }
        if rates.is_limited() {
            eth0 = eth0.capability("bandwidth", rates.capability(burst));
        }
        let list = network.network(!ports.is_empty(), rates.is_limited())?;
        let result = runtime.add(&list, &eth0).await.map_err(KubenetError::Add)?;
        if network.hairpin_mode == HairpinMode::PromiscuousBridge {
            let network = Arc::clone(network);
            let guarded = blocking(move || duplicates::guard(mac, &network.subnets)).await?;
            if let Err(error) = guarded {
                log::error!("Failed to guard {BRIDGE} against duplicates: {error}");
            }
        }
        let mut addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
        if addresses.is_empty() {
            return Err(KubenetError::NoAddress);
        }
        addresses.sort_by_key(IpAddr::is_ipv6);
        drop(self.state().pods.insert(pod.sandbox_id.clone(), addresses));
        Ok(())
    }

    async fn tear_down(&self, pod: &Pod) -> Result<(), KubenetError> {
        let network = self.state().network.clone();
        match network {
            Some(network) => self.delete(pod, &network).await?,
            None => {
                // A cached attachment can be deleted without the pod CIDR.
                if self.cached(&pod.sandbox_id).await?.is_empty() {
                    return Err(KubenetError::NoPodCidrForTeardown);
                }
                self.delete_all(self.cached(&pod.sandbox_id).await?).await?;
            }
        }
        drop(self.state().pods.remove(&pod.sandbox_id));
        self.verify_masquerade(&pod.sandbox_id).await;
        Ok(())
    }

    /// Deletes the pod's attachments as the cache has them, and missing ones as a set-up would make them.
    async fn delete(&self, pod: &Pod, network: &PodNetwork) -> Result<(), KubenetError> {
        let mut todo = self.cached(&pod.sandbox_id).await?;
        // Addresses and ports are freed also if the namespace is missing.
        let netns = self.settings()?.host.netns(&pod.sandbox_id).unwrap_or_else(|error| {
            log::debug!("Kubenet failed to retrieve network namespace path: {error}");
            PathBuf::new()
        });
        let has = |todo: &[(Network, Container)], name: &str| todo.iter().any(|(one, _)| one.name() == name);
        if !has(&todo, LOOPBACK) {
            todo.insert(0, (config::loopback()?, pod.container("lo", &netns)));
        }
        if !has(&todo, NETWORK) {
            let portmap = self.directories.iter().any(|directory| directory.join("portmap").exists());
            let bandwidth = self.directories.iter().any(|directory| directory.join("bandwidth").exists());
            todo.push((network.network(portmap, bandwidth)?, pod.container(INTERFACE, &netns)));
        }
        self.delete_all(todo).await
    }

    /// A DEL for each attachment, the last one first. A missing file is not an error: an earlier teardown may have done
    /// its part.
    async fn delete_all(&self, todo: Vec<(Network, Container)>) -> Result<(), KubenetError> {
        let runtime = self.runtime();
        let mut errors = Vec::new();
        for (network, container) in todo.iter().rev() {
            match runtime.del(network, container).await {
                Err(error) if !is_gone(&error) => {
                    log::warn!("Failed to delete {:?} network: {error}", container.ifname);
                    errors.push(KubenetError::Del(error));
                }
                _ => {}
            }
        }
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(KubenetError::Several(errors)),
        }
    }

    /// The sandbox's attachments to kubenet's networks, in the order of their ADDs.
    async fn cached(&self, sandbox_id: &str) -> Result<Vec<(Network, Container)>, KubenetError> {
        let cached = self.runtime().attachments(sandbox_id).await.map_err(KubenetError::Cache)?;
        let ours = cached.into_iter().filter(|one| [NETWORK, LOOPBACK].contains(&one.attachment.network()));
        Ok(ours.map(|one| (one.network(), one.container())).collect())
    }

    /// Checks the masquerade of one other pod, and restores that of all pods if it is missing, because a flush of the
    /// ruleset leaves none. Only one pod is checked, so the cost does not grow with the number of pods. A failure is
    /// logged.
    async fn verify_masquerade(&self, except: &str) {
        if self.settings.as_ref().is_none_or(|settings| settings.masquerade.is_none()) {
            return;
        }
        let other = self.state().pods.keys().find(|id| *id != except).cloned();
        let Some(other) = other else { return };
        let attachments = self.cached(&other).await.unwrap_or_default();
        let Some((network, container)) = attachments.into_iter().find(|(one, _)| one.name() == NETWORK)
        else {
            return;
        };
        if let Err(error) = self.runtime().check(&network, &container).await {
            log::error!("Failed to ensure MASQ rule: {error}; restoring the ruleset");
            self.restore().await;
        }
    }

    /// Runs `slipway restore`.
    async fn restore(&self) {
        let programs = self.directories.iter().map(|directory| directory.join("slipway"));
        let Some(program) = programs.into_iter().find(|program| program.exists()) else {
            log::error!("Failed to restore the ruleset: no program slipway in the plugin directories");
            return;
        };
        let program = Program { cache: Some(self.cache.clone()), ..Program::new(program) };
        match program.restore().await {
            Ok(done) => {
                done.failed.iter().for_each(|line| log::error!("Failed to restore {line}"));
                log::info!("Restored {} rules", done.restored.len());
            }
            Err(error) => log::error!("Failed to restore the ruleset: {error}"),
        }
    }

    async fn addresses(&self, pod: &Pod) -> Result<Option<PodNetworkStatus>, BoxError> {
        let known = self.state().pods.get(&pod.sandbox_id).cloned();
        let addresses = match known {
            Some(addresses) => addresses,
            None => pod_addresses("kubenet", &*self.settings()?.host, pod).await?,
        };
        Ok(PodNetworkStatus::new(addresses))
    }
}

/// True if a directory has all required plugins.
fn has_plugins(directory: &Path) -> bool {
    REQUIRED.iter().all(|plugin| directory.join(plugin).exists())
}

/// Turns duplicate address detection off in the pod's namespace: no pod can have another's address, and the pod would
/// wait a second for its own.
async fn skip_duplicate_detection(netns: &Path) {
    let netns = netns.to_owned();
    let set = blocking(move || {
        let netns = Netns::open(&netns)?;
        sysctl::set_in(&netns, "net/ipv6/conf/default/dad_transmits", "0")?;
        Ok::<_, DetectionError>(())
    });
    if let Ok(Err(error)) = set.await {
        log::debug!("Failed to disable DAD in container: {error}");
    }
}

/// Runs blocking work on a thread for such work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, KubenetError> {
    tokio::task::spawn_blocking(work).await.map_err(KubenetError::Interrupted)
}

impl NetworkPlugin for Kubenet {
    fn init(&mut self, settings: InitSettings) -> HookFuture<'_, ()> {
        Box::pin(async move { Ok(self.start(settings).await?) })
    }

    fn event<'a>(
        &'a self,
        name: &'a str,
        details: &'a Map<String, Value>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if let Some(cidr) = pod_cidr(name, details) {
                self.set_pod_cidr(cidr).await;
            }
        })
    }

    fn name(&self) -> &str {
        NETWORK
    }

    fn set_up_pod<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, ()> {
        Box::pin(async { Ok(self.set_up(pod).await?) })
    }

    fn tear_down_pod<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, ()> {
        Box::pin(async { Ok(self.tear_down(pod).await?) })
    }

    fn pod_network_status<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, Option<PodNetworkStatus>> {
        Box::pin(self.addresses(pod))
    }

    fn status(&self) -> HookFuture<'_, ()> {
        Box::pin(async { Ok(bridge::check(&self.ready()?, &self.cache).await?) })
    }
}

#[cfg(test)]
mod tests {
    use cni_runtime::kubelet::{EVENT_DETAIL_POD_CIDR, EVENT_POD_CIDR_CHANGE};

    use super::*;

    struct NoPods;

    impl Host for NoPods {
        fn netns(&self, _sandbox_id: &str) -> Result<PathBuf, BoxError> {
            Err("no sandbox".into())
        }

        fn port_mappings(&self, _sandbox_id: &str) -> Result<Vec<PortMapping>, BoxError> {
            Ok(Vec::new())
        }
    }

    /// A started driver. `init` would change the node.
    fn started(plugins: &Path, vendor: &Path) -> Kubenet {
        let settings = Settings {
            host: Arc::new(NoPods),
            hairpin_mode: HairpinMode::HairpinVeth,
            masquerade: None,
            mtu: 1400,
            purpose: Purpose::SetUp,
        };
        let directories = [plugins.to_owned()];
        Kubenet { settings: Some(settings), ..Kubenet::new(directories, vendor).cache(plugins.join("cache")) }
    }

    fn install(directory: &Path, plugins: &[&str]) {
        for plugin in plugins {
            std::fs::write(directory.join(plugin), "").unwrap();
        }
    }

    #[tokio::test]
    async fn without_a_pod_cidr_status_reports_it() {
        let directory = tempfile::tempdir().unwrap();
        install(directory.path(), &REQUIRED);
        let kubenet = started(directory.path(), Path::new(""));
        let pod = Pod::new("shop", "web", "c1");
        let lacks = "kubenet does not have netConfig. This is most likely due to lack of PodCIDR";
        assert_eq!(kubenet.status().await.unwrap_err().to_string(), lacks);
        assert_eq!(
            kubenet.set_up_pod(&pod).await.unwrap_err().to_string(),
            format!("kubenet cannot SetUpPod: {lacks}")
        );
        assert_eq!(
            kubenet.tear_down_pod(&pod).await.unwrap_err().to_string(),
            "kubenet needs a PodCIDR to tear down pods"
        );
        // A malformed pod CIDR and a missing one change nothing.
        kubenet.event(EVENT_POD_CIDR_CHANGE, &Map::new()).await;
        let bad = Map::from_iter([(EVENT_DETAIL_POD_CIDR.to_owned(), "10.1.0.0".into())]);
        kubenet.event(EVENT_POD_CIDR_CHANGE, &bad).await;
        kubenet.event("other", &bad).await;
        assert_eq!(kubenet.status().await.unwrap_err().to_string(), lacks);
        assert!(kubenet.accept("10.1.0.0/24").is_some());
        kubenet.status().await.unwrap();
    }

    #[test]
    fn a_second_pod_cidr_is_ignored() {
        let kubenet = started(Path::new("/plugins"), Path::new(""));
        assert!(kubenet.accept("10.1.0.0/33").is_none());
        assert_eq!(kubenet.accept("10.1.0.0/24").unwrap().subnets.len(), 1);
        assert!(kubenet.accept("10.2.0.0/24").is_none());
        let network = kubenet.state().network.clone().unwrap();
        assert_eq!((network.subnets[0].net.to_string().as_str(), network.mtu), ("10.1.0.0/24", 1400));
    }

    #[tokio::test]
    async fn the_plugins_are_in_the_plugin_directory_or_in_the_vendors() {
        let (plugins, vendor) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let kubenet = started(plugins.path(), vendor.path());
        kubenet.accept("10.1.0.0/24").unwrap();
        install(plugins.path(), &["bridge", "loopback"]);
        install(vendor.path(), &["host-local"]);
        assert_eq!(
            kubenet.status().await.unwrap_err().to_string(),
            format!(
                "could not locate kubenet required CNI plugins [bridge host-local loopback] at [{:?} {:?}]",
                plugins.path(),
                vendor.path()
            )
        );
        install(vendor.path(), &REQUIRED);
        kubenet.status().await.unwrap();
        let default = Kubenet::new([PathBuf::new()], Path::new(""));
        assert_eq!(default.directories, [PathBuf::from("/opt/cni/bin")]);
    }

    #[test]
    fn errors_of_a_teardown_are_collected() {
        let error = |text: &str| KubenetError::Netns(text.into());
        let text = KubenetError::Several(vec![error("a"), error("b")]).to_string();
        assert_eq!(
            text,
            "[Kubenet failed to retrieve network namespace path: a, \
             Kubenet failed to retrieve network namespace path: b]"
        );
    }
}
