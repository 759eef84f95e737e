// SPDX-License-Identifier: MIT OR Apache-2.0

//! A plugin set with its own node, and the pods.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::contender::{Backend, make_node};
use xtask::cni::container_id;
use xtask::sandbox;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, tool};

/// The folder with a configuration directory for each set, in the private `/var/lib`.
const CONFIGURATIONS: &str = "/var/lib/net.d";
/// The published port of the first pod.
const FIRST_PORT: u16 = 20_000;

/// A plugin set, its network and its node.
#[derive(Debug)]
pub(super) struct Node {
    /// The name of the plugin set in tables, and of its network.
    pub(super) name: &'static str,
    pub(super) plugins: PathBuf,
    pub(super) configuration: PathBuf,
    /// `PATH` of the callers: only nft.
    pub(super) path: String,
    netns: PathBuf,
}

/// A pod with an empty namespace.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) id: String,
    pub(super) netns: PathBuf,
    pub(super) port: u16,
}

impl Node {
    /// Makes the node and writes the configuration of its network.
    pub(super) fn new(name: &'static str, plugins: &Path) -> Result<Self> {
        let netns = make_node(name)?;
        let configuration = Path::new(CONFIGURATIONS).join(name);
        write(&configuration, name, name)?;
        let (plugins, path) = (plugins.to_owned(), Backend::Nftables.path("nft")?);
        Ok(Self { name, plugins, configuration, path, netns })
    }

    /// Moves the calling thread, and the processes that it starts, to the node.
    pub(super) fn enter(&self) -> Result<()> {
        sandbox::switch_to(&self.netns)
    }

    /// Fails unless so many pods are attached. The calling thread must be on the node.
    pub(super) fn expect(&self, attached: usize) -> Result<()> {
        let bridge = format!("{}0", self.name);
        let links = run::capture(&mut tool("ip", &["-oneline", "link", "show", "master", &bridge]))?;
        match links.lines().count() {
            found if found == attached => Ok(()),
            found => Err(Error::Failed(format!(
                "{bridge} has the links of {found} pods, and {attached} should be attached"
            ))),
        }
    }
}

/// Writes the only configuration of a directory: the list of a plugin set with another name for the network. The file
/// replaces the former one at once.
pub(super) fn write(directory: &Path, set: &str, network: &str) -> Result<()> {
    let subnet = if set == "reference" { "10.101.0.0/16" } else { "10.100.0.0/16" };
    let list = json!({
        "cniVersion": "1.0.0",
        "name": network,
        "plugins": [
            {
                "type": "bridge", "bridge": format!("{set}0"), "isDefaultGateway": true, "hairpinMode": true,
                "ipMasq": true, "ipMasqBackend": "nftables",
                "ipam": {
                    "type": "host-local", "dataDir": format!("/var/lib/cni/{set}"),
                    "ranges": [[{ "subnet": subnet }]],
                },
            },
            { "type": "portmap", "backend": "nftables", "capabilities": { "portMappings": true } },
        ],
    });
    files::create_dir(directory)?;
    let (new, file) = (directory.join(".new"), directory.join("10-bench.conflist"));
    files::write(&new, list.to_string())?;
    files::rename(&new, &file)
}

/// Makes this many pods. All contenders share them, so that the number of namespaces does not change between
/// measurements. Removing a namespace holds locks for which the next measurement would wait.
pub(super) fn targets(count: u16) -> Result<Vec<Target>> {
    let target = |number: u16| {
        let id = container_id((number + 1).into());
        Ok(Target { id, netns: sandbox::add_netns(&format!("pod-{number}"))?, port: FIRST_PORT + number })
    };
    (0..count).map(target).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_changed_list_replaces_the_former_one() {
        let dir = std::env::temp_dir().join(format!("slipway-bench-{}", std::process::id()));
        for network in ["first", "second"] {
            write(&dir, "slipway", network).unwrap();
        }
        let mut files = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path());
        let (file, more) = (files.next().unwrap(), files.next());
        let list: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!((file.file_name().unwrap(), more), ("10-bench.conflist".as_ref(), None));
        assert_eq!((&list["name"], &list["plugins"][0]["bridge"]), (&"second".into(), &"slipway0".into()));
    }
}
