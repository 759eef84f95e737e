// SPDX-License-Identifier: GPL-2.0-or-later

//! From netavark's input to a CNI network and a container in it, and from the result to netavark's output: pure
//! functions.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_runtime::{Container, Network};
use cni_spec::AddResult;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::isolate;
use super::options::{Isolate, Mode, OptionError, Options};
use super::types::{Address, Exec, Interface, PortMapping, Route, Status, Subnet};

/// The metric of routes without one, as netavark's own drivers set it.
pub(super) const METRIC: u32 = 100;

/// An input that cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TranslateError {
    /// An option cannot be used.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The network has no bridge.
    #[error("network {0} names no bridge: create it with `podman network create --driver slipway`")]
    Bridge(String),
    /// podman has chosen no address in a subnet.
    #[error("no address in subnet {0}")]
    Address(IpNet),
    /// The network has no subnet for an address.
    #[error("address {0} is in no subnet of the network")]
    Stray(IpAddr),
    /// A route that leads to no gateway.
    #[error("route to {0}: routes without a gateway are not supported")]
    Route(IpNet),
    /// A range of ports that ends behind the last one.
    #[error("ports {port} and {} more: the last port is 65535", .range - 1)]
    Range {
        /// The first port.
        port: u16,
        /// The number of ports.
        range: u16,
    },
    /// The configuration that was made is not a valid list of plugins.
    #[error(transparent)]
    List(#[from] cni_spec::ListError),
}

/// The CNI network and the container for a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Translated {
    pub(super) network: Network,
    pub(super) container: Container,
    pub(super) bridge: String,
    pub(super) mode: Mode,
    /// The link with the gateway's addresses, if packets from it must not be forwarded.
    pub(super) no_forwarding: Option<String>,
}

/// The circumstances of a call that are not in its input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances<'a> {
    /// The container's namespace.
    pub(super) netns: &'a str,
    /// The metric of default routes without one of their own.
    pub(super) metric: u32,
    pub(super) nf_tables: NfTables,
}

/// Whether the kernel can list the bridges that strict networks are kept apart from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NfTables {
    Present,
    Missing,
}

/// Translates the input of a set-up.
pub(super) fn of(exec: &Exec, on: Circumstances<'_>) -> Result<Translated, TranslateError> {
    let Circumstances { netns, metric, nf_tables } = on;
    let options = Options::of(exec.network.options.as_ref())?;
    if let Some(key) = exec.network_options.options.iter().flatten().map(|(key, _)| key).next() {
        return Err(OptionError::OfContainer(key.clone()).into());
    }
    let bridge = exec.network.network_interface.clone().filter(|name| !name.is_empty());
    let bridge = bridge.ok_or_else(|| TranslateError::Bridge(exec.network.name.clone()))?;
    let isolate = options.isolate.unwrap_or_else(|| isolate::of_network(&exec.network));
    let metric = options.metric.unwrap_or(metric);
    let plan = Plan { exec, options: &options, bridge: &bridge, metric };
    let ports = if plan.translates() { ports(exec)? } else { Vec::new() };
    let mut network = Network::builder(&exec.network.name).plugin(plan.bridge()?);
    // A kernel without nf_tables can have no strict networks to be kept apart from.
    let policy = match (isolate, nf_tables) {
        (Isolate::Open, NfTables::Missing) => "open",
        _ => isolate.policy(),
    };
    if options.mode == Mode::Managed && (policy != "open" || options.firewall.is_some()) {
        network = network.plugin(plan.firewall(policy));
    }
    if !ports.is_empty() {
        network = network.plugin(plan.portmap());
    }
    Ok(Translated {
        network: network.build()?,
        container: container(exec, netns, ports),
        no_forwarding: (exec.network.internal && plan.is_gateway()).then(|| match options.vlan {
            Some(vlan) => format!("{bridge}.{vlan}"),
            None => bridge.clone(),
        }),
        mode: options.mode,
        bridge,
    })
}

/// A network for a teardown whose set-up has left no record and whose input cannot be translated: its plugins find
/// what they have made by its owner.
pub(super) fn least(exec: &Exec, netns: &str) -> Result<(Network, Container), TranslateError> {
    let network = Network::builder(&exec.network.name)
        .plugin(json!({ "type": "bridge" }))
        .plugin(json!({ "type": "firewall" }))
        .plugin(json!({ "type": "portmap" }))
        .build()?;
    Ok((network, container(exec, netns, Vec::new())))
}

fn container(exec: &Exec, netns: &str, ports: Vec<Value>) -> Container {
    let mut container = Container::new(&exec.container_id, &exec.network_options.interface_name).netns(netns);
    if !ports.is_empty() {
        container = container.capability("portMappings", ports);
    }
    if let Some(mac) = exec.network_options.static_mac.as_deref().filter(|mac| !mac.is_empty()) {
        container = container.capability("mac", mac);
    }
    container
}

struct Plan<'a> {
    exec: &'a Exec,
    options: &'a Options,
    bridge: &'a str,
    metric: u32,
}

impl Plan<'_> {
    /// True if the bridge has the gateway's addresses. That of an internal network has them if they were named.
    fn is_gateway(&self) -> bool {
        let subnets = self.exec.network.subnets();
        let has_all = !subnets.is_empty() && subnets.iter().all(|subnet| subnet.gateway.is_some());
        self.options.mode == Mode::Managed && has_all
    }

    /// True if the node translates addresses, for masquerade or published ports.
    fn translates(&self) -> bool {
        self.options.mode == Mode::Managed && !self.exec.network.internal
    }

    fn bridge(&self) -> Result<Value, TranslateError> {
        let Self { exec, options, bridge, .. } = self;
        let mut config = json!({
            "type": "bridge", "bridge": bridge, "isGateway": self.is_gateway(),
            // Not only for hairpins: see docs/plugins/bridge.md.
            "hairpinMode": true,
            "ipMasq": options.masquerade && self.translates(),
            "capabilities": { "mac": true },
        });
        if let Some(mtu) = options.mtu {
            config["mtu"] = mtu.into();
        }
        if let Some(vlan) = options.vlan {
            config["vlan"] = vlan.into();
        }
        if let Some(backend) = &options.backend {
            config["ipMasqBackend"] = backend.as_str().into();
        }
        if !exec.network.subnets().is_empty() {
            let addresses = addresses(exec)?;
            config["ipam"] = json!({ "type": "static", "addresses": addresses, "routes": self.routes()? });
        }
        Ok(config)
    }

    /// The default routes, then those of the network.
    fn routes(&self) -> Result<Vec<Value>, TranslateError> {
        let network = &self.exec.network;
        let mut routes = Vec::new();
        if !network.internal && !self.options.no_default_route {
            for of_v6 in [false, true] {
                let of_family = |gateway: &IpAddr| gateway.is_ipv6() == of_v6;
                let Some(gateway) = network.subnets().iter().filter_map(|one| one.gateway).find(of_family)
                else {
                    continue;
                };
                routes.push(json!({ "dst": default_of(gateway), "gw": gateway, "priority": self.metric }));
            }
        }
        for Route { destination, gateway, metric } in network.routes.iter().flatten() {
            let gateway = gateway.ok_or(TranslateError::Route(*destination))?;
            routes.push(json!({ "dst": destination, "gw": gateway, "priority": metric.unwrap_or(METRIC) }));
        }
        Ok(routes)
    }

    fn firewall(&self, policy: &str) -> Value {
        let backend = self.options.firewall.as_deref().unwrap_or("nftables");
        json!({ "type": "firewall", "backend": backend, "ingressPolicy": policy })
    }

    fn portmap(&self) -> Value {
        let mut config = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
        if let Some(backend) = &self.options.backend {
            config["backend"] = backend.as_str().into();
        }
        config
    }
}

fn default_of(gateway: IpAddr) -> IpNet {
    IpNet::new_assert(
        match gateway {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        },
        0,
    )
}

/// podman's addresses, each with the prefix length and the gateway of its subnet.
fn addresses(exec: &Exec) -> Result<Vec<Value>, TranslateError> {
    let ips = exec.network_options.static_ips.as_deref().unwrap_or_default();
    let subnets = exec.network.subnets();
    for Subnet { subnet, .. } in subnets {
        if !ips.iter().any(|ip| subnet.contains(ip)) {
            return Err(TranslateError::Address(*subnet));
        }
    }
    let address = |ip: &IpAddr| {
        let found = subnets.iter().find(|one| one.subnet.contains(ip));
        let Subnet { subnet, gateway } = found.ok_or(TranslateError::Stray(*ip))?;
        let mut address = json!({ "address": format!("{ip}/{}", subnet.prefix_len()) });
        if let Some(gateway) = gateway {
            address["gateway"] = gateway.to_string().into();
        }
        Ok(address)
    };
    ips.iter().map(address).collect()
}

/// The published ports, one by one, as portmap takes them.
fn ports(exec: &Exec) -> Result<Vec<Value>, TranslateError> {
    let mut ports = Vec::new();
    for mapping in exec.port_mappings.iter().flatten() {
        let PortMapping { container_port, host_port, host_ip, protocol, range } = mapping;
        let range = (*range).max(1);
        for protocol in protocol.split(',').map(|one| if one.is_empty() { "tcp" } else { one }) {
            for offset in 0..range {
                let port = |first: u16| {
                    first.checked_add(offset).ok_or(TranslateError::Range { port: first, range })
                };
                ports.push(json!({
                    "hostPort": port(*host_port)?, "containerPort": port(*container_port)?,
                    "protocol": protocol, "hostIP": host_ip,
                }));
            }
        }
    }
    Ok(ports)
}

/// netavark's output: the container's interface of a result.
pub(super) fn status(ifname: &str, result: &AddResult) -> Status {
    let is_inside = |one: &&cni_spec::Interface| one.name == ifname && !one.sandbox.is_empty();
    let mac = result.interfaces.iter().find(is_inside).map(|one| one.mac.clone()).unwrap_or_default();
    let subnets = result.ips.iter().map(|ip| Address { gateway: ip.gateway, ipnet: ip.address }).collect();
    Status {
        dns_search_domains: Vec::new(),
        dns_server_ips: Vec::new(),
        interfaces: BTreeMap::from([(ifname.to_owned(), Interface { mac_address: mac, subnets })]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(network: &Value, container: &Value, ports: &Value) -> Exec {
        let mut all = json!({
            "container_id": "c1", "container_name": "web", "port_mappings": ports,
            "network": {
                "name": "blue", "id": "2f259bab", "driver": "slipway", "internal": false, "ipv6_enabled": false,
                "dns_enabled": false, "network_interface": "sw0", "options": null, "network_dns_servers": null,
                "ipam_options": {"driver": "host-local"},
                "subnets": [{"subnet": "10.89.0.0/24", "gateway": "10.89.0.1", "lease_range": null}],
            },
            "network_options": {"interface_name": "eth0", "aliases": ["web"], "static_ips": ["10.89.0.5"]},
        });
        for (key, more) in [("network", network), ("network_options", container)] {
            all[key].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        serde_json::from_value(all).unwrap()
    }

    fn on(netns: &str, metric: u32) -> Circumstances<'_> {
        Circumstances { netns, metric, nf_tables: NfTables::Missing }
    }

    fn plugins(exec: &Exec) -> Result<Vec<Value>, String> {
        let made = of(exec, on("/run/netns/c1", METRIC)).map_err(|error| error.to_string())?;
        Ok(made.network.list().plugins.iter().cloned().map(Value::Object).collect())
    }

    #[test]
    fn a_network_becomes_a_bridge_with_podmans_addresses() {
        let exec = exec(&json!({}), &json!({}), &json!(null));
        let expected = json!({
            "type": "bridge", "bridge": "sw0", "isGateway": true, "hairpinMode": true, "ipMasq": true,
            "capabilities": {"mac": true},
            "ipam": {
                "type": "static", "addresses": [{"address": "10.89.0.5/24", "gateway": "10.89.0.1"}],
                "routes": [{"dst": "0.0.0.0/0", "gw": "10.89.0.1", "priority": 100}],
            },
        });
        assert_eq!(plugins(&exec), Ok(vec![expected]));
        let made = of(&exec, on("/run/netns/c1", 7)).unwrap();
        assert_eq!((made.network.name(), made.bridge.as_str(), made.no_forwarding), ("blue", "sw0", None));
        assert_eq!(made.container, Container::new("c1", "eth0").netns("/run/netns/c1"));
        assert_eq!(made.network.list().plugins[0]["ipam"]["routes"][0]["priority"], 7);
    }

    #[test]
    fn options_and_both_families() {
        let network = json!({
            "subnets": [
                {"subnet": "10.89.0.0/24", "gateway": "10.89.0.1"}, {"subnet": "fd00:7::/64", "gateway": "fd00:7::1"},
            ],
            "routes": [{"destination": "10.1.0.0/16", "gateway": "10.89.0.9", "metric": 5}, {"destination": "10.2.0.0/16", "gateway": "10.89.0.9"}],
            "options": {
                "mtu": "1400", "vlan": "7", "isolate": "true", "metric": "50", "ipMasq": "false", "backend": "iptables",
            },
        });
        let container = json!({"static_ips": ["10.89.0.5", "fd00:7::5"], "static_mac": "02:00:00:00:00:01"});
        let exec = exec(
            &network,
            &container,
            &json!([{"container_port": 80, "host_port": 8080, "host_ip": "", "protocol": "tcp", "range": 1}]),
        );
        let all = plugins(&exec).unwrap();
        let [bridge, firewall, portmap] = all.as_slice() else { panic!("{all:?}") };
        for (key, value) in [
            ("mtu", json!(1400)),
            ("vlan", json!(7)),
            ("ipMasq", json!(false)),
            ("ipMasqBackend", json!("iptables")),
        ] {
            assert_eq!(bridge[key], value, "{key}");
        }
        assert_eq!(
            bridge["ipam"]["routes"],
            json!([
                {"dst": "0.0.0.0/0", "gw": "10.89.0.1", "priority": 50},
                {"dst": "::/0", "gw": "fd00:7::1", "priority": 50},
                {"dst": "10.1.0.0/16", "gw": "10.89.0.9", "priority": 5},
                {"dst": "10.2.0.0/16", "gw": "10.89.0.9", "priority": 100},
            ])
        );
        assert_eq!(
            *firewall,
            json!({"type": "firewall", "backend": "nftables", "ingressPolicy": "same-bridge"})
        );
        assert_eq!(
            *portmap,
            json!({"type": "portmap", "capabilities": {"portMappings": true}, "backend": "iptables"})
        );
        let container = of(&exec, on("", METRIC)).unwrap().container;
        assert_eq!(container.capabilities["mac"], "02:00:00:00:00:01");
    }

    #[test]
    fn the_plugin_firewall_keeps_networks_apart() {
        let firewall = |network: &Value, nf_tables| {
            let made =
                of(&exec(network, &json!({}), &json!(null)), Circumstances { nf_tables, ..on("", METRIC) });
            let plugins = made.unwrap().network.list().plugins.clone();
            let found = plugins.iter().find(|plugin| plugin["type"] == "firewall");
            found.map(|plugin| (plugin["backend"].clone(), plugin["ingressPolicy"].clone()))
        };
        let second = json!({"created": "2026-01-02T03:04:05Z"});
        let with = |key: &str, value: &str| json!({"options": {key: value}});
        for (network, expected) in [
            (json!({}), Some(("nftables", "listed"))),
            (second, Some(("nftables", "strict"))),
            (with("isolate", "false"), Some(("nftables", "listed"))),
            (with("isolate", "true"), Some(("nftables", "same-bridge"))),
            (with("isolate", "strict"), Some(("nftables", "strict"))),
            (with("firewall", "iptables"), Some(("iptables", "listed"))),
            (with("mode", "unmanaged"), None),
        ] {
            let expected = expected.map(|(backend, policy)| (json!(backend), json!(policy)));
            assert_eq!(firewall(&network, NfTables::Present), expected, "{network}");
        }
        let without = |network: &Value| firewall(network, NfTables::Missing);
        assert_eq!(without(&json!({})), None, "there are no strict networks");
        assert_eq!(without(&with("firewall", "iptables")), Some((json!("iptables"), json!("open"))));
        assert_eq!(without(&with("isolate", "true")), Some((json!("nftables"), json!("same-bridge"))));
    }

    #[test]
    fn an_internal_network_has_neither_routes_nor_ports() {
        let port = json!([{"container_port": 80, "host_port": 8080}]);
        let network = json!({"internal": true, "subnets": [{"subnet": "10.89.0.0/24"}]});
        let all = plugins(&exec(&network, &json!({}), &port)).unwrap();
        let [bridge] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((&bridge["isGateway"], &bridge["ipMasq"]), (&json!(false), &json!(false)));
        assert_eq!(bridge["ipam"]["routes"], json!([]));
        // A gateway that was named gets its address, but forwards nothing.
        let named = exec(&json!({"internal": true}), &json!({}), &port);
        let bridge = &plugins(&named).unwrap()[0];
        assert_eq!((&bridge["isGateway"], &bridge["ipam"]["routes"]), (&json!(true), &json!([])));
        assert_eq!(of(&named, on("", METRIC)).unwrap().no_forwarding.as_deref(), Some("sw0"));
    }

    #[test]
    fn an_unmanaged_bridge_is_only_joined() {
        let options = json!({"options": {"mode": "unmanaged"}});
        let all = plugins(&exec(&options, &json!({}), &json!([{"container_port": 80, "host_port": 8080}])))
            .unwrap();
        let [bridge] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((&bridge["isGateway"], &bridge["ipMasq"]), (&json!(false), &json!(false)));
        assert_eq!(bridge["ipam"]["routes"][0]["gw"], "10.89.0.1", "a router on the bridge");
    }

    #[test]
    fn a_network_without_subnets_has_no_ipam() {
        let network = json!({"subnets": null, "ipam_options": {"driver": "none"}});
        let all = plugins(&exec(&network, &json!({"static_ips": null}), &json!(null))).unwrap();
        assert_eq!((all[0].get("ipam"), &all[0]["isGateway"]), (None, &json!(false)));
    }

    #[test]
    fn ranges_and_protocols_become_single_ports() {
        let mapping = |protocol: &str, range: u16| json!([{"container_port": 80, "host_port": 8080, "host_ip": "::1", "protocol": protocol, "range": range}]);
        let all = ports(&exec(&json!({}), &json!({}), &mapping("tcp,udp", 2))).unwrap();
        let all: Vec<String> = all
            .iter()
            .map(|one| {
                format!("{} {}:{}/{}", one["hostIP"], one["hostPort"], one["containerPort"], one["protocol"])
            })
            .collect();
        assert_eq!(
            all,
            [
                r#""::1" 8080:80/"tcp""#,
                r#""::1" 8081:81/"tcp""#,
                r#""::1" 8080:80/"udp""#,
                r#""::1" 8081:81/"udp""#,
            ]
        );
        assert_eq!(ports(&exec(&json!({}), &json!({}), &mapping("", 0))).unwrap()[0]["protocol"], "tcp");
        let error = ports(&exec(&json!({}), &json!({}), &mapping("sctp", 60_000))).unwrap_err();
        assert_eq!(error.to_string(), "ports 8080 and 59999 more: the last port is 65535");
    }

    #[test]
    fn what_cannot_be_set_up_is_refused() {
        for (network, container, text) in [
            (json!({}), json!({"static_ips": []}), "no address in subnet 10.89.0.0/24"),
            (
                json!({}),
                json!({"static_ips": ["10.89.0.5", "10.9.0.1"]}),
                "address 10.9.0.1 is in no subnet of the network",
            ),
            (
                json!({"network_interface": ""}),
                json!({}),
                "network blue names no bridge: create it with `podman network create --driver slipway`",
            ),
            (
                json!({"routes": [{"destination": "10.1.0.0/16"}]}),
                json!({}),
                "route to 10.1.0.0/16: routes without a gateway are not supported",
            ),
            (
                json!({}),
                json!({"options": {"host_interface_name": "web0"}}),
                "option \"host_interface_name\" of a container in a network is not supported",
            ),
        ] {
            let exec = exec(&network, &container, &json!(null));
            assert_eq!(plugins(&exec).unwrap_err(), text);
            assert!(least(&exec, "").is_ok(), "a teardown needs nothing of it");
        }
    }

    #[test]
    fn the_result_becomes_the_status() {
        let result = json!({
            "cniVersion": "1.1.0",
            "interfaces": [
                {"name": "sw0"}, {"name": "veth1"},
                // The node may have a link of that name, too.
                {"name": "eth0", "mac": "02:00:00:00:00:09"},
                {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/x"},
            ],
            "ips": [{"address": "10.89.0.5/24", "gateway": "10.89.0.1", "interface": 3}, {"address": "fd00::5/64", "interface": 3}],
        });
        let result =
            AddResult::from_output(cni_spec::Version::V1_1_0, result.to_string().as_bytes()).unwrap();
        let expected = json!({
            "dns_search_domains": [], "dns_server_ips": [],
            "interfaces": {"eth0": {"mac_address": "02:00:00:00:00:01", "subnets": [
                {"gateway": "10.89.0.1", "ipnet": "10.89.0.5/24"}, {"ipnet": "fd00::5/64"},
            ]}},
        });
        assert_eq!(serde_json::to_value(status("eth0", &result)).unwrap(), expected);
    }
}
