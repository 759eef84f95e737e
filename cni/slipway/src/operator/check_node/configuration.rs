// SPDX-License-Identifier: GPL-2.0-or-later

//! The node's settings and the networks, as the administrator has written them. A misspelt key has no effect, and
//! nothing fails because of it.

use std::path::Path;

use cni_kernel::bounded;
use cni_plugins::keys;
use cni_plugins::node_defaults::NodeDefaults;
use cni_runtime::config;

use super::{Finding, State};

/// A key that a later version knows is as unknown as a misspelt one.
const UNKNOWN: &str = "a key that this version does not know has no effect";
const FIX: &str = "correct or delete it, unless it is meant for another version or another program";

/// All findings about settings and networks.
pub(super) fn findings() -> Vec<Finding> {
    settings().into_iter().chain(networks(Path::new(config::DIRECTORY))).collect()
}

/// The node's settings, if they cannot be used or have unknown keys.
fn settings() -> Option<Finding> {
    const WHAT: &str = "settings of the node";
    match NodeDefaults::read() {
        Ok(settings) if settings.unknown_keys.is_empty() => None,
        Ok(settings) => {
            Some(Finding::new(WHAT, State::Warning, settings.unknown_keys_text()).reason(UNKNOWN).fix(FIX))
        }
        Err(error) => Some(
            Finding::new(WHAT, State::Missing, error.to_string())
                .reason("no container can be added")
                .fix("see the error"),
        ),
    }
}

/// The files of networks that have unknown keys. A runtime itself reports what it cannot load.
fn networks(directory: &Path) -> Vec<Finding> {
    let files = config::load_all(directory).unwrap_or_default();
    files.iter().filter(|file| file.network.is_ok()).filter_map(|file| unknown_keys(&file.path)).collect()
}

fn unknown_keys(path: &Path) -> Option<Finding> {
    let file = serde_json::from_slice(&bounded::read(path, bounded::CONFIGURATION).ok()?).ok()?;
    let keys: Vec<String> = keys::unknown_in_network(&file).iter().map(ToString::to_string).collect();
    if keys.is_empty() {
        return None;
    }
    let subject = format!("network in {}", path.display());
    Some(Finding::new(subject, State::Warning, keys.join(", ")).reason(UNKNOWN).fix(FIX))
}
