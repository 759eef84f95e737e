// SPDX-License-Identifier: GPL-2.0-or-later

//! The addresses and routes of both ends: a pure function of IPAM's result.

use std::net::IpAddr;

use cni_kernel::AddressFamily;
use cni_kernel::route::{MAIN_TABLE, Route as KernelRoute, RouteScope};
use cni_spec::{AddResult, CniError, Dns, IpConfig};
use ipnet::IpNet;

use crate::interface::shared::layer3::{Layer3, Subnets, adopt};

/// Index of the container's end in the result's interfaces: host's end, container's end.
const CONTAINER: usize = 1;

/// Addresses and routes to set, and the result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// For the container's end.
    pub(super) layer3: Layer3,
    /// For the host's end.
    pub(super) outside: Outside,
    /// The result, without its interfaces.
    pub(super) result: AddResult,
}

/// The addresses of the host's end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Outside {
    /// The gateways' addresses, with the longest prefix.
    pub(super) gateways: Vec<IpNet>,
    /// The container's addresses as single addresses, for routes to them.
    pub(super) containers: Vec<IpNet>,
}

/// Plans an attachment with IPAM's result.
pub(super) fn plan(answer: AddResult, dns: Option<&Dns>) -> Result<Plan, CniError> {
    let result = adopt(answer, CONTAINER, dns)?;
    let mut routes = own_routes(&result.ips)?;
    let mut layer3 = Layer3::of(&result);
    layer3.routes.retain(|route| !repeats(route, &routes));
    for route in &mut layer3.routes {
        route.onlink = route.gateway.is_some_and(|next| is_neighbour(next, &result.ips));
    }
    routes.append(&mut layer3.routes);
    let layer3 = Layer3 { routes, subnets: Subnets::BehindGateway, ..layer3 };
    Ok(Plan { layer3, outside: outside(&result.ips)?, result })
}

/// Plans an attachment without IPAM: the pair of links alone, for those who give it addresses by other means.
pub(super) fn without_addresses(dns: Dns) -> Plan {
    Plan { result: AddResult { dns, ..AddResult::default() }, ..Plan::default() }
}

/// The host's end for these addresses.
pub(super) fn outside(ips: &[IpConfig]) -> Result<Outside, CniError> {
    let mut outside = Outside::default();
    for ip in ips {
        let gateway = IpNet::from(gateway_of(ip)?);
        if !outside.gateways.contains(&gateway) {
            outside.gateways.push(gateway);
        }
        outside.containers.push(IpNet::from(ip.address.addr()));
    }
    Ok(outside)
}

/// The routes that replace the kernel's route to the subnet: the gateway is on the link, all other hosts are
/// behind it. If several addresses share a gateway or a subnet, the first one is the source.
pub(super) fn own_routes(ips: &[IpConfig]) -> Result<Vec<KernelRoute>, CniError> {
    let mut routes: Vec<KernelRoute> = Vec::new();
    let mut add = |route: KernelRoute| {
        if !routes.iter().any(|other| other.dst == route.dst) {
            routes.push(route);
        }
    };
    for ip in ips {
        let gateway = gateway_of(ip)?;
        let source = Some(ip.address.addr());
        let scope = Some(RouteScope::LINK);
        add(KernelRoute { source, scope, ..KernelRoute::to(IpNet::from(gateway)) });
        let subnet = ip.address.trunc();
        // An address with the longest prefix has no subnet.
        if subnet.prefix_len() < subnet.max_prefix_len() {
            let scope = Some(RouteScope::UNIVERSE);
            add(KernelRoute { source, scope, gateway: Some(gateway), ..KernelRoute::to(subnet) });
        }
    }
    Ok(routes)
}

/// True if a route of the configuration repeats one of the plugin's own.
fn repeats(route: &KernelRoute, own: &[KernelRoute]) -> bool {
    let plain = route.table == MAIN_TABLE && route.metric == 0 && route.mtu == 0 && route.advmss == 0;
    plain
        && own.iter().any(|other| {
            let gateway = other.gateway.unwrap_or(other.dst.addr());
            other.dst == route.dst && route.gateway.is_none_or(|next| next == gateway)
        })
}

/// True for a next hop in a container's subnet that is not the gateway. Without the flag `onlink` the kernel
/// refuses it, because the route to the subnet leads to the gateway; the reference adds its routes while the
/// subnet is still on the link.
fn is_neighbour(next: IpAddr, ips: &[IpConfig]) -> bool {
    ips.iter().any(|ip| ip.address.contains(&next)) && ips.iter().all(|ip| ip.gateway != Some(next))
}

fn gateway_of(ip: &IpConfig) -> Result<IpAddr, CniError> {
    let Some(gateway) = ip.gateway else {
        return Err(CniError::internal(format!(
            "IPAM returned no gateway for {}: ptp needs one",
            ip.address
        )));
    };
    let wrong = match ip.address.addr() {
        own if own == gateway => "it is the container's own address",
        own if AddressFamily::of(own) != AddressFamily::of(gateway) => "not of the same family",
        _ => return Ok(gateway),
    };
    Err(CniError::internal(format!("IPAM returned gateway {gateway} for {}: {wrong}", ip.address)))
}

#[cfg(test)]
mod tests {
    use cni_spec::Route;

    use super::*;

    fn ip(address: &str, gateway: &str) -> IpConfig {
        let gateway = (!gateway.is_empty()).then(|| gateway.parse().unwrap());
        IpConfig { interface: None, address: address.parse().unwrap(), gateway }
    }

    fn answer(ips: &[(&str, &str)], routes: &[(&str, Option<&str>)]) -> AddResult {
        let route = |(dst, gw): &(&str, Option<&str>)| {
            Route::new(dst.parse().unwrap(), gw.map(|gw| gw.parse().unwrap()))
        };
        AddResult {
            ips: ips.iter().map(|(address, gateway)| ip(address, gateway)).collect(),
            routes: routes.iter().map(route).collect(),
            ..AddResult::default()
        }
    }

    /// The routes in the format of `ip route`.
    fn routes(plan: &Plan) -> Vec<String> {
        let text = |route: &KernelRoute| {
            let source = route.source.map(|source| format!(" src {source}")).unwrap_or_default();
            let link = if route.scope == Some(RouteScope::LINK) { " scope link" } else { "" };
            format!("{route}{link}{source}")
        };
        plan.layer3.routes.iter().map(text).collect()
    }

    const DUAL: &[(&str, &str)] = &[("10.1.2.5/24", "10.1.2.1"), ("fd00:1::5/64", "fd00:1::1")];

    #[test]
    fn the_gateway_is_on_the_link_and_the_subnet_behind_it() {
        let plan = plan(answer(DUAL, &[("0.0.0.0/0", None), ("::/0", None)]), None).unwrap();
        assert_eq!(
            routes(&plan),
            [
                "10.1.2.1/32 scope link src 10.1.2.5",
                "10.1.2.0/24 via 10.1.2.1 src 10.1.2.5",
                "fd00:1::1/128 scope link src fd00:1::5",
                "fd00:1::/64 via fd00:1::1 src fd00:1::5",
                "0.0.0.0/0 via 10.1.2.1",
                "::/0 via fd00:1::1",
            ]
        );
        assert_eq!(plan.layer3.subnets, Subnets::BehindGateway);
        assert!(plan.result.ips.iter().all(|ip| ip.interface == Some(1)));
    }

    #[test]
    fn the_hosts_end_has_the_gateways_and_leads_to_the_container() {
        let plan = plan(answer(DUAL, &[]), None).unwrap();
        let texts = |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&plan.outside.gateways), ["10.1.2.1/32", "fd00:1::1/128"]);
        assert_eq!(texts(&plan.outside.containers), ["10.1.2.5/32", "fd00:1::5/128"]);
    }

    #[test]
    fn addresses_may_share_a_gateway_and_a_subnet() {
        let ips = [("10.1.2.5/24", "10.1.2.1"), ("10.1.2.6/24", "10.1.2.1"), ("10.1.3.5/24", "10.1.2.1")];
        let plan = plan(answer(&ips, &[]), None).unwrap();
        assert_eq!(plan.outside.gateways.len(), 1);
        assert_eq!(plan.outside.containers.len(), 3);
        assert_eq!(
            routes(&plan),
            [
                "10.1.2.1/32 scope link src 10.1.2.5",
                "10.1.2.0/24 via 10.1.2.1 src 10.1.2.5",
                "10.1.3.0/24 via 10.1.2.1 src 10.1.3.5",
            ]
        );
    }

    #[test]
    fn an_address_of_full_length_has_no_subnet() {
        let plan = plan(answer(&[("10.1.2.5/32", "169.254.1.1")], &[("0.0.0.0/0", None)]), None).unwrap();
        assert_eq!(routes(&plan), ["169.254.1.1/32 scope link src 10.1.2.5", "0.0.0.0/0 via 169.254.1.1"]);
    }

    #[test]
    fn a_route_that_repeats_an_own_one_is_left_out() {
        let repeated = [
            ("10.1.2.0/24", None),
            ("10.1.2.0/24", Some("10.1.2.1")),
            ("10.1.2.1/32", None),
            ("fd00:1::/64", None),
        ];
        let plain = plan(answer(DUAL, &[]), None).unwrap();
        let plan = plan(answer(DUAL, &repeated), None).unwrap();
        assert_eq!(plan.layer3, plain.layer3);
        // The result has all of them.
        assert_eq!(plan.result.routes.len(), repeated.len());
    }

    #[test]
    fn a_route_with_other_attributes_stays() {
        let mut answer = answer(DUAL, &[("10.1.2.0/24", Some("10.1.2.9"))]);
        let mut metric = Route::new("10.1.2.0/24".parse().unwrap(), None);
        metric.priority = 5;
        answer.routes.push(metric);
        let plan = plan(answer, None).unwrap();
        assert_eq!(routes(&plan)[4..], ["10.1.2.0/24 via 10.1.2.9", "10.1.2.0/24 via 10.1.2.1 metric 5"]);
    }

    #[test]
    fn a_next_hop_in_the_subnet_counts_as_on_the_link() {
        let routes = [
            ("10.9.0.0/16", Some("10.1.2.9")),
            ("10.8.0.0/16", Some("10.1.2.1")),
            ("10.7.0.0/16", None),
            ("10.6.0.0/16", Some("192.0.2.1")),
            ("fd09::/48", Some("fd00:1::9")),
        ];
        let plan = plan(answer(DUAL, &routes), None).unwrap();
        let onlink: Vec<bool> = plan.layer3.routes.iter().map(|route| route.onlink).collect();
        assert_eq!(onlink[4..], [true, false, false, false, true]);
        assert!(onlink[..4].iter().all(|onlink| !onlink), "the plugin's own");
    }

    #[test]
    fn unusable_results_of_ipam_are_refused() {
        for (ips, text) in [
            (vec![], "IPAM plugin returned missing IP config"),
            (vec![("10.1.2.5/24", "")], "IPAM returned no gateway for 10.1.2.5/24: ptp needs one"),
            (
                vec![("10.1.2.5/24", "10.1.2.5")],
                "IPAM returned gateway 10.1.2.5 for 10.1.2.5/24: it is the container's own address",
            ),
            (
                vec![("10.1.2.5/24", "fd00:1::1")],
                "IPAM returned gateway fd00:1::1 for 10.1.2.5/24: not of the same family",
            ),
        ] {
            assert_eq!(plan(answer(&ips, &[]), None).unwrap_err().msg, text);
        }
    }
}
