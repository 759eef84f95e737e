// SPDX-License-Identifier: GPL-2.0-or-later

//! A Kubernetes cluster: a control plane, and nodes with kubelet, containerd, kube-proxy and slipwayd.
//!
//! Each node is a [`System`](crate::system::System) on a node of a [`Cluster`], and containers are real ones. The only
//! mocks are six kernel settings that kubelet demands, because they belong to the machine and not to a namespace.
//!
//! Everything is in namespaces, control groups and memory, and disappears with the [`Kubernetes`] or its process. Only
//! the control groups of a process that was killed remain, empty.

mod control;
pub mod objects;
mod report;
mod state;
mod worker;

use std::net::IpAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Cluster, ClusterNode};
use crate::daemon::Daemon;
use crate::kube::{ApiServer, kube_programs};
use crate::pace::within;
use crate::space::Space;
use crate::system::node_packages;

pub use report::{MARK, Report};
pub use worker::Worker;

/// The pod ranges, from which each node gets one per family.
pub const POD_CIDRS: &str = "10.244.0.0/16,fd44::/48";
pub const SERVICE_CIDRS: &str = "10.96.0.0/16,fd96::/112";

const KUBE_PROGRAMS: [&str; 6] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet"];

/// The interval at which the API server is polled. Each request starts a program.
const LOOK: Duration = Duration::from_millis(250);

/// The programs of a cluster.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The directory with the programs of Kubernetes and etcd.
    pub kube: PathBuf,
    /// The root file system of nodes, with containerd.
    pub packages: PathBuf,
}

/// The backend of the dataplane, chosen in `/etc/cni/slipway.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The default, for which the file does not exist.
    Nftables,
    Iptables,
    Ebpf,
}

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ebpf => "ebpf",
        }
    }
}

/// How slipwayd runs on the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// A program next to kubelet, with the plugins installed beforehand.
    Program,
    /// The DaemonSet of `slipwayd render`, which also installs the plugins.
    DaemonSet,
}

#[derive(Debug, Clone)]
pub enum Network {
    /// Slipway: slipwayd with a value for its option `--tunnel`, and a backend.
    Slipway(&'static str, Backend, Agent),
    /// The reference plugins in a directory, with static routes.
    Reference(PathBuf),
}

impl Network {
    /// The network's name in the configuration.
    fn name(&self) -> &'static str {
        match self {
            Self::Slipway(..) => "slipway",
            Self::Reference(_) => "reference",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub nodes: u8,
    pub network: Network,
}

#[derive(Debug)]
pub struct Kubernetes<'l> {
    pub workers: Vec<Worker>,
    _control: [Daemon; 2],
    pub server: ApiServer<'l>,
    /// The link between the nodes, and the outside host.
    pub lan: &'l Cluster,
}

/// A pod as the API server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodState {
    pub name: String,
    /// The index of the pod's node in [`Kubernetes::workers`].
    pub node: usize,
    /// The pod's addresses, IPv4 first.
    pub ips: Vec<IpAddr>,
    /// True if all containers of the pod are ready.
    pub is_ready: bool,
    pub is_ending: bool,
    /// The runtime's ID of the pod's first container, empty before there is one.
    pub container: String,
    /// The number of restarts of that container.
    pub restarts: u64,
}

impl Programs {
    /// The programs that `cargo xtask test --kube` provides, or the name of the missing part for [`crate::skip!`].
    pub fn find() -> Result<Self, &'static str> {
        let kube = kube_programs("kubelet").ok_or("kubelet")?;
        if !KUBE_PROGRAMS.iter().all(|name| kube.join(name).is_file()) {
            return Err("kubelet");
        }
        let packages = node_packages("usr/bin/containerd").ok_or("containerd of Debian bookworm")?;
        Ok(Self { kube, packages })
    }
}

impl Kubernetes<'_> {
    /// Makes a cluster, runs `body` and removes the cluster.
    pub fn run(programs: &Programs, plan: &Plan, report: &Report, body: impl FnOnce(&mut Kubernetes<'_>)) {
        let mut lan = Cluster::without_pod_routes(plan.nodes, |_| {});
        let nodes = std::mem::take(&mut lan.nodes);
        body(&mut Kubernetes::start(programs, plan, &lan, nodes, report));
    }
}

impl<'l> Kubernetes<'l> {
    fn start(
        programs: &Programs,
        plan: &Plan,
        lan: &'l Cluster,
        nodes: Vec<ClusterNode>,
        report: &Report,
    ) -> Self {
        let tokens = control::tokens(plan.nodes);
        let server = ApiServer::start_for_nodes(&programs.kube, &lan.control, &tokens);
        // The systems boot concurrently with the API server.
        let mut workers: Vec<Worker> = report.step("the nodes boot, containerd has its images", || {
            thread::scope(|scope| {
                let boot =
                    |node| scope.spawn(move || Worker::boot(programs, node, plan, lan.outside.addresses));
                let booting: Vec<_> = nodes.into_iter().map(boot).collect();
                let joined = booting.into_iter().map(thread::ScopedJoinHandle::join);
                joined.map(|worker| worker.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
            })
        });
        report.step("the API server is ready", || server.wait());
        let control = control::start(&programs.kube, &server, &lan.control);
        for worker in &mut workers {
            worker.join(&server);
        }
        let mut cluster = Self { workers, _control: control, server, lan };
        cluster.make_network(plan, report);
        cluster
    }

    /// Waits until the kubelets have registered, and gives the nodes their network.
    fn make_network(&mut self, plan: &Plan, report: &Report) {
        report.claim("the kubelets register, and the nodes have no network: they are not ready", || {
            self.wait("registered nodes without a network", Duration::from_secs(120), |cluster| {
                cluster.node_objects().is_some_and(|nodes| {
                    nodes.len() == cluster.workers.len() && nodes.iter().all(waits_for_network)
                })
            });
        });
        match &plan.network {
            Network::Slipway(tunnel, _, Agent::DaemonSet) => {
                let claim = "the objects of `slipwayd render` alone make the network: the nodes become ready";
                report.claim(claim, || {
                    for worker in &self.workers {
                        assert_eq!(worker.networks(), [""; 0], "before the agent runs");
                        assert_eq!(worker.plugins(), [""; 0], "before the init container runs");
                    }
                    control::agent_objects(tunnel).iter().for_each(|object| self.create(object));
                    self.wait_ready();
                    for worker in &self.workers {
                        assert_eq!(worker.networks(), ["10-slipway.conflist"]);
                        assert!(worker.plugins().iter().any(|name| name == "portmap"));
                    }
                });
            }
            Network::Slipway(tunnel, _, Agent::Program) => {
                let token = control::agent_account(&self.server, tunnel);
                let claim = "slipwayd alone writes the network configuration, and the nodes become ready";
                report.claim(claim, || {
                    for worker in &mut self.workers {
                        assert_eq!(worker.networks(), [""; 0], "before the agent runs");
                        worker.start_agent(&self.server, &token);
                    }
                    self.wait_ready();
                    for worker in &self.workers {
                        assert_eq!(worker.networks(), ["10-slipway.conflist"]);
                    }
                });
            }
            Network::Reference(_) => {
                let nodes = self.node_objects().unwrap_or_default();
                let ranges: Vec<Vec<String>> = self
                    .workers
                    .iter()
                    .map(|worker| {
                        nodes.iter().filter(|node| name(node) == worker.name()).flat_map(pod_cidrs).collect()
                    })
                    .collect();
                for worker in &self.workers {
                    worker.static_network(&ranges, &self.workers);
                }
                self.wait_ready();
            }
        }
    }

    pub fn wait_ready(&self) {
        self.wait("ready nodes", Duration::from_secs(120), |cluster| {
            let nodes = cluster.node_objects().unwrap_or_default();
            nodes.len() == cluster.workers.len() && nodes.iter().all(is_ready)
        });
    }

    pub fn wait(&self, what: &str, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> Duration {
        let begin = Instant::now();
        while !done(self) {
            assert!(
                begin.elapsed() < within(limit),
                "{what}: not after {:?}\n{}",
                begin.elapsed(),
                self.describe()
            );
            thread::sleep(LOOK);
        }
        begin.elapsed()
    }

    pub fn create(&self, object: &Value) {
        self.server.create(&objects::collection(object), object);
    }

    pub fn delete(&self, object: &Value) {
        self.server.delete(&objects::path(object));
    }

    /// The pods with this value of the label `app`, sorted by name. None if the server does not reply.
    pub fn pods(&self, app: &str) -> Option<Vec<PodState>> {
        self.pods_at(&format!("{}/pods?labelSelector=app%3D{app}", objects::NAMESPACE))
    }

    /// The pods of slipwayd if a DaemonSet runs them, sorted by name. None if the server does not reply.
    pub fn agents(&self) -> Option<Vec<PodState>> {
        self.pods_at("/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name%3Dslipwayd")
    }

    /// Waits until the pods of slipwayd are ready, one on each node, and `done` is true of them. Returns them in the
    /// order of their nodes.
    pub fn wait_agents(&self, what: &str, done: impl Fn(&[PodState]) -> bool) -> Vec<PodState> {
        let mut found = Vec::new();
        self.wait(what, Duration::from_secs(180), |cluster| {
            found = cluster.agents().unwrap_or_default();
            found.sort_by_key(|pod| pod.node);
            let nodes = found.iter().map(|pod| pod.node);
            nodes.eq(0..cluster.workers.len())
                && found.iter().all(|pod| pod.is_ready && !pod.is_ending)
                && done(&found)
        });
        found
    }

    /// The pods of a collection, which may have a selector.
    fn pods_at(&self, path: &str) -> Option<Vec<PodState>> {
        let list = self.server.look(path)?;
        let items = list["items"].as_array()?;
        let mut pods: Vec<PodState> = items.iter().filter_map(|pod| self.pod(pod)).collect();
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        // A pod that has no node yet makes the whole list unusable, so that no pod is left out silently.
        (pods.len() == items.len()).then_some(pods)
    }

    fn pod(&self, pod: &Value) -> Option<PodState> {
        let node = pod["spec"]["nodeName"].as_str()?;
        let ips = pod["status"]["podIPs"].as_array().into_iter().flatten();
        let mut ips: Vec<IpAddr> = ips.filter_map(|ip| ip["ip"].as_str()?.parse().ok()).collect();
        ips.sort();
        let container = &pod["status"]["containerStatuses"][0];
        let id = container["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://"));
        Some(PodState {
            name: name(pod).to_owned(),
            node: self.workers.iter().position(|worker| worker.name() == node)?,
            ips,
            is_ready: is_ready(pod),
            is_ending: pod["metadata"]["deletionTimestamp"].is_string(),
            container: id.unwrap_or_default().to_owned(),
            restarts: container["restartCount"].as_u64().unwrap_or_default(),
        })
    }

    /// Waits until an app has this number of pods, all of them ready with addresses of both families, and none
    /// terminating.
    pub fn wait_pods(&self, app: &str, count: usize) -> Vec<PodState> {
        let mut found = Vec::new();
        self.wait(&format!("{count} pods of {app}"), Duration::from_secs(180), |cluster| {
            found = cluster.pods(app).unwrap_or_default();
            found.len() == count
                && found.iter().all(|pod| pod.is_ready && !pod.is_ending && pod.ips.len() == 2)
        });
        found
    }

    /// Waits until an app has no pods any more.
    pub fn wait_no_pods(&self, app: &str) {
        self.wait_none(app, |cluster| cluster.pods(app));
    }

    /// Waits until slipwayd has no pods any more.
    pub fn wait_no_agents(&self) {
        self.wait_none("slipwayd", Self::agents);
    }

    /// Waits until there are no pods. The limit is three of the intervals in which a kubelet removes ended containers
    /// (`ContainerGCPeriod`), because a pod stays in the API server as long as one of its containers is left.
    fn wait_none(&self, app: &str, pods: impl Fn(&Self) -> Option<Vec<PodState>>) {
        self.wait(&format!("no pods of {app}"), Duration::from_secs(180), |cluster| {
            pods(cluster).is_some_and(|pods| pods.is_empty())
        });
    }

    /// The network namespace of a pod, found through the runtime's record of its sandbox.
    pub fn inside(&self, pod: &PodState) -> Space {
        self.workers[pod.node].inside(pod)
    }

    /// The host outside the cluster.
    pub fn outside(&self) -> &Space {
        &self.lan.outside
    }

    fn node_objects(&self) -> Option<Vec<Value>> {
        self.server.look("/api/v1/nodes")?["items"].as_array().cloned()
    }

    /// Nodes and pods with their conditions, for the report of a failure.
    fn describe(&self) -> String {
        let mut text = String::new();
        for path in ["/api/v1/nodes", "/api/v1/pods"] {
            let list = self.server.look(path).unwrap_or_default();
            for object in list["items"].as_array().into_iter().flatten() {
                let (spec, status) = (&object["spec"], &object["status"]);
                text += &format!(
                    "{path} {}: {} {} {} {} {}\n",
                    name(object),
                    spec["nodeName"],
                    spec["podCIDRs"],
                    status["conditions"],
                    status["initContainerStatuses"],
                    status["containerStatuses"]
                );
            }
        }
        for name in control::LOGS {
            text += &format!(
                "--- {name} ---\n{}",
                self.lan.control.try_cmd(&format!("tail -n 15 {name}")).stdout
            );
        }
        text
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn pod_cidrs(node: &Value) -> Vec<String> {
    let all = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    all.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn ready_condition(object: &Value) -> Option<&Value> {
    object["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == "Ready")
}

fn is_ready(object: &Value) -> bool {
    ready_condition(object).is_some_and(|one| one["status"] == "True")
}

/// True if the controller manager has given the node its ranges, and the node's kubelet reports that the network is
/// missing.
fn waits_for_network(node: &Value) -> bool {
    let message = ready_condition(node).and_then(|one| one["message"].as_str()).unwrap_or_default();
    pod_cidrs(node).len() == 2 && message.contains("cni plugin not initialized")
}
