// SPDX-License-Identifier: GPL-2.0-or-later

//! kubelet's network plugins with real pods: the exec driver, the CNI driver and kubenet.

mod commands;
mod configurations;
mod drivers;
mod kubenet;
mod pod_cidr;
mod promiscuous;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use cni_runtime::kubelet::{BoxError, HookError, Host, Manager, Pod, PodNetworkStatus, Purpose};
use cni_spec::PortMapping;
use slipway_tests::{Node, Space};
use slipwayd::network_plugin::{CniDirectories, KubeletOptions};

/// A node with the pods that its kubelet knows.
struct Kubelet {
    node: Node,
    sandboxes: Arc<Sandboxes>,
}

/// The runtime's sandboxes, each with its namespace and ports, by ID.
#[derive(Default)]
struct Sandboxes(Mutex<BTreeMap<String, Sandbox>>);

#[derive(Clone)]
struct Sandbox {
    netns: PathBuf,
    ports: Vec<PortMapping>,
}

impl Sandboxes {
    fn get(&self, id: &str) -> Result<Sandbox, BoxError> {
        let all = self.0.lock().expect("not poisoned");
        all.get(id).cloned().ok_or_else(|| format!("no sandbox {id}").into())
    }
}

impl Host for Sandboxes {
    fn netns(&self, sandbox_id: &str) -> Result<PathBuf, BoxError> {
        Ok(self.get(sandbox_id)?.netns)
    }

    fn port_mappings(&self, sandbox_id: &str) -> Result<Vec<PortMapping>, BoxError> {
        // A sandbox that no longer exists publishes no ports.
        Ok(self.get(sandbox_id).map(|sandbox| sandbox.ports).unwrap_or_default())
    }
}

impl Kubelet {
    fn new() -> Self {
        let node = Node::new();
        // No test may load a module into the machine's kernel.
        if Path::new("/sbin/modprobe").exists() {
            node.cmd("mount --bind /bin/true /sbin/modprobe");
        }
        Self { node, sandboxes: Arc::default() }
    }

    /// Runs a part of kubelet on the node.
    fn run<T: Send, F: Future<Output = T>>(&self, work: impl FnOnce() -> F + Send) -> T {
        self.node.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a tokio runtime").block_on(work())
        })
    }

    fn options(&self, plugin: &str) -> KubeletOptions {
        KubeletOptions { network_plugin: Some(plugin.to_owned()), ..KubeletOptions::default() }
    }

    fn directories(&self) -> CniDirectories {
        CniDirectories {
            plugins: vec![self.node.bin().to_owned()],
            configurations: "/run/net.d".into(),
            cache: "/var/lib/cni".into(),
        }
    }

    fn start(&self, options: &KubeletOptions) -> Manager {
        self.start_in(options, &self.directories())
    }

    fn start_in(&self, options: &KubeletOptions, directories: &CniDirectories) -> Manager {
        let host = Arc::clone(&self.sandboxes) as Arc<dyn Host>;
        self.run(|| options.start(directories, host, Purpose::SetUp)).expect("the network plugin starts")
    }

    /// A pod whose sandbox has the same name, and the sandbox's namespace.
    fn sandbox(&self, name: &str, ports: &[(u16, u16)]) -> (slipway_tests::Pod, Pod) {
        let space = self.node.pod(name);
        let ports = ports.iter().map(|(host_port, container_port)| PortMapping {
            host_port: *host_port,
            container_port: *container_port,
            protocol: "TCP".into(),
            host_ip: String::new(),
        });
        let sandbox = Sandbox { netns: space.path().to_owned(), ports: ports.collect() };
        self.sandboxes.0.lock().expect("not poisoned").insert(name.to_owned(), sandbox);
        (space, Pod::new("shop", name, name))
    }

    /// Publishes the ports of a sandbox for UDP as well.
    fn udp_too(&self, name: &str) {
        let mut sandboxes = self.sandboxes.0.lock().expect("not poisoned");
        let ports = &mut sandboxes.get_mut(name).expect("a sandbox").ports;
        let udp = ports.iter().map(|port| PortMapping { protocol: "UDP".into(), ..port.clone() });
        let udp: Vec<PortMapping> = udp.collect();
        ports.extend(udp);
    }

    fn set_up(&self, manager: &Manager, pod: &Pod) -> Vec<IpAddr> {
        self.run(|| manager.set_up_pod(pod)).expect("the pod is set up");
        self.addresses(manager, pod)
    }

    fn try_set_up(&self, manager: &Manager, pod: &Pod) -> Result<(), HookError> {
        self.run(|| manager.set_up_pod(pod))
    }

    fn tear_down(&self, manager: &Manager, pod: &Pod) {
        self.run(|| manager.tear_down_pod(pod)).expect("the pod is torn down");
    }

    fn addresses(&self, manager: &Manager, pod: &Pod) -> Vec<IpAddr> {
        let status: Option<PodNetworkStatus> =
            self.run(|| manager.pod_network_status(pod)).expect("a network status");
        status.map_or_else(Vec::new, |status| status.ips)
    }

    /// The addresses with global scope of a link on the node.
    fn link_addresses(&self, link: &str) -> Vec<String> {
        words_after(&self.node, &format!("ip -o address show dev {link} scope global"), &["inet", "inet6"])
    }
}

/// The words in a command's output that follow one of these words.
fn words_after(space: &Space, command: &str, before: &[&str]) -> Vec<String> {
    let text = space.cmd(command);
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| before.contains(&pair[0]));
    pairs.map(|pair| pair[1].to_owned()).collect()
}
