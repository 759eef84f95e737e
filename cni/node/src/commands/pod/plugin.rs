// SPDX-License-Identifier: GPL-3.0-or-later

//! The commands `slipwayd pod` by a network plugin of kubelet.

use std::path::PathBuf;
use std::sync::Arc;

use cni_runtime::kubelet::{BoxError, Host, Manager, Pod, Purpose};
use cni_runtime::{Cancel, pods};
use cni_spec::PortMapping;
use slipwayd::network_plugin::CniDirectories;

use super::tables::{self, Ready};
use super::{CallerOptions, PodFailure, RuntimeOptions};

/// The pod of the command line: its namespace and ports, whatever the sandbox.
struct OnePod {
    netns: PathBuf,
    ports: Vec<PortMapping>,
}

/// The command line names no namespace.
#[derive(Debug, thiserror::Error)]
#[error("the namespace of sandbox {0} is not known: name it with --netns")]
struct NoNetns(String);

impl Host for OnePod {
    fn netns(&self, sandbox_id: &str) -> Result<PathBuf, BoxError> {
        if self.netns.as_os_str().is_empty() {
            return Err(NoNetns(sandbox_id.to_owned()).into());
        }
        Ok(self.netns.clone())
    }

    fn port_mappings(&self, _sandbox_id: &str) -> Result<Vec<PortMapping>, BoxError> {
        Ok(self.ports.clone())
    }
}

/// Sets the pod up and prints its addresses.
pub(super) async fn up(caller: &CallerOptions, pod: &pods::Pod, cancel: &Cancel) -> Result<(), PodFailure> {
    let manager = start(caller, pod, Purpose::SetUp).await?;
    set_up(&manager, &subject(pod), cancel).await?;
    print_addresses(&manager, caller, pod).await
}

/// Tears the pod down.
pub(super) async fn down(caller: &CallerOptions, pod: &pods::Pod) -> Result<(), PodFailure> {
    Ok(start(caller, pod, Purpose::TearDown).await?.tear_down_pod(&subject(pod)).await?)
}

/// Prints the pod's addresses.
pub(super) async fn status(caller: &CallerOptions, pod: &pods::Pod) -> Result<(), PodFailure> {
    print_addresses(&start(caller, pod, Purpose::Inspect).await?, caller, pod).await
}

/// Checks that the plugin can take a pod, and prints its name.
pub(super) async fn ready(caller: &CallerOptions) -> Result<(), PodFailure> {
    let manager = start(caller, &pods::Pod::default(), Purpose::Inspect).await?;
    manager.status().await.map_err(PodFailure::Plugin)?;
    tables::ready(Ready::NetworkPlugin(manager.driver().name()), caller.output.json())
        .map_err(PodFailure::Output)
}

async fn print_addresses(
    manager: &Manager,
    caller: &CallerOptions,
    pod: &pods::Pod,
) -> Result<(), PodFailure> {
    let status = manager.pod_network_status(&subject(pod)).await?;
    let addresses = status.map_or_else(Vec::new, |status| status.ips);
    tables::addresses_of(pod, &addresses, caller.output.json()).map_err(PodFailure::Output)
}

/// A set-up that a signal ends is undone.
async fn set_up(manager: &Manager, pod: &Pod, cancel: &Cancel) -> Result<(), PodFailure> {
    tokio::select! {
        done = manager.set_up_pod(pod) => return Ok(done?),
        () = cancel.cancelled() => {}
    }
    manager.tear_down_pod(pod).await?;
    Err(PodFailure::Cancelled)
}

async fn start(caller: &CallerOptions, pod: &pods::Pod, purpose: Purpose) -> Result<Manager, PodFailure> {
    let RuntimeOptions { cni_conf_dir, cache, .. } = &caller.runtime;
    let directories = CniDirectories {
        plugins: caller.runtime.plugin_dirs(),
        configurations: cni_conf_dir.clone().unwrap_or_default(),
        cache: cache.cache_dir.clone(),
    };
    let mappings = pod.networks.iter().flat_map(|attach| &attach.parameters.port_mappings);
    let host = OnePod { netns: PathBuf::from(&pod.netns), ports: mappings.cloned().collect() };
    Ok(caller.kubelet.start(&directories, Arc::new(host), purpose).await?)
}

/// The pod as kubelet's plugins take it: rates are annotations.
fn subject(pod: &pods::Pod) -> Pod {
    let mut subject = Pod::new(&pod.namespace, &pod.name, &pod.sandbox);
    for attach in &pod.networks {
        if let Some(bandwidth) = attach.parameters.bandwidth {
            for (key, rate) in [
                (pods::INGRESS_ANNOTATION, bandwidth.ingress_rate),
                (pods::EGRESS_ANNOTATION, bandwidth.egress_rate),
            ] {
                if rate > 0 {
                    subject = subject.annotation(key, rate.to_string());
                }
            }
        }
        subject.annotations.extend(attach.parameters.annotations.clone());
    }
    subject
}
