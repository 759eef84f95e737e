// SPDX-License-Identifier: GPL-2.0-or-later

//! The option `isolate`: the networks that a network is kept apart from.
//!
//! A network without the option gets the default of the netavark that calls: open with netavark 1, strict from netavark
//! 2 on. If the version of the caller is unknown, the network is strict.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use cni_kernel::bounded;
use nix::unistd::getppid;
use serde::Deserialize;
use serde_json::Value;

use super::options::{Isolate, Mode, Options};
use super::types::{Network, Presence};

/// The key in a network's options.
pub(super) const KEY: &str = "isolate";

/// The value of a network without the option.
pub(super) fn of_network(network: &Network) -> Isolate {
    match caller(network) {
        Caller::Netavark1 => Isolate::Open,
        Caller::Netavark2 if is_of_earlier_version(network) => Isolate::Open,
        Caller::Netavark2 => Isolate::Strict,
    }
}

/// True for a network that was created by an earlier version of Slipway, which never wrote the option. Today `create`
/// writes the option where netavark isolates by default. The network is recognised by its bridge, which has the name
/// that `create` chooses. A network whose driver was changed by hand has the bridge that podman named.
fn is_of_earlier_version(network: &Network) -> bool {
    network.network_interface.as_deref() == Some(network.default_bridge().as_str())
}

/// The parts of a stored network that are needed.
#[derive(Debug, Deserialize)]
struct Stored {
    driver: String,
    #[serde(flatten)]
    network: Network,
}

/// The files of podman's networks. A missing directory has none.
pub(crate) fn stored_networks(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|name| name == "json") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// True for the file of a network that an earlier version of Slipway created, and that is open because it lacks the
/// option.
///
/// # Errors
/// The file cannot be read, or is not JSON.
pub(crate) fn is_open_since_an_earlier_version(path: &Path) -> io::Result<bool> {
    let text = match bounded::read(path, bounded::CONFIGURATION) {
        // podman has removed the network since the directory was listed.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        text => text?,
    };
    let value: Value = serde_json::from_slice(&text)?;
    // The networks of other drivers may look different.
    let Ok(Stored { driver, network }) = serde_json::from_value(value) else { return Ok(false) };
    let options = Options::of(network.options.as_ref());
    let has_none = options.is_ok_and(|options| options.isolate.is_none() && options.mode == Mode::Managed);
    Ok(driver == env!("CARGO_PKG_NAME") && has_none && is_of_earlier_version(&network))
}

/// The version of netavark behind a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Netavark1,
    /// netavark 2, or a caller whose version cannot be determined.
    Netavark2,
}

/// Tells the versions apart by the keys that they pass: netavark 1 does not know the time of creation and passes all
/// other keys, while netavark 2 knows the time and passes no `null` (see `types.rs` of both).
fn caller(network: &Network) -> Caller {
    match (network.created, network.network_dns_servers) {
        (Presence::Absent, Presence::Null) => Caller::Netavark1,
        _ => Caller::Netavark2,
    }
}

/// The value that `create` writes into a new network without the option. None if podman itself is the caller, because
/// such a podman uses netavark 1.
pub(super) fn of_new_network() -> Option<&'static str> {
    let name = fs::read_to_string(format!("/proc/{}/comm", getppid())).unwrap_or_default();
    is_strict_creator(name.trim_end()).then_some("strict")
}

/// With netavark 2, netavark calls `create`, not podman.
fn is_strict_creator(program: &str) -> bool {
    program != "podman"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(keys: &Value) -> Isolate {
        let mut network = json!({
            "name": "web", "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
            "driver": "slipway", "network_interface": "podman1", "internal": false,
        });
        network.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        of_network(&serde_json::from_value(network).unwrap())
    }

    #[test]
    fn the_default_is_the_callers() {
        let (first, second) =
            (json!({"network_dns_servers": null}), json!({"created": "2026-01-02T03:04:05Z"}));
        assert_eq!((with(&first), with(&second)), (Isolate::Open, Isolate::Strict));
        for unknown in [
            json!({}),
            json!({"network_dns_servers": ["192.0.2.53"]}),
            json!({"created": "2026-01-02T03:04:05Z", "network_dns_servers": null}),
        ] {
            assert_eq!(with(&unknown), Isolate::Strict, "{unknown}");
        }
    }

    #[test]
    fn a_network_of_an_earlier_version_stays_open() {
        let named =
            |bridge: &str| with(&json!({"created": "2026-01-02T03:04:05Z", "network_interface": bridge}));
        assert_eq!((named("sw2f259bab"), named("sw0")), (Isolate::Open, Isolate::Strict));
    }

    #[test]
    fn stored_networks_without_the_option_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, keys: Value| {
            let mut network = json!({
                "name": name, "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
                "driver": "slipway", "network_interface": "sw2f259bab", "created": "2026-01-02T03:04:05Z",
            });
            network.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            fs::write(folder.path().join(name), network.to_string()).unwrap();
        };
        write("earlier.json", json!({}));
        write("strict.json", json!({"options": {"isolate": "strict"}}));
        write("podmans.json", json!({"driver": "bridge"}));
        write("named.json", json!({"network_interface": "br0"}));
        write("other.text", json!({}));
        fs::write(folder.path().join("broken.json"), "{").unwrap();
        let stored = stored_networks(folder.path()).unwrap();
        let is_open = |path: &Path| is_open_since_an_earlier_version(path);
        let broken = folder.path().join("broken.json");
        let (unread, read): (Vec<_>, Vec<_>) = stored.into_iter().partition(|path| is_open(path).is_err());
        let open: Vec<_> = read.into_iter().filter(|path| is_open(path).unwrap()).collect();
        assert_eq!((open, unread), (vec![folder.path().join("earlier.json")], vec![broken.clone()]));
        assert!(stored_networks(&folder.path().join("none")).unwrap().is_empty());
        stored_networks(&broken).unwrap_err();
        assert!(!is_open(&folder.path().join("gone.json")).unwrap(), "removed concurrently");
    }

    #[test]
    fn only_a_network_that_podman_creates_itself_has_no_value() {
        assert!(is_strict_creator("netavark") && is_strict_creator("") && !is_strict_creator("podman"));
    }
}
