// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures how long it takes from a change of a configuration file until the default network has changed, in
//! temporary directories: `cargo run --release -p cni-runtime --features pods --example reaction`.
#![allow(clippy::print_stdout, reason = "prints the figures")]

use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use cni_runtime::pods::Manager;
use cni_runtime::{Network, Runtime};
use serde_json::json;

const CHANGES: usize = 200;
const PLUGIN: &str = "#!/bin/sh\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}'\n";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let plugin = dir.path().join("plugin");
    std::fs::write(&plugin, PLUGIN)?;
    std::fs::set_permissions(&plugin, PermissionsExt::from_mode(0o755))?;
    let config = dir.path().join("net.d");
    let runtime = Runtime::builder().plugin_dir(dir.path());
    let manager = Manager::builder(runtime).config_dir(&config).start().await?;
    let mut changes = manager.subscribe();
    let mut times: Vec<Duration> = Vec::new();
    for number in 0..=CHANGES {
        let name = format!("n{number}");
        let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "plugin"}]});
        let new = config.join(".new");
        std::fs::write(&new, list.to_string())?;
        let begin = Instant::now();
        std::fs::rename(&new, config.join("10.conflist"))?;
        let is_seen = |network: &Network| network.name() == name;
        changes.wait_for(|networks| networks.default_network().is_some_and(is_seen)).await?;
        // The first change is left out, because it executes the plugin's VERSION.
        times.extend((number > 0).then(|| begin.elapsed()));
    }
    manager.shut_down().await;
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{CHANGES} changes: median {:.1} ms, longest {:.1} ms",
        ms(times[CHANGES / 2]),
        ms(times[CHANGES - 1])
    );
    Ok(())
}
