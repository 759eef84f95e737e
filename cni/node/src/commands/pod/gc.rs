// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd pod gc`.

use clap::Args;
use cni_runtime::Cancel;
use cni_runtime::pods::Pod;

use super::{
    DefaultNetwork, PodFailure, RuntimeOptions, attached_sandboxes, call_options, netns, sandbox_id,
};
use slipway_cli::Output;

const EXAMPLES: &str = "\
Examples:
  slipwayd pod gc --keep 8f3a --keep 91c0
  slipwayd pod gc --all";

/// Remove what belongs to no valid pod
///
/// Removes the cached attachments of other sandboxes, calls GC of all networks' plugins, and deletes namespaces of
/// --create-netns. No other command on pods runs concurrently.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The sandbox of a valid pod; any number of times
    #[arg(long, value_name = "ID", value_parser = sandbox_id, required_unless_present = "all", conflicts_with = "all")]
    keep: Vec<String>,
    /// No pod is valid
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    runtime: RuntimeOptions,
    #[command(flatten)]
    default_network: DefaultNetwork,
    #[command(flatten)]
    _output: Output,
}

#[cfg(test)]
impl Options {
    pub(super) fn runtime(&self) -> &RuntimeOptions {
        &self.runtime
    }
}

/// Removes what belongs to no valid pod.
pub(super) async fn execute(options: &Options, cancel: &Cancel) -> Result<(), PodFailure> {
    let manager = options.runtime.builder(&options.default_network).open();
    let keep = &options.keep;
    let valid: Vec<Pod> =
        keep.iter().map(|sandbox| Pod { sandbox: sandbox.clone(), ..Pod::default() }).collect();
    manager.gc(&valid, &call_options(cancel)).await?;
    // A network with `disableGC` keeps its attachments.
    let left = attached_sandboxes(&manager).await?;
    let unusable = manager.unusable_files().await?;
    // A damaged file may be about an attachment to such a network.
    let may_be_attached = |sandbox: &str| {
        let inside = format!("-{sandbox}-");
        unusable.iter().any(|file| file.to_string_lossy().contains(&inside))
    };
    let is_valid =
        |sandbox: &String| keep.contains(sandbox) || left.contains(sandbox) || may_be_attached(sandbox);
    for sandbox in netns::sandboxes()?.iter().filter(|sandbox| !is_valid(sandbox)) {
        netns::delete(sandbox)?;
    }
    Ok(())
}
