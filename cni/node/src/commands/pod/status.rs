// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd pod status`.

use clap::Args;
use cni_runtime::{Cancel, Network};

use super::tables::{self, Ready};
use super::{CallerOptions, PodFailure, PodName, PodOptions, call_options, plugin, sandbox_id};

const EXAMPLES: &str = "\
Examples:
  slipwayd pod status shop/web-0 --sandbox 8f3a --output json
  slipwayd pod status --default-network pods
  slipwayd pod status --network-plugin kubenet --pod-cidr 10.1.0.0/24";

/// Check a pod, or the node
///
/// Calls CHECK of the plugins and prints the pod's addresses. Without a pod it prints the default network if that can take
/// one: its configuration is valid, and STATUS of its plugins succeeds. Changes nothing on the node.
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    mut_arg("uid", |uid| uid.requires("name")),
    mut_arg("netns", |netns| netns.requires("name")),
    mut_arg("network", |network| network.requires("name"))
)]
pub(crate) struct Options {
    /// The pod's namespace and name in Kubernetes
    #[arg(value_name = "NAMESPACE/NAME", requires = "sandbox")]
    name: Option<PodName>,
    /// The ID of the pod's sandbox, CNI_CONTAINERID
    #[arg(long, value_name = "ID", value_parser = sandbox_id, requires = "name")]
    sandbox: Option<String>,
    #[command(flatten)]
    pod: PodOptions,
    #[command(flatten)]
    caller: CallerOptions,
}

/// Checks a pod, or that the node can take one.
pub(super) async fn execute(options: &Options, cancel: &Cancel) -> Result<(), PodFailure> {
    let caller = &options.caller;
    let pod = options.name.as_ref().zip(options.sandbox.as_deref());
    let pod = pod.map(|(name, sandbox)| options.pod.pod(name, sandbox));
    match (pod, caller.is_by_plugin()) {
        (Some(pod), true) => plugin::status(caller, &pod).await,
        (None, true) => plugin::ready(caller).await,
        (Some(pod), false) => {
            let attached = caller.manager().status(&pod, &call_options(cancel)).await?;
            tables::attached(&pod, &attached, caller.output.json()).map_err(PodFailure::Output)
        }
        (None, false) => {
            let manager = caller.manager();
            manager.ready(&call_options(cancel)).await?;
            let networks = manager.networks();
            let network = networks.default_network().map_or("", Network::name);
            tables::ready(Ready::Network(network), caller.output.json()).map_err(PodFailure::Output)
        }
    }
}
