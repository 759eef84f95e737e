// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd pod up`.

use clap::{Args, ValueHint};
use cni_runtime::Cancel;
use cni_runtime::pods::Pod;

use super::attachments::Attachments;
use super::{CallerOptions, PodFailure, PodName, call_options, netns, plugin, sandbox_id, tables};

const EXAMPLES: &str = "\
Examples:
  slipwayd pod up shop/web-0 --sandbox 8f3a --create-netns --port 8080:80/tcp
  slipwayd pod up shop/db-0 --sandbox 91c0 --netns /run/netns/db --network pods --network storage=net1
  slipwayd pod up shop/web-1 --sandbox 8f3b --create-netns --ip 10.22.0.9 --bandwidth 10M:20M --output json
  slipwayd pod up shop/web-0 --sandbox 8f3a --create-netns --network-plugin kubenet --pod-cidr 10.1.0.0/24";

/// Attach a pod to its networks
///
/// Sets the loopback up and attaches the pod to its networks in order. If one fails, what was made is removed. A parameter
/// such as --port is for the network that is named before it, else for the first one.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The pod's namespace and name in Kubernetes
    #[arg(value_name = "NAMESPACE/NAME")]
    pod: PodName,
    /// The ID of the pod's sandbox, CNI_CONTAINERID
    #[arg(long, value_name = "ID", value_parser = sandbox_id)]
    sandbox: String,
    /// The UID of the pod
    #[arg(long, value_name = "UID")]
    uid: Option<String>,
    /// The network namespace of the pod
    #[arg(long, value_name = "FILE", required_unless_present = "create_netns", value_hint = ValueHint::FilePath)]
    netns: Option<String>,
    /// Make a namespace, /run/netns/slipwayd-SANDBOX; `pod down` deletes it
    #[arg(long, conflicts_with = "netns")]
    create_netns: bool,
    #[command(flatten)]
    attachments: Attachments,
    #[command(flatten)]
    caller: CallerOptions,
}

impl Options {
    pub(super) fn pod(&self) -> Pod {
        let PodName { namespace, name } = self.pod.clone();
        Pod {
            namespace,
            name,
            sandbox: self.sandbox.clone(),
            uid: self.uid.clone().unwrap_or_default(),
            netns: self.netns.clone().unwrap_or_default(),
            networks: self.attachments.networks(),
        }
    }
}

/// Attaches the pod. A namespace that was made for it is deleted if that fails.
pub(super) async fn execute(options: &Options, cancel: &Cancel) -> Result<(), PodFailure> {
    let mut pod = options.pod();
    if options.create_netns {
        pod.netns = netns::create(&pod.sandbox)?.display().to_string();
    }
    let done = attach(&pod, &options.caller, cancel).await;
    if done.is_err()
        && options.create_netns
        && let Err(error) = netns::delete(&pod.sandbox)
    {
        log::warn!("{error}");
    }
    done
}

async fn attach(pod: &Pod, caller: &CallerOptions, cancel: &Cancel) -> Result<(), PodFailure> {
    if caller.is_by_plugin() {
        return plugin::up(caller, pod, cancel).await;
    }
    let attached = caller.manager().set_up(pod, &call_options(cancel)).await?;
    tables::attached(pod, &attached, caller.output.json()).map_err(PodFailure::Output)
}
