// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd pod down`.

use clap::Args;
use cni_runtime::Cancel;
use cni_runtime::pods::Pod;

use super::{
    CallerOptions, PodFailure, PodName, PodOptions, attached_sandboxes, call_options, netns, plugin,
    sandbox_id,
};

const EXAMPLES: &str = "\
Examples:
  slipwayd pod down shop/web-0 --sandbox 8f3a
  slipwayd pod down shop/web-0 --sandbox 8f3a --network pods
  slipwayd pod down shop/web-0 --sandbox 8f3a --network-plugin kubenet --pod-cidr 10.1.0.0/24";

/// Detach a pod from its networks
///
/// Uses the configuration and parameters of the set-up, from the cache, else the configuration directory. Succeeds if
/// nothing is left to remove. Deletes a namespace of --create-netns when its last network is detached. After a set-up that
/// was killed it removes what that had made.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The pod's namespace and name in Kubernetes
    #[arg(value_name = "NAMESPACE/NAME")]
    name: PodName,
    /// The ID of the pod's sandbox, CNI_CONTAINERID
    #[arg(long, value_name = "ID", value_parser = sandbox_id)]
    sandbox: String,
    #[command(flatten)]
    pod: PodOptions,
    #[command(flatten)]
    caller: CallerOptions,
}

impl Options {
    pub(super) fn pod(&self) -> Pod {
        self.pod.pod(&self.name, &self.sandbox)
    }
}

/// Detaches the pod, and deletes its namespace with the last network.
pub(super) async fn execute(options: &Options, cancel: &Cancel) -> Result<(), PodFailure> {
    let pod = options.pod();
    if options.caller.is_by_plugin() {
        plugin::down(&options.caller, &pod).await?;
    } else {
        let manager = options.caller.manager();
        manager.tear_down(&pod, &call_options(cancel)).await?;
        // With `--network` other attachments may be left.
        if attached_sandboxes(&manager).await?.contains(&pod.sandbox) {
            return Ok(());
        }
    }
    Ok(netns::delete(&pod.sandbox)?)
}
