// SPDX-License-Identifier: GPL-2.0-or-later

//! A node with a configuration directory, and the two ways to use it: `slipwayd` and the manager.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_runtime::Runtime;
use cni_runtime::pods::{Builder, Manager, Pod};
use serde_json::{Value, json};
use slipway_tests::{
    BridgeNetfilter, CommandOutput, Node, PluginCall, Pod as Space, Snapshot, slipwayd, until,
};

/// The configuration directory, in the node's private /var/lib.
pub(crate) const CONF: &str = "/var/lib/net.d";

/// What a teardown may leave: files without content, and counters. Temporary files of a killed process are removed once
/// they are old.
const LEFT: &[&str] = &[".slipway-tmp-", "last_reserved_ip", "networks/.slipway/", "/lock", "folder "];

pub(crate) struct Stage {
    pub(crate) node: Node,
    /// The plugin directory.
    pub(crate) bin: PathBuf,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let node = Node::new();
        let bin = node.bin().to_owned();
        Self::with(node, bin)
    }

    /// A stage with these plugins instead of ours.
    pub(crate) fn of(bin: &Path) -> Self {
        Self::with(Node::new(), bin.to_owned())
    }

    fn with(node: Node, bin: PathBuf) -> Self {
        node.bridge_netfilter(BridgeNetfilter::Off);
        let stage = Self { node, bin };
        stage.write("10-pods.conflist", &pods_list("pods"));
        stage.write("20-storage.conflist", &list("storage", &json!([bridge("br1", "10.92.0.0/24")])));
        stage
    }

    /// Writes a configuration as an editor should, under another name that is then renamed.
    pub(crate) fn write(&self, name: &str, content: &Value) {
        self.node.write(&format!("{CONF}/.{name}"), content.to_string());
        self.node.cmd(&format!("mv {CONF}/.{name} {CONF}/{name}"));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.node.cmd(&format!("rm {CONF}/{name}"));
    }

    /// A call of `slipwayd` with words separated by blanks.
    pub(crate) fn call(&self, words: &str) -> PluginCall {
        let bin = self.bin.to_str().expect("text");
        let options = if words.starts_with("pod list") {
            Vec::new()
        } else {
            vec!["--cni-bin-dir", bin, "--cni-conf-dir", CONF]
        };
        let words: Vec<&str> = words.split_whitespace().chain(options).collect();
        self.node.plugin("slipwayd").instead(&slipwayd()).arguments(&words)
    }

    pub(crate) fn run(&self, words: &str) -> CommandOutput {
        self.call(words).run().process
    }

    #[track_caller]
    pub(crate) fn ok(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.code == Some(0), "slipwayd {words}: {output}");
        output.stdout
    }

    #[track_caller]
    pub(crate) fn fails(&self, words: &str) -> String {
        let output = self.run(words);
        assert!(output.code == Some(1) && output.stdout.is_empty(), "slipwayd {words}: {output}");
        output.stderr
    }

    pub(crate) fn manager(&self) -> Builder {
        Manager::builder(Runtime::builder().plugin_dir(&self.bin)).config_dir(CONF)
    }

    /// Runs a future on the node. The threads of the asynchronous runtime are in the namespaces of the thread that
    /// starts the runtime.
    pub(crate) fn block_on<T: Send>(&self, work: impl AsyncFnOnce() -> T + Send) -> T {
        self.node.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("an asynchronous runtime").block_on(work())
        })
    }

    pub(crate) fn state(&self, pods: &[&Space]) -> Snapshot {
        let spaces: Vec<_> = pods.iter().map(|pod| &***pod).collect();
        Snapshot::take(&self.node, &spaces).without(LEFT)
    }

    /// Attaches and detaches a pod, so that bridges and tables exist.
    pub(crate) fn warm_up(&self) {
        self.ok(
            "pod up test/first --sandbox first --create-netns --network pods --port 81:81 --network storage",
        );
        self.ok("pod down test/first --sandbox first");
    }
}

/// A plugin in a separate directory, whose ADD waits until it is killed.
pub(crate) struct SlowPlugin;

impl SlowPlugin {
    pub(crate) const DIRECTORY: &str = "/var/lib/slow";

    pub(crate) fn write(stage: &Stage) {
        let script = "#!/bin/sh\nif [ $CNI_COMMAND = VERSION ]; then\n\
            echo '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}'\n\
            elif [ $CNI_COMMAND = ADD ]; then\n>/run/started; exec sleep 100\nfi\n";
        stage.node.write(&format!("{}/slow", Self::DIRECTORY), script);
        stage.node.cmd(&format!("chmod +x {}/slow", Self::DIRECTORY));
    }

    /// Starts `slipwayd`, sends it a signal while the plugin's ADD is running, and waits for its end.
    pub(crate) fn signal_during_add(stage: &Stage, words: &str, signal: &str) -> CommandOutput {
        let running = stage.call(&format!("{words} --cni-bin-dir {}", Self::DIRECTORY)).spawn();
        until(Duration::from_secs(30), "the plugin starts", || stage.node.read("/run/started").is_some());
        stage.node.cmd(&format!("kill -{signal} {}", running.pid()));
        let output = running.wait().process;
        stage.node.cmd("rm /run/started");
        output
    }
}

pub(crate) fn request(pod: &Space) -> Pod {
    Pod {
        namespace: "test".to_owned(),
        name: pod.name().to_owned(),
        uid: "u1".to_owned(),
        sandbox: format!("s-{}", pod.name()),
        netns: pod.path().display().to_string(),
        networks: Vec::new(),
    }
}

/// Runs futures as separate tasks, which other threads may poll than the one that created them.
pub(crate) async fn joined<T: Send + 'static>(
    tasks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.expect("no panic"));
    }
    all
}

pub(crate) fn list(name: &str, plugins: &Value) -> Value {
    json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins})
}

/// A network of a bridge that publishes ports.
pub(crate) fn pods_list(name: &str) -> Value {
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let mut first = bridge("br0", "10.91.0.0/16");
    first["ipam"]["routes"] = json!([{"dst": "192.0.2.0/24", "gw": "10.91.0.1"}]);
    list(name, &json!([first, portmap]))
}

pub(crate) fn bridge(name: &str, subnet: &str) -> Value {
    json!({
        "type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]},
    })
}

/// A network with a single address, so that the set-up of a second pod fails.
pub(crate) fn tiny_list() -> Value {
    let range = json!([[{"subnet": "10.93.0.0/24", "rangeStart": "10.93.0.9", "rangeEnd": "10.93.0.9"}]]);
    let ipam = json!({"type": "host-local", "ranges": range});
    list("tiny", &json!([{"type": "bridge", "bridge": "br2", "ipam": ipam}]))
}
