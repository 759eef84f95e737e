// SPDX-License-Identifier: GPL-2.0-or-later

//! static: addresses from the configuration or the runtime. The plugin keeps no state: it reserves nothing, and does
//! not detect duplicates.

use std::net::IpAddr;

use cni_spec::address::{AddressError, check_container, check_router};
use cni_spec::text::parse_canonical_net;
use cni_spec::{AddResult, Args, ArgsError, CniError, Dns, ErrorCode, IpConfig, Route, Version};
use ipnet::IpNet;
use serde::Deserialize;

use super::keys::{KeyError, RawArgs, RawRoute, routes};
use crate::plugin::{NodeRequest, Plugin, Request};

/// The IPAM plugin `static`.
#[derive(Debug)]
pub struct Static;

impl Plugin for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn summary(&self) -> &'static str {
        "gives the addresses that are written in the configuration"
    }

    fn is_ipam(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        crate::keys::probe::fields::<RawConfig>()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        let raw = request.config.decode::<RawConfig>()?;
        Ok(raw.resolve(request.config.version, request.args).map(drop)?)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let config = request.config.decode::<RawConfig>()?.resolve(request.config.version, request.args)?;
        let ips = config.addresses.iter().map(|one| IpConfig {
            interface: None,
            address: one.address,
            gateway: one.gateway,
        });
        let ips = ips.collect();
        Ok(AddResult { interfaces: Vec::new(), ips, routes: config.routes, dns: config.dns })
    }

    /// Does nothing, as there is no state.
    fn del(&self, _request: &Request<'_>) -> Result<(), CniError> {
        Ok(())
    }

    /// Compares the gateways of addresses in the result. A later plugin may have removed an address from it,
    /// so a missing one is not an error, as in the reference.
    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let config = request.config.decode::<RawConfig>()?.resolve(request.config.version, request.args)?;
        let Some(result) = &request.config.prev_result else {
            return Err(CniError::config("Required prevResult missing"));
        };
        for wanted in config.addresses.iter().filter(|one| one.gateway.is_some()) {
            let same = |ip: &&IpConfig| ip.address.addr() == wanted.address.addr();
            let Some(found) = result.ips.iter().find(same) else { continue };
            if found.gateway != wanted.gateway {
                let (address, ifname) = (found.address.addr(), request.attachment.ifname());
                let text = format!("static: Failed to match addr {address} on interface {ifname}");
                return Err(CniError::internal(text));
            }
        }
        Ok(())
    }

    /// Checks the configuration. The runtime's addresses are not known before the ADD.
    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let raw = request.config.decode::<RawConfig>()?;
        raw.resolve(request.config.version, &request.env.args).map(drop).map_err(CniError::from)
    }
}

/// The configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Config {
    addresses: Vec<Address>,
    routes: Vec<Route>,
    dns: Dns,
}

/// An address with its subnet's prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Address {
    address: IpNet,
    gateway: Option<IpAddr>,
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum ConfigError {
    #[error("IPAM config missing 'ipam' key")]
    NoIpam,
    #[error("the 'address' field is expected to be in CIDR notation, got: '{0}'")]
    Address(String),
    #[error("an entry in the 'ips' field is NOT in CIDR notation, got: '{0}'")]
    Requested(String),
    #[error("CNI version {0} does not support more than 1 address per family")]
    TooManyForVersion(Version),
    #[error(transparent)]
    Unusable(#[from] AddressError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Args(#[from] ArgsError),
    #[error("the 'ip' field is expected to be in CIDR notation, got: '{0}'")]
    ArgsAddress(String),
    #[error("invalid gateway address: {0}")]
    ArgsGateway(String),
}

impl From<ConfigError> for CniError {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Args(error) => error.into(),
            ConfigError::ArgsAddress(_) | ConfigError::ArgsGateway(_) => {
                Self::new(ErrorCode::InvalidEnvironment, error.to_string())
            }
            _ => Self::config(error.to_string()),
        }
    }
}

/// The configuration's keys; null counts as absent everywhere.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawConfig {
    ipam: Option<RawIpam>,
    runtime_config: Option<RawRuntimeConfig>,
    args: Option<RawArgs>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct RawIpam {
    addresses: Option<Vec<RawAddress>>,
    routes: Option<Vec<RawRoute>>,
    dns: Option<Dns>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct RawAddress {
    address: Option<String>,
    gateway: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct RawRuntimeConfig {
    ips: Option<Vec<String>>,
}

impl RawConfig {
    /// Checks all keys. `runtimeConfig.ips` replaces `args.cni.ips`, which replaces all others; the addresses
    /// of `CNI_ARGS` are added to those of `ipam.addresses`.
    fn resolve(&self, version: Version, args: &str) -> Result<Config, ConfigError> {
        let ipam = self.ipam.as_ref().ok_or(ConfigError::NoIpam)?;
        let by_args: Vec<&String> = self.args.iter().flat_map(RawArgs::ips).collect();
        let by_runtime: Vec<&String> =
            self.runtime_config.iter().flat_map(|runtime| &runtime.ips).flatten().collect();
        let args = Args::parse(args, &["IP", "GATEWAY"])?;
        let addresses = match (by_runtime.is_empty(), by_args.is_empty()) {
            (false, _) => requested(&by_runtime)?,
            (true, false) => requested(&by_args)?,
            (true, true) => ipam.addresses(&args)?,
        };
        for one in &addresses {
            check_container(one.address)?;
            one.gateway.map_or(Ok(()), check_router)?;
        }
        let of_v4 = addresses.iter().filter(|one| one.address.addr().is_ipv4()).count();
        if version < Version::V0_3_0 && (of_v4 > 1 || addresses.len() - of_v4 > 1) {
            return Err(ConfigError::TooManyForVersion(version));
        }
        let dns = ipam.dns.clone().unwrap_or_default();
        Ok(Config { addresses, routes: routes(ipam.routes.as_deref())?, dns })
    }
}

impl RawIpam {
    /// The addresses of `ipam.addresses` and `CNI_ARGS`, with the gateways of `CNI_ARGS`.
    fn addresses(&self, args: &Args) -> Result<Vec<Address>, ConfigError> {
        let mut addresses = Vec::new();
        for (at, raw) in self.addresses.iter().flatten().enumerate() {
            let text = raw.address.as_deref().unwrap_or_default();
            let address = parse_canonical_net(text).ok_or_else(|| ConfigError::Address(text.to_owned()))?;
            let gateway = match raw.gateway.as_deref() {
                None | Some("") => None,
                Some(text) => {
                    let key = format!("ipam.addresses[{at}].gateway");
                    Some(text.parse().map_err(|_| KeyError::address(&key, text))?)
                }
            };
            addresses.push(Address { address, gateway: gateway.map(canonical) });
        }
        for text in list(args.get("IP")) {
            let address =
                parse_canonical_net(text).ok_or_else(|| ConfigError::ArgsAddress(text.to_owned()))?;
            addresses.push(Address { address, gateway: None });
        }
        for text in list(args.get("GATEWAY")) {
            let gateway = text.parse().map_err(|_| ConfigError::ArgsGateway(text.to_owned()))?;
            let gateway = canonical(gateway);
            for one in addresses.iter_mut().filter(|one| one.address.contains(&gateway)) {
                one.gateway = Some(gateway);
            }
        }
        Ok(addresses)
    }
}

/// A list separated by commas; an empty text is an empty list.
fn list(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.filter(|text| !text.is_empty()).into_iter().flat_map(|text| text.split(',')).map(str::trim)
}

fn requested(texts: &[&String]) -> Result<Vec<Address>, ConfigError> {
    let address = |text: &&String| {
        let address = parse_canonical_net(text).ok_or_else(|| ConfigError::Requested((*text).clone()))?;
        Ok(Address { address, gateway: None })
    };
    texts.iter().map(address).collect()
}

fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn resolve(config: Value, version: Version, args: &str) -> Result<Config, String> {
        let raw: RawConfig = serde_json::from_value(config).map_err(|e| e.to_string())?;
        raw.resolve(version, args).map_err(|e| e.to_string())
    }

    fn shown(config: &Config) -> Vec<String> {
        let gateway =
            |one: &Address| one.gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
        config.addresses.iter().map(|one| format!("{}{}", one.address, gateway(one))).collect()
    }

    fn own() -> Value {
        json!({"addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00::5/64"}]})
    }

    #[test]
    fn addresses_come_from_the_key_of_highest_precedence() {
        let v = Version::V1_1_0;
        let config = resolve(json!({"ipam": own()}), v, "").unwrap();
        assert_eq!(shown(&config), ["10.1.0.5/24 via 10.1.0.1", "fd00::5/64"]);
        let args = "IP=10.2.0.5/24, ::ffff:10.3.0.5/120;GATEWAY=10.3.0.1,fd00::1";
        let config = resolve(json!({"ipam": own()}), v, args).unwrap();
        let want =
            ["10.1.0.5/24 via 10.1.0.1", "fd00::5/64 via fd00::1", "10.2.0.5/24", "10.3.0.5/24 via 10.3.0.1"];
        assert_eq!(shown(&config), want);
        let mut both = json!({"ipam": own(), "args": {"cni": {"ips": ["10.8.0.5/16"]}}});
        assert_eq!(shown(&resolve(both.clone(), v, args).unwrap()), ["10.8.0.5/16"]);
        both["runtimeConfig"] = json!({"ips": ["10.9.0.5/16"]});
        assert_eq!(shown(&resolve(both, v, "").unwrap()), ["10.9.0.5/16"]);
        assert_eq!(shown(&resolve(json!({"ipam": {}}), v, "").unwrap()), [""; 0]);
    }

    #[test]
    fn messages_of_the_reference() {
        let cases = [
            (json!({}), "", "IPAM config missing 'ipam' key"),
            (
                json!({"ipam": {"addresses": [{"address": "10.1.0.5"}]}}),
                "",
                "the 'address' field is expected to be in CIDR notation, got: '10.1.0.5'",
            ),
            (
                json!({"ipam": {}, "runtimeConfig": {"ips": ["10.1.0.5"]}}),
                "",
                "an entry in the 'ips' field is NOT in CIDR notation, got: '10.1.0.5'",
            ),
            (
                json!({"ipam": {}}),
                "IP=10.1.0.5",
                "the 'ip' field is expected to be in CIDR notation, got: '10.1.0.5'",
            ),
            (json!({"ipam": {}}), "GATEWAY=x", "invalid gateway address: x"),
            (
                json!({"ipam": {"addresses": [{"address": "10.1.0.5/8", "gateway": "x"}]}}),
                "",
                "ipam.addresses[0].gateway: invalid IP address: x",
            ),
            (json!({"ipam": {"routes": [{"dst": "x"}]}}), "", "ipam.routes[0].dst: invalid CIDR address: x"),
        ];
        for (config, args, want) in cases {
            assert_eq!(resolve(config.clone(), Version::V1_1_0, args), Err(want.to_owned()), "{config}");
        }
    }

    #[test]
    fn addresses_that_no_container_can_have() {
        let own = |address: &str| json!({"ipam": {"addresses": [{"address": address}]}});
        for (config, args, want) in [
            (own("127.0.0.1/8"), "", "no container can have address 127.0.0.1/8: it is a loopback address"),
            (own("10.1.0.5/0"), "", "no container can have address 10.1.0.5/0: its prefix has no length"),
            (
                own("::ffff:127.0.0.1/104"),
                "",
                "no container can have address 127.0.0.1/8: it is a loopback address",
            ),
            (
                json!({"ipam": {}}),
                "IP=224.1.1.1/32",
                "no container can have address 224.1.1.1/32: it is a multicast address",
            ),
            (
                json!({"ipam": {}, "args": {"cni": {"ips": ["fd00::/64"]}}}),
                "",
                "no container can have address fd00::/64: it is the address of its subnet",
            ),
            (
                json!({"ipam": {}, "runtimeConfig": {"ips": ["10.1.0.255/24"]}}),
                "",
                "no container can have address 10.1.0.255/24: it is the broadcast address of its subnet",
            ),
            (
                json!({"ipam": {"addresses": [{"address": "10.1.0.5/24", "gateway": "::1"}]}}),
                "",
                "no router can have address ::1: it is a loopback address",
            ),
        ] {
            assert_eq!(resolve(config.clone(), Version::V1_1_0, args), Err(want.to_owned()), "{config}");
        }
        for address in ["10.1.0.0/32", "10.1.0.0/31", "169.254.7.7/16", "fe80::5/64", "240.0.0.5/24"] {
            assert!(resolve(own(address), Version::V1_1_0, "").is_ok(), "{address}");
        }
    }

    #[test]
    fn old_versions_have_one_address_of_each_family() {
        let conf = |addresses: Value| json!({"ipam": {"addresses": addresses}});
        let two = conf(json!([{"address": "10.1.0.5/8"}, {"address": "10.1.0.6/8"}]));
        let want = Err("CNI version 0.2.0 does not support more than 1 address per family".to_owned());
        assert_eq!(resolve(two.clone(), Version::V0_2_0, ""), want);
        assert!(resolve(two, Version::V0_3_0, "").is_ok());
        assert!(resolve(json!({"ipam": own()}), Version::V0_1_0, "").is_ok());
    }
}
