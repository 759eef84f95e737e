// SPDX-License-Identifier: GPL-3.0-or-later

//! The pod CIDR, and the networks made from it.

use std::net::IpAddr;

use cni_dataplane::duplicates::Subnet;
use cni_kernel::mac::Mac;
use cni_runtime::Network;
use cni_runtime::kubelet::HairpinMode;
use cni_spec::{ListError, Version, text};
use ipnet::IpNet;
use serde_json::{Value, json};

/// The bridge of the pods.
pub const BRIDGE: &str = "cbr0";
/// The name of the pods' network.
pub const NETWORK: &str = "kubenet";
/// The name of the network of the pods' loopback.
pub const LOOPBACK: &str = "kubenet-loopback";
/// The version of the networks, which the plugins of Debian 12 have, too.
const VERSION: Version = Version::V1_0_0;
/// The first bytes of MAC addresses made from IPv4 addresses.
const MAC_PREFIX: [u8; 2] = [0x0a, 0x58];

/// A pod CIDR that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// Not a CIDR.
    #[error("invalid CIDR address: {0}")]
    Syntax(String),
    /// No room for a gateway and a pod.
    #[error("CIDR {0} has no room for a gateway and pods")]
    Small(IpNet),
}

/// A fault in a list of CIDRs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CidrFault {
    /// The CIDR.
    pub(super) text: String,
    /// The position in the list, from 0.
    pub(super) at: usize,
    pub(super) error: CidrError,
}

/// Parses CIDRs with commas between them. Each has its first address as gateway.
pub(super) fn parse_subnets(cidrs: &str) -> Result<Vec<Subnet>, CidrFault> {
    let parsed = cidrs.split(',').enumerate().map(|(at, text)| {
        let fault = |error| CidrFault { text: text.to_owned(), at, error };
        let net = parse_cidr(text).map_err(fault)?;
        match net.hosts().next() {
            Some(_) if net.max_prefix_len() - net.prefix_len() >= 2 => {
                Ok(Subnet { net, gateway: first(net) })
            }
            _ => Err(fault(CidrError::Small(net))),
        }
    });
    parsed.collect()
}

/// Parses a CIDR, and removes its host bits.
pub(super) fn parse_cidr(cidr: &str) -> Result<IpNet, CidrError> {
    text::parse_net(cidr).map(|net| net.trunc()).ok_or_else(|| CidrError::Syntax(cidr.to_owned()))
}

/// The first address after that of the network.
fn first(net: IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(address) => IpAddr::V4((u32::from(address) + 1).into()),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) + 1).into()),
    }
}

/// The bridge's MAC address: 0a:58 and the IPv4 gateway; without one, the last four bytes of the IPv6 gateway.
pub(super) fn bridge_mac(subnets: &[Subnet]) -> Option<Mac> {
    let gateway = |wanted: fn(&IpAddr) -> bool| subnets.iter().map(|subnet| subnet.gateway).find(wanted);
    let bytes: [u8; 4] = match gateway(IpAddr::is_ipv4).or_else(|| gateway(IpAddr::is_ipv6))? {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    };
    let ([p, q], [a, b, c, d]) = (MAC_PREFIX, bytes);
    Some(Mac([p, q, a, b, c, d]))
}

/// The settings of the pods' network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodNetwork {
    pub(super) subnets: Vec<Subnet>,
    pub(super) mtu: u32,
    pub(super) hairpin_mode: HairpinMode,
    /// Destinations to which pods keep their addresses; none if these are all destinations.
    pub(super) masquerade: Option<Vec<IpNet>>,
}

/// The destinations to which pods keep their own addresses. None if these are all destinations, because one CIDR is
/// 0.0.0.0/0 or ::/0. A family without a CIDR is not masqueraded, because kubelet had a single rule for a single CIDR.
pub(super) fn masquerade(cidrs: &str) -> Result<Option<Vec<IpNet>>, CidrError> {
    let mut nets = cidrs.split(',').map(parse_cidr).collect::<Result<Vec<_>, _>>()?;
    if nets.iter().any(|net| net.prefix_len() == 0) {
        return Ok(None);
    }
    for everything in ["0.0.0.0/0", "::/0"].map(parse_cidr) {
        let everything = everything?;
        if !nets.iter().any(|net| net.addr().is_ipv4() == everything.addr().is_ipv4()) {
            nets.push(everything);
        }
    }
    Ok(Some(nets))
}

impl PodNetwork {
    /// The network of a pod. portmap and bandwidth are in it only if the pod needs them, as kubenet must work without
    /// them.
    ///
    /// # Errors
    /// None in practice: the list is made of values that were checked.
    pub(super) fn network(&self, ports: bool, bandwidth: bool) -> Result<Network, ListError> {
        let ranges: Vec<Value> = self
            .subnets
            .iter()
            .map(|subnet| json!([{"subnet": subnet.net.to_string(), "gateway": subnet.gateway.to_string()}]))
            .collect();
        let routes: Vec<Value> = self.default_routes().map(|dst| json!({"dst": dst})).collect();
        let mut bridge = json!({
            "type": "bridge",
            "bridge": BRIDGE,
            "mtu": self.mtu,
            "isGateway": true,
            "hairpinMode": self.hairpin_mode == HairpinMode::HairpinVeth,
            "promiscMode": self.hairpin_mode == HairpinMode::PromiscuousBridge,
            "ipMasq": self.masquerade.is_some(),
            "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
        });
        if let Some(nets) = &self.masquerade {
            bridge["nonMasqueradeCIDRs"] = nets.iter().map(ToString::to_string).collect();
        }
        let mut builder = Network::builder(NETWORK).version(VERSION).plugin(bridge);
        if ports {
            builder = builder
                .plugin(json!({"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}));
        }
        if bandwidth {
            builder = builder.plugin(json!({"type": "bandwidth", "capabilities": {"bandwidth": true}}));
        }
        builder.build()
    }

    /// A default route for each family of the subnets.
    fn default_routes(&self) -> impl Iterator<Item = &'static str> {
        let has = |wanted: fn(&IpAddr) -> bool| self.subnets.iter().any(|subnet| wanted(&subnet.gateway));
        let v4 = has(IpAddr::is_ipv4).then_some("0.0.0.0/0");
        v4.into_iter().chain(has(IpAddr::is_ipv6).then_some("::/0"))
    }
}

/// The network of the pods' loopback.
///
/// # Errors
/// None in practice: the list is constant.
pub(super) fn loopback() -> Result<Network, ListError> {
    Network::builder(LOOPBACK).version(VERSION).plugin(json!({"type": "loopback"})).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnets(cidrs: &str) -> Vec<Subnet> {
        parse_subnets(cidrs).unwrap()
    }

    #[test]
    fn the_first_address_is_the_gateway() {
        let [v4, v6] = subnets("10.180.1.77/24,fd00:180::/64")[..] else { panic!("two subnets") };
        assert_eq!(
            (v4.net.to_string(), v4.gateway.to_string()),
            ("10.180.1.0/24".into(), "10.180.1.1".into())
        );
        assert_eq!(v6.gateway.to_string(), "fd00:180::1");
        assert_eq!(subnets("10.0.0.0/8")[0].gateway.to_string(), "10.0.0.1");
    }

    #[test]
    fn a_bad_cidr_is_named_with_its_position() {
        let fault = |cidrs: &str| {
            let CidrFault { text, at, error } = parse_subnets(cidrs).unwrap_err();
            format!("{text} {at}: {error}")
        };
        assert_eq!(fault("10.1.0.0"), "10.1.0.0 0: invalid CIDR address: 10.1.0.0");
        assert_eq!(fault("10.1.0.0/24,"), " 1: invalid CIDR address: ");
        assert_eq!(
            fault("10.1.0.0/31"),
            "10.1.0.0/31 0: CIDR 10.1.0.0/31 has no room for a gateway and pods"
        );
        assert_eq!(fault("fd00::/127"), "fd00::/127 0: CIDR fd00::/127 has no room for a gateway and pods");
    }

    #[test]
    fn the_bridges_mac_address_is_made_from_the_gateway() {
        let mac = |cidrs: &str| bridge_mac(&subnets(cidrs)).unwrap().to_string();
        assert_eq!(mac("10.180.1.0/24"), "0a:58:0a:b4:01:01");
        assert_eq!(mac("fd00:180::/64,10.180.1.0/24"), "0a:58:0a:b4:01:01");
        assert_eq!(mac("fd00:180::abcd:0/112"), "0a:58:ab:cd:00:01");
    }

    #[test]
    fn a_family_without_a_cidr_is_not_masqueraded() {
        let nets = |cidrs: &str| {
            let nets = masquerade(cidrs).unwrap();
            nets.map(|nets| nets.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(nets("10.0.0.0/8").unwrap(), ["10.0.0.0/8", "::/0"]);
        assert_eq!(nets("fd00::/8").unwrap(), ["fd00::/8", "0.0.0.0/0"]);
        assert_eq!(nets("10.0.0.0/8,fd00::/8").unwrap(), ["10.0.0.0/8", "fd00::/8"]);
        assert_eq!(nets("0.0.0.0/0"), None);
        assert_eq!(nets("::/0"), None);
        assert_eq!(masquerade("").unwrap_err().to_string(), "invalid CIDR address: ");
    }

    #[test]
    fn a_pods_network_has_the_plugins_that_the_pod_needs() {
        let pods = PodNetwork {
            subnets: subnets("10.180.1.0/24,fd00:180::/64"),
            mtu: 1460,
            hairpin_mode: HairpinMode::HairpinVeth,
            masquerade: masquerade("10.0.0.0/8").unwrap(),
        };
        let plain = pods.network(false, false).unwrap();
        assert_eq!(plain.list().plugins.len(), 1);
        assert_eq!(
            Value::from(plain.list().plugins[0].clone()),
            json!({
                "type": "bridge", "bridge": "cbr0", "mtu": 1460, "isGateway": true, "hairpinMode": true,
                "promiscMode": false, "ipMasq": true, "nonMasqueradeCIDRs": ["10.0.0.0/8", "::/0"],
                "ipam": {
                    "type": "host-local",
                    "ranges": [
                        [{"subnet": "10.180.1.0/24", "gateway": "10.180.1.1"}],
                        [{"subnet": "fd00:180::/64", "gateway": "fd00:180::1"}],
                    ],
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            })
        );
        let all = PodNetwork { masquerade: None, ..pods }.network(true, true).unwrap();
        let types: Vec<&Value> = all.list().plugins.iter().map(|plugin| &plugin["type"]).collect();
        assert_eq!(types, ["bridge", "portmap", "bandwidth"]);
        assert_eq!(all.list().plugins[0]["ipMasq"], false);
        assert!(!all.list().plugins[0].contains_key("nonMasqueradeCIDRs"));
        assert_eq!(loopback().unwrap().name(), "kubenet-loopback");
    }
}
