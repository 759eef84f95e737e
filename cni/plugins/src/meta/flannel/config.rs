// SPDX-License-Identifier: GPL-2.0-or-later

//! Makes the delegate's configuration from flannel's configuration and flanneld's file.

use std::path::PathBuf;

use cni_spec::{CniError, NetConf, fold};
use cni_state::subnet_env::{self, SubnetEnv};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::ipam::keys::{KeyError, RawRoute, routes};

/// The default folder of saved configurations.
pub const DATA_DIR: &str = "/var/lib/cni/flannel";

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    #[error("'delegate' dictionary, if present, must have (string) 'type' field")]
    Type,
    #[error("'delegate' dictionary must not have '{0}' field, it'll be set by flannel")]
    Reserved(&'static str),
    #[error("key \"delegate.type\": flannel cannot delegate to itself")]
    Itself,
    #[error("failed to read IPAM routes: {0}")]
    Routes(#[from] KeyError),
}

impl From<ConfigError> for CniError {
    fn from(error: ConfigError) -> Self {
        Self::config(error.to_string())
    }
}

/// The keys, not checked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Keys {
    subnet_file: Option<PathBuf>,
    data_dir: Option<PathBuf>,
    delegate: Option<Map<String, Value>>,
    ipam: Option<Map<String, Value>>,
    runtime_config: Option<Map<String, Value>>,
}

/// The only key that a DEL needs.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DataDir {
    data_dir: Option<PathBuf>,
}

/// The folder of saved configurations, also if other keys are invalid.
pub(super) fn data_dir(config: &NetConf) -> PathBuf {
    given(config.decode::<DataDir>().unwrap_or_default().data_dir.as_ref(), DATA_DIR)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IpamRoutes {
    routes: Option<Vec<RawRoute>>,
}

impl Keys {
    /// flanneld's file.
    pub(super) fn subnet_file(&self) -> PathBuf {
        given(self.subnet_file.as_ref(), subnet_env::PATH)
    }

    /// The folder of saved configurations.
    pub(super) fn data_dir(&self) -> PathBuf {
        given(self.data_dir.as_ref(), DATA_DIR)
    }

    /// The delegate's configuration. Without flanneld's file it has no ranges, cluster routes or MTU, which
    /// is enough for a GC.
    pub(super) fn delegate(
        &self,
        config: &NetConf,
        env: Option<&SubnetEnv>,
    ) -> Result<Map<String, Value>, ConfigError> {
        let mut delegate = self.delegate.clone().unwrap_or_default();
        let kind = match fold::get(&delegate, "type") {
            None => "bridge".to_owned(),
            Some(Value::String(kind)) if kind == "flannel" => return Err(ConfigError::Itself),
            Some(Value::String(kind)) => kind.clone(),
            Some(_) => return Err(ConfigError::Type),
        };
        if let Some(key) = ["name", "ipam"].into_iter().find(|key| fold::get(&delegate, key).is_some()) {
            return Err(ConfigError::Reserved(key));
        }
        let ipam = self.ipam(env)?;
        let mut set = |key: &str, value: Value| drop(delegate.insert(key.to_owned(), value));
        set("name", config.name.clone().into());
        set("type", kind.clone().into());
        set("cniVersion", config.version.as_str().into());
        set("ipam", Value::Object(ipam));
        if let Some(runtime) = &self.runtime_config {
            set("runtimeConfig", Value::Object(runtime.clone()));
        }
        let mut default = |key: &str, value: Value| {
            if fold::get(&delegate, key).is_none() {
                drop(delegate.insert(key.to_owned(), value));
            }
        };
        if let Some(env) = env {
            // Either flanneld masquerades or the delegate.
            default("ipMasq", (!env.masquerades).into());
            default("mtu", env.mtu.into());
        }
        if kind == "bridge" {
            default("isGateway", true.into());
        }
        Ok(delegate)
    }

    fn ipam(&self, env: Option<&SubnetEnv>) -> Result<Map<String, Value>, ConfigError> {
        let mut ipam = self.ipam.clone().unwrap_or_default();
        if fold::get(&ipam, "type").is_none() {
            drop(ipam.insert("type".to_owned(), "host-local".into()));
        }
        let Some(env) = env else { return Ok(ipam) };
        // Only checked here, so that the error names the key. The delegate gets the value as the user wrote it.
        let wrong =
            |e: fold::FoldError| KeyError::Shape { key: "ipam.routes".to_owned(), message: e.to_string() };
        let typed: IpamRoutes = fold::from_map(&ipam).map_err(wrong)?;
        let _checked = routes(typed.routes.as_deref())?;
        let mut all = match fold::get(&ipam, "routes") {
            Some(Value::Array(routes)) => routes.clone(),
            _ => Vec::new(),
        };
        all.extend(env.networks.iter().map(|network| json!({"dst": network})));
        let ranges: Vec<Value> = env.subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
        // Keys are case-insensitive, so both are removed in any spelling.
        ipam.retain(|key, _| !key.eq_ignore_ascii_case("routes") && !key.eq_ignore_ascii_case("ranges"));
        drop(ipam.insert("ranges".to_owned(), ranges.into()));
        drop(ipam.insert("routes".to_owned(), all.into()));
        Ok(ipam)
    }
}

fn given(path: Option<&PathBuf>, default: &str) -> PathBuf {
    path.filter(|path| !path.as_os_str().is_empty()).cloned().unwrap_or_else(|| PathBuf::from(default))
}

/// The delegate's type.
pub(super) fn kind(config: &Map<String, Value>) -> String {
    config.get("type").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A configuration as it goes to a plugin's standard input.
pub(super) fn bytes(config: Map<String, Value>) -> Vec<u8> {
    Value::Object(config).to_string().into_bytes()
}

#[cfg(test)]
pub(super) fn decodes() -> crate::keys::probe::Fields {
    &crate::keys::probe::fields::<Keys>() | &crate::keys::probe::fields::<DataDir>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env() -> SubnetEnv {
        SubnetEnv {
            networks: vec!["10.244.0.0/16".parse().unwrap(), "fd00:244::/56".parse().unwrap()],
            subnets: vec!["10.244.1.0/24".parse().unwrap(), "fd00:244:0:1::/64".parse().unwrap()],
            mtu: 1450,
            masquerades: true,
        }
    }

    fn delegate(config: &Value) -> Result<Value, String> {
        let config = NetConf::parse(config.to_string()).map_err(|e| e.msg)?;
        let keys: Keys = config.decode().map_err(|e| e.msg)?;
        keys.delegate(&config, Some(&env())).map(Value::Object).map_err(|e| e.to_string())
    }

    #[test]
    fn a_bridge_is_the_default() {
        let got = delegate(&json!({"cniVersion": "1.0.0", "name": "n", "type": "flannel"})).unwrap();
        let want = json!({
            "cniVersion": "1.0.0", "name": "n", "type": "bridge", "isGateway": true, "ipMasq": false, "mtu": 1450,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:244:0:1::/64"}]],
                "routes": [{"dst": "10.244.0.0/16"}, {"dst": "fd00:244::/56"}],
            },
        });
        assert_eq!(got, want);
    }

    #[test]
    fn keys_of_the_user_take_precedence() {
        let got = delegate(&json!({
            "cniVersion": "1.0.0", "name": "n", "type": "flannel",
            "delegate": {"type": "ptp", "mtu": 1400, "IPMASQ": true},
            "runtimeConfig": {"portMappings": []},
            "ipam": {"type": "other", "dataDir": "/d", "routes": [{"dst": "0.0.0.0/0"}]},
        }))
        .unwrap();
        let want = json!({
            "cniVersion": "1.0.0", "name": "n", "type": "ptp", "mtu": 1400, "IPMASQ": true,
            "runtimeConfig": {"portMappings": []},
            "ipam": {
                "type": "other", "dataDir": "/d",
                "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:244:0:1::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.244.0.0/16"}, {"dst": "fd00:244::/56"}],
            },
        });
        assert_eq!(got, want);
    }

    #[test]
    fn messages_of_the_reference() {
        let with = |delegate: Value| json!({"name": "n", "type": "flannel", "delegate": delegate});
        let cases = [
            (with(json!({"type": 5})), "'delegate' dictionary, if present, must have (string) 'type' field"),
            (
                with(json!({"name": "x"})),
                "'delegate' dictionary must not have 'name' field, it'll be set by flannel",
            ),
            (
                with(json!({"ipam": {}})),
                "'delegate' dictionary must not have 'ipam' field, it'll be set by flannel",
            ),
            (
                json!({"name": "n", "type": "flannel", "ipam": {"routes": [{"dst": "x"}]}}),
                "failed to read IPAM routes: ipam.routes[0].dst: invalid CIDR address: x",
            ),
        ];
        for (config, want) in cases {
            assert_eq!(delegate(&config), Err(want.to_owned()), "{config}");
        }
    }
}
