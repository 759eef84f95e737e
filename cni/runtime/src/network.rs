// SPDX-License-Identifier: MIT OR Apache-2.0

//! A network: the configuration that a runtime's operations take.

use cni_spec::{
    Attachment, AttachmentError, Declared, ListError, NetConfList, Version, check_container_id, check_ifname,
    check_network, fold, text,
};
use serde_json::{Map, Value, json};

use crate::container::Container;
use crate::error::{CallError, NetworkError};

/// A network's configuration, with the bytes that the cache stores.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    list: NetConfList,
    bytes: Vec<u8>,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    List,
    Single,
}

impl Network {
    /// Decodes a configuration list (`*.conflist`), or a single configuration, which becomes a list of one plugin.
    /// Plugins in the directory named after the network are not read; [`Network::from_file`] and
    /// [`config::load`](crate::config::load) do that.
    ///
    /// # Errors
    /// [`ListError`] with the key that does not fit.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self, ListError> {
        let bytes = bytes.into();
        if is_list(&bytes) {
            let list = NetConfList::parse(&bytes)?;
            return Ok(Self { list, bytes, form: Form::List });
        }
        NetConfList::of_single(&bytes).map(Self::from_list)
    }

    /// The configuration of a single plugin, which remains one: errors of its calls are not wrapped, and the cache
    /// stores it in this form, as libcni's `AddNetwork` does. In all other respects, it is a list of one plugin.
    ///
    /// # Errors
    /// [`ListError::Plugin`] if it is not a JSON object or has no `type`.
    pub fn single(bytes: impl Into<Vec<u8>>) -> Result<Self, ListError> {
        let bytes = bytes.into();
        Ok(Self { list: NetConfList::of_single(&bytes)?, bytes, form: Form::Single })
    }

    /// A network with a list that the program has made.
    #[must_use]
    pub fn from_list(list: NetConfList) -> Self {
        let bytes = as_json(&list).to_string().into_bytes();
        Self { list, bytes, form: Form::List }
    }

    /// A network with the list in these bytes, which was completed with plugins from other files.
    pub(crate) fn of_parts(list: NetConfList, bytes: Vec<u8>) -> Self {
        Self { list, bytes, form: Form::List }
    }

    /// Starts building a network of the newest version, without plugins.
    #[must_use]
    pub fn builder(name: impl Into<String>) -> Builder {
        Builder {
            list: NetConfList {
                name: name.into(),
                version: Declared::new(Version::ALL.last().map_or("", |newest| newest.as_str())),
                disable_check: false,
                disable_gc: false,
                load_only_inlined_plugins: true,
                plugins: Vec::new(),
            },
        }
    }

    /// The network's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.list.name
    }

    /// The version with which the plugins are called. This is 0.1.0 if the configuration declares a version that this
    /// library does not support.
    #[must_use]
    pub fn version(&self) -> Version {
        self.list.version.known().unwrap_or(Version::V0_1_0)
    }

    /// The configuration.
    #[must_use]
    pub fn list(&self) -> &NetConfList {
        &self.list
    }

    /// The configuration as JSON, including plugins from the directory named after the network.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The attachment of a container to this network.
    ///
    /// # Errors
    /// [`AttachmentError`] for the first invalid name, in libcni's order: container, network, interface.
    pub fn attachment(&self, container: &Container) -> Result<Attachment, AttachmentError> {
        check_container_id(&container.id)?;
        check_network(self.name())?;
        check_ifname(&container.ifname)?;
        Attachment::new(self.name(), &container.id, &container.ifname)
    }

    /// True if CHECK calls the plugins, or false if the configuration disables that.
    ///
    /// # Errors
    /// [`NetworkError::TooOld`] before version 0.4.0, which introduced CHECK.
    pub fn wants_check(&self) -> Result<bool, NetworkError> {
        if self.is_older(Version::V0_4_0) {
            let version = self.list.version.to_string();
            return Err(NetworkError::TooOld { version, verb: "CHECK" });
        }
        Ok(!self.list.disable_check)
    }

    pub(crate) fn is_older(&self, than: Version) -> bool {
        self.list.version.compare(than).is_ok_and(std::cmp::Ordering::is_lt)
    }

    /// The error of an operation whose plugin failed.
    pub(crate) fn failed(
        &self,
        plugin: &Map<String, Value>,
        verb: &'static str,
        error: CallError,
    ) -> NetworkError {
        match self.form {
            Form::Single => NetworkError::FromPlugin(error),
            Form::List => NetworkError::Plugin { which: which(plugin), verb, error },
        }
    }
}

/// Builds a [`Network`].
///
/// ```
/// use cni_runtime::Network;
/// use serde_json::json;
///
/// let network = Network::builder("pods")
///     .plugin(json!({"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.22.0.0/24"}}))
///     .plugin(json!({"type": "portmap", "capabilities": {"portMappings": true}}))
///     .build()?;
/// assert_eq!(network.list().plugins.len(), 2);
/// # Ok::<(), cni_spec::ListError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Builder {
    list: NetConfList,
}

impl Builder {
    /// Sets the version, `cniVersion`.
    #[must_use]
    pub fn version(mut self, version: Version) -> Self {
        self.list.version = Declared::new(version.as_str());
        self
    }

    /// Adds a plugin's configuration at the end of the list.
    #[must_use]
    pub fn plugin(mut self, config: Value) -> Self {
        // A value that is not an object has no `type`, so `build` reports it.
        self.list.plugins.push(match config {
            Value::Object(plugin) => plugin,
            _ => Map::new(),
        });
        self
    }

    /// Makes CHECK succeed without calling plugins (`disableCheck`).
    #[must_use]
    pub fn disable_check(mut self) -> Self {
        self.list.disable_check = true;
        self
    }

    /// Makes GC succeed without calling plugins (`disableGC`).
    #[must_use]
    pub fn disable_gc(mut self) -> Self {
        self.list.disable_gc = true;
        self
    }

    /// Checks the configuration as if it came from a file.
    ///
    /// # Errors
    /// [`ListError`] if there are no plugins, or if one has no `type`.
    pub fn build(self) -> Result<Network, ListError> {
        Network::from_bytes(as_json(&self.list).to_string())
    }
}

/// True for a list, false for the configuration of a single plugin.
pub(crate) fn is_list(bytes: &[u8]) -> bool {
    !serde_json::from_slice::<Map<String, Value>>(bytes)
        .is_ok_and(|object| object.contains_key("type") && !object.contains_key("plugins"))
}

fn as_json(list: &NetConfList) -> Value {
    let plugins: Value = list.plugins.iter().cloned().map(Value::Object).collect();
    let mut all = json!({"name": list.name, "cniVersion": list.version.as_str(), "plugins": plugins});
    let switches = [
        ("disableCheck", list.disable_check),
        ("disableGC", list.disable_gc),
        ("loadOnlyInlinedPlugins", list.load_only_inlined_plugins),
    ];
    for (key, _) in switches.into_iter().filter(|(_, on)| *on) {
        all[key] = true.into();
    }
    all
}

/// A plugin's type.
pub(crate) fn kind(plugin: &Map<String, Value>) -> &str {
    fold::get(plugin, "type").and_then(Value::as_str).unwrap_or_default()
}

/// Describes a plugin in messages.
fn which(plugin: &Map<String, Value>) -> String {
    let kind = text::quote(kind(plugin));
    match fold::get(plugin, "name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => format!("type={kind} name={}", text::quote(name)),
        _ => format!("type={kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_named_as_by_the_reference() {
        let plugin = |value: Value| which(value.as_object().unwrap());
        assert_eq!(plugin(json!({"type": "bridge"})), r#"type="bridge""#);
        assert_eq!(plugin(json!({"type": "bridge", "name": "b"})), r#"type="bridge" name="b""#);
    }

    #[test]
    fn a_built_network_is_checked_as_a_file_is() {
        let empty = Network::builder("n").build().unwrap_err();
        assert_eq!(empty.to_string(), "error parsing configuration list: no plugins in list");
        let none = Network::builder("n").plugin(json!("bridge")).build().unwrap_err();
        assert!(none.to_string().ends_with("missing 'type'"), "{none}");
        let network = Network::builder("n")
            .version(Version::V1_0_0)
            .disable_gc()
            .plugin(json!({"type": "bridge"}))
            .build()
            .unwrap();
        assert_eq!((network.version(), network.list().disable_gc), (Version::V1_0_0, true));
        assert_eq!(Network::from_bytes(network.bytes()).unwrap(), network);
    }

    #[test]
    fn numbers_of_a_configuration_read_back_the_same() {
        // The number has 53 significant bits, and the last one would be lost without exact decoding.
        let single = br#"{"name": "n", "type": "t", "rate": -90127439402501325e6}"#;
        let network = Network::from_bytes(single).unwrap();
        let again = Network::from_bytes(network.bytes()).unwrap();
        assert_eq!(again.list().plugins, network.list().plugins);
        assert_eq!(network.list().plugins[0]["rate"], -9.012_743_940_250_133e22);
    }
}
