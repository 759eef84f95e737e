// SPDX-License-Identifier: GPL-2.0-or-later

//! A node with containerd, kubelet, kube-proxy and slipwayd, in a [`System`].

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

use super::control::{PROXY_TOKEN, kubelet_token, node_name};
use super::{Agent, Backend, Network, POD_CIDRS, Plan, PodState, Programs, SERVICE_CIDRS};
use crate::binaries::slipwayd;
use crate::chain::addresses_of;
use crate::cluster::ClusterNode;
use crate::image::{self, AGENT_ARCHIVE, ARCHIVE, PAUSE};
use crate::kube::ApiServer;
use crate::space::{CommandOutput, Space, quoted};
use crate::system::{Daemon, SHELL, System};

/// Where the system has Kubernetes' programs.
const KUBE: &str = "/opt/kube";
/// Where the system has the reference plugins.
const REFERENCE: &str = "/opt/reference";
/// The directory of the plugins.
const PLUGINS: &str = "/opt/cni/bin";
/// The command line of ctr for containerd's Kubernetes containers.
const CTR: [&str; 3] = ["ctr", "--namespace", "k8s.io"];
/// The directory of the network configuration.
const NETWORKS: &str = "/etc/cni/net.d";
/// The plugins' settings.
const SETTINGS: &str = "/etc/cni/slipway.json";
/// The directory of kubeconfigs and configurations.
const CONFIG: &str = "/etc/kubernetes";

/// Kernel settings that kubelet demands and would otherwise write, although they belong to the machine. kubelet reads
/// these values instead.
const KERNEL: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// The address of a cloud's metadata service, for which kubelet looks when it starts.
const METADATA: &str = "169.254.169.254";

/// A node. Its processes end when the `Worker` is dropped.
#[derive(Debug)]
pub struct Worker {
    daemons: BTreeMap<&'static str, Daemon>,
    system: System,
    /// The node's network and the state that survives a reboot.
    pub node: ClusterNode,
    network: Network,
    routers: [IpAddr; 2],
}

impl Worker {
    /// Boots the system and starts containerd with the images.
    pub(super) fn boot(programs: &Programs, node: ClusterNode, plan: &Plan, routers: [IpAddr; 2]) -> Self {
        let system = System::start(&node, &programs.packages);
        let mut worker =
            Self { daemons: BTreeMap::new(), system, node, network: plan.network.clone(), routers };
        worker.install(programs);
        worker.prepare();
        worker.start("containerd");
        let archives = [ARCHIVE].into_iter().chain(worker.is_daemon_set().then_some(AGENT_ARCHIVE));
        for archive in archives {
            let import = ["images", "import", "--snapshotter", "overlayfs", archive];
            worker.system.run(&[&CTR[..], &import].concat());
        }
        worker
    }

    /// The name of the worker's Node object.
    pub fn name(&self) -> String {
        node_name(self.node.number)
    }

    /// Fills the disk: programs, configurations and images.
    fn install(&self, programs: &Programs) {
        let path = |inside: &str| self.system.path(inside);
        self.node.run(|| {
            bind(&programs.kube, &path(KUBE));
            // The root is an overlay, and layers of an overlay cannot be on another overlay.
            let disk = path("/var/lib/containerd");
            make_dir(&disk);
            mount(Some("tmpfs"), &disk, Some("tmpfs"), MsFlags::empty(), Some("mode=0711"))
                .expect("mount a disk for containerd");
            for (name, bin) in [("mount", "usr/bin"), ("umount", "usr/bin")] {
                let link = path(bin).join(name);
                if !link.exists() {
                    symlink("busybox", link).expect("link a program of busybox");
                }
            }
            // podman's package installs a network configuration there.
            fs::remove_dir_all(path(NETWORKS)).expect("remove the networks of packages");
            make_dir(&path(NETWORKS));
            if self.is_daemon_set() {
                // The DaemonSet's init container installs the plugins.
                mount(Some("tmpfs"), &path(PLUGINS), Some("tmpfs"), MsFlags::empty(), None::<&str>)
                    .expect("mount an empty directory of plugins");
            } else {
                fs::copy(slipwayd(), path(PLUGINS).join("slipwayd")).expect("copy slipwayd");
            }
        });
        let bin_dir = match &self.network {
            Network::Slipway(..) => PLUGINS,
            Network::Reference(plugins) => {
                self.node.run(|| bind(plugins, &path(REFERENCE)));
                REFERENCE
            }
        };
        self.system.write("/etc/containerd/config.toml", containerd(bin_dir));
        self.system.write(&format!("{CONFIG}/kubelet.json"), self.kubelet().to_string());
        self.system.write(&format!("{CONFIG}/proxy.json"), self.proxy().to_string());
        if let Some(settings) = self.settings() {
            self.system.write(SETTINGS, settings.to_string());
        }
        image::make(&self.system);
        if self.is_daemon_set() {
            image::make_agent(&self.system);
        }
    }

    /// True if the agent is a pod of a DaemonSet.
    fn is_daemon_set(&self) -> bool {
        matches!(self.network, Network::Slipway(_, _, Agent::DaemonSet))
    }

    /// Does the preparations that every boot needs.
    fn prepare(&self) {
        self.system.make_cgroups();
        self.node.cmd(&format!("ip route add unreachable {METADATA}"));
        self.node.run(|| {
            for (index, (setting, value)) in KERNEL.iter().enumerate() {
                let file = self.system.path(&format!("/tmp/setting-{index}"));
                fs::write(&file, format!("{value}\n")).expect("write a kernel setting");
                bind_file(&file, &self.system.path(&format!("/proc/sys/{setting}")));
            }
        });
    }

    /// Starts kubelet and kube-proxy.
    pub(super) fn join(&mut self, server: &ApiServer<'_>) {
        for (program, token) in [("kubelet", &*kubelet_token(&self.name())), ("proxy", PROXY_TOKEN)] {
            self.system
                .write(&format!("{CONFIG}/{program}.conf"), server.kubeconfig_of(&json!({ "token": token })));
        }
        self.start("kubelet");
        self.start("kube-proxy");
    }

    /// Starts slipwayd for the first time.
    pub(super) fn start_agent(&mut self, server: &ApiServer<'_>, token: &str) {
        self.system
            .write(&format!("{CONFIG}/slipwayd.conf"), server.kubeconfig_of(&json!({ "token": token })));
        self.start("slipwayd");
    }

    /// Starts a program: `containerd`, `kubelet`, `kube-proxy` or `slipwayd`.
    pub fn start(&mut self, program: &'static str) {
        let words = self.words(program);
        // The shell moves itself to the node's version 2 control group, as a service manager would do.
        let group = self.system.unified_cgroup().map(|(_, daemons)| daemons.join("cgroup.procs"));
        let group = group.unwrap_or_else(|| PathBuf::from("/dev/null"));
        let script = format!("echo 0 > {} && exec \"$0\" \"$@\"", quoted(&group));
        let shell = [SHELL[0], SHELL[1], "-c", &script];
        let words: Vec<&str> = shell.into_iter().chain(words.iter().map(String::as_str)).collect();
        let daemon = self.system.daemon(program, &words);
        self.daemons.insert(program, daemon);
        if program == "containerd" {
            self.system.wait_for("containerd", || self.system.try_run(&["ctr", "version"]).code == Some(0));
        }
    }

    /// Kills a program with SIGKILL and waits until it is gone.
    pub fn kill(&mut self, program: &str) {
        let daemon = self.daemons.remove(program).expect("a started program");
        self.system.end(daemon, "KILL");
    }

    /// Cuts the power, and boots the node again with all of its programs.
    pub fn reboot(&mut self) {
        let programs: Vec<&'static str> = self.daemons.keys().copied().collect();
        self.daemons.clear();
        self.system.power_off();
        self.node.renew_network(self.routers);
        self.system.power_on((**self.node).clone());
        self.prepare();
        // containerd has to start first, and it is also the first in alphabetical order.
        programs.into_iter().for_each(|program| self.start(program));
    }

    /// The network of the node's pods.
    pub(super) fn network(&self) -> &Network {
        &self.network
    }

    /// The file names of the network configurations.
    pub fn networks(&self) -> Vec<String> {
        self.node.list(&self.system.path(NETWORKS).display().to_string())
    }

    /// The names of the files in the directory of plugins.
    pub(super) fn plugins(&self) -> Vec<String> {
        self.node.list(&self.system.path(PLUGINS).display().to_string())
    }

    /// The process ID of a container's first process, as the node's processes see it.
    pub fn process(&self, container: &str) -> String {
        let tasks = self.run(&[&CTR[..], &["tasks", "list"]].concat());
        let of_container = |line: &&str| line.split_whitespace().next() == Some(container);
        let pid = tasks.lines().find(of_container).and_then(|line| line.split_whitespace().nth(1));
        pid.unwrap_or_else(|| panic!("{container} does not run: {tasks}")).to_owned()
    }

    /// Runs a program to its end in the mount namespace of a container, with all rights. The container runtime is not
    /// used, because it runs in a chroot and would execute programs of the machine.
    pub fn run_in(&self, container: &str, words: &[&str]) -> String {
        let output = self.try_run_in(container, words);
        assert!(output.code == Some(0), "{}: {output}", words.join(" "));
        output.stdout.trim_end().to_owned()
    }

    /// Does the same as [`Worker::run_in`] for a program that may fail.
    pub fn try_run_in(&self, container: &str, words: &[&str]) -> CommandOutput {
        let process = self.process(container);
        let enter = ["/bin/busybox", "nsenter", "-t", &process, "-m", "-r", "-w", "--"];
        self.system.try_run(&[&enter[..], words].concat())
    }

    /// Replaces plugins during `body` by programs that report success and do nothing.
    pub fn with_idle_plugins<T>(&self, names: &[&str], body: impl FnOnce() -> T) -> T {
        let paths = names.iter().map(|name| self.system.path(PLUGINS).join(name));
        let moved: Vec<_> = paths.map(|path| (path.with_extension("away"), path)).collect();
        self.node.run(|| {
            for (away, path) in &moved {
                fs::rename(path, away).expect("move a plugin away");
                fs::write(path, "#!/bin/busybox sh\nexit 0\n").expect("write a plugin");
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("make it a program");
            }
        });
        let done = body();
        self.node.run(|| {
            for (away, path) in &moved {
                fs::rename(away, path).expect("move a plugin back");
            }
        });
        done
    }

    /// The container that has reserved an address according to host-local's file.
    pub fn reserved_by(&self, ip: IpAddr) -> String {
        let file = format!("/var/lib/cni/networks/{}/{ip}", self.network.name());
        let text = self.node.read(&file).unwrap_or_else(|| panic!("no {file}"));
        text.lines().next().unwrap_or_default().trim().to_owned()
    }

    /// True if the container runtime has a container.
    pub fn has_container(&self, id: &str) -> bool {
        self.run(&[&CTR[..], &["containers", "list", "--quiet"]].concat()).lines().any(|line| line == id)
    }

    /// Runs a program of the node to its end.
    pub fn run(&self, words: &[&str]) -> String {
        self.system.run(words)
    }

    /// The network namespace of a pod, which the runtime's record of an attachment names.
    pub(super) fn inside(&self, pod: &PodState) -> Space {
        let records = self.records();
        let is_of = |record: &&Value| {
            let args = record["cniArgs"].as_array().into_iter().flatten();
            let mut names = args.filter(|pair| pair[0] == "K8S_POD_NAME").map(|pair| &pair[1]);
            names.any(|name| *name == *pod.name) && addresses(record) == pod.ips
        };
        let record =
            records.iter().find(is_of).unwrap_or_else(|| panic!("no record of {pod:?}: {records:?}"));
        let interfaces = record["result"]["interfaces"].as_array().into_iter().flatten();
        let sandbox = interfaces.filter_map(|one| one["sandbox"].as_str()).find(|path| !path.is_empty());
        let sandbox = sandbox.unwrap_or_else(|| panic!("no namespace of {pod:?}: {record}"));
        self.node.namespace(&pod.name, &self.system.path(&sandbox.replace("/var/run/", "/run/")))
    }

    /// The runtime's records of attachments, which are libcni's cache.
    fn records(&self) -> Vec<Value> {
        let dir = "/var/lib/cni/results";
        let text =
            self.node.list(dir).into_iter().filter_map(|name| self.node.read(&format!("{dir}/{name}")));
        text.filter_map(|text| serde_json::from_str(&text).ok()).collect()
    }

    /// Writes the network configuration of the reference plugins, and adds routes to the pods of other nodes.
    pub(super) fn static_network(&self, ranges: &[Vec<String>], workers: &[Self]) {
        for (worker, ranges) in workers.iter().zip(ranges) {
            if worker.name() == self.name() {
                self.system
                    .write(&format!("{NETWORKS}/10-reference.conflist"), reference(ranges).to_string());
                continue;
            }
            for (range, via) in ranges.iter().zip(worker.node.addresses) {
                self.node.cmd(&format!("ip route add {range} via {via}"));
            }
        }
    }

    /// The plugins' settings, or none for the defaults.
    fn settings(&self) -> Option<Value> {
        let Network::Slipway(_, backend, _) = self.network else { return None };
        match backend {
            Backend::Nftables => None,
            Backend::Iptables | Backend::Ebpf => Some(json!({ "backend": backend.name() })),
        }
    }

    fn words(&self, program: &str) -> Vec<String> {
        let kube = |name: &str| format!("{KUBE}/{name}");
        let [v4, v6] = self.node.addresses;
        match program {
            "containerd" => vec!["containerd".to_owned()],
            "kubelet" => vec![
                kube(program),
                format!("--config={CONFIG}/kubelet.json"),
                format!("--kubeconfig={CONFIG}/kubelet.conf"),
                "--container-runtime=remote".to_owned(),
                "--container-runtime-endpoint=unix:///run/containerd/containerd.sock".to_owned(),
                format!("--hostname-override={}", self.name()),
                format!("--node-ip={v4},{v6}"),
            ],
            "kube-proxy" => vec![kube(program), format!("--config={CONFIG}/proxy.json")],
            "slipwayd" => {
                let Network::Slipway(tunnel, ..) = self.network else { panic!("{:?}", self.network) };
                let words = ["/bin/busybox", "env", "SLIPWAY_LOG=info", "/opt/cni/bin/slipwayd", "run"];
                let options = [
                    format!("--node-name={}", self.name()),
                    format!("--kubeconfig={CONFIG}/slipwayd.conf"),
                    format!("--cluster-cidr={POD_CIDRS}"),
                    format!("--service-cidr={SERVICE_CIDRS}"),
                    format!("--tunnel={tunnel}"),
                ];
                words.into_iter().map(str::to_owned).chain(options).collect()
            }
            other => panic!("{other} is no program of a node"),
        }
    }

    fn kubelet(&self) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
            "authorization": { "mode": "AlwaysAllow" },
            "cgroupDriver": "cgroupfs", "cgroupRoot": self.system.cgroup(), "enforceNodeAllocatable": [],
            "failSwapOn": false, "resolvConf": "", "featureGates": { "IPv6DualStack": true },
            // Evictions are disabled, because the disk and the memory belong to the machine.
            "evictionHard": {
                "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "kubeAPIQPS": 100, "kubeAPIBurst": 200, "eventRecordQPS": 0,
            // Short intervals, so that a node is ready as soon as its status is written, and a pod is gone with the
            // next synchronization.
            "nodeStatusUpdateFrequency": "2s", "syncFrequency": "10s",
        })
    }

    fn proxy(&self) -> Value {
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "mode": "iptables", "hostnameOverride": self.name(), "clusterCIDR": POD_CIDRS,
            "clientConnection": { "kubeconfig": format!("{CONFIG}/proxy.conf") },
            "featureGates": { "IPv6DualStack": true },
            // Values other than 0 would be written to settings of the initial network namespace, which a node in
            // another namespace cannot write.
            "conntrack": {
                "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            },
        })
    }
}

/// containerd's configuration, in version 2 of its format.
fn containerd(bin_dir: &str) -> String {
    format!(
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{PAUSE}\"\n\
         disable_apparmor = true\nrestrict_oom_score_adj = true\ntolerate_missing_hugetlb_controller = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"overlayfs\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{bin_dir}\"\nconf_dir = \"{NETWORKS}\"\n"
    )
}

/// The network configuration list that slipwayd would write, with the reference plugins.
fn reference(ranges: &[String]) -> Value {
    let ranges: Vec<Value> = ranges.iter().map(|range| json!([{ "subnet": range }])).collect();
    json!({
        "cniVersion": "0.4.0", "name": "reference",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "ranges": ranges,
                    "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
}

/// The addresses of a record, IPv4 first.
fn addresses(record: &Value) -> Vec<IpAddr> {
    let mut all = addresses_of(&record["result"]);
    all.sort();
    all
}

fn make_dir(path: &Path) {
    fs::create_dir_all(path).unwrap_or_else(|e| panic!("make {}: {e}", path.display()));
}

/// Binds a directory to a new one.
fn bind(from: &Path, to: &Path) {
    make_dir(to);
    bind_file(from, to);
}

fn bind_file(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .unwrap_or_else(|e| panic!("bind {} to {}: {e}", from.display(), to.display()));
}
