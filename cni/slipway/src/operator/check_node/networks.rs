// SPDX-License-Identifier: GPL-2.0-or-later

//! Networks to which no container can be added, and podman's networks that an earlier version created as open.

use std::path::Path;

use cni_plugins::registry;
use cni_plugins::skel;
use cni_runtime::Network;
use cni_runtime::config::FileVerdict;
use serde_json::{Map, Value};

use super::{Finding, State, judged};
use crate::netavark;

/// The version of a STATUS. Configurations of earlier versions have the same keys.
const VERSION: &str = "1.1.0";

/// All findings about networks.
pub(super) fn findings(files: &[FileVerdict]) -> Vec<Finding> {
    let networks = files.iter().filter_map(|file| file.network.as_ref().ok());
    let mut found: Vec<Finding> = networks.flat_map(of_network).collect();
    found.extend(podmans(Path::new(netavark::CONFIGURATIONS)));
    found
}

/// Reports the plugins of a network whose STATUS fails. Only plugins of this binary are asked.
fn of_network(network: &Network) -> Vec<Finding> {
    let list = network.list();
    let status = |plugin: &Map<String, Value>| {
        let name = plugin.get("type").and_then(Value::as_str)?;
        let ipam = plugin.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str);
        let callee =
            registry::in_process(name).filter(|_| ipam.is_none_or(|ipam| registry::find(ipam).is_some()))?;
        let mut config = plugin.clone();
        config.insert("name".to_owned(), network.name().into());
        config.insert("cniVersion".to_owned(), VERSION.into());
        let variables = |key: &str| match key {
            "CNI_COMMAND" => Some("STATUS".into()),
            "CNI_PATH" => Some("/opt/cni/bin".into()),
            _ => None,
        };
        let error = skel::call(&callee, &variables, Value::Object(config).to_string().as_bytes()).err()?;
        let subject = format!("network {}, plugin {name}", network.name());
        Some(
            Finding::new(subject, State::Missing, error.msg)
                .reason("no container can be added to the network")
                .fix("see the error"),
        )
    };
    list.plugins.iter().filter_map(status).collect()
}

/// podman's networks that an earlier version created.
fn podmans(directory: &Path) -> Vec<Finding> {
    judged("podman's networks", netavark::stored_networks(directory), |paths| {
        paths.into_iter().flat_map(|path| of_podman(&path)).collect::<Vec<_>>()
    })
}

fn of_podman(path: &Path) -> Vec<Finding> {
    let subject = format!("podman's network in {}", path.display());
    judged(&subject, netavark::is_open_since_an_earlier_version(path), |is_open| {
        is_open.then(|| {
            Finding::new(&subject, State::Note, "open: it has no option isolate")
                .reason("an earlier version of Slipway created it; podman 6 keeps networks without the option apart from all others")
                .fix("add \"isolate\": \"strict\" or \"false\" to its \"options\", and start its containers again")
        })
    })
}
