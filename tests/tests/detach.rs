// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway detach` on a node with containers: it removes what no runtime removes, and leaves what is in use.

use std::net::IpAddr;
use std::process::Command;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, CommandOutput, Host, Network, Node, Pod, Proto, QUICK, at, comes, quoted, render, slipway,
    slipway_only,
};

const LIST: &str = "/run/net.d/10-pods.conflist";
const ID: &str = "2f1c1cbe6d4cd08a3cdb1e5fa1e7c2a9ff84a1f6ce0e7b0ab52cf6ab2a5b3f04";
const PORT: u16 = 8080;

fn list() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.1.0/24"}]]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

struct World {
    node: Node,
    client: Host,
}

impl World {
    fn new() -> Self {
        let (node, client) = Node::with_client();
        node.write(LIST, list().to_string());
        Self { node, client }
    }

    /// The sandbox of a pod with a published port.
    fn sandbox(&self, network: &Network<'_>, args: &str) -> (Pod, Attach) {
        let pod = self.node.pod("web");
        let attach = Attach::new(&pod).container(ID).args(args).port(Proto::Tcp, PORT, 80);
        network.add(&attach).unwrap_or_else(|failure| panic!("{failure}"));
        (pod, attach)
    }

    fn detach(&self, more: &[&str]) -> CommandOutput {
        let mut command = Command::new(slipway());
        self.detach_by(&mut command);
        command.args(more);
        self.node.exec(command, b"")
    }

    /// Adds the arguments of `slipway detach` to a command.
    fn detach_by(&self, command: &mut Command) {
        command.args(["detach", "pods", ID, "eth0", "--output", "json", "--conflist", LIST, "--plugin-dir"]);
        command.arg(self.node.bin());
    }

    #[track_caller]
    fn keeps(&self, only: &str, reason: &str) {
        let output = self.detach(&["--only-if", only]);
        assert_eq!(output.code, Some(3), "{output}");
        let document: Value = serde_json::from_str(&output.stdout).expect("JSON");
        assert_eq!(document["state"], "kept", "{document}");
        assert!(document["reason"].as_str().expect("a reason").contains(reason), "{document}");
        assert!(!self.is_clean());
    }

    #[track_caller]
    fn deletes(&self, more: &[&str]) {
        let output = self.detach(more);
        assert_eq!(output.code, Some(0), "{output}");
        assert!(output.stdout.contains("\"detached\""), "{output}");
        assert!(self.is_clean(), "{}", self.node.ruleset());
    }

    /// True if nothing of the sandbox is left: no reservation, no cached attachment and no published port.
    fn is_clean(&self) -> bool {
        let reserved = self.node.list("/var/lib/cni/networks/pods");
        let cached = self.node.list("/var/lib/cni/results");
        let ports = self.node.cmd(&format!("{} ports --output json", quoted(slipway())));
        let ports: Value = serde_json::from_str(&ports).expect("JSON");
        reserved.iter().all(|name| name.parse::<IpAddr>().is_err())
            && cached.is_empty()
            && ports["ports"] == json!([])
    }

    fn answers(&self) -> bool {
        self.client.request_from(Proto::Tcp, None, at(self.client.node_v4, PORT), QUICK).is_ok()
    }
}

fn of_kubernetes() -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={ID}")
}

#[test]
fn a_cached_sandbox_is_kept_while_a_process_is_in_its_namespace() {
    slipway_only!();
    let world = World::new();
    let list = world.node.network(list());
    let (pod, attach) = world.sandbox(&list, &of_kubernetes());
    list.write_cache(&attach);
    let server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
    let process = pod.daemon("sleep", &["600"], "/run/sleep.log");
    world.keeps("gone", "exists");
    world.keeps("unused", "is in its namespace");
    assert!(world.answers());
    drop((server, process));
    world.keeps("gone", "exists");
    world.deletes(&["--only-if", "unused"]);
    assert!(!world.answers() && !pod.has_link("eth0"));
    // The second call finds nothing to remove.
    world.deletes(&["--only-if", "unused"]);
}

#[test]
fn a_cached_sandbox_without_a_namespace_is_deleted() {
    slipway_only!();
    let world = World::new();
    let list = world.node.network(list());
    let (pod, attach) = world.sandbox(&list, &of_kubernetes());
    list.write_cache(&attach);
    pod.remove();
    world.deletes(&["--only-if", "gone"]);
}

#[test]
fn an_attachment_of_another_runtime_is_kept() {
    slipway_only!();
    let world = World::new();
    let list = world.node.network(list());
    let (pod, attach) = world.sandbox(&list, "");
    list.write_cache(&attach);
    world.keeps("unused", "not the sandbox of a pod");
    pod.remove();
    world.keeps("gone", "not the sandbox of a pod");
    // Without a condition, the command relies on the operator's decision.
    world.deletes(&[]);
}

#[test]
fn a_sandbox_that_no_cache_has_is_kept_while_its_link_exists() {
    slipway_only!();
    let world = World::new();
    let list = world.node.network(list());
    let (pod, _attach) = world.sandbox(&list, &of_kubernetes());
    world.keeps("unused", "its link veth");
    pod.remove();
    // The kernel deletes the link of a namespace after the last reference to the namespace is gone.
    assert!(comes(|| world.detach(&["--only-if", "gone"]).code != Some(3)), "the link is left");
    assert!(world.is_clean());
}

/// A shell command prefix that gives a command the file system view of a unit: read-only except for the directories
/// that the unit names (systemd.exec(5)).
fn confined_by(unit: &str) -> String {
    assert!(unit.contains("\nProtectSystem=strict\n"), "{unit}");
    let parents = [
        ("ReadWritePaths=", ""),
        ("RuntimeDirectory=", "/run/"),
        ("StateDirectory=", "/var/lib/"),
        ("ConfigurationDirectory=", "/etc/"),
    ];
    let named = |line: &str| {
        let (names, parent) =
            parents.iter().find_map(|(key, parent)| Some((line.strip_prefix(key)?.to_owned(), parent)))?;
        Some(names.split(' ').map(|name| format!("{parent}{name}")).collect::<Vec<_>>())
    };
    let writable: Vec<String> = unit.lines().filter_map(named).flatten().collect();
    let mount = |directory: &str, access: &str| {
        format!("mount --rbind {directory} {directory}; mount -o remount,bind,{access} {directory}\n")
    };
    let protected: String = ["/etc", "/run", "/var"].iter().map(|directory| mount(directory, "ro")).collect();
    let open: String = writable.iter().map(|directory| mount(directory, "rw")).collect();
    format!("mkdir -p {}\n{protected}{open}exec \"$@\"", writable.join(" "))
}

#[test]
fn the_agents_unit_has_the_directories_of_a_deletion() {
    slipway_only!();
    let world = World::new();
    let mut chain = list();
    let tuning = json!({"type": "tuning", "mtu": 1400});
    chain["plugins"].as_array_mut().expect("plugins").push(tuning);
    let list = world.node.network(chain);
    let (_pod, attach) = world.sandbox(&list, &of_kubernetes());
    list.write_cache(&attach);
    assert!(!world.node.list("/run/cni/tuning").is_empty());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-e", "-c", &confined_by(&render("systemd", &[])), "sh"]).arg(slipway());
    world.detach_by(&mut command);
    let output = world.node.exec(command, b"");
    assert_eq!(output.code, Some(0), "{output}");
    assert!(world.is_clean() && world.node.list("/run/cni/tuning").is_empty());
}
