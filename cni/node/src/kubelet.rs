// SPDX-License-Identifier: GPL-3.0-or-later

//! The commands `slipwayd pod` by a network plugin of kubelet.

use std::path::PathBuf;
use std::sync::Arc;

use cni_runtime::kubelet::{BoxError, Host, Manager, Pod};
use cni_runtime::{Cancel, pods};
use cni_spec::PortMapping;
use slipwayd::network_plugin::CniDirectories;

use crate::cli::{Command, Given};
use crate::commands::{Failure, located};
use crate::{netns, output};

/// The pod of the command line: its namespace and ports, whatever the sandbox.
struct OnePod {
    netns: PathBuf,
    ports: Vec<PortMapping>,
}

impl Host for OnePod {
    fn netns(&self, sandbox_id: &str) -> Result<PathBuf, BoxError> {
        if self.netns.as_os_str().is_empty() {
            return Err(format!("sandbox {sandbox_id} has no namespace").into());
        }
        Ok(self.netns.clone())
    }

    fn port_mappings(&self, _sandbox_id: &str) -> Result<Vec<PortMapping>, BoxError> {
        Ok(self.ports.clone())
    }
}

/// Runs a command on a pod, or the status of the node.
///
/// # Errors
/// [`Failure`] of the plugin or of the command.
pub(crate) async fn execute(given: &Given, cancel: &Cancel) -> Result<(), Failure> {
    if given.command == Command::Status && given.pod.name.is_empty() {
        let manager = start(given, &given.pod).await?;
        return manager.status().await.map_err(Failure::Plugin);
    }
    let mut pod = located(&given.pod)?;
    let made = given.command == Command::Up && given.create_netns;
    if made {
        pod.netns = netns::create(&pod.sandbox)?.display().to_string();
    }
    let done = on_pod(given, &pod, cancel).await;
    let is_over = given.command == Command::Down && done.is_ok();
    if is_over || made && done.is_err() {
        netns::delete(&pod.sandbox)?;
    }
    done
}

async fn on_pod(given: &Given, pod: &pods::Pod, cancel: &Cancel) -> Result<(), Failure> {
    let manager = start(given, pod).await?;
    let subject = subject(pod);
    match given.command {
        Command::Down => return Ok(manager.tear_down_pod(&subject).await?),
        Command::Up => set_up(&manager, &subject, cancel).await?,
        _ => {}
    }
    let status = manager.pod_network_status(&subject).await?;
    let addresses = status.map_or_else(Vec::new, |status| status.ips);
    output::addresses_of(pod, &addresses, given.json).map_err(Failure::Output)
}

/// A set-up that a signal ends is undone.
async fn set_up(manager: &Manager, pod: &Pod, cancel: &Cancel) -> Result<(), Failure> {
    tokio::select! {
        done = manager.set_up_pod(pod) => return Ok(done?),
        () = cancel.cancelled() => {}
    }
    manager.tear_down_pod(pod).await?;
    Err(Failure::Cancelled)
}

async fn start(given: &Given, pod: &pods::Pod) -> Result<Manager, Failure> {
    let directories = CniDirectories {
        plugins: given.plugin_dirs(),
        configurations: given.config_dir.clone(),
        cache: given.cache_dir.clone(),
    };
    let mappings = pod.networks.iter().flat_map(|attach| &attach.parameters.port_mappings);
    let host = OnePod { netns: PathBuf::from(&pod.netns), ports: mappings.cloned().collect() };
    Ok(given.kubelet.start(&directories, Arc::new(host)).await?)
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
