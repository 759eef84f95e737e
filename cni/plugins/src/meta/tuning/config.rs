// SPDX-License-Identifier: GPL-2.0-or-later

//! tuning's keys, decoded and checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cni_kernel::mac::Mac;
use cni_spec::{CniError, ErrorCode, NetConf};
use serde::Deserialize;

use super::sysctls::{self, Sysctl};

/// The default folder of backups, the reference's.
pub const DATA_DIR: &str = "/run/cni/tuning";

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    sysctl: BTreeMap<String, String>,
    mac: String,
    promisc: bool,
    mtu: i64,
    allmulti: Option<bool>,
    #[serde(rename = "txQLen")]
    tx_q_len: Option<i64>,
    data_dir: PathBuf,
    runtime_config: WithMac,
    args: Args,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WithMac {
    mac: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: CniArgs,
}

/// `args.cni`, whose keys replace those of the configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CniArgs {
    sysctl: BTreeMap<String, String>,
    mac: Option<String>,
    promisc: Option<bool>,
    mtu: Option<i64>,
    allmulti: Option<bool>,
    #[serde(rename = "txQLen")]
    tx_q_len: Option<i64>,
}

/// The only key that a DEL needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DataDir {
    data_dir: PathBuf,
}

/// The configuration, checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// Settings below `/proc/sys/net`, in this order.
    pub(super) sysctls: Vec<Sysctl>,
    /// Attributes to set.
    pub(super) wanted: Attributes,
    /// The folder of backups.
    pub(super) data_dir: PathBuf,
}

/// Attributes of a link, to set or to restore.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) mac: Option<Mac>,
    pub(super) promisc: Option<bool>,
    pub(super) mtu: Option<u32>,
    pub(super) allmulti: Option<bool>,
    pub(super) tx_queue: Option<u32>,
}

impl Config {
    /// Reads and checks all keys. `args` is `CNI_ARGS`, `ifname` the container's interface.
    ///
    /// # Errors
    /// Code 7 for a value that cannot be used; code 4 if it comes from `CNI_ARGS`.
    pub(super) fn read(config: &NetConf, args: &str, ifname: &str) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        if sysctls::has_duplicates(&config.bytes) {
            return Err(CniError::config("duplicated sysctl keys are not allowed"));
        }
        let mac = keys.mac(args)?;
        let Keys { mut sysctl, args: Args { cni }, .. } = keys;
        sysctl.extend(cni.sysctl);
        Ok(Self {
            sysctls: sysctls::resolve(&sysctl, ifname)?,
            wanted: Attributes {
                mac,
                promisc: cni.promisc.unwrap_or(keys.promisc).then_some(true),
                mtu: number("mtu", cni.mtu.unwrap_or(keys.mtu))?.filter(|mtu| *mtu != 0),
                allmulti: cni.allmulti.or(keys.allmulti),
                tx_queue: cni.tx_q_len.or(keys.tx_q_len).map_or(Ok(None), |len| number("txQLen", len))?,
            },
            data_dir: or_default(keys.data_dir),
        })
    }
}

/// The folder of backups, also if other keys are invalid.
pub(super) fn data_dir(config: &NetConf) -> PathBuf {
    or_default(config.decode::<DataDir>().unwrap_or_default().data_dir)
}

fn or_default(data_dir: PathBuf) -> PathBuf {
    if data_dir.as_os_str().is_empty() { PathBuf::from(DATA_DIR) } else { data_dir }
}

fn number(key: &str, value: i64) -> Result<Option<u32>, CniError> {
    let refused = |_| CniError::config(format!("{key}: {value} is not between 0 and {}", u32::MAX));
    u32::try_from(value).map(Some).map_err(refused)
}

impl Keys {
    /// The MAC address, from `args.cni`, `runtimeConfig`, `CNI_ARGS` or the key `mac`: the first that is set.
    /// An empty text in `args.cni` counts as set, and leaves the link's address as it is.
    fn mac(&self, args: &str) -> Result<Option<Mac>, CniError> {
        const FROM_ARGS: &str = "CNI_ARGS MAC";
        let from_args = cni_spec::Args::parse(args, &["MAC"])?.get("MAC").unwrap_or_default().to_owned();
        let others =
            [("runtimeConfig.mac", &self.runtime_config.mac), (FROM_ARGS, &from_args), ("mac", &self.mac)];
        let first = self.args.cni.mac.as_ref().map(|mac| ("args.cni.mac", mac));
        let found = first.or_else(|| others.into_iter().find(|(_, mac)| !mac.is_empty()));
        let Some((key, text)) = found.filter(|(_, mac)| !mac.is_empty()) else { return Ok(None) };
        let code = if key == FROM_ARGS { ErrorCode::InvalidEnvironment } else { ErrorCode::InvalidConfig };
        let refused = |why: String| CniError::new(code, format!("{key}: {why}"));
        let mac: Mac = text.parse().map_err(|error| refused(format!("{error}")))?;
        if mac.is_multicast() || mac.is_zero() {
            return Err(refused(format!("address {mac}: a link cannot have this MAC address")));
        }
        Ok(Some(mac))
    }
}

#[cfg(test)]
pub(super) fn decodes() -> crate::keys::probe::Fields {
    &crate::keys::probe::fields::<Keys>() | &crate::keys::probe::fields::<DataDir>()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn read(keys: &Value, args: &str) -> Result<Config, (u32, String)> {
        let config = configuration("tuning", keys);
        Config::read(&config, args, "eth0.7").map_err(|e| (e.code.number(), e.msg))
    }

    #[test]
    fn without_keys_nothing_changes() {
        let config = read(&json!({}), "").unwrap();
        let nothing =
            Config { sysctls: vec![], wanted: Attributes::default(), data_dir: "/run/cni/tuning".into() };
        assert_eq!(config, nothing);
        let config = read(&json!({"mtu": 0, "promisc": false, "sysctl": null, "dataDir": ""}), "").unwrap();
        assert_eq!(config, nothing);
    }

    #[test]
    fn an_empty_address_of_the_arguments_leaves_the_links_own() {
        let keys = json!({"mac": "02:00:00:00:00:01", "args": {"cni": {"mac": ""}}});
        assert_eq!(read(&keys, "").unwrap().wanted.mac, None);
        let keys = json!({"mac": "02:00:00:00:00:01", "args": {"cni": {"mac": null}}});
        assert!(read(&keys, "").unwrap().wanted.mac.is_some());
    }

    #[test]
    fn all_keys() {
        let keys = json!({
            "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "mac": "02:00:00:00:00:01", "promisc": true,
            "mtu": 1400, "allmulti": false, "TXQLEN": 0, "dataDir": "/x",
        });
        let config = read(&keys, "").unwrap();
        let wanted = Attributes {
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            promisc: Some(true),
            mtu: Some(1400),
            allmulti: Some(false),
            tx_queue: Some(0),
        };
        assert_eq!((config.wanted, config.data_dir), (wanted, PathBuf::from("/x")));
        assert_eq!(config.sysctls[0].path, "ipv4/conf/eth0.7/arp_filter");
    }

    #[test]
    fn arguments_replace_keys_of_the_configuration() {
        let keys = json!({
            "sysctl": {"net.a": "1", "net.b": "1"}, "promisc": true, "mtu": 1400, "txQLen": 5,
            "args": {"cni": {
                "sysctl": {"net.b": "2", "net.c": "2"}, "promisc": false, "mtu": 1300, "allmulti": true,
                "txQLen": 6,
            }},
        });
        let config = read(&keys, "").unwrap();
        let values: Vec<_> = config.sysctls.iter().map(|s| (s.path.as_str(), s.value.as_str())).collect();
        assert_eq!(values, [("a", "1"), ("b", "2"), ("c", "2")]);
        assert_eq!((config.wanted.promisc, config.wanted.mtu), (None, Some(1300)));
        assert_eq!((config.wanted.allmulti, config.wanted.tx_queue), (Some(true), Some(6)));
        // Settings of `args.cni` count also if the configuration itself has none.
        let config = read(&json!({"args": {"cni": {"sysctl": {"net.c": "2"}}}}), "").unwrap();
        assert_eq!(config.sysctls.len(), 1);
    }

    #[test]
    fn the_mac_address_of_highest_precedence_counts() {
        let mac = |keys: Value, args: &str| read(&keys, args).unwrap().wanted.mac.unwrap().0[5];
        let [a, b, c] = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"];
        let env = "MAC=02:00:00:00:00:04";
        let all = json!({"mac": a, "runtimeConfig": {"mac": b}, "args": {"cni": {"mac": c}}});
        assert_eq!(mac(all, env), 3);
        assert_eq!(mac(json!({"mac": a, "runtimeConfig": {"mac": b}}), env), 2);
        assert_eq!(mac(json!({"mac": a}), env), 4);
        assert_eq!(mac(json!({"mac": a}), ""), 1);
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        let rows = [
            (json!({"mac": "x"}), "", (7, "mac: address x: invalid MAC address")),
            (
                json!({"args": {"cni": {"mac": "01:00:00:00:00:01"}}}),
                "",
                (7, "args.cni.mac: address 01:00:00:00:00:01: a link cannot have this MAC address"),
            ),
            (json!({}), "MAC=y", (4, "CNI_ARGS MAC: address y: invalid MAC address")),
            (json!({}), "X=y", (4, "ARGS: unknown args [\"X=y\"]")),
            (json!({"mtu": -1}), "", (7, "mtu: -1 is not between 0 and 4294967295")),
            (json!({"args": {"cni": {"txQLen": -5}}}), "", (7, "txQLen: -5 is not between 0 and 4294967295")),
            (json!({"sysctl": {"kernel.x": "1"}}), "", (7, "invalid net sysctl key: \"kernel.x\"")),
            (
                json!({"sysctl": {"net.x": 1}}),
                "",
                (7, "failed to load netconf: sysctl.net.x: invalid type: integer `1`, expected a string"),
            ),
        ];
        for (keys, args, (code, msg)) in rows {
            assert_eq!(read(&keys, args), Err((code, msg.to_owned())), "{keys}");
        }
    }
}
