// SPDX-License-Identifier: MIT OR Apache-2.0

//! Network configuration lists (`*.conflist`), independent of files.
//!
//! Error messages equal those of the reference library (libcni).

use serde_json::{Map, Value};

use crate::field::json_error;
use crate::{AddResult, Declared, ResultError, Version, fold, text};

/// A network configuration list, whose plugins are called in order.
#[derive(Debug, Clone, PartialEq)]
pub struct NetConfList {
    /// The network's name, which has not been checked, because libcni checks it only when the network is used.
    pub name: String,
    /// The greatest version in `cniVersion` and `cniVersions` that this library supports. If there is only
    /// `cniVersion`, the version that it declares.
    pub version: Declared,
    /// True if CHECK must succeed without calling plugins.
    pub disable_check: bool,
    /// True if GC must succeed without calling plugins.
    pub disable_gc: bool,
    /// True if plugins in the directory named after the network are ignored.
    pub load_only_inlined_plugins: bool,
    /// The plugins' configurations, each with a `type`.
    pub plugins: Vec<Map<String, Value>>,
}

/// An invalid list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The bytes are not a JSON object.
    #[error("error parsing configuration list: {0}")]
    Json(String),
    /// `name` is missing.
    #[error("error parsing configuration list: no name")]
    NoName,
    /// `name` is not a string.
    #[error("error parsing configuration list: invalid name type {0}")]
    NameType(&'static str),
    /// `cniVersion` is not a string.
    #[error("error parsing configuration list: invalid cniVersion type {0}")]
    VersionType(&'static str),
    /// `cniVersions` is not a list.
    #[error("error parsing configuration list: invalid type {0} for cniVersions")]
    VersionsType(&'static str),
    /// An element of `cniVersions` is not a version.
    #[error("error parsing configuration list: invalid cniVersions entry {value} at index {index}: {reason}")]
    Versions {
        /// The invalid element.
        value: String,
        /// The element's index.
        index: usize,
        /// Why the element is invalid.
        reason: String,
    },
    /// A switch is neither a boolean nor a string.
    #[error("error parsing configuration list: invalid type {found} for {key}")]
    SwitchType {
        /// The switch's key.
        key: &'static str,
        /// The type of the value.
        found: &'static str,
    },
    /// A switch is a string other than true and false.
    #[error("error parsing configuration list: invalid value {value} for {key}")]
    SwitchValue {
        /// The switch's key.
        key: &'static str,
        /// The value, quoted.
        value: String,
    },
    /// `loadOnlyInlinedPlugins` is true and `plugins` is missing.
    #[error("error parsing configuration list: `loadOnlyInlinedPlugins` is true, and no 'plugins' key")]
    NothingInlined,
    /// `plugins` is not a list.
    #[error("error parsing configuration list: invalid 'plugins' type {0}")]
    PluginsType(&'static str),
    /// `plugins` is empty.
    #[error("error parsing configuration list: no plugins in list")]
    NoPlugins,
    /// An element of `plugins` is not a plugin configuration.
    #[error(
        "error parsing configuration list: failed to parse plugin config {index}: error parsing configuration: {reason}"
    )]
    Plugin {
        /// The element's index.
        index: usize,
        /// Why the element is invalid.
        reason: String,
    },
}

impl NetConfList {
    /// Decodes a list. The list's own keys are case-sensitive, as in libcni, which decodes them into a map.
    ///
    /// # Errors
    /// [`ListError`] with the key that does not fit.
    pub fn parse(bytes: &[u8]) -> Result<Self, ListError> {
        let raw: Option<Map<String, Value>> =
            serde_json::from_slice(bytes).map_err(|e| ListError::Json(json_error(&e)))?;
        let raw = raw.unwrap_or_default();
        let name = match raw.get("name") {
            None => return Err(ListError::NoName),
            Some(Value::String(name)) => name.clone(),
            Some(other) => return Err(ListError::NameType(go_type(other))),
        };
        let version = version(&raw)?;
        let load_only_inlined_plugins = switch(&raw, "loadOnlyInlinedPlugins")?;
        Ok(Self {
            name,
            version,
            disable_check: switch(&raw, "disableCheck")?,
            disable_gc: switch(&raw, "disableGC")?,
            load_only_inlined_plugins,
            plugins: plugins(&raw, load_only_inlined_plugins)?,
        })
    }

    /// Decodes a legacy configuration (`*.conf`, `*.json`) as a list of one plugin.
    ///
    /// # Errors
    /// [`ListError::Plugin`] if the bytes are not a JSON object or the object has no `type`.
    pub fn of_single(bytes: &[u8]) -> Result<Self, ListError> {
        let failed = |reason: String| ListError::Plugin { index: 0, reason };
        let raw: Map<String, Value> = serde_json::from_slice(bytes).map_err(|e| failed(json_error(&e)))?;
        let text = |key: &str| match fold::get(&raw, key) {
            Some(Value::String(text)) => Ok(text.clone()),
            None | Some(Value::Null) => Ok(String::new()),
            Some(other) => Err(failed(format!("{key}: {other} is no string"))),
        };
        let (name, version) = (text("name")?, Declared::new(&text("cniVersion")?));
        check_type(0, &raw)?;
        Ok(Self {
            name,
            version,
            disable_check: false,
            disable_gc: false,
            load_only_inlined_plugins: false,
            plugins: vec![raw],
        })
    }

    /// The input of a plugin in the list: its configuration with the list's name and version, the result of the
    /// previous plugin, and those of `capabilities` that the plugin declares.
    ///
    /// # Errors
    /// [`ResultError`] if `prev` has no form in the list's version.
    pub fn input(
        &self,
        plugin: &Map<String, Value>,
        prev: Option<&AddResult>,
        capabilities: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ResultError> {
        let mut input = plugin.clone();
        input.insert("name".to_owned(), self.name.clone().into());
        input.insert("cniVersion".to_owned(), self.version.as_str().into());
        if let Some(result) = prev {
            let version = self.version.known().ok_or_else(|| ResultError::NoConverter {
                from: Version::V1_1_0,
                to: self.version.to_string(),
            })?;
            input.insert("prevResult".to_owned(), Value::Object(result.to_object(version)?));
        }
        let declared =
            |name: &str| fold::get(plugin, "capabilities").is_some_and(|c| c[name] == Value::Bool(true));
        let granted: Map<String, Value> = capabilities
            .iter()
            .filter(|(name, _)| declared(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !granted.is_empty() {
            input.insert("runtimeConfig".to_owned(), Value::Object(granted));
        }
        Ok(input)
    }
}

/// The greatest version that the list declares. Versions in `cniVersions` that are newer than this library are ignored.
fn version(raw: &Map<String, Value>) -> Result<Declared, ListError> {
    let declared = match raw.get("cniVersion") {
        None => Declared::new(""),
        Some(Value::String(version)) => Declared::new(version),
        Some(other) => return Err(ListError::VersionType(go_type(other))),
    };
    let list = match raw.get("cniVersions") {
        None => return Ok(declared),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(ListError::VersionsType(go_type(other))),
    };
    let bad = |index: usize, value: &Value, reason: String| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        ListError::Versions { value, index, reason }
    };
    let mut greatest = declared;
    for (index, value) in list.iter().enumerate() {
        let text =
            value.as_str().ok_or_else(|| bad(index, value, format!("invalid type {}", go_type(value))))?;
        let entry = Declared::new(text);
        let newest = entry.compare(Version::V1_1_0).map_err(|e| bad(index, value, e.to_string()))?;
        // Every valid version takes precedence over an invalid `cniVersion`.
        let older = match (greatest.numbers(), entry.numbers()) {
            (Ok(known), Ok(new)) => known < new,
            (known, _) => known.is_err(),
        };
        if newest.is_le() && older {
            greatest = entry;
        }
    }
    Ok(greatest)
}

/// Decodes a switch, which is a boolean or, in older configurations, a string.
fn switch(raw: &Map<String, Value>, key: &'static str) -> Result<bool, ListError> {
    match raw.get(key) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("false") => Ok(false),
        Some(Value::String(word)) => Err(ListError::SwitchValue { key, value: text::quote(word) }),
        Some(other) => Err(ListError::SwitchType { key, found: go_type(other) }),
    }
}

fn plugins(raw: &Map<String, Value>, only_inlined: bool) -> Result<Vec<Map<String, Value>>, ListError> {
    let list = match raw.get("plugins") {
        None if only_inlined => return Err(ListError::NothingInlined),
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.is_empty() => return Err(ListError::NoPlugins),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(ListError::PluginsType(go_type(other))),
    };
    let parsed = list.iter().enumerate().map(|(index, value)| match value {
        Value::Object(plugin) => check_type(index, plugin).map(|()| plugin.clone()),
        other => Err(ListError::Plugin { index, reason: format!("{} is not an object", go_type(other)) }),
    });
    parsed.collect()
}

fn check_type(index: usize, plugin: &Map<String, Value>) -> Result<(), ListError> {
    let reason = match fold::get(plugin, "type") {
        Some(Value::String(name)) if !name.is_empty() => return Ok(()),
        None | Some(Value::Null | Value::String(_)) => "missing 'type'".to_owned(),
        Some(other) => format!("invalid 'type' type {}", go_type(other)),
    };
    Err(ListError::Plugin { index, reason })
}

/// The name of a value's type in Go, for messages.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: &Value) -> Result<NetConfList, String> {
        NetConfList::parse(value.to_string().as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn messages_of_the_reference() {
        let cases = [
            (json!({}), "no name"),
            (json!({"name": 5}), "invalid name type float64"),
            (json!({"name": "n", "cniVersion": true}), "invalid cniVersion type bool"),
            (
                json!({"name": "n", "cniVersions": ["1.0.0", "x"]}),
                r#"invalid cniVersions entry x at index 1: failed to convert major version part "x" of "x": not a number"#,
            ),
            (json!({"name": "n", "disableCheck": 1}), "invalid type float64 for disableCheck"),
            (json!({"name": "n", "disableGC": "yes"}), r#"invalid value "yes" for disableGC"#),
            (
                json!({"name": "n", "loadOnlyInlinedPlugins": "TRUE"}),
                "`loadOnlyInlinedPlugins` is true, and no 'plugins' key",
            ),
            (json!({"name": "n", "plugins": {}}), "invalid 'plugins' type map[string]interface {}"),
            (json!({"name": "n", "plugins": []}), "no plugins in list"),
            (
                json!({"name": "n", "plugins": [{}]}),
                "failed to parse plugin config 0: error parsing configuration: missing 'type'",
            ),
            (
                json!({"name": "n", "plugins": [{"type": "bridge"}, {"type": ""}]}),
                "failed to parse plugin config 1: error parsing configuration: missing 'type'",
            ),
        ];
        for (value, want) in cases {
            let want = format!("error parsing configuration list: {want}");
            assert_eq!(parse(&value), Err(want), "{value}");
        }
        assert!(NetConfList::parse(b"[]").is_err() && NetConfList::parse(b"").is_err());
    }

    #[test]
    fn the_greatest_version_wins() {
        let version = |value: Value| parse(&value).unwrap().version.to_string();
        assert_eq!(version(json!({"name": "n"})), "0.1.0");
        assert_eq!(
            version(json!({"name": "n", "cniVersion": "0.4.0", "cniVersions": ["1.0.0", "0.3.1"]})),
            "1.0.0"
        );
        assert_eq!(version(json!({"name": "n", "cniVersion": "1.1.0", "cniVersions": ["1.0.0"]})), "1.1.0");
        assert_eq!(version(json!({"name": "n", "cniVersion": "1.0.0", "cniVersions": ["7.0.0"]})), "1.0.0");
        // Of two spellings of one version, the first stays, because the plugins may not know the other.
        assert_eq!(version(json!({"name": "n", "cniVersion": "1.0.0", "cniVersions": ["1"]})), "1.0.0");
    }

    #[test]
    fn a_switch_is_a_boolean_or_a_word_in_any_case() {
        for (value, on) in
            [(json!(true), true), (json!(false), false), (json!("True"), true), (json!("FALSE"), false)]
        {
            let list = parse(&json!({"name": "n", "disableGC": value})).unwrap();
            assert_eq!((list.disable_check, list.disable_gc), (false, on), "{value}");
        }
    }

    #[test]
    fn a_plugin_gets_what_it_declared() {
        let list = parse(&json!({
            "cniVersion": "0.4.0", "name": "n", "disableCheck": "true",
            "plugins": [{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true, "mac": false}}],
        }))
        .unwrap();
        assert!(list.disable_check && !list.disable_gc);
        let capabilities = json!({"portMappings": [], "mac": "m", "ips": []});
        let input = |index: usize, prev: Option<&AddResult>| {
            Value::Object(list.input(&list.plugins[index], prev, capabilities.as_object().unwrap()).unwrap())
        };
        assert_eq!(input(0, None), json!({"type": "bridge", "name": "n", "cniVersion": "0.4.0"}));
        assert_eq!(
            input(1, Some(&AddResult::default())),
            json!({
                "type": "portmap", "name": "n", "cniVersion": "0.4.0",
                "capabilities": {"portMappings": true, "mac": false},
                "prevResult": {"cniVersion": "0.4.0", "dns": {}}, "runtimeConfig": {"portMappings": []},
            })
        );
    }

    #[test]
    fn a_single_configuration_is_a_list_of_one() {
        let list =
            NetConfList::of_single(br#"{"cniVersion":"0.3.1","name":"lo","type":"loopback"}"#).unwrap();
        assert_eq!((list.name.as_str(), list.version.as_str(), list.plugins.len()), ("lo", "0.3.1", 1));
        assert!(
            NetConfList::of_single(br#"{"name":"lo"}"#).unwrap_err().to_string().ends_with("missing 'type'")
        );
    }
}
