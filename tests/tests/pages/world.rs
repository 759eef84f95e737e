// SPDX-License-Identifier: GPL-2.0-or-later

//! The node on which a page is read.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;
use slipway_tests::{
    Attach, Host, Network, Node, Pod, Proto, QUICK, Server, at, pages, plugin_names, slipway, slipwayd,
};

/// The folders with the programs that the pages call.
pub(crate) const PATH: &str = "/opt/cni/bin:/opt/sbin";
/// The directory of the installed plugins.
pub(crate) const PLUGINS: &str = "/opt/cni/bin";
/// The directory of the network configurations.
pub(crate) const NETWORKS: &str = "/etc/cni/net.d";

/// A node with the network of the README, and an outside host.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) client: Host,
    pub(crate) list: Value,
}

/// A container in the network `pods`, with a server behind its published port.
pub(crate) struct Web {
    pub(crate) pod: Pod,
    pub(crate) attach: Attach,
    /// The server, which runs as long as the container.
    pub(crate) server: Option<Server>,
}

/// The network configuration in the README.
pub(crate) fn readme() -> Value {
    let blocks = pages::blocks("README.md");
    let block = blocks.iter().find(|block| block.language == "json").expect("a configuration");
    serde_json::from_str(&block.text()).expect("JSON")
}

impl World {
    /// A node where Slipway is installed.
    pub(crate) fn new() -> Self {
        let world = Self::bare();
        let names = plugin_names().into_iter().chain(["cnitool", "slipway"].map(str::to_owned));
        world.node.run(|| {
            for name in names {
                symlink(slipway(), Path::new(PLUGINS).join(&name)).expect("link a plugin");
            }
        });
        world
    }

    /// A node without plugins, on which `slipway` and `slipwayd` are in the search path.
    pub(crate) fn bare() -> Self {
        let (node, client) = Node::with_client();
        node.own_etc();
        node.cmd("rm -rf /etc/cni");
        // An administrator can write only to folders that belong to the node.
        for folder in ["/opt", "/root", "/var/log"] {
            node.own_folder(folder);
        }
        node.cmd(&format!("mkdir -p /opt/sbin {PLUGINS} {NETWORKS}"));
        node.run(|| {
            symlink(slipwayd(), "/opt/sbin/slipwayd").expect("link slipwayd");
            symlink(slipway(), "/opt/sbin/slipway").expect("link slipway");
        });
        let list = readme();
        node.write(&format!("{NETWORKS}/10-pods.conflist"), list.to_string());
        Self { node, client, list }
    }

    pub(crate) fn network(&self) -> Network<'_> {
        self.node.network(self.list.clone())
    }

    /// A container with a published port and a server, started as by a runtime with a cache.
    pub(crate) fn web(&self, name: &str) -> Web {
        let mut web = self.attached(name, |attach| attach.port(Proto::Tcp, 8080, 80));
        web.server = Some(web.pod.serve(Proto::Tcp, "[::]:80", name));
        web
    }

    /// The sandbox of a pod with a published port, for which the plugins are called as by containerd. It has no server.
    pub(crate) fn pod(&self, sandbox: &str) -> Web {
        let pod = self.node.pod("web");
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={sandbox}"
        );
        let attach = Attach {
            container: sandbox.to_owned(),
            ..Attach::new(&pod).args(&args).port(Proto::Tcp, 8080, 80)
        };
        let network = self.network();
        network.add(&attach).unwrap_or_else(|e| panic!("ADD: {e}"));
        network.write_cache(&attach);
        Web { pod, attach, server: None }
    }

    /// A container without a server and with these ports.
    pub(crate) fn attached(&self, name: &str, ports: impl FnOnce(Attach) -> Attach) -> Web {
        let pod = self.node.pod(name);
        let attach = ports(Attach::new(&pod));
        let network = self.network();
        network.add(&attach).unwrap_or_else(|e| panic!("ADD: {e}"));
        network.write_cache(&attach);
        Web { pod, attach, server: None }
    }

    /// Calls DEL as the runtime does.
    pub(crate) fn delete(&self, web: &Web) {
        let network = self.network();
        network.del(&web.attach).unwrap_or_else(|e| panic!("DEL: {e}"));
        self.node.cmd(&format!("rm {}", network.cache_path(&web.attach)));
    }

    /// Adds another engine's policy, which drops the packets that it does not know.
    pub(crate) fn drops_forwarded(&self) {
        self.node
            .nft("table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }");
    }

    /// Runs `work` while a client repeatedly connects to a TCP port.
    pub(crate) fn while_tried<T>(
        &self,
        from: &slipway_tests::Space,
        to: (std::net::Ipv4Addr, u16),
        work: impl FnOnce() -> T,
    ) -> T {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(from.request_from(Proto::Tcp, None, at(to.0, to.1), QUICK));
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            });
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}
