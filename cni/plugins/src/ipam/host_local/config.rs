// SPDX-License-Identifier: GPL-2.0-or-later

//! From configuration to ranges, requested addresses and routes.

use std::net::IpAddr;
use std::path::PathBuf;

use cni_kernel::AddressFamily;
use cni_spec::text::parse_net;
use cni_spec::{Args, ArgsError, CniError, Route, Version};
use cni_state::host_local::{RawRange, canonical};
use cni_state::subnet_file::SubnetFile;
use ipnet::IpNet;
use serde::Deserialize;

use super::range::{RangeSet, SetError};
use crate::ipam::keys::{KeyError, RawArgs, RawRoute, routes};
use crate::plugin::Env;

/// The default folder of reservations.
pub(super) const DATA_DIR: &str = "/var/lib/cni/networks";

/// The configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// The directory that has one directory for each network.
    pub(super) data_dir: PathBuf,
    /// The range sets, from each of which an attachment gets an address. Empty only if all sets come from `subnet_file`.
    pub(super) sets: Vec<RangeSet>,
    /// The file with further range sets.
    pub(super) subnet_file: Option<PathBuf>,
    /// Requested addresses, each once, in order.
    pub(super) requested: Vec<IpAddr>,
    /// Passed on as they are.
    pub(super) routes: Vec<Route>,
    /// A file in the format of resolv.conf(5).
    pub(super) resolv_conf: Option<PathBuf>,
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ConfigError {
    #[error("IPAM config missing 'ipam' key")]
    NoIpam,
    #[error("no IP ranges specified")]
    NoRanges,
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("invalid range set {set}: {source}")]
    Set { set: usize, source: SetError },
    #[error("range set {0} overlaps with {1}")]
    Overlap(usize, usize),
    #[error("CNI version {0} does not support more than 1 address per family")]
    TooManyForVersion(Version),
    #[error(transparent)]
    Args(#[from] ArgsError),
}

impl From<ConfigError> for CniError {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Args(error) => error.into(),
            _ => Self::config(error.to_string()),
        }
    }
}

/// The configuration's keys; null counts as absent everywhere, as in the reference.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawConfig {
    ipam: Option<RawIpam>,
    runtime_config: Option<RawRuntimeConfig>,
    args: Option<RawArgs>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawIpam {
    subnet: Option<String>,
    range_start: Option<String>,
    range_end: Option<String>,
    gateway: Option<String>,
    ranges: Option<Vec<Option<Vec<RawRangeKeys>>>>,
    routes: Option<Vec<RawRoute>>,
    data_dir: Option<PathBuf>,
    resolv_conf: Option<PathBuf>,
    subnet_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawRangeKeys {
    subnet: Option<String>,
    range_start: Option<String>,
    range_end: Option<String>,
    gateway: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawRuntimeConfig {
    ip_ranges: Option<Vec<Option<Vec<RawRangeKeys>>>>,
    ips: Option<Vec<String>>,
}

impl RawConfig {
    /// The folder of reservations. DEL, CHECK and GC need no more: they must find reservations of other
    /// ranges too.
    pub(super) fn data_dir(&self) -> Result<PathBuf, ConfigError> {
        let ipam = self.ipam.as_ref().ok_or(ConfigError::NoIpam)?;
        let given = ipam.data_dir.clone().filter(|dir| !dir.as_os_str().is_empty());
        Ok(given.unwrap_or_else(|| PathBuf::from(DATA_DIR)))
    }

    /// Checks all keys. Reads no file.
    pub(super) fn resolve(&self, version: Version, env: &Env) -> Result<Config, ConfigError> {
        let data_dir = self.data_dir()?;
        let ipam = self.ipam.as_ref().ok_or(ConfigError::NoIpam)?;
        let requested = self.requested(env)?;
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let sets = self.sets(ipam)?;
        let subnet_file = given(&ipam.subnet_file);
        if sets.is_empty() && subnet_file.is_none() {
            return Err(ConfigError::NoRanges);
        }
        check_sets(&sets, version)?;
        Ok(Config {
            data_dir,
            sets,
            subnet_file,
            requested,
            routes: routes(ipam.routes.as_deref())?,
            resolv_conf: given(&ipam.resolv_conf),
        })
    }

    /// Requested addresses from `CNI_ARGS`, `args.cni.ips` and `runtimeConfig.ips`, in this order. A prefix
    /// length after an address is ignored.
    fn requested(&self, env: &Env) -> Result<Vec<IpAddr>, ConfigError> {
        let mut requested = Vec::new();
        requested.extend(requested_by_args(&env.args)?);
        let of_args = self.args.iter().flat_map(RawArgs::ips);
        let of_runtime = self.runtime_config.iter().flat_map(|runtime| &runtime.ips).flatten();
        let texts =
            of_args.map(|ip| ("args.cni.ips", ip)).chain(of_runtime.map(|ip| ("runtimeConfig.ips", ip)));
        for (key, text) in texts {
            let parsed = address_with_prefix(text).ok_or_else(|| bad_address(key, text))?;
            requested.push(parsed);
        }
        let mut once = Vec::with_capacity(requested.len());
        for address in requested {
            if !once.contains(&address) {
                once.push(address);
            }
        }
        Ok(once)
    }

    /// Range sets from `runtimeConfig.ipRanges`, the single range and `ipam.ranges`, in this order.
    fn sets(&self, ipam: &RawIpam) -> Result<Vec<RangeSet>, ConfigError> {
        let mut raw: Vec<(String, Vec<RawRangeKeys>)> = Vec::new();
        let named = |name: &str, sets: &Vec<Option<Vec<RawRangeKeys>>>| {
            let sets = sets.iter().cloned().enumerate();
            sets.map(|(at, set)| (format!("{name}[{at}]"), set.unwrap_or_default())).collect::<Vec<_>>()
        };
        if let Some(sets) = self.runtime_config.as_ref().and_then(|runtime| runtime.ip_ranges.as_ref()) {
            raw.extend(named("runtimeConfig.ipRanges", sets));
        }
        let single = RawRangeKeys {
            subnet: ipam.subnet.clone(),
            range_start: ipam.range_start.clone(),
            range_end: ipam.range_end.clone(),
            gateway: ipam.gateway.clone(),
        };
        match single.subnet {
            Some(_) => raw.push(("ipam".to_owned(), vec![single])),
            // Without a subnet the other keys have no effect, but must be addresses.
            None => {
                single.parse("ipam")?;
            }
        }
        if let Some(sets) = &ipam.ranges {
            raw.extend(named("ipam.ranges", sets));
        }
        raw.iter().enumerate().map(|(set, (key, ranges))| resolve_set(set, key, ranges)).collect()
    }
}

impl Config {
    /// Appends the range sets of the node's file: one of each family.
    pub(super) fn add_subnets(&mut self, file: &SubnetFile, version: Version) -> Result<(), ConfigError> {
        for (_, subnets) in file.families() {
            let set = self.sets.len();
            let wrong = |source| ConfigError::Set { set, source };
            let range = |subnet: &IpNet| RawRange { subnet: Some(*subnet), ..RawRange::default() }.resolve();
            let ranges =
                subnets.iter().map(range).collect::<Result<_, _>>().map_err(|error| wrong(error.into()))?;
            self.sets.push(RangeSet::new(ranges).map_err(wrong)?);
        }
        check_sets(&self.sets, version)
    }
}

fn resolve_set(set: usize, key: &str, ranges: &[RawRangeKeys]) -> Result<RangeSet, ConfigError> {
    let wrong = |source| ConfigError::Set { set, source };
    let mut resolved = Vec::with_capacity(ranges.len());
    for (at, range) in ranges.iter().enumerate() {
        let key = if key == "ipam" { key.to_owned() } else { format!("{key}[{at}]") };
        resolved.push(range.parse(&key)?.resolve().map_err(|error| wrong(error.into()))?);
    }
    RangeSet::new(resolved).map_err(wrong)
}

fn check_sets(sets: &[RangeSet], version: Version) -> Result<(), ConfigError> {
    let of = |family| sets.iter().filter(|set| set.family() == family).count();
    if version < Version::V0_3_0 && (of(AddressFamily::V4) > 1 || of(AddressFamily::V6) > 1) {
        return Err(ConfigError::TooManyForVersion(version));
    }
    for (at, set) in sets.iter().enumerate() {
        if let Some(other) = sets.iter().skip(at + 1).position(|other| set.overlaps(other)) {
            return Err(ConfigError::Overlap(at, at + 1 + other));
        }
    }
    Ok(())
}

impl RawRangeKeys {
    fn parse(&self, key: &str) -> Result<RawRange, ConfigError> {
        let address = |name: &str, text: &Option<String>| match text.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => match text.parse() {
                Ok(address) => Ok(Some(canonical(address))),
                Err(_) => Err(bad_address(&format!("{key}.{name}"), text)),
            },
        };
        let subnet = self
            .subnet
            .as_deref()
            .map(|text| parse_net(text).ok_or_else(|| bad_cidr(&format!("{key}.subnet"), text)));
        Ok(RawRange {
            subnet: subnet.transpose()?,
            first: address("rangeStart", &self.range_start)?,
            last: address("rangeEnd", &self.range_end)?,
            gateway: address("gateway", &self.gateway)?,
        })
    }
}

/// The `IP` of `CNI_ARGS`; an empty one counts as missing.
fn requested_by_args(args: &str) -> Result<Option<IpAddr>, ArgsError> {
    let args = Args::parse(args, &["IP"])?;
    let Some(text) = args.get("IP").filter(|text| !text.is_empty()) else { return Ok(None) };
    let address = address_with_prefix(text);
    Ok(Some(address.ok_or_else(|| args.bad_value("IP", format!("invalid IP address {text}")))?))
}

fn address_with_prefix(text: &str) -> Option<IpAddr> {
    let address = match parse_net(text) {
        Some(net) => net.addr(),
        None => text.parse().ok()?,
    };
    Some(canonical(address))
}

fn bad_cidr(key: &str, value: &str) -> ConfigError {
    KeyError::cidr(key, value).into()
}

fn bad_address(key: &str, value: &str) -> ConfigError {
    KeyError::address(key, value).into()
}

#[cfg(test)]
pub(super) fn decodes() -> crate::keys::probe::Fields {
    crate::keys::probe::fields::<RawConfig>()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn resolve(config: Value, version: Version, args: &str) -> Result<Config, String> {
        let env = Env { args: args.to_owned(), ..Env::default() };
        let raw: RawConfig = serde_json::from_value(config).map_err(|error| error.to_string())?;
        raw.resolve(version, &env).map_err(|error| error.to_string())
    }

    fn ipam(ipam: &Value) -> Result<Config, String> {
        resolve(json!({ "ipam": ipam }), Version::V1_1_0, "")
    }

    fn sets(config: &Config) -> Vec<String> {
        config.sets.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn range_sets_are_in_the_references_order() {
        let config = resolve(
            json!({
                "ipam": {
                    "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "gateway": "",
                    "ranges": [[{ "subnet": "10.3.2.0/24" }, { "subnet": "10.4.2.0/24" }], [{ "subnet": "fd00::/64" }]],
                    "dataDir": "", "routes": null,
                },
                "runtimeConfig": { "ipRanges": [[{ "subnet": "10.7.2.0/24" }]], "ips": null },
                "args": null,
            }),
            Version::V1_1_0,
            "",
        )
        .unwrap();
        assert_eq!(
            sets(&config),
            [
                "10.7.2.1-10.7.2.254",
                "10.1.2.9-10.1.2.254",
                "10.3.2.1-10.3.2.254,10.4.2.1-10.4.2.254",
                "fd00::1-fd00::ffff:ffff:ffff:ffff"
            ]
        );
        assert_eq!(config.data_dir, PathBuf::from(DATA_DIR));
        assert_eq!(config.routes, []);
    }

    #[test]
    fn requests_come_from_three_places_and_count_once() {
        let config = resolve(
            json!({
                "ipam": { "subnet": "10.1.2.0/24" },
                "args": { "cni": { "ips": ["10.1.2.6", "10.1.2.5/16"] } },
                "runtimeConfig": { "ips": ["10.1.2.5/24", "::ffff:10.1.2.7", "fd00::1/64"] },
            }),
            Version::V1_1_0,
            "K8S_POD_NAME=a;IP=10.1.2.9/24;IgnoreUnknown=1",
        )
        .unwrap();
        let texts: Vec<String> = config.requested.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.1.2.9", "10.1.2.6", "10.1.2.5", "10.1.2.7", "fd00::1"]);
    }

    #[test]
    fn bad_values_are_named_with_their_key() {
        for (config, expected) in [
            (json!(null), "IPAM config missing 'ipam' key"),
            (json!({}), "no IP ranges specified"),
            (json!({ "rangeStart": "10.1.2.3" }), "no IP ranges specified"),
            (json!({ "ranges": [] }), "no IP ranges specified"),
            (json!({ "ranges": [[]] }), "invalid range set 0: empty range set"),
            (json!({ "ranges": [null] }), "invalid range set 0: empty range set"),
            (json!({ "ranges": [[{}]] }), "invalid range set 0: missing subnet"),
            (json!({ "subnet": "zz" }), "ipam.subnet: invalid CIDR address: zz"),
            (json!({ "subnet": "" }), "ipam.subnet: invalid CIDR address: "),
            (json!({ "subnet": "10.1.2.0/24", "gateway": "zz" }), "ipam.gateway: invalid IP address: zz"),
            (
                json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "10.1.3.0/24", "rangeEnd": "x" }]] }),
                "ipam.ranges[0][1].rangeEnd: invalid IP address: x",
            ),
            (
                json!({ "subnet": "10.1.2.0/24", "ranges": [[{ "subnet": "10.1.0.0/16" }]] }),
                "range set 0 overlaps with 1",
            ),
            (
                json!({ "ranges": [[{ "subnet": "fd00::/64" }], [{ "subnet": "10.1.2.0/24" }],
                    [{ "subnet": "10.1.3.0/24" }], [{ "subnet": "10.1.2.0/25" }]] }),
                "range set 1 overlaps with 3",
            ),
            (
                json!({ "subnet": "10.1.2.0/24", "routes": [{ "dst": "10.0.0.0" }] }),
                "ipam.routes[0].dst: invalid CIDR address: 10.0.0.0",
            ),
            (
                json!({ "subnet": "10.1.2.0/24", "routes": [{ "dst": "0.0.0.0/0", "scope": 256 }] }),
                "ipam.routes[0].scope: 256 is out of range",
            ),
        ] {
            assert_eq!(ipam(&config).unwrap_err(), expected, "{config}");
        }
    }

    #[test]
    fn old_versions_take_one_set_of_each_family() {
        let two =
            json!({ "ipam": { "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "10.1.3.0/24" }]] } });
        let error = resolve(two.clone(), Version::V0_2_0, "").unwrap_err();
        assert_eq!(error, "CNI version 0.2.0 does not support more than 1 address per family");
        assert!(resolve(two, Version::V0_3_0, "").is_ok());
        let six = json!({ "ipam": { "ranges": [[{ "subnet": "fd00::/64" }], [{ "subnet": "fd01::/64" }]] } });
        assert!(resolve(six, Version::V0_2_0, "").is_err());
        let both =
            json!({ "ipam": { "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]] } });
        assert!(resolve(both, Version::V0_1_0, "").is_ok());
    }

    #[test]
    fn arguments_may_have_a_prefix_length() {
        assert_eq!(requested_by_args(""), Ok(None));
        assert_eq!(requested_by_args("IP="), Ok(None));
        assert_eq!(requested_by_args("IP=10.0.0.1/8"), Ok("10.0.0.1".parse().ok()));
        assert_eq!(requested_by_args("A=b;IgnoreUnknown=TRUE;IP=fd00::1"), Ok("fd00::1".parse().ok()));
        let error = requested_by_args("IP=zz").unwrap_err();
        assert_eq!(error.to_string(), "ARGS: error parsing value of pair \"IP=zz\": invalid IP address zz");
    }

    #[test]
    fn addresses_are_checked_without_a_subnet_too() {
        for key in ["rangeStart", "rangeEnd", "gateway"] {
            let keys = json!({ "ipam": { "ranges": [[{ "subnet": "10.1.2.0/24" }]], key: "x" } });
            let error = resolve(keys, Version::V1_0_0, "").unwrap_err();
            assert_eq!(error, format!("ipam.{key}: invalid IP address: x"));
        }
    }

    #[test]
    fn routes_keep_every_attribute() {
        let config = ipam(&json!({
            "subnet": "10.1.2.0/24",
            "routes": [{ "dst": "10.9.0.1/16", "gw": "10.1.2.9", "mtu": 1400, "advmss": 1300,
                         "priority": 7, "table": 0, "scope": 253 }, { "dst": "::/0" }],
        }))
        .unwrap();
        let expected = Route {
            dst: "10.9.0.1/16".parse().unwrap(),
            gw: "10.1.2.9".parse().ok(),
            mtu: 1400,
            advmss: 1300,
            priority: 7,
            table: Some(0),
            scope: Some(253),
        };
        assert_eq!(config.routes.first(), Some(&expected));
        assert_eq!(
            config.routes.get(1).map(|route| (route.gw, route.table, route.scope)),
            Some((None, None, None))
        );
    }

    fn with_file(config: &Value, version: Version, subnets: &[&str]) -> Result<Vec<String>, String> {
        let mut config = resolve(json!({ "ipam": config }), version, "")?;
        let subnets = subnets.iter().map(|subnet| subnet.parse().unwrap()).collect();
        let file = SubnetFile { subnets, cluster_cidrs: vec![], mtu: 1500 };
        config.add_subnets(&file, version).map_err(|error| error.to_string())?;
        Ok(sets(&config))
    }

    #[test]
    fn a_subnet_file_adds_a_set_of_each_family() {
        let alone = json!({ "subnetFile": "/f" });
        assert_eq!(ipam(&alone).unwrap().subnet_file, Some(PathBuf::from("/f")));
        for none in [json!({ "subnetFile": "" }), json!({ "subnetFile": null })] {
            assert_eq!(ipam(&none).unwrap_err(), "no IP ranges specified");
        }
        let nets = ["fd00::/64", "10.1.2.0/24", "10.1.3.0/30"];
        assert_eq!(
            with_file(&alone, Version::V0_2_0, &nets).unwrap(),
            ["fd00::1-fd00::ffff:ffff:ffff:ffff", "10.1.2.1-10.1.2.254,10.1.3.1-10.1.3.2"]
        );
        let both =
            json!({ "subnetFile": "/f", "subnet": "10.2.0.0/24", "ranges": [[{ "subnet": "10.3.0.0/24" }]] });
        assert_eq!(
            with_file(&both, Version::V1_1_0, &["10.1.2.0/24"]).unwrap(),
            ["10.2.0.1-10.2.0.254", "10.3.0.1-10.3.0.254", "10.1.2.1-10.1.2.254"]
        );
        assert_eq!(
            with_file(&both, Version::V1_1_0, &["10.3.0.0/16"]).unwrap_err(),
            "range set 1 overlaps with 2"
        );
        let one = json!({ "subnetFile": "/f", "subnet": "10.2.0.0/24" });
        assert_eq!(
            with_file(&one, Version::V0_2_0, &["10.1.2.0/24"]).unwrap_err(),
            "CNI version 0.2.0 does not support more than 1 address per family"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        /// host-local can use every file that the agent may write.
        #[test]
        fn valid_files_have_usable_ranges(
            v4 in proptest::collection::vec((any::<u32>(), 0..=32_u8), 0..3),
            v6 in proptest::collection::vec((any::<u128>(), 0..=128_u8), 0..3),
        ) {
            let v4 = v4.into_iter().map(|(bits, length)| (IpAddr::from(bits.to_be_bytes()), length));
            let v6 = v6.into_iter().map(|(bits, length)| (IpAddr::from(bits.to_be_bytes()), length));
            let subnets = v4.chain(v6).map(|(address, length)| IpNet::new(address, length).unwrap().trunc());
            let file = SubnetFile { subnets: subnets.collect(), cluster_cidrs: vec![], mtu: 1500 };
            if file.check().is_ok() {
                let mut config = ipam(&json!({ "subnetFile": "/f" })).unwrap();
                prop_assert_eq!(config.add_subnets(&file, Version::V1_1_0), Ok(()));
                prop_assert_eq!(config.sets.len(), file.families().len());
            }
        }
    }
}
