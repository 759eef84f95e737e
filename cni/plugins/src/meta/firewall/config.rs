// SPDX-License-Identifier: GPL-2.0-or-later

//! firewall's keys, decoded and checked.

use cni_dataplane::firewall::IngressPolicy;
use cni_dataplane::iptables::ChainName;
use cni_spec::{CniError, NetConf, text};
use serde::Deserialize;

// The reference's names.
const ADMIN_CHAIN: &str = "CNI-ADMIN";
const ZONE: &str = "trusted";

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    backend: String,
    iptables_admin_chain_name: String,
    firewalld_zone: String,
    ingress_policy: String,
}

/// The key `backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// firewalld if it is running, else iptables if its chains can be created, else nftables.
    Auto,
    Iptables,
    Nftables,
    Firewalld,
}

/// The configuration, checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) choice: Choice,
    pub(super) zone: String,
    pub(super) admin_chain: ChainName,
    pub(super) policy: IngressPolicy,
}

impl Config {
    /// Reads and checks all keys.
    ///
    /// # Errors
    /// Code 7 for a value that cannot be used.
    pub(super) fn read(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let policy = IngressPolicy::from_name(&keys.ingress_policy).ok_or_else(|| {
            CniError::config(format!("unknown ingress policy: {}", text::quote(&keys.ingress_policy)))
        })?;
        let chain = or(&keys.iptables_admin_chain_name, ADMIN_CHAIN);
        let admin_chain = ChainName::new(chain).map_err(|why| {
            CniError::config(format!("iptablesAdminChainName {}: {why}", text::quote(chain)))
        })?;
        Ok(Self { choice: choice(&keys.backend), zone: zone(&keys), admin_chain, policy })
    }
}

/// The keys that a DEL needs.
#[derive(Debug)]
pub(super) struct Removal {
    pub(super) choice: Choice,
    pub(super) zone: String,
    pub(super) policy: IngressPolicy,
}

impl Removal {
    /// Reads the keys. Invalid keys get their defaults, so that they do not fail a DEL.
    pub(super) fn read(config: &NetConf) -> Self {
        let keys: Keys = config.decode().unwrap_or_default();
        let policy = IngressPolicy::from_name(&keys.ingress_policy).unwrap_or(IngressPolicy::Open);
        Self { choice: choice(&keys.backend), zone: zone(&keys), policy }
    }
}

/// Parses `backend`. An unknown name is treated as if the key were not set, as in the reference.
fn choice(backend: &str) -> Choice {
    match backend {
        "iptables" => Choice::Iptables,
        "nftables" => Choice::Nftables,
        "firewalld" => Choice::Firewalld,
        "" => Choice::Auto,
        unknown => {
            log::warn!("unknown backend {unknown:?} ignored");
            Choice::Auto
        }
    }
}

fn zone(keys: &Keys) -> String {
    or(&keys.firewalld_zone, ZONE).to_owned()
}

fn or<'a>(value: &'a str, default: &'a str) -> &'a str {
    if value.is_empty() { default } else { value }
}

#[cfg(test)]
pub(super) fn decodes() -> crate::keys::probe::Fields {
    crate::keys::probe::fields::<Keys>()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn read(keys: &Value) -> Result<Config, String> {
        Config::read(&configuration("firewall", keys)).map_err(|error| error.msg)
    }

    #[test]
    fn defaults_are_the_references() {
        for keys in [json!({}), json!({"backend": "", "ingressPolicy": "", "firewalldZone": ""})] {
            let config = read(&keys).unwrap();
            assert_eq!((config.choice, config.policy), (Choice::Auto, IngressPolicy::Open));
            assert_eq!(
                (config.zone.as_str(), config.admin_chain.to_string().as_str()),
                ("trusted", "CNI-ADMIN")
            );
        }
        assert_eq!(read(&json!({"backend": "x"})).unwrap().choice, Choice::Auto);
    }

    #[test]
    fn all_keys() {
        let config = read(&json!({
            "backend": "nftables", "iptablesAdminChainName": "MINE", "firewalldZone": "dmz", "ingressPolicy": "isolated",
        }))
        .unwrap();
        assert_eq!((config.choice, config.policy), (Choice::Nftables, IngressPolicy::Isolated));
        assert_eq!((config.zone.as_str(), config.admin_chain.to_string().as_str()), ("dmz", "MINE"));
        assert_eq!(read(&json!({"ingressPolicy": "same-bridge"})).unwrap().policy, IngressPolicy::SameBridge);
        assert_eq!(read(&json!({"ingressPolicy": "x"})), Err("unknown ingress policy: \"x\"".to_owned()));
        let long = "iptablesAdminChainName \"A chain\": it has a character that no chain's name may have";
        assert_eq!(read(&json!({"iptablesAdminChainName": "A chain"})), Err(long.to_owned()));
    }
}
