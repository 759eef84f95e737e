// SPDX-License-Identifier: GPL-2.0-or-later

//! The rules of kube-proxy's mode `nftables`, which version 1.20.2 lacks. The test writes them itself, following the
//! structure that Kubernetes documents for the mode (tables `kube-proxy` of both families; maps from addresses and
//! ports to a chain for each Service, which leads to a chain for each endpoint that translates). They are not
//! kube-proxy's own output.

use std::fmt::Write as _;
use std::net::IpAddr;

use slipway_tests::{Cluster, ClusterNode, Proto, at};

use crate::services::{Port, SERVICES, Service};

/// The keywords of nft for a family, and the range of pods.
struct Family {
    table: &'static str,
    address: &'static str,
    pods: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family { table: "ip", address: "ipv4_addr", pods: "10.244.0.0/16" },
    Family { table: "ip6", address: "ipv6_addr", pods: "fd44::/48" },
];

/// Writes the rules of all Services on a node.
pub(crate) fn write(cluster: &Cluster, node: &ClusterNode) {
    for index in [0, 1] {
        let mut rules = Rules::default();
        for service in &SERVICES {
            let endpoint = service.endpoint(cluster.nodes[0].addresses)[index];
            for port in service.ports {
                for proto in Proto::ALL {
                    rules.add(index, service, port, proto, endpoint, node.number == 1);
                }
            }
        }
        node.nft(&rules.table(&FAMILIES[index], node.addresses[index]));
    }
}

/// The parts of a table that depend on the Services.
#[derive(Default)]
struct Rules {
    chains: String,
    cluster_ips: Vec<String>,
    services: Vec<String>,
    node_ports: Vec<String>,
    /// Services with the policy Local that have no endpoint on this node.
    no_endpoint: Vec<String>,
    no_endpoint_node_ports: Vec<String>,
}

impl Rules {
    fn add(
        &mut self,
        index: usize,
        service: &Service,
        port: &Port,
        proto: Proto,
        endpoint: IpAddr,
        is_local: bool,
    ) {
        let Family { table, pods, .. } = FAMILIES[index];
        let proto = proto.name();
        let name = format!("{}-{proto}-{}", service.name, port.port);
        let cluster_ip = service.cluster_ips[index];
        let external = match (service.policy, is_local) {
            ("Local", true) => local(table, pods, &name) + &format!("goto endpoint-{name}\n"),
            ("Local", false) => local(table, pods, &name),
            _ => format!("jump mark-for-masquerade\ngoto service-{name}\n"),
        };
        let target = at(endpoint, port.target);
        let _ = write!(
            self.chains,
            "chain endpoint-{name} {{
                {table} saddr {endpoint} jump mark-for-masquerade
                meta l4proto {proto} dnat {table} to {target}
            }}
            chain service-{name} {{
                {table} daddr {cluster_ip} {proto} dport {} {table} saddr != {pods} jump mark-for-masquerade
                numgen random mod 1 vmap {{ 0 : goto endpoint-{name} }}
            }}
            chain external-{name} {{ {external} }}\n",
            port.port,
        );
        self.cluster_ips.push(cluster_ip.to_owned());
        self.services.push(format!("{cluster_ip} . {proto} . {} : goto service-{name}", port.port));
        self.node_ports.push(format!("{proto} . {} : goto external-{name}", port.node));
        for balancer in service.balancers {
            let key = format!("{} . {proto} . {}", balancer[index], port.port);
            self.services.push(format!("{key} : goto external-{name}"));
            if service.policy == "Local" && !is_local {
                self.no_endpoint.push(format!("{key} : drop"));
            }
        }
        if service.policy == "Local" && !is_local {
            self.no_endpoint_node_ports.push(format!("{proto} . {} : drop", port.node));
        }
    }

    fn table(&self, family: &Family, node: IpAddr) -> String {
        let Family { table, address, .. } = family;
        let (services, node_ports) = (self.services.join(", "), self.node_ports.join(", "));
        let mut cluster_ips = self.cluster_ips.clone();
        cluster_ips.dedup();
        let elements = |all: &[String]| match all {
            [] => String::new(),
            all => format!("elements = {{ {} }};", all.join(", ")),
        };
        format!(
            "table {table} kube-proxy {{
                set cluster-ips {{ type {address}; elements = {{ {} }}; }}
                set nodeport-ips {{ type {address}; elements = {{ {node} }}; }}
                map no-endpoint-services {{ type {address} . inet_proto . inet_service : verdict; {} }}
                map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; {} }}
                chain mark-for-masquerade {{ meta mark set meta mark or 0x4000; }}
                {}
                map service-ips {{
                    type {address} . inet_proto . inet_service : verdict; elements = {{ {services} }};
                }}
                map service-nodeports {{
                    type inet_proto . inet_service : verdict; elements = {{ {node_ports} }};
                }}
                chain services {{
                    {table} daddr . meta l4proto . th dport vmap @service-ips
                    {table} daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
                }}
                chain masquerading {{
                    meta mark and 0x4000 == 0 return
                    meta mark set meta mark xor 0x4000
                    masquerade fully-random
                }}
                chain service-endpoints-check {{
                    {table} daddr . meta l4proto . th dport vmap @no-endpoint-services
                }}
                chain nodeport-endpoints-check {{
                    {table} daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
                }}
                chain cluster-ips-check {{ {table} daddr @cluster-ips reject; }}
                chain filter-input {{
                    type filter hook input priority filter; policy accept;
                    ct state new jump nodeport-endpoints-check
                    ct state new jump service-endpoints-check
                }}
                chain filter-forward {{
                    type filter hook forward priority filter; policy accept;
                    ct state new jump service-endpoints-check
                    ct state new jump cluster-ips-check
                }}
                chain filter-output {{
                    type filter hook output priority filter; policy accept;
                    ct state new jump service-endpoints-check
                    ct state new jump cluster-ips-check
                }}
                chain nat-prerouting {{ type nat hook prerouting priority dstnat; policy accept; jump services; }}
                chain nat-output {{ type nat hook output priority -100; policy accept; jump services; }}
                chain nat-postrouting {{ type nat hook postrouting priority srcnat; policy accept; jump masquerading; }}
            }}\n",
            cluster_ips.join(", "),
            elements(&self.no_endpoint),
            elements(&self.no_endpoint_node_ports),
            self.chains,
        )
    }
}

/// The rules of the policy Local for clients in the cluster: pods and the node itself reach all endpoints.
fn local(table: &str, pods: &str, name: &str) -> String {
    format!(
        "{table} saddr {pods} goto service-{name}
        fib saddr type local jump mark-for-masquerade
        fib saddr type local goto service-{name}\n"
    )
}
