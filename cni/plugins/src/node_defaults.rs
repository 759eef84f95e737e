// SPDX-License-Identifier: GPL-2.0-or-later

//! Defaults that an administrator sets for the whole node in `/etc/cni/slipway.json`.
//!
//! The keys of a network's configuration override them. DEL and GC do not read them: they search all
//! backends. An unknown key is not an error, because otherwise going back to an earlier version would stop every ADD.

use std::path::Path;
use std::sync::Once;

use cni_dataplane::nftables::FlowSearch;
use cni_dataplane::nftables::offload::{Offload, Uplinks};
use cni_dataplane::{BackendName, Dataplane, ebpf};
use cni_kernel::ethtool::Switch;
use cni_spec::fold::{self, FoldError};
use cni_spec::{CniError, ErrorCode};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::keys::non_masquerade::{self, CidrError};
use crate::keys::{self, Unknown};
use crate::logging::{LogError, LogKeys};
use crate::settings_file::{self, FILE};

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    backend: Option<String>,
    ip_masq_backend: Option<String>,
    #[serde(rename = "nonMasqueradeCIDRs")]
    non_masquerade_cidrs: Vec<String>,
    flowtable: Option<Flowtable>,
    uplinks: Vec<String>,
    search_udp_flows: Option<SearchUdpFlows>,
    udp_gro_forwarding: Option<bool>,
    maps: MapKeys,
    log: LogKeys,
}

/// The key `flowtable`: `true`, `false`, or links by name.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "key \"flowtable\": true, false, or {\"devices\": [names of links]}")]
enum Flowtable {
    Wanted(bool),
    At(FlowtableKeys),
}

/// The key `searchUdpFlows`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SearchUdpFlows {
    Seen,
    Always,
}

/// The sizes of BPF maps, in elements.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MapKeys {
    flows: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FlowtableKeys {
    devices: Vec<String>,
}

/// The node's defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDefaults {
    /// For published ports.
    pub backend: Option<BackendName>,
    /// For masquerade; by default the same as `backend`.
    pub ip_masq_backend: Option<BackendName>,
    /// Destinations to which packets keep the container's own address, for the containers of all networks.
    pub non_masquerade: Vec<IpNet>,
    /// The flowtable's uplinks; none for no flowtable.
    pub flowtable: Option<Uplinks>,
    /// When conntrack is searched for UDP flows to published ports.
    pub flow_search: FlowSearch,
    /// The state of UDP GRO forwarding at the uplinks; none to leave it as it is.
    pub udp_gro_forwarding: Option<Switch>,
    /// For the BPF programs.
    pub ebpf: ebpf::Settings,
    /// The keys that are ignored because this version does not know them.
    pub unknown_keys: Vec<Unknown>,
}

impl NodeDefaults {
    /// The dataplane with the node's settings, and with the backend that a configuration chooses, if any.
    pub fn dataplane(&self, choice: Option<BackendName>) -> Dataplane {
        let offload = self.flowtable.clone().map_or(Offload::Off, Offload::Through);
        Dataplane::new(choice).offload(offload).with_settings(self.ebpf.clone(), self.flow_search)
    }

    /// Reads the file. A missing file sets nothing. Unknown keys are logged once per process.
    ///
    /// # Errors
    /// Code 5 if it cannot be read; code 7 for a value that is not allowed.
    pub fn read() -> Result<Self, CniError> {
        static WARNED: Once = Once::new();
        let read = Self::read_in(Path::new(settings_file::DIRECTORY))?;
        if !read.unknown_keys.is_empty() {
            WARNED.call_once(|| log::warn!("{}", read.unknown_keys_text()));
        }
        Ok(read)
    }

    /// The file and its unknown keys, for messages.
    #[must_use]
    pub fn unknown_keys_text(&self) -> String {
        let keys: Vec<String> = self.unknown_keys.iter().map(ToString::to_string).collect();
        format!("{}/{FILE}: {}", settings_file::DIRECTORY, keys.join(", "))
    }

    fn read_in(directory: &Path) -> Result<Self, CniError> {
        match settings_file::read_in(directory)
            .map_err(|error| CniError::new(ErrorCode::Io, error.to_string()))?
        {
            Some(bytes) => Self::parse(&bytes)
                .map_err(|why| CniError::config(format!("{}: {why}", directory.join(FILE).display()))),
            None => Ok(Self::default()),
        }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, SettingsError> {
        let object: Map<String, Value> = serde_json::from_slice(bytes)?;
        let keys: Keys = fold::from_map(&object)?;
        let backend = backend("backend", keys.backend)?;
        let ip_masq_backend = self::backend("ipMasqBackend", keys.ip_masq_backend)?.or(backend);
        let non_masquerade = non_masquerade::networks(&keys.non_masquerade_cidrs)?;
        let flowtable = keys.flowtable.map(uplinks).transpose()?.flatten();
        let _log = keys.log.check()?;
        let flows = keys.maps.flows.unwrap_or(ebpf::Settings::default().flows);
        if !(1..=LARGEST_MAP).contains(&flows) {
            return Err(SettingsError::Size(flows));
        }
        let flow_search = match keys.search_udp_flows {
            Some(SearchUdpFlows::Seen) | None => FlowSearch::Seen,
            Some(SearchUdpFlows::Always) => FlowSearch::Always,
        };
        let udp_gro_forwarding =
            keys.udp_gro_forwarding.map(|wanted| if wanted { Switch::On } else { Switch::Off });
        let ebpf = ebpf::Settings { uplinks: keys.uplinks, flows };
        Ok(Self {
            backend,
            ip_masq_backend,
            non_masquerade,
            flowtable,
            flow_search,
            udp_gro_forwarding,
            ebpf,
            unknown_keys: keys::unknown_in_settings(&object),
        })
    }
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Value(#[from] FoldError),
    #[error("key {key:?}: unknown backend {name:?}")]
    Backend { key: &'static str, name: String },
    #[error(transparent)]
    Cidr(#[from] CidrError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("key \"maps\": \"flows\" is {0}, not a number from 1 to {LARGEST_MAP}")]
    Size(u32),
    #[error("key \"flowtable\": {0:?} is not the name of a link")]
    Link(String),
}

/// The largest BPF map, in elements; an element of the largest kind takes a few hundred bytes.
const LARGEST_MAP: u32 = 1 << 22;

fn backend(key: &'static str, name: Option<String>) -> Result<Option<BackendName>, SettingsError> {
    let Some(name) = name else { return Ok(None) };
    BackendName::from_name(&name).map(Some).ok_or(SettingsError::Backend { key, name })
}

fn uplinks(flowtable: Flowtable) -> Result<Option<Uplinks>, SettingsError> {
    match flowtable {
        Flowtable::Wanted(false) => Ok(None),
        Flowtable::Wanted(true) => Ok(Some(Uplinks::OfDefaultRoutes)),
        Flowtable::At(keys) => {
            // The kernel's rule (`dev_valid_name`).
            let invalid = |name: &&String| {
                name.is_empty()
                    || name.len() > 15
                    || name.contains(['/', ':'])
                    || name.contains(char::is_whitespace)
            };
            match keys.devices.iter().find(invalid) {
                Some(name) => Err(SettingsError::Link(name.clone())),
                None => Ok(Some(Uplinks::Named(keys.devices))),
            }
        }
    }
}

#[cfg(test)]
pub(crate) fn decodes() -> crate::keys::probe::Fields {
    crate::keys::probe::fields::<Keys>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_read_or_refused_by_name() {
        let parse = |text: &str| NodeDefaults::parse(text.as_bytes()).map_err(|error| error.to_string());
        let [nftables, iptables, fast_path] = BackendName::ALL.map(Some);
        assert_eq!(parse("{}"), Ok(NodeDefaults::default()));
        let defaults =
            |backend, ip_masq_backend| NodeDefaults { backend, ip_masq_backend, ..NodeDefaults::default() };
        assert_eq!(parse(r#"{"backend": "iptables"}"#), Ok(defaults(iptables, iptables)));
        let mixed = defaults(iptables, nftables);
        assert_eq!(parse(r#"{"backend": "iptables", "ipMasqBackend": "nftables"}"#), Ok(mixed));
        let settings = ebpf::Settings { uplinks: vec!["eth0".to_owned()], ..ebpf::Settings::default() };
        let fast = NodeDefaults { ebpf: settings, ..defaults(fast_path, fast_path) };
        assert_eq!(parse(r#"{"backend": "ebpf", "uplinks": ["eth0"]}"#), Ok(fast));
        let error = parse(r#"{"ipMasqBackend": "ebtables"}"#).unwrap_err();
        assert_eq!(error, "key \"ipMasqBackend\": unknown backend \"ebtables\"");
        assert!(parse("").is_err());
    }

    #[test]
    fn unknown_keys_are_ignored_and_named_and_known_ones_must_have_good_values() {
        let parse = |text: &str| NodeDefaults::parse(text.as_bytes()).map_err(|error| error.to_string());
        let names = |text: &str| -> Vec<String> {
            parse(text).unwrap().unknown_keys.iter().map(ToString::to_string).collect()
        };
        let later = r#"{"backend": "iptables", "backned": 1, "later": {"backend": true}, "log": {"colour": 1},
            "maps": {"flow": 0}, "flowtable": {"devices": [], "hardware": true}}"#;
        assert_eq!(parse(later).unwrap().backend, BackendName::from_name("iptables"));
        assert_eq!(
            names(later),
            [
                "unknown key \"backned\": did you mean \"backend\"?",
                "unknown key \"flowtable.hardware\"",
                "unknown key \"later\"",
                "unknown key \"log.colour\"",
                "unknown key \"maps.flow\": did you mean \"flows\"?",
            ]
        );
        assert_eq!(
            names(r#"{"Backend": "ebpf", "cni.dev/x": 1}"#),
            Vec::<String>::new(),
            "as in configurations"
        );
        for wrong in [r#"{"later": 1, "uplinks": "eth0"}"#, r#"{"later": 1, "log": {"level": 5}}"#, "[]"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_size_of_maps_is_read() {
        let parse = |text: &str| {
            NodeDefaults::parse(text.as_bytes())
                .map_err(|error| error.to_string())
                .map(|defaults| defaults.ebpf)
        };
        assert_eq!(parse("{}"), Ok(ebpf::Settings::default()));
        assert_eq!(parse(r#"{"maps": {"flows": 1000}}"#).unwrap().flows, 1000);
        for wrong in [r#"{"maps": {"flows": 0}}"#, r#"{"maps": {"flows": "many"}}"#] {
            assert!(parse(wrong).unwrap_err().contains("flows"), "{wrong}");
        }
    }

    #[test]
    fn a_flowtable_is_on_off_or_at_links() {
        let parse = |text: &str| {
            NodeDefaults::parse(text.as_bytes())
                .map_err(|error| error.to_string())
                .map(|defaults| defaults.flowtable)
        };
        assert_eq!(parse(r#"{"flowtable": false}"#), Ok(None));
        assert_eq!(parse(r#"{"flowtable": true}"#), Ok(Some(Uplinks::OfDefaultRoutes)));
        let named = Uplinks::Named(vec!["eth0".to_owned(), "eth1".to_owned()]);
        assert_eq!(parse(r#"{"flowtable": {"devices": ["eth0", "eth1"]}}"#), Ok(Some(named)));
        assert_eq!(parse(r#"{"flowtable": {"devices": []}}"#), Ok(Some(Uplinks::Named(vec![]))));
        for wrong in [
            r#"{"flowtable": "on"}"#,
            r#"{"flowtable": {"device": ["eth0"]}}"#,
            r#"{"flowtable": {"devices": ["a/b"]}}"#,
            r#"{"flowtable": {"devices": ["sixteen-letters-"]}}"#,
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains("flowtable"), "{error}");
        }
    }

    #[test]
    fn networks_exempt_from_masquerade_are_read_or_refused_by_name() {
        let parse = |text: &str| NodeDefaults::parse(text.as_bytes()).map_err(|error| error.to_string());
        let read = parse(r#"{"nonMasqueradeCIDRs": ["10.0.0.0/8", "fd00::/8"]}"#).unwrap().non_masquerade;
        assert_eq!(read, ["10.0.0.0/8".parse::<IpNet>().unwrap(), "fd00::/8".parse().unwrap()]);
        let wrong = parse(r#"{"nonMasqueradeCIDRs": ["10.1.0.0/8"]}"#).unwrap_err();
        assert!(wrong.contains("nonMasqueradeCIDRs") && wrong.contains("10.1.0.0/8"), "{wrong}");
    }

    #[test]
    fn flows_are_searched_where_they_were_seen_or_always() {
        let parse = |text: &str| NodeDefaults::parse(text.as_bytes()).map(|defaults| defaults.flow_search);
        assert_eq!(parse("{}").unwrap(), FlowSearch::Seen);
        assert_eq!(parse(r#"{"searchUdpFlows": "seen"}"#).unwrap(), FlowSearch::Seen);
        assert_eq!(parse(r#"{"searchUdpFlows": "always"}"#).unwrap(), FlowSearch::Always);
        assert!(parse(r#"{"searchUdpFlows": "never"}"#).is_err());
    }

    #[test]
    fn udp_gro_forwarding_is_on_off_or_left_alone() {
        let parse = |text: &str| NodeDefaults::parse(text.as_bytes()).map(|read| read.udp_gro_forwarding);
        assert_eq!(parse("{}").unwrap(), None);
        assert_eq!(parse(r#"{"udpGroForwarding": true}"#).unwrap(), Some(Switch::On));
        assert_eq!(parse(r#"{"udpGroForwarding": false}"#).unwrap(), Some(Switch::Off));
        assert!(parse(r#"{"udpGroForwarding": "on"}"#).is_err());
    }

    #[test]
    fn the_file_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(NodeDefaults::read_in(&dir.path().join("none")).unwrap(), NodeDefaults::default());
        assert_eq!(NodeDefaults::read_in(dir.path()).unwrap(), NodeDefaults::default());
        std::fs::write(dir.path().join(FILE), "{\"backend\": 1}").unwrap();
        let error = NodeDefaults::read_in(dir.path()).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidConfig);
        assert!(error.msg.contains("slipway.json: "), "{error}");
    }
}
