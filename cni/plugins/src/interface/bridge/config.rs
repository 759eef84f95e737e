// SPDX-License-Identifier: GPL-2.0-or-later

//! bridge's keys, decoded and checked.

use cni_kernel::mac::Mac;
use cni_kernel::route::{PortSettings, PortVlan, Switch};
use cni_spec::{CniError, ErrorCode, NetConf, check_ifname};
use serde::Deserialize;

use crate::interface::shared::keys::Common;

/// The default name of the bridge.
const DEFAULT_BRIDGE: &str = "cni0";
/// The VLAN that the kernel puts a new port into (`default_pvid`).
pub(super) const DEFAULT_VLAN: u16 = 1;
const LAST_VLAN: i64 = 4094;

/// The configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) common: Common,
    /// The name of the bridge.
    pub(super) bridge: String,
    pub(super) gateway: Gateway,
    /// True to remove a conflicting address of the bridge.
    pub(super) force_address: bool,
    /// The settings of the host's end of the pair.
    pub(super) port: PortSettings,
    /// True to make the bridge promiscuous.
    pub(super) promiscuous: bool,
    pub(super) vlans: Option<Vlans>,
    /// True to drop packets with a foreign source MAC address.
    pub(super) spoof_check: bool,
    /// True to detect duplicates of the container's IPv6 addresses.
    pub(super) detect_duplicates: bool,
    /// True to leave the container's end down.
    pub(super) container_link_down: bool,
    /// The MAC address of the container's end; none for a random one.
    pub(super) mac: Option<Mac>,
}

/// The bridge's role as a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gateway {
    None,
    /// The bridge has the gateway's address.
    Address,
    /// Like `Address`, and the containers' default route leads to the bridge.
    DefaultRoute,
}

/// The VLANs of a container's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Vlans {
    /// `vlan`, 0 for none. If set, the gateway's addresses are on a link of their own.
    pub(super) vlan: u16,
    /// Ranges of tagged VLANs, ascending and not adjacent, without the native one.
    pub(super) trunk: Vec<PortVlan>,
    /// True to keep the port in VLAN 1, too.
    pub(super) keep_default: bool,
}

impl Vlans {
    /// The VLAN of untagged packets.
    pub(super) fn native(&self) -> u16 {
        if self.vlan == 0 { DEFAULT_VLAN } else { self.vlan }
    }
}

impl Settings {
    /// Checks a configuration for ADD and CHECK. `args` is `CNI_ARGS`.
    pub(super) fn new(config: &NetConf, args: &str) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        if keys.hairpin_mode && keys.promisc_mode {
            return Err(CniError::config("cannot set hairpin mode and promiscuous mode at the same time"));
        }
        if keys.disable_container_interface && !config.ipam.is_empty() {
            return Err(CniError::config("cannot use IPAM when DisableContainerInterface flag is set"));
        }
        let common = Common::new(config)?;
        let bridge = keys.bridge_name();
        check_ifname(&bridge).map_err(|error| CniError::config(format!("key \"bridge\": {error}")))?;
        let gateway = match (keys.is_default_gateway, keys.is_gateway) {
            (true, _) => Gateway::DefaultRoute,
            (false, true) => Gateway::Address,
            (false, false) => Gateway::None,
        };
        let vlans = keys.vlans()?;
        if let Some(vlans) = &vlans
            && gateway != Gateway::None
            && vlans.vlan != 0
        {
            check_ifname(&vlan_link(&bridge, vlans.vlan)).map_err(|error| {
                CniError::config(format!("keys \"bridge\" and \"vlan\": the gateway's link: {error}"))
            })?;
        }
        Ok(Self {
            common,
            bridge,
            gateway,
            force_address: keys.force_address,
            port: PortSettings {
                hairpin: Switch::from_bool(keys.hairpin_mode),
                isolated: Switch::from_bool(keys.port_isolation),
            },
            promiscuous: keys.promisc_mode,
            vlans,
            spoof_check: keys.macspoofchk,
            detect_duplicates: keys.enabledad,
            container_link_down: keys.disable_container_interface,
            mac: keys.mac(args)?,
        })
    }

    /// The name of the link for the gateway's addresses, if `vlan` is set; otherwise they are on the bridge.
    pub(super) fn gateway_link(&self) -> Option<String> {
        let vlan = self.vlans.as_ref().map_or(0, |vlans| vlans.vlan);
        (vlan != 0).then(|| vlan_link(&self.bridge, vlan))
    }
}

fn vlan_link(bridge: &str, vlan: u16) -> String {
    format!("{bridge}.{vlan}")
}

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: i64,
    vlan_trunk: Vec<Trunk>,
    preserve_default_vlan: bool,
    macspoofchk: bool,
    enabledad: bool,
    disable_container_interface: bool,
    port_isolation: bool,
    args: Args,
    runtime_config: WithMac,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: WithMac,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WithMac {
    mac: String,
}

/// An element of `vlanTrunk`: one VLAN, a range of them, or both.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Trunk {
    #[serde(rename = "minID")]
    min_id: Option<i64>,
    #[serde(rename = "maxID")]
    max_id: Option<i64>,
    id: Option<i64>,
}

impl Keys {
    fn bridge_name(&self) -> String {
        if self.bridge.is_empty() { DEFAULT_BRIDGE.to_owned() } else { self.bridge.clone() }
    }

    fn vlans(&self) -> Result<Option<Vlans>, CniError> {
        let vlan = u16::try_from(self.vlan).ok().filter(|_| self.vlan <= LAST_VLAN).ok_or_else(|| {
            CniError::config(format!("invalid VLAN ID {} (must be between 0 and {LAST_VLAN})", self.vlan))
        })?;
        let mut ids = Vec::new();
        for trunk in &self.vlan_trunk {
            trunk.collect(&mut ids)?;
        }
        if vlan == 0 && ids.is_empty() {
            return Ok(None);
        }
        let mut vlans = Vlans { vlan, trunk: Vec::new(), keep_default: self.preserve_default_vlan };
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| *id != vlans.native());
        vlans.trunk = ranges(&ids);
        Ok(Some(vlans))
    }

    /// The MAC address, from `runtimeConfig`, `args.cni` or `CNI_ARGS`: the first that is set.
    fn mac(&self, args: &str) -> Result<Option<Mac>, CniError> {
        const FROM_ARGS: &str = "CNI_ARGS MAC";
        let from_args = cni_spec::Args::parse(args, &["MAC"])?.get("MAC").unwrap_or_default().to_owned();
        let all = [
            ("runtimeConfig.mac", &self.runtime_config.mac),
            ("args.cni.mac", &self.args.cni.mac),
            (FROM_ARGS, &from_args),
        ];
        let Some((key, text)) = all.into_iter().find(|(_, mac)| !mac.is_empty()) else { return Ok(None) };
        let code = if key == FROM_ARGS { ErrorCode::InvalidEnvironment } else { ErrorCode::InvalidConfig };
        let refused = |why: String| CniError::new(code, format!("{key}: {why}"));
        let mac: Mac = text.parse().map_err(|error| refused(format!("{error}")))?;
        if mac.is_multicast() || mac.is_zero() {
            return Err(refused(format!("address {mac}: a link cannot have this MAC address")));
        }
        Ok(Some(mac))
    }
}

impl Trunk {
    fn collect(&self, ids: &mut Vec<u16>) -> Result<(), CniError> {
        let valid = |id: i64, what: &str| {
            u16::try_from(id).ok().filter(|_| (1..=LAST_VLAN).contains(&id)).ok_or_else(|| {
                CniError::config(format!("incorrect trunk {what} parameter"))
                    .with_details(format!("vlanTrunk: {what} {id} (must be between 1 and {LAST_VLAN})"))
            })
        };
        match (self.min_id, self.max_id) {
            (None, None) => {}
            (Some(min), Some(max)) => {
                let (min, max) = (valid(min, "minID")?, valid(max, "maxID")?);
                if min > max {
                    return Err(CniError::config("minID is greater than maxID in trunk parameter")
                        .with_details(format!("vlanTrunk: minID {min}, maxID {max}")));
                }
                ids.extend(min..=max);
            }
            (min, _) => {
                let missing = if min.is_none() { "minID" } else { "maxID" };
                return Err(CniError::config(format!(
                    "minID and maxID should be configured simultaneously, {missing} is missing"
                )));
            }
        }
        if let Some(id) = self.id {
            ids.push(valid(id, "id")?);
        }
        Ok(())
    }
}

/// Joins ascending numbers into ranges.
fn ranges(ids: &[u16]) -> Vec<PortVlan> {
    ids.chunk_by(|a, b| a + 1 == *b)
        .filter_map(|run| Some(PortVlan::tagged(*run.first()?, *run.last()?)))
        .collect()
}

#[cfg(test)]
pub(super) fn decodes() -> crate::keys::probe::Fields {
    crate::keys::probe::fields::<Keys>()
}

#[cfg(test)]
mod tests {
    use cni_spec::ErrorCode;
    use serde_json::{Value, json};

    use super::*;
    use crate::interface::shared::advertisements::Advertisements;
    use crate::test_configuration::configuration;

    fn settings(keys: &Value, args: &str) -> Result<Settings, CniError> {
        Settings::new(&configuration("bridge", keys), args)
    }

    fn error(keys: &Value) -> String {
        settings(keys, "").unwrap_err().to_string()
    }

    #[test]
    fn without_keys_the_bridge_has_the_default_name() {
        let settings = settings(&json!({}), "").unwrap();
        assert_eq!(settings.bridge, "cni0");
        assert_eq!(settings.gateway, Gateway::None);
        assert_eq!((settings.mac, settings.vlans), (None, None));
        assert!(!settings.promiscuous && !settings.force_address);
    }

    #[test]
    fn every_key_is_read() {
        let keys = json!({
            "bridge": "br7", "isDefaultGateway": true, "forceAddress": true, "mtu": 1400,
            "hairpinMode": true, "vlan": 5,
            "vlanTrunk": [{"minID": 10, "maxID": 12}, {"id": 13}, {"id": 5}, {"minID": 20, "maxID": 20, "id": 22}],
            "preserveDefaultVlan": true, "macspoofchk": true, "enabledad": true, "portIsolation": true,
            "ipam": {"type": "host-local"}, "runtimeConfig": {"mac": "02:00:00:00:00:01"},
        });
        let settings = settings(&keys, "").unwrap();
        let expected = Settings {
            common: Common {
                masquerade: false,
                masquerade_backend: None,
                non_masquerade: Vec::new(),
                mtu: Some(1400),
                dns: None,
                ipam: true,
                advertisements: Advertisements::Refuse,
            },
            bridge: "br7".to_owned(),
            gateway: Gateway::DefaultRoute,
            force_address: true,
            port: PortSettings { hairpin: Switch::On, isolated: Switch::On },
            promiscuous: false,
            vlans: Some(Vlans {
                vlan: 5,
                trunk: vec![PortVlan::tagged(10, 13), PortVlan::tagged(20, 20), PortVlan::tagged(22, 22)],
                keep_default: true,
            }),
            spoof_check: true,
            detect_duplicates: true,
            container_link_down: false,
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        };
        assert_eq!(settings, expected);
        assert_eq!(settings.gateway_link().as_deref(), Some("br7.5"));
    }

    #[test]
    fn a_trunk_alone_has_the_default_vlan_for_untagged_packets() {
        let vlans = settings(&json!({"vlanTrunk": [{"minID": 1, "maxID": 3}]}), "").unwrap().vlans.unwrap();
        assert_eq!((vlans.native(), vlans.trunk), (1, vec![PortVlan::tagged(2, 3)]));
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        for (keys, text) in [
            (
                json!({"hairpinMode": true, "promiscMode": true}),
                "cannot set hairpin mode and promiscuous mode at the same time",
            ),
            (
                json!({"disableContainerInterface": true, "ipam": {"type": "x"}}),
                "cannot use IPAM when DisableContainerInterface flag is set",
            ),
            (json!({"vlan": 4095}), "invalid VLAN ID 4095 (must be between 0 and 4094)"),
            (json!({"vlan": -1}), "invalid VLAN ID -1 (must be between 0 and 4094)"),
            (json!({"vlan": 65_541}), "invalid VLAN ID 65541 (must be between 0 and 4094)"),
            (json!({"mtu": 67}), "key \"mtu\": invalid MTU 67 (must be 0 or between 68 and 65535)"),
            (
                json!({"bridge": "a/b"}),
                "key \"bridge\": interface name contains / or : or whitespace characters: \"a/b\"",
            ),
            (json!({"bridge": "br%d"}), "key \"bridge\": interface name contains %: \"br%d\""),
            (
                json!({"bridge": "long-bridge-x", "vlan": 10, "isGateway": true}),
                "keys \"bridge\" and \"vlan\": the gateway's link: interface name is too long: \"long-bridge-x.10\"",
            ),
            (
                json!({"vlanTrunk": [{"minID": 0, "maxID": 3}]}),
                "incorrect trunk minID parameter; vlanTrunk: minID 0 (must be between 1 and 4094)",
            ),
            (
                json!({"vlanTrunk": [{"minID": 1, "maxID": 4095}]}),
                "incorrect trunk maxID parameter; vlanTrunk: maxID 4095 (must be between 1 and 4094)",
            ),
            (
                json!({"vlanTrunk": [{"id": 0}]}),
                "incorrect trunk id parameter; vlanTrunk: id 0 (must be between 1 and 4094)",
            ),
            (
                json!({"vlanTrunk": [{"minID": 9, "maxID": 3}]}),
                "minID is greater than maxID in trunk parameter; vlanTrunk: minID 9, maxID 3",
            ),
            (
                json!({"vlanTrunk": [{"maxID": 3}]}),
                "minID and maxID should be configured simultaneously, minID is missing",
            ),
            (
                json!({"vlanTrunk": [{"minID": 3}]}),
                "minID and maxID should be configured simultaneously, maxID is missing",
            ),
            (json!({"runtimeConfig": {"mac": "x"}}), "runtimeConfig.mac: address x: invalid MAC address"),
            (
                json!({"args": {"cni": {"mac": "01:00:00:00:00:01"}}}),
                "args.cni.mac: address 01:00:00:00:00:01: a link cannot have this MAC address",
            ),
        ] {
            assert_eq!(error(&keys), text, "{keys}");
            assert_eq!(settings(&keys, "").unwrap_err().code, ErrorCode::InvalidConfig, "{keys}");
        }
    }

    #[test]
    fn the_first_mac_address_counts() {
        let (runtime, args) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
        let mac = |keys: Value| settings(&keys, "MAC=02:00:00:00:00:03").unwrap().mac.unwrap().0[5];
        assert_eq!(mac(json!({"runtimeConfig": {"mac": runtime}, "args": {"cni": {"mac": args}}})), 1);
        assert_eq!(mac(json!({"args": {"cni": {"mac": args}}})), 2);
        assert_eq!(mac(json!({})), 3);
    }

    #[test]
    fn unknown_cni_args_need_ignore_unknown() {
        let args = "IP=x;MAC=02:00:00:00:00:03";
        assert_eq!(settings(&json!({}), args).unwrap_err().msg, "ARGS: unknown args [\"IP=x\"]");
        assert!(settings(&json!({}), &format!("IgnoreUnknown=1;{args}")).unwrap().mac.is_some());
    }
}
