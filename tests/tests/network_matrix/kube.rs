// SPDX-License-Identifier: GPL-2.0-or-later

//! Kubernetes' own programs: an API server that holds the Services, and a kube-proxy on each node.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{Cluster, ClusterNode, Daemon, Member, Space, at, within};

use crate::services::{SERVICES, Service};

/// The programs of the control plane, in the directory that `SLIPWAY_KUBE_DIR` names; `cargo xtask test` sets it.
const CONTROL_PLANE: [&str; 2] = ["kube-apiserver", "etcd"];

/// The feature that [`programs`] checks, for [`slipway_tests::skip!`].
pub(crate) const KUBE_PROXY: &str = "kube-proxy";

const TOKEN: &str = "matrix";
pub(crate) const CORE: &str = "/api/v1";
pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1beta1";

/// The directory with the programs; none without kube-proxy.
pub(crate) fn programs() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("SLIPWAY_KUBE_DIR")?);
    dir.join("kube-proxy").is_file().then_some(dir)
}

/// True if the directory has an API server. VMs have none.
pub(crate) fn has_api_server(programs: &Path) -> bool {
    CONTROL_PLANE.iter().all(|name| programs.join(name).is_file())
}

/// An API server with its etcd, in the control plane's namespace.
pub(crate) struct ApiServer<'a> {
    control: &'a Member,
    /// Its address, for kube-proxy.
    pub(crate) url: String,
    server: Daemon,
    _etcd: Daemon,
}

impl<'a> ApiServer<'a> {
    /// Starts etcd and the server, which needs some seconds until [`ApiServer::wait`] returns.
    pub(crate) fn start(programs: &Path, control: &'a Member) -> Self {
        let [v4, _] = control.addresses;
        // The server looks for the link of its default route.
        control.cmd("ip route add default dev eth0");
        control.run(|| {
            std::fs::create_dir("/run/kube").expect("create /run/kube");
            let tokens = format!("{TOKEN},admin,1,system:masters\n");
            std::fs::write("/run/kube/tokens", tokens).expect("write the tokens");
            std::fs::write("/run/kube/key", key()).expect("write the key");
        });
        let etcd = control.daemon(
            programs.join("etcd"),
            &[
                "--data-dir=/run/kube/etcd",
                "--unsafe-no-fsync=true",
                "--listen-peer-urls=http://127.0.0.1:2380",
            ],
            "/run/kube/etcd.log",
        );
        let address = format!("--bind-address={v4}");
        let advertised = format!("--advertise-address={v4}");
        let server = control.daemon(
            programs.join("kube-apiserver"),
            &[
                "--etcd-servers=http://127.0.0.1:2379",
                "--cert-dir=/run/kube/certificates",
                "--secure-port=6443",
                &address,
                &advertised,
                "--token-auth-file=/run/kube/tokens",
                "--authorization-mode=AlwaysAllow",
                "--disable-admission-plugins=ServiceAccount",
                "--service-cluster-ip-range=10.96.0.0/16,fd96::/112",
                // A load balancer with TCP and UDP ports is an alpha feature in this version.
                "--feature-gates=IPv6DualStack=true,MixedProtocolLBService=true",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-account-key-file=/run/kube/key",
                "--service-account-signing-key-file=/run/kube/key",
            ],
            "/run/kube/apiserver.log",
        );
        Self { control, url: format!("https://{v4}:6443"), server, _etcd: etcd }
    }

    /// Waits until it is ready.
    pub(crate) fn wait(&self) {
        let ready = || self.curl("GET", "application/json", "/readyz", "").0 == Some(0);
        wait_until("the API server", self.control, "/run/kube/apiserver.log", &self.server, ready);
    }

    /// Creates the nodes, the Services and their endpoints.
    pub(crate) fn publish(&self, cluster: &Cluster) {
        for node in &cluster.nodes {
            self.create(&format!("{CORE}/nodes"), &node_object(node));
        }
        for service in &SERVICES {
            let path = format!("{CORE}/namespaces/default/services");
            self.create(&path, &service.object());
            let status = json!({"status": service.status()}).to_string();
            let at = format!("{path}/{}/status", service.name);
            self.expect("PATCH", "application/merge-patch+json", &at, &status);
            let endpoint = service.endpoint(cluster.nodes[0].addresses);
            for (family, ip) in ["IPv4", "IPv6"].into_iter().zip(endpoint) {
                let slice = service.slice(family, ip, &name_of(&cluster.nodes[0]));
                self.create(&format!("{SLICES}/namespaces/default/endpointslices"), &slice);
            }
        }
    }

    fn create(&self, path: &str, object: &Value) {
        self.expect("POST", "application/json", path, &object.to_string());
    }

    fn expect(&self, method: &str, kind: &str, path: &str, body: &str) {
        let (code, reply) = self.curl(method, kind, path, body);
        assert_eq!(code, Some(0), "{method} {path}: {reply}\n{body}");
    }

    /// The exit code of curl, and the server's reply.
    fn curl(&self, method: &str, kind: &str, path: &str, body: &str) -> (Option<i32>, String) {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail-with-body", "--insecure"]);
        command.args(["--max-time", &within(Duration::from_secs(20)).as_secs().to_string()]);
        command.args(["--oauth2-bearer", TOKEN, "--request", method]);
        command.args(["--header", &format!("Content-Type: {kind}"), "--data-binary", "@-"]);
        command.arg(format!("{}{path}", self.url));
        let output = self.control.exec(command, body.as_bytes());
        (output.code, output.stdout + &output.stderr)
    }
}

/// A key for the tokens of service accounts, which no test uses: P-256, as RFC 5915 writes it.
fn key() -> String {
    use base64::Engine as _;
    let secret = [7; 32];
    let mut der = vec![0x30, 0x31, 2, 1, 1, 4, 0x20];
    der.extend(secret);
    der.extend([0xa0, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]);
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n")
}

/// The node as an object.
pub(crate) fn node_object(node: &ClusterNode) -> Value {
    let addresses = node.addresses.map(|ip| json!({"type": "InternalIP", "address": ip}));
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name_of(node)},
        "status": {"addresses": addresses},
    })
}

/// The name of the node's object, and its value of `kubernetes.io/hostname`.
pub(crate) fn name_of(node: &ClusterNode) -> String {
    format!("node{}", node.number)
}

/// A mode of kube-proxy.
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
            "users": [{"name": "matrix", "user": {"token": TOKEN}}],
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
            // Other values are settings of the first network namespace, which a node in a namespace cannot write.
            "conntrack": {
                "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            },
        })
        .to_string(),
    );
    // It calls ipset, which is there with its library.
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
    wait_until("kube-proxy", node, "/run/kube/proxy.log", proxy, written);
}

fn has_rules(node: &ClusterNode) -> bool {
    let chain_of = |service: &Service| format!("\"default/{}:", service.name);
    ["iptables-save", "ip6tables-save"].iter().all(|tool| {
        let rules = node.cmd(&format!("{tool} -t nat"));
        let targets: Vec<&str> = rules.lines().filter(|line| line.contains("--to-destination")).collect();
        SERVICES.iter().all(|service| targets.iter().any(|line| line.contains(&chain_of(service))))
    })
}

/// True if IPVS has a server for each clusterIP. The rules, which kube-proxy writes last, refer to its sets.
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

fn wait_until(name: &str, place: &Space, log: &str, program: &Daemon, ready: impl Fn() -> bool) {
    let begin = Instant::now();
    while !ready() {
        assert!(
            program.runs() && begin.elapsed() < within(Duration::from_secs(240)),
            "{name} is not ready after {:?}:\n{}",
            begin.elapsed(),
            place.cmd(&format!("tail -n 40 {log}")),
        );
        // Each look starts programs, which take processor time of the one that is waited for.
        thread::sleep(within(Duration::from_millis(100)));
    }
}

/// Writes the rules that kubelet writes for kube-proxy: it drops what kube-proxy marks.
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
