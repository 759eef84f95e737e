//! What layer 3 of an attachment will look like: a pure function of settings and IPAM's answer.

use std::net::IpAddr;

use cni_kernel::route::{Family, Route as KernelRoute, RouteScope};
use cni_spec::{AddResult, CniError, IpConfig, Route};
use ipnet::IpNet;

use super::config::{Gateway, Settings};

/// Index of the container's end in the result's interfaces: bridge, host's end, container's end.
const CONTAINER: usize = 2;

/// Addresses and routes to be set, and what the result says of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The container's addresses with the prefixes of their subnets.
    pub(super) addresses: Vec<IpNet>,
    /// The gateway's addresses; empty unless the bridge is the gateway.
    pub(super) gateways: Vec<IpNet>,
    /// The container's routes, without the number of their link.
    pub(super) routes: Vec<KernelRoute>,
    /// `ips`, `routes` and `dns` of the result; its interfaces are still to come.
    pub(super) result: AddResult,
}

impl Plan {
    /// Whether an address of the family is among the container's.
    pub(super) fn has(&self, family: Family) -> bool {
        self.addresses.iter().any(|net| Family::of(net.addr()) == family)
    }
}

/// The plan for an attachment with IPAM's answer, or without IPAM.
pub(super) fn plan(settings: &Settings, ipam: Option<AddResult>) -> Result<Plan, CniError> {
    let Some(mut result) = ipam else {
        let dns = settings.dns.clone().unwrap_or_default();
        return Ok(Plan { result: AddResult { dns, ..AddResult::default() }, ..Plan::default() });
    };
    if result.ips.is_empty() {
        return Err(CniError::internal("IPAM plugin returned missing IP config"));
    }
    result.interfaces.clear();
    let mut gateways = Vec::new();
    for ip in &mut result.ips {
        ip.interface = Some(CONTAINER);
        if settings.gateway != Gateway::None {
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
    if let Some(dns) = &settings.dns {
        result.dns = dns.clone();
    }
    let mut routes = Vec::new();
    for route in &result.routes {
        let route = kernel_route(route, &result.ips);
        // The same route twice is one wish; the kernel would refuse the second.
        if !routes.contains(&route) {
            routes.push(route);
        }
    }
    let addresses = result.ips.iter().map(|ip| ip.address).collect();
    Ok(Plan { addresses, gateways, routes, result })
}

/// The gateway that IPAM names, otherwise the first address of the subnet.
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
        .filter(|net| Family::of(net.addr()) == Family::of(ip.address.addr()));
    gateway.ok_or_else(|| {
        CniError::internal(format!(
            "IPAM returned gateway {address} for {}: not of the same family",
            ip.address
        ))
    })
}

/// One default route for each family that has an address, unless there is one already: a second
/// one would say the same again, with the gateway or without.
fn add_default_routes(result: &mut AddResult) {
    for ip in &result.ips {
        let family = Family::of(ip.address.addr());
        let is_default = |route: &Route| {
            route.dst.prefix_len() == 0 && Family::of(route.dst.addr()) == family && route.table.is_none()
        };
        if !result.routes.iter().any(is_default) {
            result.routes.push(Route::new(KernelRoute::default_of(family).dst, ip.gateway));
        }
    }
}

/// Without a next hop of its own, a route takes the first gateway of its family; without any, it
/// leads to the link itself.
fn kernel_route(route: &Route, ips: &[IpConfig]) -> KernelRoute {
    let family = Family::of(route.dst.addr());
    let first = ips.iter().filter_map(|ip| ip.gateway).find(|gateway| Family::of(*gateway) == family);
    let mut planned = KernelRoute::to(route.dst.trunc());
    planned.gateway = route.gw.or(first);
    planned.metric = route.priority;
    planned.table = route.table.unwrap_or(planned.table);
    planned.scope = route.scope.map(RouteScope);
    planned.mtu = route.mtu;
    planned.advmss = route.advmss;
    planned
}

#[cfg(test)]
mod tests {
    use cni_spec::{Dns, NetConf};
    use serde_json::json;

    use super::*;

    fn settings(keys: &serde_json::Value) -> Settings {
        let mut all = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": "x"}});
        all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Settings::new(&NetConf::parse(all.to_string()).unwrap(), "").unwrap()
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
        assert!(plan.addresses.is_empty() && plan.gateways.is_empty() && plan.routes.is_empty());
        assert_eq!(plan.result.dns.domain, "d");
    }

    #[test]
    fn an_answer_without_addresses_is_refused() {
        let error = plan(&settings(&json!({})), Some(AddResult::default())).unwrap_err();
        assert_eq!(error.msg, "IPAM plugin returned missing IP config");
    }

    #[test]
    fn a_plain_bridge_invents_no_gateway() {
        let plan = plan(&settings(&json!({})), Some(dual_stack())).unwrap();
        assert!(plan.gateways.is_empty() && plan.routes.is_empty());
        assert_eq!(plan.result.ips[0].gateway, None);
        assert!(plan.result.ips.iter().all(|ip| ip.interface == Some(2)));
        assert!(plan.has(Family::V4) && plan.has(Family::V6));
    }

    #[test]
    fn a_gateway_without_a_name_is_the_first_of_its_subnet() {
        let plan = plan(&settings(&json!({"isGateway": true})), Some(dual_stack())).unwrap();
        let expected: Vec<IpNet> = vec!["10.1.2.1/24".parse().unwrap(), "fd00:1::1/64".parse().unwrap()];
        assert_eq!(plan.gateways, expected);
        assert_eq!(plan.result.ips[0].gateway, Some("10.1.2.1".parse().unwrap()));
        assert!(plan.routes.is_empty());
    }

    #[test]
    fn the_default_gateway_adds_one_default_route_for_each_family() {
        let mut ipam = dual_stack();
        ipam.ips.push(ip("10.1.3.5/24", None));
        let plan = plan(&settings(&json!({"isDefaultGateway": true})), Some(ipam)).unwrap();
        let routes: Vec<String> = plan.routes.iter().map(ToString::to_string).collect();
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
            let routes: Vec<String> = plan.routes.iter().map(ToString::to_string).collect();
            let via = if gw.is_some() { "10.1.2.9" } else { "10.1.2.1" };
            assert_eq!(routes, [format!("0.0.0.0/0 via {via}"), "::/0 via fd00:1::1".to_owned()]);
        }
    }

    #[test]
    fn routes_keep_all_attributes_and_lose_repetitions() {
        let mut ipam = dual_stack();
        let mut route = Route::new("10.9.8.7/16".parse().unwrap(), None);
        (route.mtu, route.advmss, route.priority, route.table, route.scope) =
            (1400, 1300, 5, Some(100), Some(0));
        ipam.routes = vec![route.clone(), route];
        let plan = plan(&settings(&json!({"isGateway": true})), Some(ipam)).unwrap();
        let [only] = plan.routes.as_slice() else { panic!("{:?}", plan.routes) };
        assert_eq!((only.mtu, only.advmss, only.metric, only.table), (1400, 1300, 5, 100));
        assert_eq!((only.dst.to_string().as_str(), only.scope), ("10.9.0.0/16", Some(RouteScope::UNIVERSE)));
        assert_eq!(only.gateway, Some("10.1.2.1".parse().unwrap()));
    }

    #[test]
    fn a_route_of_a_family_without_gateway_leads_to_the_link() {
        let mut ipam = dual_stack();
        ipam.routes = vec![Route::new("10.9.0.0/16".parse().unwrap(), None)];
        let plan = plan(&settings(&json!({})), Some(ipam)).unwrap();
        assert_eq!(plan.routes[0].gateway, None);
    }

    #[test]
    fn the_configurations_dns_wins_if_it_says_anything() {
        let ipam = || AddResult { dns: Dns { domain: "ipam".to_owned(), ..Dns::default() }, ..dual_stack() };
        assert_eq!(plan(&settings(&json!({})), Some(ipam())).unwrap().result.dns.domain, "ipam");
        let own = settings(&json!({"dns": {"search": ["s"]}}));
        assert_eq!(plan(&own, Some(ipam())).unwrap().result.dns, own.dns.unwrap());
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
