// SPDX-License-Identifier: MIT OR Apache-2.0

//! kubelet's interface for network plugins, as Kubernetes had it up to 1.23 (`--network-plugin`).
//!
//! A *driver* implements [`NetworkPlugin`]: [`CniDriver`], [`ExecDriver`], [`NoOp`], or a driver from another crate,
//! such as kubenet. [`select()`] chooses a driver by its name, and [`Manager`] calls it with one lock per pod.
//! Messages are those of kubelet.

mod addresses;
mod bandwidth;
mod cni;
mod exec;
mod hairpin;
mod manager;
mod names;
mod selection;
pub(crate) mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use cni_spec::PortMapping;
use serde_json::{Map, Value, json};

use crate::container::Container;
use crate::error::NetworkError;

pub use addresses::{AddressError, addresses_of, pod_addresses};
pub use bandwidth::{Bandwidth, BandwidthError};
pub use cni::{CniDriver, CniDriverError};
pub use exec::{ExecDriver, ExecDriverError};
pub use hairpin::{HairpinMode, UnknownHairpinMode};
pub use manager::{HookError, Manager};
pub use names::check_qualified_name;
pub use selection::{NoOp, SelectError, SelectErrors, bridge_netfilter, select};
pub use status::{PodNetworkStatus, StatusError};

/// The event that tells a driver the node's pod CIDR.
pub const EVENT_POD_CIDR_CHANGE: &str = "pod-cidr-change";
/// The key of the pod CIDR in the event's details. The value is one CIDR, or several separated by commas.
pub const EVENT_DETAIL_POD_CIDR: &str = "pod-cidr";
/// The interface of a pod.
pub const INTERFACE: &str = "eth0";
/// The non-masquerade CIDR if none is given.
pub const DEFAULT_NON_MASQUERADE_CIDR: &str = "10.0.0.0/8";

/// The plugin directory if none is given.
pub const PLUGIN_DIRECTORY: &str = "/opt/cni/bin";
/// If an error of a teardown contains this text, something was already gone.
const GONE: &str = "no such file or directory";

/// The error of a driver. Only the driver knows its type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The future of a driver's hook.
pub type HookFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send + 'a>>;

/// A network plugin of kubelet.
pub trait NetworkPlugin: Send + Sync {
    /// Starts the driver. Called once, before all other methods except for [`NetworkPlugin::name`].
    fn init(&mut self, settings: InitSettings) -> HookFuture<'_, ()>;

    /// Passes an event, such as [`EVENT_POD_CIDR_CHANGE`]. A driver ignores events that it does not know, and logs
    /// events that it cannot use. This default ignores all events.
    fn event<'a>(
        &'a self,
        _name: &'a str,
        _details: &'a Map<String, Value>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async {})
    }

    /// The name that selects the driver.
    fn name(&self) -> &str;

    /// The driver's capabilities.
    fn capabilities(&self) -> BTreeSet<Capability> {
        BTreeSet::new()
    }

    /// Connects a pod whose namespace exists and whose containers are not running yet.
    fn set_up_pod<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, ()>;

    /// Disconnects a pod. Succeeds for a pod that is not connected.
    fn tear_down_pod<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, ()>;

    /// The addresses of a pod. None if the driver does not know them.
    fn pod_network_status<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, Option<PodNetworkStatus>>;

    /// Fails if the driver cannot set up pods. The default always succeeds.
    fn status(&self) -> HookFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// A capability of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Capability {
    /// The driver limits a pod's rate by its annotations.
    Shaping,
}

/// The settings that every driver gets.
#[derive(Clone)]
pub struct InitSettings {
    /// Provides the pods' namespaces and ports.
    pub host: Arc<dyn Host>,
    /// The hairpin mode in effect.
    pub hairpin_mode: HairpinMode,
    /// Destinations to which pods keep their own addresses: a CIDR, or several separated by commas.
    pub non_masquerade_cidr: String,
    /// The MTU of the pods' network. None lets the driver choose.
    pub mtu: Option<u32>,
    /// Which operations will follow.
    pub purpose: Purpose,
}

/// Why a driver is started, which decides what the start may change on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// Pods will be set up, among other things, so the driver prepares the node, as it did when kubelet started.
    #[default]
    SetUp,
    /// Pods will be torn down, so the driver makes nothing for other pods.
    TearDown,
    /// Pods and the node will be inspected, so the driver changes nothing.
    Inspect,
}

/// The container runtime as the drivers see it.
pub trait Host: Send + Sync {
    /// The path of a sandbox's network namespace.
    ///
    /// # Errors
    /// The runtime's error, if it does not know the sandbox or its namespace.
    fn netns(&self, sandbox_id: &str) -> Result<PathBuf, BoxError>;

    /// The ports that a sandbox publishes.
    ///
    /// # Errors
    /// The runtime's error, if it does not know the sandbox.
    fn port_mappings(&self, sandbox_id: &str) -> Result<Vec<PortMapping>, BoxError>;
}

/// The value of the capability `portMappings`. It contains only ports that are published, with protocols in lower
/// case.
#[must_use]
pub fn port_mappings(mappings: &[PortMapping]) -> Value {
    let published = mappings.iter().filter(|mapping| mapping.host_port != 0);
    published
        .map(|PortMapping { host_port, container_port, protocol, host_ip }| {
            json!({
                "hostPort": host_port,
                "containerPort": container_port,
                "protocol": protocol.to_lowercase(),
                "hostIP": host_ip,
            })
        })
        .collect()
}

/// The pod CIDR of an event. None if this is a different event. An event without a pod CIDR is logged.
#[must_use]
pub fn pod_cidr<'a>(event: &str, details: &'a Map<String, Value>) -> Option<&'a str> {
    if event != EVENT_POD_CIDR_CHANGE {
        return None;
    }
    let cidr = details.get(EVENT_DETAIL_POD_CIDR).and_then(Value::as_str);
    if cidr.is_none() {
        log::warn!("{EVENT_POD_CIDR_CHANGE} event didn't contain pod CIDR");
    }
    cidr
}

/// True if a DEL failed only because files were missing, in which case an earlier teardown may have done its part.
/// Plugins in Rust print the system's message with a capital letter.
#[must_use]
pub fn is_gone(error: &NetworkError) -> bool {
    match error {
        // A plugin that failed for another reason has left something behind.
        NetworkError::Several(all) => all.iter().all(is_gone),
        one => one.to_string().to_lowercase().contains(GONE),
    }
}

/// A pod and its sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// The pod's namespace in Kubernetes.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The ID of the pod's sandbox, the container that holds the network namespace.
    pub sandbox_id: String,
    /// The pod's annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Pod {
    /// A pod without annotations.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, sandbox_id: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            sandbox_id: sandbox_id.into(),
            annotations: BTreeMap::new(),
        }
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        drop(self.annotations.insert(key.into(), value.into()));
        self
    }

    /// The pod as a container in the sense of CNI, without capability arguments.
    #[must_use]
    pub fn container(&self, ifname: &str, netns: &Path) -> Container {
        Container::new(&self.sandbox_id, ifname)
            .netns(netns.display().to_string())
            .arg("IgnoreUnknown", "1")
            .arg("K8S_POD_NAMESPACE", &self.namespace)
            .arg("K8S_POD_NAME", &self.name)
            .arg("K8S_POD_INFRA_CONTAINER_ID", &self.sandbox_id)
    }

    /// kubelet's full name of the pod: name, underscore, namespace.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}_{}", self.name, self.namespace)
    }
}

/// Joins errors into one text, like Kubernetes does: a single error as it is, several errors in brackets.
pub(crate) fn join_errors(errors: &[impl std::fmt::Display]) -> String {
    match errors {
        [one] => one.to_string(),
        all => {
            let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
            format!("[{}]", texts.join(", "))
        }
    }
}

/// Runs work on a thread for blocking work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BoxError> + Send + 'static,
) -> Result<T, BoxError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(error.into()),
        },
    }
}
