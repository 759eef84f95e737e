// SPDX-License-Identifier: GPL-2.0-or-later

//! A node that moves to another version and back while containers run, as docs/compatibility.md promises. Each version
//! must handle the links, tables, BPF programs and files of the other.
//!
//! `SLIPWAY_PREVIOUS` names the `slipway` of another version. Without it, the binary under test also acts as the
//! previous version, and the test itself adds to the node what only another version would write: unknown keys, BPF
//! programs under another version's name, and a table with a later schema.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Host, Node, Output, PROGRAMS, Proto, Server, at, has_programs, host_local, quoted, skip, slipway,
    slipway_only,
};

/// The runtime's plugin directory.
const PLUGINS: &str = "/run/cni-bin";
/// The pinned BPF programs and maps, in a folder for each version.
const PINS: &str = "/sys/fs/bpf/slipway-flows";

fn previous() -> PathBuf {
    std::env::var_os("SLIPWAY_PREVIOUS").map_or_else(slipway, PathBuf::from)
}

/// A node with a network, whose plugins are those of the version that was installed last.
struct Stage {
    node: Node,
    client: Host,
    plugins: [Value; 2],
}

/// A running container with a server behind a published port.
struct Running {
    attach: Attach,
    port: u16,
    /// The result of the ADD as the runtime keeps it.
    result: Value,
    _server: Server,
    _pod: slipway_tests::Pod,
}

impl Stage {
    fn new(backend: &str) -> Self {
        let (node, client) = Node::with_client();
        node.own_etc();
        let plugins = [
            json!({
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend,
                "macspoofchk": true, "hairpinMode": true, "ipam": host_local("10.88.0.0/24", "fd00:88::/64"),
            }),
            json!({"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}}),
        ];
        Self { node, client, plugins }
    }

    /// Installs a version as an administrator does who has copied the program to the node.
    fn install(&self, version: &PathBuf) {
        self.node.cmd(&format!("{} install --to {PLUGINS}", quoted(version)));
    }

    fn slipway(&self, arguments: &str) -> String {
        self.node.cmd(&format!("{PLUGINS}/slipway {arguments}"))
    }

    fn call(&self, verb: &str, at: usize, attach: &Attach, result: &Value) -> Output {
        let mut config = self.plugins[at].clone();
        for (key, value) in [("cniVersion", json!("1.0.0")), ("name", json!("net"))] {
            config[key] = value;
        }
        if at == 1 {
            config["runtimeConfig"] = attach.capabilities.clone().into();
        }
        if !result.is_null() {
            config["prevResult"] = result.clone();
        }
        let program = PathBuf::from(PLUGINS).join(config["type"].as_str().expect("a type"));
        let call = self.node.plugin("bridge").instead(&program).env("CNI_PATH", PLUGINS).command(verb);
        call.container(&attach.container).netns(&attach.netns).ifname("eth0").config(&config).run()
    }

    fn add(&self, name: &str, port: u16) -> Running {
        let pod = self.node.pod(name);
        let attach = Attach::new(&pod).port(Proto::Tcp, port, 80).port(Proto::Udp, port, 80);
        let first = self.call("ADD", 0, &attach, &Value::Null).ok();
        let result = self.call("ADD", 1, &attach, &first).ok();
        let server = pod.serve(Proto::Tcp, "[::]:80", name);
        let running = Running { attach, port, result, _server: server, _pod: pod };
        self.answers(&running);
        running
    }

    #[track_caller]
    fn answers(&self, running: &Running) {
        for address in [self.client.node_v4.into(), self.client.node_v6.into()] {
            let to: (std::net::IpAddr, u16) = (address, running.port);
            self.client.expect(Proto::Tcp, at(to.0, to.1), &running.attach.container);
        }
    }

    #[track_caller]
    fn check(&self, running: &Running) {
        for at in [0, 1] {
            assert!(self.call("CHECK", at, &running.attach, &running.result).ok().is_null());
        }
        self.answers(running);
    }

    fn del(&self, running: &Running) {
        for at in [1, 0] {
            assert!(self.call("DEL", at, &running.attach, &running.result).ok().is_null());
        }
        self.client.expect_none(Proto::Tcp, at(self.client.node_v4, running.port));
    }

    /// The number of published ports that the installed version lists.
    fn ports(&self) -> usize {
        let printed: Value = serde_json::from_str(&self.slipway("ports --output json")).expect("JSON");
        printed["ports"].as_array().expect("a list").len()
    }

    /// Performs `work` while a client opens one connection after another to a container's port.
    fn under_requests(&self, running: &Running, work: impl FnOnce()) {
        let (is_done, answered) = (AtomicBool::new(false), AtomicU32::new(0));
        thread::scope(|scope| {
            let requests = scope.spawn(|| {
                // The work may be done before the first request.
                while !is_done.load(Ordering::Relaxed) || answered.load(Ordering::Relaxed) <= 3 {
                    self.answers(running);
                    answered.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(10));
                }
            });
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            is_done.store(true, Ordering::Relaxed);
            requests.join().expect("each request is answered");
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }
}

/// Writes keys of the node and of the network that the previous version does not know.
fn write_unknown_keys(stage: &mut Stage) {
    stage.node.write("/etc/cni/slipway.json", r#"{"keyOfALaterVersion": {"a": [1]}}"#);
    for plugin in &mut stage.plugins {
        plugin["keyOfALaterVersion"] = json!({"a": [1]});
    }
}

fn up_and_back(backend: &str) {
    let mut stage = Stage::new(backend);
    let this = slipway();
    stage.install(&previous());
    let old = stage.add("old", 8080);

    stage.under_requests(&old, || stage.install(&this));
    stage.check(&old);
    let new = stage.add("new", 8081);
    assert_eq!(stage.ports(), 8, "two ports of two containers in two families");
    write_unknown_keys(&mut stage);
    stage.check(&new);

    stage.under_requests(&old, || stage.install(&previous()));
    for running in [&old, &new] {
        stage.check(running);
    }
    let last = stage.add("last", 8082);
    assert_eq!(stage.ports(), 12);
    let refused = {
        let pod = stage.node.pod("thief");
        let attach = Attach::new(&pod).port(Proto::Tcp, new.port, 80);
        let first = stage.call("ADD", 0, &attach, &Value::Null).ok();
        let refused = stage.call("ADD", 1, &attach, &first).error();
        for at in [1, 0] {
            stage.call("DEL", at, &attach, &Value::Null).ok();
        }
        refused
    };
    assert!(refused.code == 11 && refused.msg.contains("container new"), "{refused:?}");
    // Each version removes what the other has created.
    stage.del(&new);

    stage.install(&this);
    for running in [&old, &last] {
        stage.check(running);
        stage.del(running);
    }
    assert_eq!(stage.ports(), 0);
    assert_eq!(stage.node.reserved("net"), Vec::<String>::new());
    let uninstalled = stage.slipway(&format!("uninstall --to {PLUGINS}"));
    assert!(!stage.node.ruleset().contains("slipway"), "{uninstalled}");
}

#[test]
fn a_node_goes_up_a_version_and_back_while_containers_run() {
    slipway_only!();
    up_and_back("nftables");
}

#[test]
fn a_node_with_rules_of_iptables_goes_up_a_version_and_back() {
    slipway_only!();
    up_and_back("iptables");
}

#[test]
fn a_node_with_bpf_programs_goes_up_a_version_and_back() {
    slipway_only!();
    if !has_programs() {
        skip!(PROGRAMS);
    }
    up_and_back("ebpf");
}

/// The programs of another version keep working until the next ADD or `slipway node setup`, which replaces them with
/// those of the installed version.
#[test]
fn bpf_programs_of_another_version_serve_until_they_are_replaced() {
    slipway_only!();
    if !has_programs() {
        skip!(PROGRAMS);
    }
    let stage = Stage::new("ebpf");
    stage.install(&slipway());
    let old = stage.add("old", 8080);
    let version = stage.node.list(PINS).remove(0);
    let move_pins = |from: &str, to: &str| drop(stage.node.cmd(&format!("mv {PINS}/{from} {PINS}/{to}")));
    move_pins(&version, "0123456789abcdef");
    stage.check(&old);
    assert_eq!(stage.node.programs()["current"], false);
    stage.under_requests(&old, || {
        let next = stage.add("next", 8081);
        assert_eq!(stage.node.list(PINS), std::slice::from_ref(&version));
        stage.check(&next);
    });
    move_pins(&version, "0123456789abcdef");
    stage.under_requests(&old, || drop(stage.slipway("node setup")));
    assert_eq!(stage.node.list(PINS), [version]);
    stage.check(&old);
}

/// A version refuses a table that it does not know completely. To go back, the node is drained, and then the later
/// version removes its table.
#[test]
fn a_node_with_a_later_schema_is_drained_before_it_goes_back() {
    slipway_only!();
    let stage = Stage::new("nftables");
    stage.install(&slipway());
    let old = stage.add("old", 8080);
    let table = stage.node.cmd("nft list table inet slipway");
    let marker = table.split_whitespace().find(|word| word.starts_with("schema-")).expect("a marker");
    let name = |from: &str, to: &str| {
        stage.node.nft(&format!("delete chain inet slipway {from}; add chain inet slipway {to}"));
    };
    name(marker, "schema-9999");

    let before = stage.node.ruleset();
    let pod = stage.node.pod("next");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8081, 80);
    let refused = stage.call("ADD", 0, &attach, &Value::Null).error();
    assert!(refused.code == 999 && refused.msg.contains("schema 9999 of a later version"), "{refused:?}");
    let refused = stage.call("DEL", 1, &old.attach, &old.result).error();
    assert!(refused.msg.contains("schema 9999 of a later version"), "{refused:?}");
    assert_eq!(stage.node.ruleset(), before);
    stage.answers(&old);
    let report = stage.node.try_cmd(&format!("{PLUGINS}/slipway check-node")).stdout;
    assert!(report.contains("schema 9999"), "{report}");

    // From here on, the test plays the part of the later version.
    name("schema-9999", marker);
    stage.del(&old);
    stage.slipway(&format!("uninstall --to {PLUGINS}"));
    stage.install(&previous());
    let next = stage.add("again", 8080);
    stage.check(&next);
}
