// SPDX-License-Identifier: GPL-2.0-or-later

//! Kubernetes' own programs: objects for an API server, and a kube-proxy on each node.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use slipway_tests::{
    ApiServer, Cluster, ClusterNode, Daemon, KUBE_TOKEN, at, kube_programs, wait_until_ready,
};

use crate::services::{SERVICES, Service};

/// The feature that [`programs`] checks, for [`slipway_tests::skip!`].
pub(crate) const KUBE_PROXY: &str = "kube-proxy";

pub(crate) const CORE: &str = "/api/v1";
pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1beta1";

/// The directory with the programs, or none without kube-proxy.
pub(crate) fn programs() -> Option<PathBuf> {
    kube_programs("kube-proxy")
}

/// Creates the nodes, the Services and their endpoints.
pub(crate) fn publish(server: &ApiServer<'_>, cluster: &Cluster) {
    for node in &cluster.nodes {
        server.create(&format!("{CORE}/nodes"), &node_object(node));
    }
    for service in &SERVICES {
        let path = format!("{CORE}/namespaces/default/services");
        server.create(&path, &service.object());
        server.patch(&format!("{path}/{}/status", service.name), &json!({"status": service.status()}));
        let endpoint = service.endpoint(cluster.nodes[0].addresses);
        for (family, ip) in ["IPv4", "IPv6"].into_iter().zip(endpoint) {
            let slice = service.slice(family, ip, &name_of(&cluster.nodes[0]));
            server.create(&format!("{SLICES}/namespaces/default/endpointslices"), &slice);
        }
    }
}

pub(crate) fn node_object(node: &ClusterNode) -> Value {
    let addresses = node.addresses.map(|ip| json!({"type": "InternalIP", "address": ip}));
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name_of(node)},
        "status": {"addresses": addresses},
    })
}

/// The name of the node's object, which is also its value of `kubernetes.io/hostname`.
pub(crate) fn name_of(node: &ClusterNode) -> String {
    format!("node{}", node.number)
}

/// A mode in which kube-proxy works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Iptables,
    Ipvs,
}

/// Starts kube-proxy on a node. It reads Services and their endpoints from the server at `url`.
pub(crate) fn proxy(programs: &Path, node: &ClusterNode, url: &str, mode: Mode) -> Daemon {
    let mode = match mode {
        Mode::Iptables => "iptables",
        Mode::Ipvs => "ipvs",
    };
    node.write(
        "/run/kube/config",
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "matrix",
            "clusters": [
                {"name": "matrix", "cluster": {"server": url, "insecure-skip-tls-verify": url.starts_with("https")}},
            ],
            "users": [{"name": "matrix", "user": {"token": KUBE_TOKEN}}],
            "contexts": [{"name": "matrix", "context": {"cluster": "matrix", "user": "matrix"}}],
        })
        .to_string(),
    );
    node.write(
        "/run/kube/proxy",
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "mode": mode, "hostnameOverride": name_of(node),
            "clientConnection": {
                "kubeconfig": "/run/kube/config",
                "contentType": "application/json", "acceptContentTypes": "application/json",
            },
            "clusterCIDR": "10.244.0.0/16,fd44::/48",
            "featureGates": {"IPv6DualStack": true},
            // Values other than 0 would be written to settings of the initial network namespace, which a node in
            // another namespace cannot write.
            "conntrack": {
                "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            },
        })
        .to_string(),
    );
    // kube-proxy calls ipset, which is in this directory with its library.
    let programs = programs.display();
    let path = std::env::var("PATH").unwrap_or_default();
    node.daemon(
        "env",
        &[
            &format!("PATH={path}:{programs}"),
            &format!("LD_LIBRARY_PATH={programs}"),
            &format!("{programs}/kube-proxy"),
            "--config=/run/kube/proxy",
            "--v=2",
        ],
        "/run/kube/proxy.log",
    )
}

/// Waits until kube-proxy has written the rules of all Services, in both families.
pub(crate) fn wait_for_rules(node: &ClusterNode, proxy: &Daemon, mode: Mode) {
    let written = || match mode {
        Mode::Iptables => has_rules(node),
        Mode::Ipvs => has_virtual_servers(node),
    };
    wait_until_ready("kube-proxy", node, "/run/kube/proxy.log", proxy, written);
}

fn has_rules(node: &ClusterNode) -> bool {
    let chain_of = |service: &Service| format!("\"default/{}:", service.name);
    ["iptables-save", "ip6tables-save"].iter().all(|tool| {
        let rules = node.cmd(&format!("{tool} -t nat"));
        let targets: Vec<&str> = rules.lines().filter(|line| line.contains("--to-destination")).collect();
        SERVICES.iter().all(|service| targets.iter().any(|line| line.contains(&chain_of(service))))
    })
}

/// True if IPVS has a server for each clusterIP. The rules, which kube-proxy writes last, refer to kube-proxy's sets.
fn has_virtual_servers(node: &ClusterNode) -> bool {
    let servers = node.cmd("ipvsadm -Sn");
    let is_served = |ip: &str, port: u16| {
        let ip: IpAddr = ip.parse().expect("an address");
        ["-t", "-u"].iter().all(|proto| servers.contains(&format!("-a {proto} {} -r", at(ip, port))))
    };
    let all_served = |service: &Service| {
        let ports = service.own_ports();
        service.cluster_ips.iter().all(|ip| ports.iter().all(|port| is_served(ip, *port)))
    };
    let has_rules = |tool: &&str| node.cmd(&format!("{tool} -t nat")).contains("--match-set KUBE-");
    SERVICES.iter().all(all_served) && ["iptables-save", "ip6tables-save"].iter().all(has_rules)
}

/// Writes the rules that kubelet writes for kube-proxy, which drop the packets that kube-proxy marks.
pub(crate) fn kubelet(node: &ClusterNode) {
    for tool in ["iptables", "ip6tables"] {
        node.cmd(&format!("{tool} -t mangle -N KUBE-KUBELET-CANARY"));
        node.cmd_input(
            &format!("{tool}-restore --noflush"),
            "*nat\n\
             :KUBE-MARK-DROP - [0:0]\n\
             -A KUBE-MARK-DROP -j MARK --or-mark 0x8000\n\
             COMMIT\n\
             *filter\n\
             :KUBE-FIREWALL - [0:0]\n\
             -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\n\
             -I INPUT -j KUBE-FIREWALL\n\
             -I OUTPUT -j KUBE-FIREWALL\n\
             COMMIT\n",
        );
    }
}
