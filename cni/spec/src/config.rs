//! The configuration that a plugin gets on standard input.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{AddResult, Attachment, CniError, Version};

/// One plugin's network configuration: what every plugin needs of it, decoded, and the whole of it
/// as it came, for the plugin's own keys and for delegates.
#[derive(Debug, Clone)]
pub struct NetConf {
    /// `cniVersion`; 0.1.0 when missing or empty.
    pub version: Version,
    /// `name`, checked.
    pub name: String,
    /// `type`.
    pub plugin: String,
    /// `ipam.type`, empty when there is no IPAM.
    pub ipam: String,
    /// `prevResult`, decoded and converted.
    pub prev_result: Option<AddResult>,
    /// `cni.dev/valid-attachments` (or the older `cni.dev/attachments`) of a GC. `None`: the key is
    /// absent, nothing may be removed. An empty list, or null: every attachment is dead.
    pub valid_attachments: Option<Vec<Attachment>>,
    /// The whole object, unknown keys included.
    pub raw: Map<String, Value>,
    /// The bytes it was decoded from: delegates get the same.
    pub bytes: Vec<u8>,
}

impl NetConf {
    /// Decodes the plugin's own keys. Keys match without regard to case, as Go's decoder matches
    /// them and as runtimes rely on (containerd sends `HostPort`); an exact match wins.
    ///
    /// # Errors
    /// Code 7, naming the key and what is wrong with its value.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, CniError> {
        crate::fold::from_map(&self.raw).map_err(|e| CniError::config(format!("failed to load netconf: {e}")))
    }
}
