// SPDX-License-Identifier: MIT OR Apache-2.0

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

const KIND: &str = "PodNetworkStatus";
const VERSION: &str = "v1beta1";

/// The addresses of a pod, as JSON the type `PodNetworkStatus` of version `v1beta1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PodNetworkStatus {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    version: &'static str,
    /// The primary address, which Services and the pod's status have.
    pub ip: IpAddr,
    /// All addresses, the primary one first.
    pub ips: Vec<IpAddr>,
}

/// A status of a pod that an exec driver printed, and that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// Not JSON, or not of the type's form.
    #[error("decode the network status of pod '{pod}': {error}")]
    Json {
        /// The pod.
        pod: String,
        /// The decoder's error.
        error: serde_json::Error,
    },
    /// Another kind of object.
    #[error(
        "Invalid 'kind' returned in network status for pod '{pod}'. Valid value is '{KIND}', got '{kind}'."
    )]
    Kind {
        /// The pod.
        pod: String,
        /// The kind.
        kind: String,
    },
    /// A version that this library does not have.
    #[error("Unknown version '{version}' in network status for pod '{pod}'.")]
    Version {
        /// The pod.
        pod: String,
        /// The version.
        version: String,
    },
}

impl PodNetworkStatus {
    /// The status of a pod with these addresses. None without addresses.
    #[must_use]
    pub fn new(ips: Vec<IpAddr>) -> Option<Self> {
        Some(Self { kind: KIND, version: VERSION, ip: *ips.first()?, ips })
    }

    /// Decodes the status that a driver printed for a pod. A driver that prints nothing has none. `apiVersion` and
    /// `kind` are optional.
    ///
    /// # Errors
    /// [`StatusError`] if it is not a status of a known version.
    pub fn decode(output: &[u8], pod: &str) -> Result<Option<Self>, StatusError> {
        #[derive(Deserialize)]
        struct TypeMeta {
            #[serde(default)]
            kind: String,
            #[serde(default, rename = "apiVersion")]
            version: String,
        }
        #[derive(Deserialize)]
        struct Body {
            #[serde(default)]
            ip: Option<IpAddr>,
            #[serde(default)]
            ips: Vec<IpAddr>,
        }
        if output.trim_ascii().is_empty() {
            return Ok(None);
        }
        let pod = pod.to_owned();
        let json = |error| StatusError::Json { pod: pod.clone(), error };
        let value: Value = serde_json::from_slice(output).map_err(json)?;
        let meta = TypeMeta::deserialize(&value).map_err(json)?;
        if !meta.kind.is_empty() && meta.kind != KIND {
            return Err(StatusError::Kind { pod, kind: meta.kind });
        }
        if !meta.version.is_empty() && meta.version != VERSION {
            return Err(StatusError::Version { pod, version: meta.version });
        }
        let mut body = Body::deserialize(&value).map_err(json)?;
        if let Some(ip) = body.ip {
            body.ips.retain(|other| *other != ip);
            body.ips.insert(0, ip);
        }
        Ok(Self::new(body.ips))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_with_and_without_its_type_is_decoded() {
        for text in [
            r#"{"ip": "10.1.0.5"}"#,
            r#"{"apiVersion": "v1beta1", "kind": "PodNetworkStatus", "ip": "10.1.0.5", "ips": ["10.1.0.5"]}"#,
        ] {
            let status = PodNetworkStatus::decode(text.as_bytes(), "web").unwrap().unwrap();
            assert_eq!(status.ips, ["10.1.0.5".parse::<IpAddr>().unwrap()]);
            let printed = serde_json::to_vec(&status).unwrap();
            assert_eq!(PodNetworkStatus::decode(&printed, "web").unwrap().unwrap(), status);
        }
        let dual = br#"{"ip": "10.1.0.5", "ips": ["10.1.0.5", "fd00::5"]}"#;
        assert_eq!(PodNetworkStatus::decode(dual, "web").unwrap().unwrap().ips.len(), 2);
        for text in ["", " \n", "{}"] {
            assert_eq!(PodNetworkStatus::decode(text.as_bytes(), "web").unwrap(), None);
        }
    }

    #[test]
    fn another_kind_or_version_is_refused() {
        let message = |text: &str| PodNetworkStatus::decode(text.as_bytes(), "web").unwrap_err().to_string();
        assert_eq!(
            message(r#"{"kind": "Pod", "ip": "10.1.0.5"}"#),
            "Invalid 'kind' returned in network status for pod 'web'. Valid value is 'PodNetworkStatus', got 'Pod'."
        );
        assert_eq!(
            message(r#"{"apiVersion": "v2"}"#),
            "Unknown version 'v2' in network status for pod 'web'."
        );
        assert!(message("oops").starts_with("decode the network status of pod 'web'"));
        assert!(message(r#"{"ip": "x"}"#).contains("invalid IP address syntax"));
    }
}
