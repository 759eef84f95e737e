// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd pod list`.

use clap::Args;
use cni_runtime::Runtime;
use cni_runtime::pods::Manager;

use super::{CacheOptions, PodFailure, tables};
use slipway_cli::Output;

const EXAMPLES: &str = "\
Examples:
  slipwayd pod list --cache-dir /srv/cni --output json";

/// List the attachments of all pods, from the cache
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(flatten)]
    cache: CacheOptions,
    #[command(flatten)]
    output: Output,
}

/// Prints the attachments.
pub(super) async fn execute(options: &Options) -> Result<(), PodFailure> {
    let manager = Manager::builder(Runtime::builder().cache(&options.cache.cache_dir)).open();
    let pending = manager.pending().await?;
    let attachments = manager.attachments().await?;
    tables::listed(&attachments, &pending, options.output.json()).map_err(PodFailure::Output)
}
