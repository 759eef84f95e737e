// SPDX-License-Identifier: GPL-2.0-or-later

//! dhcp's keys below `ipam`, decoded and checked; its default paths.

use std::path::{Path, PathBuf};

use cni_spec::CniError;
use serde::Deserialize;

use super::message::{Options, code as known};

/// The daemon's default socket.
pub const SOCKET: &str = "/run/cni/dhcp.sock";
/// The daemon's folder of leases.
pub const STATE: &str = "/var/lib/cni/dhcp";
/// The options that are requested unless `skipDefault`: the router and the subnet mask.
const DEFAULT_REQUEST: [u8; 2] = [known::ROUTER, known::SUBNET_MASK];
/// The longest value of an option, in bytes (RFC 2132, section 2).
const LONGEST_VALUE: usize = 255;
/// The limit for all values together, in bytes: a message must fit a packet.
const LONGEST_TOGETHER: usize = 900;
/// Options that the client sets itself.
const OWN: [u8; 5] =
    [known::REQUESTED_ADDRESS, known::OVERLOAD, known::MESSAGE_TYPE, known::SERVER, known::REQUEST_LIST];

/// dhclient's names of options.
const NAMES: [(&str, u8); 6] = [
    ("subnet-mask", 1),
    ("routers", 3),
    ("host-name", 12),
    ("vendor-class-identifier", 60),
    ("dhcp-client-identifier", 61),
    ("user-class", 77),
];

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ConfigError {
    #[error("Can not parse option {0:?}: neither a number from 1 to 254 nor a known name")]
    Option(String),
    #[error("value too long for option {option:?}: {value:?}")]
    TooLong { option: String, value: String },
    #[error("value too long for option {option:?} from CNI_ARGS {key:?}: {value:?}")]
    TooLongArgument { option: String, key: String, value: String },
    #[error("Can not provide option {0:?}: the client sets it itself")]
    Own(String),
    #[error("values too long: {0} bytes together, the limit is {LONGEST_TOGETHER}")]
    TooMuch(usize),
    #[error("ipam.priority: {0} is out of range")]
    Priority(i64),
}

impl From<ConfigError> for CniError {
    fn from(error: ConfigError) -> Self {
        Self::config(error.to_string())
    }
}

/// The configuration's keys; null counts as absent everywhere.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawConfig {
    ipam: Option<RawIpam>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawIpam {
    daemon_socket_path: Option<PathBuf>,
    priority: Option<i64>,
    request: Option<Vec<RawRequest>>,
    provide: Option<Vec<RawProvide>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawRequest {
    skip_default: Option<bool>,
    option: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawProvide {
    option: Option<String>,
    value: Option<String>,
    from_arg: Option<String>,
}

impl RawConfig {
    /// The daemon's socket.
    pub(super) fn socket(&self) -> PathBuf {
        let given = self.ipam.as_ref().and_then(|ipam| ipam.daemon_socket_path.clone());
        given.filter(|path| !path.as_os_str().is_empty()).unwrap_or_else(|| PathBuf::from(SOCKET))
    }

    /// The metric of all routes; 0 for the kernel's default.
    pub(super) fn priority(&self) -> Result<u32, ConfigError> {
        let given = self.ipam.as_ref().and_then(|ipam| ipam.priority).unwrap_or_default();
        u32::try_from(given).map_err(|_| ConfigError::Priority(given))
    }

    /// The options to send and to request. `fromArg` names keys of `args` (`CNI_ARGS`).
    pub(super) fn options(&self, args: &str) -> Result<Options, ConfigError> {
        let Some(ipam) = &self.ipam else {
            return Ok(Options { request: DEFAULT_REQUEST.into(), ..Options::default() });
        };
        let mut options = Options::default();
        for one in ipam.provide.iter().flatten() {
            let name = one.option.as_deref().unwrap_or_default();
            let code = code(name)?;
            if OWN.contains(&code) {
                return Err(ConfigError::Own(name.to_owned()));
            }
            if let Some(value) = one.value.as_ref().filter(|value| !value.is_empty()) {
                if value.len() > LONGEST_VALUE {
                    return Err(ConfigError::TooLong { option: name.to_owned(), value: value.clone() });
                }
                options.provide.push((code, value.clone()));
            }
            let Some(key) = &one.from_arg else { continue };
            if let Some(value) = argument(args, key) {
                if value.len() > LONGEST_VALUE {
                    let (option, key) = (name.to_owned(), key.clone());
                    return Err(ConfigError::TooLongArgument { option, key, value: value.to_owned() });
                }
                options.provide.push((code, value.to_owned()));
            }
        }
        let together = options.provide.iter().map(|(_, value)| value.len() + 2).sum();
        if together > LONGEST_TOGETHER {
            return Err(ConfigError::TooMuch(together));
        }
        let mut default = true;
        for one in ipam.request.iter().flatten() {
            default &= !one.skip_default.unwrap_or_default();
            if let Some(name) = one.option.as_deref().filter(|name| !name.is_empty()) {
                options.request.push(code(name)?);
            }
        }
        if default {
            options.request.extend(DEFAULT_REQUEST);
        }
        let mut seen = Vec::new();
        options.request.retain(|code| {
            !seen.contains(code) && {
                seen.push(*code);
                true
            }
        });
        Ok(options)
    }
}

/// A path of the host, for a daemon that sees the host's files below `prefix`.
pub(super) fn on_host(prefix: &str, path: &Path) -> PathBuf {
    if prefix.is_empty() {
        return path.to_path_buf();
    }
    let mut whole = std::ffi::OsString::from(prefix);
    whole.push(path);
    PathBuf::from(whole)
}

/// The last value of a key in `CNI_ARGS`; text without `=` is skipped.
fn argument<'a>(args: &'a str, key: &str) -> Option<&'a str> {
    args.split(';')
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, _)| *name == key)
        .map(|(_, v)| v)
        .next_back()
}

fn code(name: &str) -> Result<u8, ConfigError> {
    if let Some((_, code)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Ok(*code);
    }
    match name.parse() {
        // 0 is padding, and 255 marks the end of the options.
        Ok(0 | 255) | Err(_) => Err(ConfigError::Option(name.to_owned())),
        Ok(code) => Ok(code),
    }
}

#[cfg(test)]
pub(super) fn decodes() -> crate::keys::probe::Fields {
    crate::keys::probe::fields::<RawConfig>()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn options(ipam: &Value, args: &str) -> Result<Options, String> {
        let raw: RawConfig = serde_json::from_value(json!({"ipam": ipam})).map_err(|e| e.to_string())?;
        raw.options(args).map_err(|e| e.to_string())
    }

    #[test]
    fn options_by_number_and_by_name() {
        let ipam = json!({
            "request": [{"option": "121"}, {"option": "routers"}, {"option": ""}],
            "provide": [
                {"option": "host-name", "fromArg": "K8S_POD_NAME"},
                {"option": "60", "value": "v"},
                {"option": "12", "fromArg": "ABSENT"},
            ],
        });
        let got = options(&ipam, "IgnoreUnknown=1;K8S_POD_NAME=web=1;x").unwrap();
        assert_eq!(got.provide, [(12, "web=1".to_owned()), (60, "v".to_owned())]);
        assert_eq!(got.request, [121, 3, 1]);
        let only = options(&json!({"request": [{"skipDefault": true}, {"option": "1"}]}), "").unwrap();
        assert_eq!(only.request, [1]);
        assert_eq!(options(&json!(null), "").unwrap().request, [3, 1]);
    }

    #[test]
    fn errors_name_the_option() {
        let cases = [
            (
                json!({"request": [{"option": "nonsense"}]}),
                "Can not parse option \"nonsense\": neither a number from 1 to 254 nor a known name",
            ),
            (
                json!({"request": [{"option": "255"}]}),
                "Can not parse option \"255\": neither a number from 1 to 254 nor a known name",
            ),
            (
                json!({"provide": [{"option": "256", "value": "x"}]}),
                "Can not parse option \"256\": neither a number from 1 to 254 nor a known name",
            ),
        ];
        for (ipam, want) in cases {
            assert_eq!(options(&ipam, "").unwrap_err(), want);
        }
        let own = json!({"provide": [{"option": "53", "value": "x"}]});
        assert!(options(&own, "").unwrap_err().starts_with("Can not provide option \"53\""));
        let many: Vec<Value> = (200..210).map(|n| json!({"option": n.to_string(), "fromArg": "A"})).collect();
        let args = format!("A={}", "x".repeat(100));
        assert_eq!(
            options(&json!({"provide": many}), &args).unwrap_err(),
            "values too long: 1020 bytes together, the limit is 900"
        );
        let long = json!({"provide": [{"option": "12", "value": "x".repeat(256)}]});
        assert!(options(&long, "").unwrap_err().starts_with("value too long for option \"12\": "));
    }
}
