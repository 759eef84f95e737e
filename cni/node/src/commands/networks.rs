// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd networks`: the configuration files of networks.

use std::io;

use clap::Args;
use cni_runtime::{Network, pods};
use cni_state::documents::{NetworkFile, Networks};

use super::Signals;
use super::output::{print, table};
use super::pod::{DefaultNetwork, PodFailure, RuntimeOptions};
use slipway_cli::Output;

const EXAMPLES: &str = "\
Examples:
  slipwayd networks --watch
  slipwayd networks --cni-conf-dir /etc/net.d --output json";

/// Show the configuration files, with their networks or the reason why they are skipped
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Print again after each change
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    runtime: RuntimeOptions,
    #[command(flatten)]
    default_network: DefaultNetwork,
    #[command(flatten)]
    output: Output,
}

/// Prints the files, once or after each change until a signal.
pub(super) async fn execute(options: &Options) -> Result<(), PodFailure> {
    let builder = options.runtime.builder(&options.default_network);
    let is_json = options.output.json();
    if !options.watch {
        return print_networks(&*builder.open().resync().await?, is_json).map_err(PodFailure::Output);
    }
    let mut signals = Signals::new().map_err(PodFailure::Signals)?;
    let manager = builder.watch().await?;
    let mut changes = manager.subscribe();
    loop {
        let networks = changes.borrow_and_update().clone();
        print_networks(&networks, is_json).map_err(PodFailure::Output)?;
        tokio::select! {
            // The manager keeps the sender.
            _ = changes.changed() => {}
            () = signals.next() => break,
        }
    }
    manager.shut_down().await;
    Ok(())
}

/// Prints the files of the configuration directory.
fn print_networks(networks: &pods::Networks, is_json: bool) -> io::Result<()> {
    let document = networks_document(networks);
    if is_json {
        return print(document);
    }
    let default = document.default_network.as_ref();
    let rows = document.files.iter().map(|NetworkFile { path, network, skipped }| {
        let note = match skipped {
            Some(reason) => format!("skipped: {reason}"),
            None if network.as_ref() == default => "default".to_owned(),
            None => String::new(),
        };
        [path.clone(), network.clone().unwrap_or_default(), note]
    });
    table(["FILE", "NETWORK", "NOTE"], rows)
}

fn networks_document(networks: &pods::Networks) -> Networks {
    let files = networks.verdicts().iter().map(|verdict| NetworkFile {
        path: verdict.path.display().to_string(),
        network: verdict.network.as_ref().ok().cloned(),
        skipped: verdict.skip_reason(),
    });
    let default = networks.default_network().map(Network::name);
    Networks { default_network: default.map(str::to_owned), files: files.collect() }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use cni_runtime::Runtime;
    use cni_runtime::pods::Manager;
    use slipway_cli::checks::assert_documented;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn networks_are_as_documented() {
        let dir = tempfile::tempdir().unwrap();
        let plugin = dir.path().join("bridge");
        let printed = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
        std::fs::write(&plugin, format!("#!/bin/sh\necho '{printed}'\n")).unwrap();
        std::fs::set_permissions(&plugin, Permissions::from_mode(0o755)).unwrap();
        let manager = || {
            let runtime = Runtime::builder().plugin_dir(dir.path()).cache(dir.path().join("cache"));
            Manager::builder(runtime).config_dir(dir.path().join("net.d")).open()
        };
        std::fs::create_dir(dir.path().join("net.d")).unwrap();
        let none = networks_document(&manager().resync().await.unwrap());
        let good = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;
        std::fs::write(dir.path().join("net.d/10-pods.conflist"), good).unwrap();
        std::fs::write(dir.path().join("net.d/20-bad.conflist"), "{").unwrap();
        let some = networks_document(&manager().resync().await.unwrap());
        assert_eq!((some.default_network.as_deref(), &some.files[0].skipped), (Some("pods"), &None));
        assert_documented("slipwayd networks", &[none, some]);
    }
}
