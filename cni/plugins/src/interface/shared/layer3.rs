// SPDX-License-Identifier: GPL-2.0-or-later

//! From IPAM's result to addresses and routes: pure functions.

use cni_kernel::AddressFamily;
use cni_kernel::route::{Route as KernelRoute, RouteScope};
use cni_spec::{AddResult, CniError, Dns, IpConfig, Route};
use ipnet::IpNet;

/// The addresses and routes of the container's end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Layer3 {
    /// The container's addresses with the prefixes of their subnets.
    pub(crate) addresses: Vec<IpNet>,
    /// The routes of the container, without the index of their link.
    pub(crate) routes: Vec<KernelRoute>,
    pub(crate) subnets: Subnets,
}

/// The place of the addresses' subnets, seen from the container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Subnets {
    /// On the link: the kernel makes a route for each address.
    #[default]
    OnLink,
    /// Behind the gateway: the kernel makes no routes.
    BehindGateway,
}

impl Layer3 {
    /// The addresses and routes of a result. A route without a next hop takes the first gateway of its
    /// family; without any, it is on-link.
    pub(crate) fn of(result: &AddResult) -> Self {
        let mut routes = Vec::new();
        for route in &result.routes {
            let route = kernel_route(route, &result.ips);
            // The kernel would refuse a duplicate.
            if !routes.contains(&route) {
                routes.push(route);
            }
        }
        Self { addresses: result.ips.iter().map(|ip| ip.address).collect(), routes, ..Self::default() }
    }

    /// True if the container has an address of the family.
    pub(crate) fn has(&self, family: AddressFamily) -> bool {
        has(&self.addresses, family)
    }
}

pub(crate) fn has(addresses: &[IpNet], family: AddressFamily) -> bool {
    addresses.iter().any(|net| AddressFamily::of(net.addr()) == family)
}

/// The families in which there is an address.
pub(crate) fn families(addresses: &[IpNet]) -> impl Iterator<Item = AddressFamily> {
    AddressFamily::BOTH.into_iter().filter(|family| has(addresses, *family))
}

/// Turns IPAM's result into the plugin's, without interfaces: all addresses belong to the interface of index
/// `interface`, and the configuration's resolver settings replace IPAM's.
pub(crate) fn adopt(
    mut answer: AddResult,
    interface: usize,
    dns: Option<&Dns>,
) -> Result<AddResult, CniError> {
    if answer.ips.is_empty() {
        return Err(CniError::internal("IPAM plugin returned missing IP config"));
    }
    answer.interfaces.clear();
    for ip in &mut answer.ips {
        ip.interface = Some(interface);
    }
    if let Some(dns) = dns {
        answer.dns = dns.clone();
    }
    Ok(answer)
}

fn kernel_route(route: &Route, ips: &[IpConfig]) -> KernelRoute {
    let family = AddressFamily::of(route.dst.addr());
    let first = ips.iter().filter_map(|ip| ip.gateway).find(|gateway| AddressFamily::of(*gateway) == family);
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
    use super::*;

    fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
        let gateway = gateway.map(|gateway| gateway.parse().unwrap());
        IpConfig { interface: None, address: address.parse().unwrap(), gateway }
    }

    fn dual_stack() -> AddResult {
        let ips = vec![ip("10.1.2.5/24", Some("10.1.2.1")), ip("fd00:1::5/64", None)];
        AddResult { ips, ..AddResult::default() }
    }

    #[test]
    fn an_answer_without_addresses_is_refused() {
        let error = adopt(AddResult::default(), 1, None).unwrap_err();
        assert_eq!(error.msg, "IPAM plugin returned missing IP config");
    }

    #[test]
    fn all_addresses_are_those_of_the_containers_end() {
        let result = adopt(dual_stack(), 1, None).unwrap();
        assert!(result.ips.iter().all(|ip| ip.interface == Some(1)));
        let layer3 = Layer3::of(&result);
        assert_eq!(layer3.addresses.len(), 2);
        assert!(layer3.has(AddressFamily::V4) && layer3.has(AddressFamily::V6));
        assert!(layer3.routes.is_empty());
    }

    #[test]
    fn the_configurations_dns_replaces_that_of_ipam() {
        let dns = |domain: &str| Dns { domain: domain.to_owned(), ..Dns::default() };
        let answer = || AddResult { dns: dns("ipam"), ..dual_stack() };
        assert_eq!(adopt(answer(), 1, None).unwrap().dns, dns("ipam"));
        assert_eq!(adopt(answer(), 1, Some(&dns("own"))).unwrap().dns, dns("own"));
    }

    #[test]
    fn routes_keep_all_attributes_and_lose_repetitions() {
        let mut answer = dual_stack();
        let mut route = Route::new("10.9.8.7/16".parse().unwrap(), None);
        (route.mtu, route.advmss, route.priority, route.table, route.scope) =
            (1400, 1300, 5, Some(100), Some(0));
        answer.routes = vec![route.clone(), route];
        let layer3 = Layer3::of(&answer);
        let [only] = layer3.routes.as_slice() else { panic!("{:?}", layer3.routes) };
        assert_eq!((only.mtu, only.advmss, only.metric, only.table), (1400, 1300, 5, 100));
        assert_eq!((only.dst.to_string().as_str(), only.scope), ("10.9.0.0/16", Some(RouteScope::UNIVERSE)));
        assert_eq!(only.gateway, Some("10.1.2.1".parse().unwrap()));
    }

    #[test]
    fn a_route_of_a_family_without_gateway_leads_to_the_link() {
        let mut answer = dual_stack();
        answer.routes = vec![Route::new("fd09::/48".parse().unwrap(), None)];
        assert_eq!(Layer3::of(&answer).routes[0].gateway, None);
    }
}
