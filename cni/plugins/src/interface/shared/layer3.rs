//! From IPAM's answer to addresses and routes: pure functions.

use cni_kernel::route::{Family, Route as KernelRoute, RouteScope};
use cni_spec::{AddResult, CniError, Dns, IpConfig, Route};
use ipnet::IpNet;

/// What the container's end is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Layer3 {
    /// The container's addresses with the prefixes of their subnets.
    pub(crate) addresses: Vec<IpNet>,
    /// Its routes, without the number of their link.
    pub(crate) routes: Vec<KernelRoute>,
    /// Where the addresses' subnets are.
    pub(crate) subnets: Subnets,
}

/// Where the subnet of a container's address is, seen from the container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Subnets {
    /// On its link: the kernel makes the route when the address is added.
    #[default]
    OnLink,
    /// Behind its gateway: the kernel makes no route.
    BehindGateway,
}

impl Layer3 {
    /// What a result says. Without a next hop of its own, a route takes the first gateway of its
    /// family; without any, it leads to the link itself.
    pub(crate) fn of(result: &AddResult) -> Self {
        let mut routes = Vec::new();
        for route in &result.routes {
            let route = kernel_route(route, &result.ips);
            // The same route twice is one wish; the kernel would refuse the second.
            if !routes.contains(&route) {
                routes.push(route);
            }
        }
        Self { addresses: result.ips.iter().map(|ip| ip.address).collect(), routes, ..Self::default() }
    }

    /// Whether an address of the family is among the container's.
    pub(crate) fn has(&self, family: Family) -> bool {
        has(&self.addresses, family)
    }
}

/// Whether one of the addresses is of the family.
pub(crate) fn has(addresses: &[IpNet], family: Family) -> bool {
    addresses.iter().any(|net| Family::of(net.addr()) == family)
}

/// IPAM's answer as the plugin's own: all addresses are those of interface number `interface` of the
/// result, whose interfaces are still to come, and the configuration's resolver settings win.
///
/// # Errors
/// When there is no address in it.
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
        assert!(layer3.has(Family::V4) && layer3.has(Family::V6));
        assert!(layer3.routes.is_empty());
    }

    #[test]
    fn the_configurations_dns_wins_if_it_says_anything() {
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
