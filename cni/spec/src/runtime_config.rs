// SPDX-License-Identifier: MIT OR Apache-2.0

//! `runtimeConfig`: values that a runtime passes to plugins that declare the capability. The specification's
//! CONVENTIONS.md lists them.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::{CniError, NetConf, field, fold};

/// The well-known keys of `runtimeConfig`. Keys match in any case, because containerd capitalises those of
/// `portMappings` and `bandwidth`. Missing ones are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RuntimeConfig {
    /// The ports to publish on the host (capability `portMappings`).
    pub port_mappings: Vec<PortMapping>,
    /// The ranges from which to allocate, one set per address (capability `ipRanges`).
    pub ip_ranges: Vec<Vec<IpRange>>,
    /// The addresses for the container, with or without a prefix length (capability `ips`).
    pub ips: Vec<String>,
    /// The hardware address of the container's link (capability `mac`).
    pub mac: String,
    /// The traffic limits (capability `bandwidth`).
    pub bandwidth: Option<Bandwidth>,
    /// The resolver settings (capability `dns`).
    pub dns: Option<RuntimeDns>,
    /// The PCI address or another name of a device (capability `deviceID`).
    #[serde(rename = "deviceID")]
    pub device_id: String,
    /// The GUID of an InfiniBand device (capability `infinibandGUID`).
    #[serde(rename = "infinibandGUID")]
    pub infiniband_guid: String,
    /// Further names of the container (capability `aliases`).
    pub aliases: Vec<String>,
    /// The container's cgroup as a path below the mount point (capability `cgroupPath`).
    pub cgroup_path: String,
}

/// An element of `portMappings`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortMapping {
    /// The port on the host. A 0 is passed on, and the plugin decides whether it is an error.
    pub host_port: u16,
    /// The port in the container.
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`, as written by the runtime. Empty if missing.
    pub protocol: String,
    /// The address on the host, empty for all addresses.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
}

/// A range in `ipRanges`, with the keys of host-local's `ranges`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpRange {
    /// The network. Host bits are kept.
    #[serde(deserialize_with = "field::cidr")]
    pub subnet: IpNet,
    /// The first address to allocate.
    #[serde(default, deserialize_with = "field::address")]
    pub range_start: Option<IpAddr>,
    /// The last address to allocate.
    #[serde(default, deserialize_with = "field::address")]
    pub range_end: Option<IpAddr>,
    /// The gateway.
    #[serde(default, deserialize_with = "field::address")]
    pub gateway: Option<IpAddr>,
}

/// The value of `bandwidth`: rates in bits per second and bursts in bits, with 0 for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bandwidth {
    /// The rate of traffic into the container.
    pub ingress_rate: u64,
    /// The burst of traffic into the container.
    pub ingress_burst: u64,
    /// The rate of traffic out of the container.
    pub egress_rate: u64,
    /// The burst of traffic out of the container.
    pub egress_burst: u64,
}

/// The value of `dns` in `runtimeConfig`, whose keys differ from those of a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RuntimeDns {
    /// The addresses of name servers.
    pub servers: Vec<String>,
    /// The domains to search.
    pub searches: Vec<String>,
    /// The options of the resolver.
    pub options: Vec<String>,
}

impl NetConf {
    /// Decodes the well-known keys of `runtimeConfig`. All are empty if `runtimeConfig` is missing.
    ///
    /// # Errors
    /// Code 7 with the key and the reason if a value does not fit.
    pub fn runtime_config(&self) -> Result<RuntimeConfig, CniError> {
        let Some(value) = fold::get(&self.raw, "runtimeConfig") else {
            return Ok(RuntimeConfig::default());
        };
        fold::from_value(value)
            .map_err(|e| CniError::config(format!("failed to load netconf: {}", e.under("runtimeConfig"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(json: &str) -> Result<RuntimeConfig, String> {
        let conf = NetConf::parse(format!(r#"{{"name":"n",{json}}}"#)).unwrap();
        conf.runtime_config().map_err(|e| e.msg)
    }

    #[test]
    fn containerd_sends_capitals() {
        let got = runtime(
            r#""runtimeConfig":{"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"TCP","HostIP":""}],
            "bandwidth":{"IngressRate":1,"IngressBurst":2,"EgressRate":3,"EgressBurst":4}}"#,
        );
        let port = PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol: "TCP".into(),
            host_ip: String::new(),
        };
        let bandwidth = Bandwidth { ingress_rate: 1, ingress_burst: 2, egress_rate: 3, egress_burst: 4 };
        let want = RuntimeConfig {
            port_mappings: vec![port],
            bandwidth: Some(bandwidth),
            ..RuntimeConfig::default()
        };
        assert_eq!(got, Ok(want));
    }

    #[test]
    fn the_other_capabilities() {
        let got = runtime(
            r#""runtimeConfig":{"ips":["10.0.0.5"],"mac":"02:00:00:00:00:01","deviceID":"0000:00:01.0",
            "infinibandGUID":"g","aliases":["a"],"cgroupPath":"/c","dns":{"servers":["10.0.0.1"]},
            "ipRanges":[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.9","gateway":""}]],"unknown":1}"#,
        )
        .unwrap();
        let range = IpRange {
            subnet: "10.0.0.0/24".parse().unwrap(),
            range_start: Some("10.0.0.9".parse().unwrap()),
            range_end: None,
            gateway: None,
        };
        assert_eq!(got.ip_ranges, vec![vec![range]]);
        assert_eq!((got.ips.len(), got.mac.as_str()), (1, "02:00:00:00:00:01"));
        assert_eq!((got.device_id.as_str(), got.infiniband_guid.as_str()), ("0000:00:01.0", "g"));
        assert_eq!((got.aliases.len(), got.cgroup_path.as_str()), (1, "/c"));
        assert_eq!(got.dns.map(|dns| dns.servers.len()), Some(1));
    }

    #[test]
    fn values_that_do_not_fit_are_named() {
        assert_eq!(runtime(r#""runtimeConfig":null"#), Ok(RuntimeConfig::default()));
        let cases = [
            (
                r#""RuntimeConfig":{"portMappings":[{"hostPort":70000}]}"#,
                "runtimeConfig.portMappings[0].hostPort: invalid value: integer `70000`, expected u16",
            ),
            (
                r#""runtimeConfig":{"ipRanges":[[{"subnet":"10.0.0.0"}]]}"#,
                "runtimeConfig.ipRanges[0][0].subnet: invalid CIDR address: 10.0.0.0",
            ),
        ];
        for (json, want) in cases {
            assert_eq!(runtime(json), Err(format!("failed to load netconf: {want}")), "{json}");
        }
    }
}
