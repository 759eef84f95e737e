// SPDX-License-Identifier: MIT OR Apache-2.0

use std::path::PathBuf;

use cni_spec::{CniError, Version};
use serde_json::{Map, Value, json};

use super::{Command, Outcome, PluginCall, Step, Verb, environment, joined};
use crate::container::Container;
use crate::error::{CallError, NetworkError, several};
use crate::network::{Network, kind};

/// Calls VERSION of a plugin. The result is the list of versions that the plugin supports, or 0.1.0 if the plugin
/// does not have the command.
#[derive(Debug)]
pub struct Versions {
    plugin: String,
    path: Vec<PathBuf>,
}

impl Versions {
    /// VERSION of a plugin, by its type. `path` are the plugin directories.
    #[must_use]
    pub fn new(plugin: &str, path: &[PathBuf]) -> Self {
        Self { plugin: plugin.to_owned(), path: path.to_vec() }
    }
}

impl Verb for Versions {
    type Output = Vec<String>;

    fn next(&mut self, last: Option<Outcome>) -> Step<Vec<String>> {
        match last {
            None => Step::Call(call(&self.plugin, &self.path)),
            Some(outcome) => Step::Done(supported(outcome).map_err(NetworkError::from)),
        }
    }
}

/// Calls VERSION of every plugin of a network. All plugins must exist and support the network's version. All errors
/// are reported.
#[derive(Debug)]
pub struct Validate<'a> {
    network: &'a Network,
    path: Vec<PathBuf>,
    called: usize,
    errors: Vec<NetworkError>,
}

impl<'a> Validate<'a> {
    /// Validation of a network. `path` are the plugin directories.
    #[must_use]
    pub fn new(network: &'a Network, path: &[PathBuf]) -> Self {
        Self { network, path: path.to_vec(), called: 0, errors: Vec::new() }
    }

    fn verdict(&self, plugin: &str, outcome: Outcome) -> Result<(), NetworkError> {
        let wanted = self.network.list().version.as_str();
        if supported(outcome)?.iter().any(|one| one == wanted) {
            return Ok(());
        }
        Err(NetworkError::UnsupportedVersion { plugin: plugin.to_owned(), version: wanted.to_owned() })
    }
}

impl Verb for Validate<'_> {
    type Output = ();

    fn next(&mut self, last: Option<Outcome>) -> Step<()> {
        let plugins = &self.network.list().plugins;
        if let Some(outcome) = last
            && let Some(plugin) = plugins.get(self.called)
        {
            let cancelled = outcome == Err(CallError::Cancelled);
            let verdict = self.verdict(kind(plugin), outcome);
            self.errors.extend(verdict.err());
            self.called = if cancelled { plugins.len() } else { self.called + 1 };
        }
        match plugins.get(self.called) {
            Some(plugin) => Step::Call(call(kind(plugin), &self.path)),
            None => Step::Done(several(std::mem::take(&mut self.errors))),
        }
    }
}

fn call(plugin: &str, path: &[PathBuf]) -> PluginCall {
    // A plugin of version 0.1.0 must not fail because a variable is missing.
    let dummy = Container::new("dummy", "dummy").netns("dummy");
    let newest = Version::ALL.last().map_or("", |version| version.as_str());
    PluginCall {
        plugin: plugin.to_owned(),
        command: Command::Version,
        env: environment(Command::Version, &dummy, &joined(path)),
        stdin: json!({"cniVersion": newest}).to_string().into_bytes(),
        undo: false,
    }
}

fn supported(outcome: Outcome) -> Result<Vec<String>, CallError> {
    match outcome {
        Ok(output) => decode(&output).map_err(CallError::Failed),
        Err(CallError::Failed(error)) if error.msg == "unknown CNI_COMMAND: VERSION" => {
            Ok(vec![Version::V0_1_0.as_str().to_owned()])
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn decode(output: &[u8]) -> Result<Vec<String>, CniError> {
    let failed = |reason: &str| CniError::internal(format!("decoding version info: {reason}"));
    let reply: Map<String, Value> = serde_json::from_slice(output).map_err(|e| failed(&e.to_string()))?;
    let Some(version) = reply.get("cniVersion").and_then(Value::as_str).filter(|v| !v.is_empty()) else {
        return Err(failed("missing field cniVersion"));
    };
    match reply.get("supportedVersions").and_then(Value::as_array) {
        Some(list) if !list.is_empty() => {
            Ok(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        // In version 0.2.0, the reply had no list.
        _ if version == "0.2.0" => Ok(vec!["0.1.0".to_owned(), "0.2.0".to_owned()]),
        _ => Err(failed("missing field supportedVersions")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_to_version() {
        let decode = |text: &str| decode(text.as_bytes()).map_err(|e| e.msg);
        let all = decode(r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}"#);
        assert_eq!(all, Ok(vec!["0.4.0".to_owned(), "1.0.0".to_owned()]));
        assert_eq!(decode(r#"{"cniVersion":"0.2.0"}"#), Ok(vec!["0.1.0".to_owned(), "0.2.0".to_owned()]));
        assert_eq!(decode("{}"), Err("decoding version info: missing field cniVersion".to_owned()));
        let without = decode(r#"{"cniVersion":"1.0.0"}"#);
        assert_eq!(without, Err("decoding version info: missing field supportedVersions".to_owned()));
    }
}
