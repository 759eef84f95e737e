// SPDX-License-Identifier: MIT OR Apache-2.0

//! Networks: calling a network's plugins in order, and caching the results.
//!
//! Order, checks and messages are those of the reference library (libcni).

use std::ffi::OsString;
use std::path::PathBuf;

use cni_kernel::dir::DirError;
use cni_spec::{
    AddResult, Attachment, AttachmentError, CniError, Declared, Version, check_container_id, check_ifname,
    check_network, fold, text,
};
use serde_json::{Map, Value, json};

use crate::cache::{Cache, CacheError, Cached, StoreError};
use crate::config::Loaded;
use crate::container::Container;
use crate::invoke;

/// A runtime's directories.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// The plugin directories, as in `CNI_PATH`.
    pub path: Vec<PathBuf>,
    /// The directory of the cache, as in [`crate::cache::DIRECTORIES`].
    pub cache: PathBuf,
}

/// A failed operation on a network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A plugin failed, or was not found.
    #[error("plugin {} failed ({verb}): {error}", .which)]
    Plugin {
        /// `type="bridge"`, and its name if the configuration has one.
        which: String,
        /// `add` or `delete`.
        verb: &'static str,
        /// The plugin's error.
        error: CniError,
    },
    /// A plugin's error, unchanged.
    #[error(transparent)]
    FromPlugin(#[from] CniError),
    /// The container's ID, the network's name or the interface's name is invalid.
    #[error(transparent)]
    Name(#[from] AttachmentError),
    /// The network's version does not have the command.
    #[error("configuration version {} does not support the {verb} command", text::quote(version))]
    TooOld {
        /// The version.
        version: String,
        /// The command.
        verb: &'static str,
    },
    /// The cached result cannot be read.
    #[error("failed to get network {} cached result: {error}", text::quote(network))]
    Remembered {
        /// The network.
        network: String,
        /// The cache's error.
        error: CacheError,
    },
    /// The cache's directory cannot be used.
    #[error(transparent)]
    Cache(#[from] DirError),
    /// The result could not be cached.
    #[error(transparent)]
    Remember(#[from] StoreError),
    /// A plugin does not support the network's version.
    #[error("plugin {plugin} does not support config version {}", text::quote(version))]
    UnsupportedVersion {
        /// The plugin.
        plugin: String,
        /// The version.
        version: String,
    },
    /// Several errors, printed one per line.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<NetworkError>),
    /// A stale attachment could not be deleted.
    #[error("failed to delete stale attachment {container} {ifname}: {error}")]
    Stale {
        /// The container's ID.
        container: String,
        /// The interface.
        ifname: String,
        /// The error of its DEL.
        error: Box<NetworkError>,
    },
    /// A plugin's GC failed.
    #[error("failed to GC plugin {plugin}: {error}")]
    Gc {
        /// The plugin's type.
        plugin: String,
        /// The plugin's error.
        error: CniError,
    },
}

impl Runtime {
    /// Calls ADD of every plugin in order, each with the result of the previous one, and caches the last
    /// result. A failure undoes nothing: the caller decides on a DEL.
    ///
    /// # Errors
    /// [`NetworkError::Plugin`] for the first plugin that fails.
    pub fn add(&self, network: &Loaded, container: &Container) -> Result<AddResult, NetworkError> {
        let list = &network.list;
        let mut result = None;
        for plugin in &list.plugins {
            let failed = |error| NetworkError::Plugin { which: which(plugin), verb: "add", error };
            invoke::find(kind(plugin), &self.path).map_err(failed)?;
            let attachment = attachment(network, container)?;
            let input = self.input(network, plugin, result.as_ref(), container).map_err(failed)?;
            let output = self.call(plugin, "ADD", Some(container), &input).map_err(failed)?;
            let version = list.version.known().unwrap_or(Version::V0_1_0);
            let added = AddResult::from_output(version, &output)
                .map_err(|e| failed(CniError::internal(e.to_string())))?;
            log::debug!("{}: {attachment} added", kind(plugin));
            result = Some(added);
        }
        let result = result.unwrap_or_default();
        let attachment = attachment(network, container)?;
        Cache::create(&self.cache)?.remember(
            &attachment,
            &network.bytes,
            container,
            &result,
            version(network),
        )?;
        Ok(result)
    }

    /// Calls CHECK of every plugin in order, with the cached result.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] of the first plugin that finds a difference; [`NetworkError::TooOld`] before
    /// version 0.4.0.
    pub fn check(&self, network: &Loaded, container: &Container) -> Result<(), NetworkError> {
        let list = &network.list;
        if older(&list.version, Version::V0_4_0) {
            return Err(NetworkError::TooOld { version: list.version.to_string(), verb: "CHECK" });
        }
        if list.disable_check {
            return Ok(());
        }
        let result = self.cached(&attachment(network, container)?)?.map(|cached| cached.result);
        for plugin in &list.plugins {
            invoke::find(kind(plugin), &self.path)?;
            let input = self.input(network, plugin, result.as_ref(), container)?;
            self.call(plugin, "CHECK", Some(container), &input)?;
        }
        Ok(())
    }

    /// Calls DEL of every plugin in reverse order, with the cached result, and deletes that when all have
    /// succeeded. An unreadable cached result is ignored.
    ///
    /// # Errors
    /// [`NetworkError::Plugin`] for the first plugin that fails.
    pub fn del(&self, network: &Loaded, container: &Container) -> Result<(), NetworkError> {
        let attachment = attachment(network, container)?;
        let mut result = None;
        if !older(&network.list.version, Version::V0_4_0) {
            result = self.cached(&attachment).unwrap_or_else(|error| {
                log::warn!("{error}");
                None
            });
        }
        let result = result.map(|cached| cached.result);
        for plugin in network.list.plugins.iter().rev() {
            let failed = |error| NetworkError::Plugin { which: which(plugin), verb: "delete", error };
            invoke::find(kind(plugin), &self.path).map_err(failed)?;
            let input = self.input(network, plugin, result.as_ref(), container).map_err(failed)?;
            self.call(plugin, "DEL", Some(container), &input).map_err(failed)?;
        }
        if let Some(cache) = Cache::open(&self.cache)? {
            cache.forget(&attachment)?;
        }
        Ok(())
    }

    /// Deletes the cached attachments of this network that are not in `valid`, then calls GC of every plugin
    /// with the list. Without a list all cached attachments are deleted, and plugins get no list, so that
    /// they remove nothing.
    ///
    /// # Errors
    /// [`NetworkError::Stale`] and [`NetworkError::Gc`], all that occurred.
    pub fn gc(&self, network: &Loaded, valid: Option<&[Attachment]>) -> Result<(), NetworkError> {
        if network.list.disable_gc {
            return Ok(());
        }
        let mut errors = self.delete_stale(network, valid.unwrap_or_default())?;
        if !older(&network.list.version, Version::V1_1_0) {
            for plugin in &network.list.plugins {
                let done = self.input(network, plugin, None, &Container::default()).and_then(|mut input| {
                    if let Some(valid) = valid {
                        let list = attachments(valid);
                        drop(input.insert("cni.dev/valid-attachments".to_owned(), list.clone()));
                        drop(input.insert("cni.dev/attachments".to_owned(), list));
                    }
                    self.call(plugin, "GC", None, &input)
                });
                if let Err(error) = done {
                    errors.push(NetworkError::Gc { plugin: kind(plugin).to_owned(), error });
                }
            }
        }
        several(errors)
    }

    fn delete_stale(
        &self,
        network: &Loaded,
        valid: &[Attachment],
    ) -> Result<Vec<NetworkError>, NetworkError> {
        let mut errors = Vec::new();
        let Some(cache) = Cache::open(&self.cache)? else { return Ok(errors) };
        let (all, faults) = cache.read()?;
        for fault in faults {
            log::warn!("{}: {}", fault.path.display(), fault.error);
        }
        let stale = |cached: &&Cached| {
            cached.attachment.network() == network.list.name && !valid.contains(&cached.attachment)
        };
        for cached in all.iter().filter(stale) {
            let (container, ifname) = (cached.attachment.container_id(), cached.attachment.ifname());
            if let Err(error) = self.del(network, &cached.container()) {
                let (container, ifname) = (container.to_owned(), ifname.to_owned());
                errors.push(NetworkError::Stale { container, ifname, error: Box::new(error) });
            }
        }
        Ok(errors)
    }

    /// Calls STATUS of every plugin in order. Succeeds before version 1.1.0, which introduced it.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] of the first plugin that is not ready.
    pub fn status(&self, network: &Loaded) -> Result<(), NetworkError> {
        if older(&network.list.version, Version::V1_1_0) {
            return Ok(());
        }
        for plugin in &network.list.plugins {
            invoke::find(kind(plugin), &self.path)?;
            let input = self.input(network, plugin, None, &Container::default())?;
            self.call(plugin, "STATUS", None, &input)?;
        }
        Ok(())
    }

    /// Checks that all plugins exist and support the network's version.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] or [`NetworkError::UnsupportedVersion`], one for each plugin that does not.
    pub fn validate(&self, network: &Loaded) -> Result<(), NetworkError> {
        let wanted = version(network);
        let check = |plugin: &Map<String, Value>| {
            let supported = self.versions(kind(plugin))?;
            let error = || NetworkError::UnsupportedVersion {
                plugin: kind(plugin).to_owned(),
                version: wanted.to_owned(),
            };
            if supported.iter().any(|one| one == wanted) { Ok(()) } else { Err(error()) }
        };
        several(network.list.plugins.iter().filter_map(|plugin| check(plugin).err()).collect())
    }

    /// The versions that a plugin supports, by its VERSION; 0.1.0 if it does not have that command.
    ///
    /// # Errors
    /// Code 7 or 999 if there is no such plugin; code 999 if its output cannot be decoded.
    pub fn versions(&self, plugin: &str) -> Result<Vec<String>, CniError> {
        let path = invoke::find(plugin, &self.path)?;
        // A plugin of 0.1.0 must not fail because of a missing variable.
        let dummy = Container {
            id: "dummy".into(),
            netns: "dummy".into(),
            ifname: "dummy".into(),
            ..Container::default()
        };
        let newest = Version::ALL.last().map_or("", |version| version.as_str());
        let input = json!({"cniVersion": newest}).to_string();
        match invoke::exec(&path, &self.env("VERSION", Some(&dummy)), input.as_bytes()) {
            Ok(output) => decode_versions(&output),
            Err(error) if error.msg == "unknown CNI_COMMAND: VERSION" => Ok(vec!["0.1.0".to_owned()]),
            Err(error) => Err(error),
        }
    }

    fn cached(&self, attachment: &Attachment) -> Result<Option<Cached>, NetworkError> {
        let Some(cache) = Cache::open(&self.cache)? else { return Ok(None) };
        cache
            .get(attachment)
            .map_err(|error| NetworkError::Remembered { network: attachment.network().to_owned(), error })
    }

    fn input(
        &self,
        network: &Loaded,
        plugin: &Map<String, Value>,
        prev: Option<&AddResult>,
        container: &Container,
    ) -> Result<Map<String, Value>, CniError> {
        let input = network.list.input(plugin, prev, &container.capabilities);
        input.map_err(|e| CniError::internal(e.to_string()))
    }

    fn call(
        &self,
        plugin: &Map<String, Value>,
        command: &str,
        container: Option<&Container>,
        input: &Map<String, Value>,
    ) -> Result<Vec<u8>, CniError> {
        let path = invoke::find(kind(plugin), &self.path)?;
        let input = Value::Object(input.clone()).to_string();
        invoke::exec(&path, &self.env(command, container), input.as_bytes())
    }

    /// All six variables, including empty ones.
    fn env(&self, command: &str, container: Option<&Container>) -> Vec<(&'static str, OsString)> {
        let none = Container::default();
        let Container { id, netns, ifname, args, .. } = container.unwrap_or(&none);
        let args: Vec<String> = args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            ("CNI_COMMAND", command.into()),
            ("CNI_CONTAINERID", id.into()),
            ("CNI_NETNS", netns.into()),
            ("CNI_ARGS", args.join(";").into()),
            ("CNI_IFNAME", ifname.into()),
            ("CNI_PATH", std::env::join_paths(&self.path).unwrap_or_default()),
        ]
    }
}

/// Checks in the order of libcni: container, network, interface.
fn attachment(network: &Loaded, container: &Container) -> Result<Attachment, AttachmentError> {
    check_container_id(&container.id)?;
    check_network(&network.list.name)?;
    check_ifname(&container.ifname)?;
    Attachment::new(&network.list.name, &container.id, &container.ifname)
}

fn attachments(valid: &[Attachment]) -> Value {
    valid.iter().map(|one| json!({"containerID": one.container_id(), "ifname": one.ifname()})).collect()
}

fn version(network: &Loaded) -> &str {
    match network.list.version.as_str() {
        "" => "0.1.0",
        version => version,
    }
}

fn older(version: &Declared, than: Version) -> bool {
    version.compare(than).is_ok_and(std::cmp::Ordering::is_lt)
}

fn kind(plugin: &Map<String, Value>) -> &str {
    fold::get(plugin, "type").and_then(Value::as_str).unwrap_or_default()
}

/// A plugin's name in messages.
fn which(plugin: &Map<String, Value>) -> String {
    let kind = text::quote(kind(plugin));
    match fold::get(plugin, "name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => format!("type={kind} name={}", text::quote(name)),
        _ => format!("type={kind}"),
    }
}

fn several(mut errors: Vec<NetworkError>) -> Result<(), NetworkError> {
    match (errors.pop(), errors.is_empty()) {
        (None, _) => Ok(()),
        (Some(only), true) => Err(only),
        (Some(last), false) => {
            errors.push(last);
            Err(NetworkError::Several(errors))
        }
    }
}

fn decode_versions(output: &[u8]) -> Result<Vec<String>, CniError> {
    let failed = |reason: &str| CniError::internal(format!("decoding version info: {reason}"));
    let reply: Map<String, Value> = serde_json::from_slice(output).map_err(|e| failed(&e.to_string()))?;
    let Some(version) = reply.get("cniVersion").and_then(Value::as_str).filter(|v| !v.is_empty()) else {
        return Err(failed("missing field cniVersion"));
    };
    match reply.get("supportedVersions").and_then(Value::as_array) {
        Some(list) if !list.is_empty() => {
            Ok(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        // In 0.2.0 the reply had no list.
        _ if version == "0.2.0" => Ok(vec!["0.1.0".to_owned(), "0.2.0".to_owned()]),
        _ => Err(failed("missing field supportedVersions")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_to_version() {
        let decode = |text: &str| decode_versions(text.as_bytes()).map_err(|e| e.msg);
        let all = decode(r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}"#);
        assert_eq!(all, Ok(vec!["0.4.0".to_owned(), "1.0.0".to_owned()]));
        assert_eq!(decode(r#"{"cniVersion":"0.2.0"}"#), Ok(vec!["0.1.0".to_owned(), "0.2.0".to_owned()]));
        assert_eq!(decode("{}"), Err("decoding version info: missing field cniVersion".to_owned()));
        let without = decode(r#"{"cniVersion":"1.0.0"}"#);
        assert_eq!(without, Err("decoding version info: missing field supportedVersions".to_owned()));
    }

    #[test]
    fn plugins_are_named_as_by_the_reference() {
        let plugin = |value: Value| which(value.as_object().unwrap());
        assert_eq!(plugin(json!({"type": "bridge"})), r#"type="bridge""#);
        assert_eq!(plugin(json!({"type": "bridge", "name": "b"})), r#"type="bridge" name="b""#);
    }
}
