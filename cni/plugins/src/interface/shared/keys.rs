// SPDX-License-Identifier: GPL-2.0-or-later

//! The common keys of the plugins with a veth pair.

use std::ops::RangeInclusive;

use cni_dataplane::BackendName;
use cni_spec::{CniError, Dns, NetConf};
use ipnet::IpNet;
use serde::Deserialize;

#[cfg(test)]
use super::advertisements;
use super::advertisements::Advertisements;
use crate::keys::non_masquerade;

/// A veth's limits: `ETH_MIN_MTU` and `ETH_MAX_MTU` of `linux/if_ether.h`.
const MTU: RangeInclusive<i64> = 68..=65_535;

/// The common keys, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Common {
    /// True to masquerade the containers' addresses.
    pub(crate) masquerade: bool,
    /// The backend for that; none for the node's default.
    pub(crate) masquerade_backend: Option<BackendName>,
    /// The networks that packets reach with the container's own address.
    pub(crate) non_masquerade: Vec<IpNet>,
    /// MTU in bytes; none for that of the default route's link.
    pub(crate) mtu: Option<u32>,
    /// Resolver settings that replace IPAM's, if any.
    pub(crate) dns: Option<Dns>,
    /// True if the configuration has an IPAM plugin.
    pub(crate) ipam: bool,
    /// Whether the container believes router advertisements.
    pub(crate) advertisements: Advertisements,
}

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    ip_masq: bool,
    ip_masq_backend: String,
    #[serde(rename = "nonMasqueradeCIDRs")]
    non_masquerade_cidrs: Vec<String>,
    mtu: i64,
    dns: DnsKeys,
}

/// The key `dns`, in which an empty list differs from a missing one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DnsKeys {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl DnsKeys {
    /// The settings that replace IPAM's. As in the reference, an empty list replaces them, an empty domain
    /// does not.
    fn settings(self) -> Option<Dns> {
        let Self { nameservers, domain, search, options } = self;
        let lists = [&nameservers, &search, &options];
        let given = !domain.is_empty() || lists.into_iter().any(Option::is_some);
        given.then(|| Dns {
            nameservers: nameservers.unwrap_or_default(),
            domain,
            search: search.unwrap_or_default(),
            options: options.unwrap_or_default(),
        })
    }
}

impl Common {
    /// Reads and checks the common keys.
    ///
    /// # Errors
    /// Code 7 for a value that cannot be used.
    pub(crate) fn new(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let masquerade_backend = match keys.ip_masq {
            true => backend(&keys.ip_masq_backend)?,
            false => None,
        };
        Ok(Self {
            masquerade: keys.ip_masq,
            masquerade_backend,
            non_masquerade: non_masquerade::networks(&keys.non_masquerade_cidrs)
                .map_err(|error| CniError::config(error.to_string()))?,
            mtu: mtu(keys.mtu, MTU)?,
            dns: keys.dns.settings(),
            ipam: !config.ipam.is_empty(),
            advertisements: Advertisements::with_ipam(config)?,
        })
    }
}

/// Checks the key `mtu`; 0 counts as missing.
pub(crate) fn mtu(wanted: i64, limits: RangeInclusive<i64>) -> Result<Option<u32>, CniError> {
    match u32::try_from(wanted) {
        Ok(0) => Ok(None),
        Ok(mtu) if limits.contains(&wanted) => Ok(Some(mtu)),
        _ => Err(CniError::config(format!(
            "key \"mtu\": invalid MTU {wanted} (must be 0 or between {} and {})",
            limits.start(),
            limits.end()
        ))),
    }
}

fn backend(name: &str) -> Result<Option<BackendName>, CniError> {
    let unknown = || CniError::config(format!("unknown ipmasq backend {name:?}"));
    if name.is_empty() { Ok(None) } else { BackendName::from_name(name).map(Some).ok_or_else(unknown) }
}

#[cfg(test)]
pub(crate) fn decodes() -> crate::keys::probe::Fields {
    &crate::keys::probe::fields::<Keys>() | &advertisements::decodes()
}

#[cfg(test)]
mod tests {
    use cni_spec::ErrorCode;
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn common(keys: &Value) -> Result<Common, CniError> {
        Common::new(&configuration("x", keys))
    }

    #[test]
    fn without_keys_all_is_off() {
        let expected = Common {
            masquerade: false,
            masquerade_backend: None,
            non_masquerade: Vec::new(),
            mtu: None,
            dns: None,
            ipam: false,
            advertisements: Advertisements::AsNamespace,
        };
        assert_eq!(common(&json!({})).unwrap(), expected);
        assert_eq!(common(&json!({"ipam": {}, "dns": {}, "mtu": 0})).unwrap(), expected);
    }

    #[test]
    fn a_list_or_a_domain_replaces_the_dns_of_ipam() {
        for (dns, replaces) in [
            (json!(null), false),
            (json!({}), false),
            (json!({"domain": ""}), false),
            (json!({"nameservers": null, "search": null, "options": null}), false),
            (json!({"nameservers": []}), true),
            (json!({"Search": []}), true),
            (json!({"options": []}), true),
            (json!({"domain": "a.test"}), true),
        ] {
            assert_eq!(common(&json!({"dns": dns})).unwrap().dns.is_some(), replaces, "{dns}");
        }
    }

    #[test]
    fn every_key_is_read() {
        let keys = json!({
            "ipMasq": true, "ipMasqBackend": "nftables", "mtu": 1400, "nonMasqueradeCIDRs": ["10.0.0.0/8"],
            "dns": {"nameservers": ["192.0.2.53"]}, "ipam": {"type": "host-local"},
        });
        let expected = Common {
            masquerade: true,
            masquerade_backend: Some(BackendName::Nftables),
            non_masquerade: vec!["10.0.0.0/8".parse().unwrap()],
            mtu: Some(1400),
            dns: Some(Dns { nameservers: vec!["192.0.2.53".to_owned()], ..Dns::default() }),
            ipam: true,
            advertisements: Advertisements::Refuse,
        };
        assert_eq!(common(&keys).unwrap(), expected);
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        for (keys, text) in [
            (json!({"ipMasq": true, "ipMasqBackend": "x"}), "unknown ipmasq backend \"x\""),
            (
                json!({"nonMasqueradeCIDRs": ["10.0.0.0/8", "10.1.0.0/8"]}),
                "key \"nonMasqueradeCIDRs\": 10.1.0.0/8 has host bits set: the network is 10.0.0.0/8",
            ),
            (json!({"mtu": 67}), "key \"mtu\": invalid MTU 67 (must be 0 or between 68 and 65535)"),
            (json!({"mtu": -1}), "key \"mtu\": invalid MTU -1 (must be 0 or between 68 and 65535)"),
            (json!({"mtu": 65_536}), "key \"mtu\": invalid MTU 65536 (must be 0 or between 68 and 65535)"),
        ] {
            let error = common(&keys).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.code), (text, ErrorCode::InvalidConfig), "{keys}");
        }
        let iptables = common(&json!({"ipMasq": true, "ipMasqBackend": "iptables"})).unwrap();
        assert_eq!(iptables.masquerade_backend, Some(BackendName::Iptables));
    }

    #[test]
    fn the_backend_counts_only_with_masquerade() {
        assert!(common(&json!({"ipMasqBackend": "x"})).is_ok());
    }
}
