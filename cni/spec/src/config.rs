// SPDX-License-Identifier: MIT OR Apache-2.0

//! The configuration that a plugin reads from standard input.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::field::json_error;
use crate::{AddResult, Attachment, CniError, Declared, ErrorCode, Version, check_network, fold, text};

/// A plugin's network configuration: the decoded keys that every plugin needs, and the original object for the plugin's
/// own keys and for delegates.
#[derive(Debug, Clone)]
pub struct NetConf {
    /// The version in `cniVersion`, or 0.1.0 if that is missing or empty.
    pub version: Version,
    /// The network's name in `name`, which has been checked.
    pub name: String,
    /// The plugin's name in `type`.
    pub plugin: String,
    /// The IPAM plugin's name in `ipam.type`, empty without IPAM.
    pub ipam: String,
    /// The previous result in `prevResult`, decoded and converted.
    pub prev_result: Option<AddResult>,
    /// The attachments that a GC must keep, from `cni.dev/valid-attachments` or the older `cni.dev/attachments`. None
    /// if the key is missing, in which case nothing may be removed. Empty if no attachment is valid, also if the value
    /// is null.
    pub valid_attachments: Option<Vec<Attachment>>,
    /// The whole object, including unknown keys.
    pub raw: Map<String, Value>,
    /// The original bytes, for delegates.
    pub bytes: Vec<u8>,
}

impl NetConf {
    /// Decodes a configuration for ADD.
    ///
    /// # Errors
    /// Code 6 if the bytes are not JSON or the version is not a string; code 7 if the name is invalid or a value does
    /// not fit; code 1 for a version that was never published.
    pub fn parse(bytes: impl Into<Vec<u8>>) -> Result<Self, CniError> {
        let draft = Draft::parse(bytes)?;
        let declared = draft.version()?;
        let version = declared.known().ok_or_else(|| incompatible(&declared, Version::ALL))?;
        draft.finish(version, Purpose::Setup)
    }

    /// Decodes the plugin's own keys. They match in any case, as in Go's decoder, because containerd sends `HostPort`.
    /// An exact match takes precedence, and null leaves the default.
    ///
    /// # Errors
    /// Code 7 with the key and the reason if a value does not fit.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, CniError> {
        fold::from_map(&self.raw).map_err(|e| CniError::config(format!("failed to load netconf: {e}")))
    }
}

/// The command for which a configuration is decoded, which decides what must be valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// ADD and CHECK, for which everything must be valid.
    Setup,
    /// DEL, for which an invalid `prevResult` or list of attachments is dropped, because it must not prevent the
    /// removal.
    Removal,
    /// GC and STATUS, for which the list of attachments must be valid. An invalid `prevResult` is dropped.
    Node,
}

/// A configuration of which only the JSON and the name have been checked, because the version must be negotiated before
/// the rest is decoded.
#[derive(Debug, Clone)]
pub struct Draft {
    name: String,
    raw: Map<String, Value>,
    bytes: Vec<u8>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Name {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Types {
    r#type: String,
    ipam: Ipam,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    r#type: String,
}

/// An element of `cni.dev/valid-attachments` (specification 1.1.0, section "GC").
#[derive(Default, Deserialize)]
#[serde(default)]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

impl Draft {
    /// Decodes the JSON and checks the name.
    ///
    /// # Errors
    /// Code 6 if the bytes are not a JSON object; code 7 if the name is missing or invalid.
    pub fn parse(bytes: impl Into<Vec<u8>>) -> Result<Self, CniError> {
        let bytes = bytes.into();
        let decode = |e: &dyn std::fmt::Display| {
            CniError::new(ErrorCode::Decode, format!("error unmarshall network config: {e}"))
        };
        let raw: Option<Map<String, Value>> =
            serde_json::from_slice(&bytes).map_err(|e| decode(&json_error(&e)))?;
        let raw = raw.unwrap_or_default();
        let Name { name } = fold::from_map(&raw).map_err(|e| decode(&e))?;
        check_network(&name)?;
        Ok(Self { name, raw, bytes })
    }

    /// The version in `cniVersion`, or 0.1.0 if that is missing or empty.
    ///
    /// # Errors
    /// Code 6 if the value is not a string.
    pub fn version(&self) -> Result<Declared, CniError> {
        match fold::get(&self.raw, "cniVersion") {
            None | Some(Value::Null) => Ok(Declared::new("")),
            Some(Value::String(version)) => Ok(Declared::new(version)),
            Some(other) => {
                let msg = format!("decoding version from network config: cniVersion: {other} is no string");
                Err(CniError::new(ErrorCode::Decode, msg))
            }
        }
    }

    /// Decodes the other keys, and `prevResult` in the format of `version`, which the plugin must support.
    ///
    /// # Errors
    /// Code 7 if a value that matters for `purpose` does not fit.
    pub fn finish(self, version: Version, purpose: Purpose) -> Result<NetConf, CniError> {
        let types: Types = fold::from_map(&self.raw)
            .map_err(|e| CniError::config(format!("failed to load netconf: {e}")))?;
        let prev_result = match (self.prev_result(version), purpose) {
            (Err(_), Purpose::Removal | Purpose::Node) => None,
            (read, _) => read?,
        };
        let valid_attachments = match (self.valid_attachments(), purpose) {
            (Err(_), Purpose::Removal) => None,
            (read, _) => read?,
        };
        Ok(NetConf {
            version,
            name: self.name,
            plugin: types.r#type,
            ipam: types.ipam.r#type,
            prev_result,
            valid_attachments,
            raw: self.raw,
            bytes: self.bytes,
        })
    }

    /// Decodes `prevResult`. If it has no `cniVersion` of its own, the configuration's applies. A version whose results
    /// have another form is an error.
    fn prev_result(&self, version: Version) -> Result<Option<AddResult>, CniError> {
        let failed = |e: String| CniError::config(format!("could not parse prevResult: {e}"));
        match fold::get(&self.raw, "prevResult") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => {
                AddResult::from_object(version, object).map(Some).map_err(|e| failed(e.to_string()))
            }
            Some(other) => Err(failed(format!("{other} is not an object"))),
        }
    }

    fn valid_attachments(&self) -> Result<Option<Vec<Attachment>>, CniError> {
        const KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];
        let Some((key, value)) = KEYS.iter().find_map(|k| fold::get(&self.raw, k).map(|v| (k, v))) else {
            return Ok(None);
        };
        let list: Vec<ValidAttachment> =
            fold::from_value(value).map_err(|e| CniError::config(e.under(key).to_string()))?;
        let checked = list.iter().enumerate().map(|(index, one)| {
            Attachment::new(&self.name, &one.container_id, &one.ifname)
                .map_err(|e| CniError::config(format!("{key}[{index}]: {e}")))
        });
        checked.collect::<Result<_, _>>().map(Some)
    }
}

/// The error with code 1: the plugin does not support the configuration's version.
#[must_use]
pub fn incompatible(declared: &Declared, supported: &[Version]) -> CniError {
    let config = text::quote(declared.as_str());
    let supported = text::quote_all(supported.iter().map(|v| v.as_str()));
    CniError::new(ErrorCode::IncompatibleVersion, "incompatible CNI versions")
        .with_details(format!("config is {config}, plugin supports {supported}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(json: &str) -> (u32, String, String) {
        let e = NetConf::parse(json).unwrap_err();
        (e.code.number(), e.msg, e.details)
    }

    #[test]
    fn messages_of_the_reference() {
        let cases = [
            ("", 6, "error unmarshall network config: unexpected end of JSON input", ""),
            ("{", 6, "error unmarshall network config: unexpected end of JSON input", ""),
            ("null", 7, "missing network name", ""),
            ("{}", 7, "missing network name", ""),
            (r#"{"name":"a/b"}"#, 7, "invalid characters found in network name", "a/b"),
            (
                r#"{"name":"a","cniVersion":5}"#,
                6,
                "decoding version from network config: cniVersion: 5 is no string",
                "",
            ),
            (
                r#"{"name":"a","cniVersion":"9.9.9"}"#,
                1,
                "incompatible CNI versions",
                r#"config is "9.9.9", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#,
            ),
            (
                r#"{"name":"a","cniVersion":"1.0.0","prevResult":{"cniVersion":"0.4.0"}}"#,
                7,
                r#"could not parse prevResult: result type supports [1.0.0 1.1.0] but unmarshalled CNIVersion is "0.4.0""#,
                "",
            ),
            (r#"{"name":"a","prevResult":7}"#, 7, "could not parse prevResult: 7 is not an object", ""),
            (
                r#"{"name":"a","ipam":"x"}"#,
                7,
                "failed to load netconf: ipam: invalid type: string \"x\", expected struct Ipam",
                "",
            ),
            (
                r#"{"name":"a","cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"},{"ifname":"e"}]}"#,
                7,
                "cni.dev/valid-attachments[1]: missing containerID",
                "",
            ),
        ];
        for (json, code, msg, details) in cases {
            assert_eq!(fails(json), (code, msg.to_owned(), details.to_owned()), "{json}");
        }
        assert!(fails(r#"{"name":5}"#).1.starts_with("error unmarshall network config: name: "));
        assert_eq!(fails("[]").0, 6);
    }

    #[test]
    fn keys_match_in_any_case() {
        let conf = NetConf::parse(
            r#"{"CNIVersion":"1.0.0","NAME":"n","Type":"bridge","IPAM":{"Type":"host-local"}}"#,
        )
        .unwrap();
        assert_eq!((conf.version, conf.name.as_str()), (Version::V1_0_0, "n"));
        assert_eq!((conf.plugin.as_str(), conf.ipam.as_str()), ("bridge", "host-local"));
    }

    #[test]
    fn attachments_absent_null_and_empty_differ() {
        let parse = |json: &str| NetConf::parse(json).unwrap().valid_attachments;
        assert_eq!(parse(r#"{"name":"n"}"#), None);
        assert_eq!(
            parse(r#"{"name":"n","cni.dev/valid-attachments":null,"cni.dev/attachments":null}"#),
            Some(vec![])
        );
        assert_eq!(parse(r#"{"name":"n","cni.dev/attachments":[]}"#), Some(vec![]));
        let one = Attachment::new("n", "c", "eth0").unwrap();
        let json = r#"{"name":"n","cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}],"cni.dev/attachments":[]}"#;
        assert_eq!(parse(json), Some(vec![one]));
    }

    #[test]
    fn a_removal_ignores_an_invalid_prev_result_and_list() {
        let json = r#"{"name":"n","prevResult":5,"cni.dev/valid-attachments":5}"#;
        let draft = Draft::parse(json).unwrap();
        let conf = draft.clone().finish(Version::V1_1_0, Purpose::Removal).unwrap();
        assert_eq!((conf.prev_result, conf.valid_attachments), (None, None));
        assert!(draft.finish(Version::V1_1_0, Purpose::Node).is_err());
    }
}
