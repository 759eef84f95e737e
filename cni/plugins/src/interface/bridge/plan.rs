// SPDX-License-Identifier: GPL-2.0-or-later

//! The addresses and routes of an attachment: a pure function of settings and IPAM's result.

use std::net::IpAddr;

use cni_kernel::AddressFamily;
use cni_kernel::route::Route as KernelRoute;
use cni_spec::{AddResult, CniError, IpConfig, Route};
use ipnet::IpNet;

use super::config::{Gateway, Settings};
use crate::interface::shared::layer3::{Layer3, adopt};

/// Index of the container's end in the result's interfaces: bridge, host's end, container's end.
const CONTAINER: usize = 2;

/// Addresses and routes to set, and the result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// For the container's end.
    pub(super) layer3: Layer3,
    /// The gateway's addresses; empty unless the bridge is the gateway.
    pub(super) gateways: Vec<IpNet>,
    /// The result, without its interfaces.
    pub(super) result: AddResult,
}

/// Plans an attachment with IPAM's result, or without IPAM.
pub(super) fn plan(settings: &Settings, ipam: Option<AddResult>) -> Result<Plan, CniError> {
    let Some(answer) = ipam else {
        let dns = settings.common.dns.clone().unwrap_or_default();
        return Ok(Plan { result: AddResult { dns, ..AddResult::default() }, ..Plan::default() });
    };
    let mut result = adopt(answer, CONTAINER, settings.common.dns.as_ref())?;
    let mut gateways = Vec::new();
    if settings.gateway != Gateway::None {
        for ip in &mut result.ips {
            let gateway = gateway_of(ip)?;
            ip.gateway = Some(gateway.addr());
            if !gateways.contains(&gateway) {
                gateways.push(gateway);
            }
        }
    }
    if settings.gateway == Gateway::DefaultRoute {
        add_default_routes(&mut result);
    }
    Ok(Plan { layer3: Layer3::of(&result), gateways, result })
}

/// IPAM's gateway, or else the first address of the subnet.
fn gateway_of(ip: &IpConfig) -> Result<IpNet, CniError> {
    let length = ip.address.prefix_len();
    let address = match ip.gateway {
        Some(gateway) => gateway,
        None => match ip.address.network() {
            IpAddr::V4(network) => network.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
            IpAddr::V6(network) => network.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
        }
        .ok_or_else(|| CniError::internal(format!("no gateway address in {}", ip.address)))?,
    };
    let gateway = IpNet::new(address, length)
        .ok()
        .filter(|net| AddressFamily::of(net.addr()) == AddressFamily::of(ip.address.addr()));
    gateway.ok_or_else(|| {
        CniError::internal(format!(
            "IPAM returned gateway {address} for {}: not of the same family",
            ip.address
        ))
    })
}

/// Adds a default route for each family that has an address and no default route yet.
fn add_default_routes(result: &mut AddResult) {
    for ip in &result.ips {
        let family = AddressFamily::of(ip.address.addr());
        let is_default = |route: &Route| {
            route.dst.prefix_len() == 0
                && AddressFamily::of(route.dst.addr()) == family
                && route.table.is_none()
        };
        if !result.routes.iter().any(is_default) {
            result.routes.push(Route::new(KernelRoute::default_of(family).dst, ip.gateway));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::test_configuration::configuration;

    fn settings(keys: &serde_json::Value) -> Settings {
        let mut keys = keys.clone();
        keys.as_object_mut().unwrap().entry("ipam").or_insert_with(|| json!({"type": "x"}));
        Settings::new(&configuration("bridge", &keys), "").unwrap()
    }

    fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
        let gateway = gateway.map(|gateway| gateway.parse().unwrap());
        IpConfig { interface: None, address: address.parse().unwrap(), gateway }
    }

    fn dual_stack() -> AddResult {
        let ips = vec![ip("10.1.2.5/24", None), ip("fd00:1::5/64", Some("fd00:1::1"))];
        AddResult { ips, ..AddResult::default() }
    }

    #[test]
    fn without_ipam_there_is_only_the_configurations_dns() {
        let settings = settings(&json!({"ipam": {}, "isGateway": true, "dns": {"domain": "d"}}));
        let plan = plan(&settings, None).unwrap();
        assert!(
            plan.layer3.addresses.is_empty() && plan.gateways.is_empty() && plan.layer3.routes.is_empty()
        );
        assert_eq!(plan.result.dns.domain, "d");
    }

    #[test]
    fn a_plain_bridge_invents_no_gateway() {
        let plan = plan(&settings(&json!({})), Some(dual_stack())).unwrap();
        assert!(plan.gateways.is_empty() && plan.layer3.routes.is_empty());
        assert_eq!(plan.result.ips[0].gateway, None);
        assert!(plan.result.ips.iter().all(|ip| ip.interface == Some(2)));
        assert!(plan.layer3.has(AddressFamily::V4) && plan.layer3.has(AddressFamily::V6));
    }

    #[test]
    fn a_gateway_without_a_name_is_the_first_of_its_subnet() {
        let plan = plan(&settings(&json!({"isGateway": true})), Some(dual_stack())).unwrap();
        let expected: Vec<IpNet> = vec!["10.1.2.1/24".parse().unwrap(), "fd00:1::1/64".parse().unwrap()];
        assert_eq!(plan.gateways, expected);
        assert_eq!(plan.result.ips[0].gateway, Some("10.1.2.1".parse().unwrap()));
        assert!(plan.layer3.routes.is_empty());
    }

    #[test]
    fn the_default_gateway_adds_one_default_route_for_each_family() {
        let mut ipam = dual_stack();
        ipam.ips.push(ip("10.1.3.5/24", None));
        let plan = plan(&settings(&json!({"isDefaultGateway": true})), Some(ipam)).unwrap();
        let routes: Vec<String> = plan.layer3.routes.iter().map(ToString::to_string).collect();
        assert_eq!(routes, ["0.0.0.0/0 via 10.1.2.1", "::/0 via fd00:1::1"]);
        assert_eq!(plan.result.routes.len(), 2);
        assert_eq!(plan.gateways.len(), 3);
    }

    #[test]
    fn a_default_route_that_is_there_is_enough() {
        for gw in [None, Some("10.1.2.9".parse().unwrap())] {
            let mut ipam = dual_stack();
            ipam.routes.push(Route::new("0.0.0.0/0".parse().unwrap(), gw));
            let plan = plan(&settings(&json!({"isDefaultGateway": true})), Some(ipam)).unwrap();
            let routes: Vec<String> = plan.layer3.routes.iter().map(ToString::to_string).collect();
            let via = if gw.is_some() { "10.1.2.9" } else { "10.1.2.1" };
            assert_eq!(routes, [format!("0.0.0.0/0 via {via}"), "::/0 via fd00:1::1".to_owned()]);
        }
    }

    #[test]
    fn a_gateway_of_the_other_family_is_an_error() {
        let ipam = AddResult { ips: vec![ip("10.1.2.5/24", Some("fd00::1"))], ..AddResult::default() };
        assert!(
            plan(&settings(&json!({"isGateway": true})), Some(ipam)).unwrap_err().msg.contains("fd00::1")
        );
        let last = AddResult { ips: vec![ip("255.255.255.255/32", None)], ..AddResult::default() };
        assert!(plan(&settings(&json!({"isGateway": true})), Some(last)).is_err());
    }
}
