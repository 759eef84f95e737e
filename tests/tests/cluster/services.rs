// SPDX-License-Identifier: GPL-2.0-or-later

//! Services that kube-proxy provides between pods of two nodes, whose agents use plain routes or WireGuard.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use slipway_tests::{
    API_SERVER, ApiServer, ClusterNode, Daemon, Proto, Sniffer, WIREGUARD, at, has_api_server, has_wireguard,
    kube_programs, needs, skip, wait_until_ready,
};
use slipwayd::cluster::desired::TunnelMode;

use crate::agents::{Agents, SERVED, Web};
use crate::encryption::in_clear_text;
use crate::{CLUSTER_CIDRS, Lab, WIREGUARD_PORT};

const NAME: &str = "web";
const CLUSTER_IPS: [&str; 2] = ["10.96.0.50", "fd96::50"];
const PORT: u16 = 8000;
const NODE_PORT: u16 = 30080;
const PROXY_CONFIG: &str = "/run/kube/proxy";
const PROXY_LOG: &str = "/run/kube/proxy.log";

/// The control for the encrypted case, in which an observer does see the packets of pods.
#[test]
fn of_kube_proxy_reach_pods_of_other_nodes_by_plain_routes() {
    let Some(programs) = with_proxy().filter(|dir| has_api_server(dir)) else { skip!(API_SERVER) };
    let (in_clear_text, encrypted) = reach_pods_of_other_nodes(&programs, "auto");
    assert!(in_clear_text >= 16 && encrypted == 0, "{in_clear_text}, {encrypted}");
}

#[test]
fn of_kube_proxy_reach_pods_of_other_nodes_by_wireguard() {
    needs!(has_wireguard(), WIREGUARD);
    let Some(programs) = with_proxy() else { skip!(API_SERVER) };
    let (in_clear_text, encrypted) = reach_pods_of_other_nodes(&programs, "wireguard");
    assert!(in_clear_text == 0 && encrypted >= 16, "{in_clear_text}, {encrypted}");
}

/// The directory with the API server's programs and kube-proxy, even on a slow machine.
fn with_proxy() -> Option<PathBuf> {
    kube_programs("kube-proxy")
        .filter(|dir| ["etcd", "kube-apiserver"].iter().all(|name| dir.join(name).is_file()))
}

/// Sends requests to a Service that has a pod on node 2. Returns how many frames on the link are packets of pods, and
/// how many are WireGuard's.
fn reach_pods_of_other_nodes(programs: &Path, path: &str) -> (usize, usize) {
    let lab = Lab::new(2, TunnelMode::Auto);
    let server = ApiServer::start(programs, &lab.cluster.control);
    server.wait();
    let agents = Agents::start(&lab, &server, &server.kubeconfig(), path, &[]);
    let webs = [1, 2].map(|number| {
        Web::new(lab.node(number), &lab.network(number), &format!("web-{number}"), 8080 + u16::from(number))
    });
    publish(&server, &webs[1].addresses);
    let proxies = [1, 2].map(|number| proxy(programs, lab.node(number)));
    for (number, proxy) in [1, 2].into_iter().zip(&proxies) {
        let node = lab.node(number);
        let written = || {
            ["iptables-save", "ip6tables-save"]
                .iter()
                .all(|tool| node.cmd(&format!("{tool} -t nat")).matches("--to-destination").count() >= 2)
        };
        wait_until_ready("kube-proxy", node, PROXY_LOG, proxy, written);
    }
    let sniffer = Sniffer::new(lab.cluster.lan());
    let [one, other] = &webs;
    for proto in Proto::ALL {
        for ip in CLUSTER_IPS.map(|ip| ip.parse::<IpAddr>().expect("an address")) {
            let answer = one.pod.expect(proto, at(ip, PORT), &other.name);
            assert!(one.addresses.contains(&answer.peer.ip()), "a pod is seen as {}", answer.peer);
            lab.node(1).expect(proto, at(ip, PORT), &other.name);
        }
        for ip in lab.node(1).addresses {
            let answer = lab.cluster.outside.expect(proto, at(ip, NODE_PORT), &other.name);
            let outside = &lab.cluster.outside.addresses;
            assert!(!outside.contains(&answer.peer.ip()), "masqueraded, for the way back: {}", answer.peer);
        }
        for ip in lab.cluster.outside.addresses {
            let _server = lab.cluster.outside.serve(proto, &at(ip, 9000).to_string(), "outside");
            let answer = one.pod.expect(proto, at(ip, 9000), "outside");
            assert!(lab.node(1).addresses.contains(&answer.peer.ip()), "seen as {}", answer.peer);
        }
    }
    agents.assert_running();
    let frames = sniffer.frames();
    let encrypted = frames.iter().filter(|frame| frame.is_udp_to(WIREGUARD_PORT)).count();
    (in_clear_text(&frames, &[1, 2]), encrypted)
}

/// Creates a Service with a single pod.
fn publish(server: &ApiServer<'_>, pod: &[IpAddr]) {
    let ports = |each: fn(&str) -> Value| ["TCP", "UDP"].map(each);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": NAME },
        "spec": {
            "type": "NodePort", "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
            "clusterIP": CLUSTER_IPS[0], "clusterIPs": CLUSTER_IPS,
            "ports": ports(|protocol| json!({
                "name": protocol.to_lowercase(), "protocol": protocol, "port": PORT, "targetPort": SERVED,
                "nodePort": NODE_PORT,
            })),
        },
    });
    server.create("/api/v1/namespaces/default/services", &service);
    for (family, ip) in ["IPv4", "IPv6"].into_iter().zip(pod) {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1beta1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{NAME}-{}", family.to_lowercase()),
                "labels": { "kubernetes.io/service-name": NAME },
            },
            "addressType": family,
            "endpoints": [{ "addresses": [ip], "conditions": { "ready": true } }],
            "ports": ports(|protocol| json!({
                "name": protocol.to_lowercase(), "protocol": protocol, "port": SERVED,
            })),
        });
        server.create("/apis/discovery.k8s.io/v1beta1/namespaces/default/endpointslices", &slice);
    }
}

/// Starts kube-proxy on a node, with the kubeconfig of the node's agent.
fn proxy(programs: &Path, node: &ClusterNode) -> Daemon {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "iptables", "hostnameOverride": format!("node-{}", node.number),
        "clusterCIDR": CLUSTER_CIDRS.join(","),
        "clientConnection": { "kubeconfig": crate::api::KUBECONFIG },
        "featureGates": { "IPv6DualStack": true },
        // Values other than 0 would be written to settings of the initial network namespace, which a node in another
        // namespace cannot write.
        "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
    });
    node.write(PROXY_CONFIG, config.to_string());
    node.daemon(programs.join("kube-proxy"), &[&format!("--config={PROXY_CONFIG}")], PROXY_LOG)
}
