// SPDX-License-Identifier: GPL-2.0-or-later

//! The Services of the matrix. Each has a single endpoint, so that it is known which server must reply.

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::Proto;

use crate::world::SERVER;

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    /// The clusterIPs, IPv4 and IPv6.
    pub(crate) cluster_ips: [&'static str; 2],
    pub(crate) ports: &'static [Port],
    /// The value of `externalTrafficPolicy`.
    pub(crate) policy: &'static str,
    /// The Service's addresses at the load balancer, IPv4 and IPv6. The balancer leads those at index 0 through the
    /// first node, and those at index 1 through the second.
    pub(crate) balancers: [[&'static str; 2]; 2],
    /// True if the endpoint is a server of the first node itself, false if it is the pod.
    pub(crate) on_node: bool,
}

/// A port of a [`Service`], for TCP and UDP.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) port: u16,
    pub(crate) node: u16,
    pub(crate) target: u16,
}

const fn port(port: u16, node: u16, target: u16) -> Port {
    Port { port, node, target }
}

/// The first port of each kind is remapped, the second one is not.
pub(crate) const CLUSTER: Service = Service {
    name: "web",
    cluster_ips: ["10.96.0.10", "fd96::10"],
    ports: &[port(8000, 30080, 80), port(30088, 30088, 30088)],
    policy: "Cluster",
    balancers: [["198.51.100.11", "2001:db8:1b::11"], ["198.51.100.12", "2001:db8:1b::12"]],
    on_node: false,
};
pub(crate) const LOCAL: Service = Service {
    name: "web-local",
    cluster_ips: ["10.96.0.20", "fd96::20"],
    ports: &[port(8000, 31080, 80), port(31088, 31088, 31088)],
    policy: "Local",
    balancers: [["198.51.100.21", "2001:db8:1b::21"], ["198.51.100.22", "2001:db8:1b::22"]],
    on_node: false,
};
pub(crate) const ON_NODE: Service = Service {
    name: "host",
    cluster_ips: ["10.96.0.30", "fd96::30"],
    ports: &[port(8000, 32000, 7000), port(7000, 32001, 7000)],
    policy: "Cluster",
    balancers: [["198.51.100.31", "2001:db8:1b::31"], ["198.51.100.32", "2001:db8:1b::32"]],
    on_node: true,
};

/// The port on which kube-proxy reports whether a node has an endpoint of [`LOCAL`].
const HEALTH_CHECK_PORT: u16 = 31099;

pub(crate) const SERVICES: [Service; 3] = [CLUSTER, LOCAL, ON_NODE];

impl Service {
    /// The Service as an object for the API server.
    pub(crate) fn object(&self) -> Value {
        let port = |port: &Port, proto: Proto| {
            json!({
                "name": port.name(proto), "protocol": proto.name().to_uppercase(), "port": port.port,
                "targetPort": port.target, "nodePort": port.node,
            })
        };
        let mut object = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": self.name},
            "spec": {
                "type": "LoadBalancer", "externalTrafficPolicy": self.policy,
                "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
                "clusterIP": self.cluster_ips[0], "clusterIPs": self.cluster_ips,
                "ports": self.each(port),
            },
        });
        if self.policy == LOCAL.policy {
            // Otherwise the API server would choose a port at random, possibly that of the next Service.
            object["spec"]["healthCheckNodePort"] = HEALTH_CHECK_PORT.into();
        }
        object
    }

    /// The Service's status, with the load balancer's addresses.
    pub(crate) fn status(&self) -> Value {
        let balancer: Vec<Value> = self.balancers.iter().flatten().map(|ip| json!({"ip": ip})).collect();
        json!({"loadBalancer": {"ingress": balancer}})
    }

    pub(crate) fn slice(&self, family: &str, endpoint: IpAddr, node: &str) -> Value {
        let port = |port: &Port, proto: Proto| {
            json!({
                "name": port.name(proto), "protocol": proto.name().to_uppercase(), "port": port.target,
            })
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{}", self.name, family.to_lowercase()),
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "addressType": family,
            "endpoints": [{
                "addresses": [endpoint], "conditions": {"ready": true},
                "topology": {"kubernetes.io/hostname": node},
            }],
            "ports": self.each(port),
        })
    }

    /// The Service's ports at clusterIPs and load balancers.
    pub(crate) fn own_ports(&self) -> Vec<u16> {
        self.ports.iter().map(|port| port.port).collect()
    }

    pub(crate) fn node_ports(&self) -> Vec<u16> {
        self.ports.iter().map(|port| port.node).collect()
    }

    /// The addresses of the server behind the Service, given those of the first node.
    pub(crate) fn endpoint(&self, node: [IpAddr; 2]) -> [IpAddr; 2] {
        if self.on_node { node } else { SERVER.map(|ip| ip.parse().expect("an address")) }
    }

    fn each(&self, describe: impl Fn(&Port, Proto) -> Value) -> Vec<Value> {
        self.ports.iter().flat_map(|port| Proto::ALL.map(|proto| describe(port, proto))).collect()
    }
}

impl Port {
    fn name(&self, proto: Proto) -> String {
        format!("{}-{}", proto.name(), self.port)
    }
}
