// SPDX-License-Identifier: GPL-2.0-or-later

//! The CNI project's cnitool, which runs a list as libcni does.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use slipway_tests::{CommandOutput, Node, Pod, Proto, address_of, is_peer, peer_fails, slipway_only};

use crate::state;

/// The folder of the lists, in the node's private /var/lib.
const NET_DIR: &str = "/var/lib/net.d";

const PORTS: &str = r#"{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}"#;

/// Generates each test for the cnitool of each Debian suite, with the newest version of the specification that it
/// supports.
macro_rules! of {
    ($($module:ident $specification:literal: $($test:ident)*;)*) => {$(
        mod $module {
            use slipway_tests::system::unpacked;
            $(#[test]
            fn $test() {
                let Some(root) = unpacked(stringify!($module), super::PROGRAM) else {
                    slipway_tests::skip!(concat!("cnitool of Debian ", stringify!($module)))
                };
                super::$test(&root.join(super::PROGRAM), $specification);
            })*
        }
    )*};
}

const PROGRAM: &str = "usr/local/bin/cnitool";

// At the time of writing, these are the versions 1.1 and 1.3.
of! {
    bookworm "1.0.0": add_check_del exchange;
    unstable "1.1.0": add_check_del exchange gc status;
}

struct Tool<'n> {
    node: &'n Node,
    program: PathBuf,
}

impl<'n> Tool<'n> {
    fn new(node: &'n Node, program: &Path, list: &Value) -> Self {
        node.write(&format!("{NET_DIR}/10-tool.conflist"), list.to_string());
        Self { node, program: program.to_owned() }
    }

    fn try_call(&self, verb: &str, netns: &Path, capabilities: &str) -> CommandOutput {
        let mut command = Command::new(&self.program);
        command.args([verb, "tool"]).arg(netns);
        command.env("CNI_PATH", self.node.bin()).env("NETCONFPATH", NET_DIR).env("CAP_ARGS", capabilities);
        self.node.exec(command, b"")
    }

    #[track_caller]
    fn call(&self, verb: &str, pod: &Pod, capabilities: &str) -> String {
        let output = self.try_call(verb, pod.path(), capabilities);
        assert!(output.code == Some(0), "cnitool {verb}: {output}");
        output.stdout
    }
}

fn list(specification: &str) -> Value {
    json!({
        "cniVersion": specification, "name": "tool",
        "plugins": [
            {
                "type": "bridge", "bridge": "tool0", "isDefaultGateway": true, "ipMasq": true,
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.33.0.0/24"}]]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn add_check_del(program: &Path, specification: &str) {
    let (node, client) = Node::with_client();
    let tool = Tool::new(&node, program, &list(specification));
    // A first pod creates the bridge and the tables.
    let first = node.pod("first");
    tool.call("add", &first, PORTS);
    tool.call("del", &first, PORTS);
    let before = state(&node);

    let pod = node.pod("web");
    let result: Value =
        serde_json::from_str(&tool.call("add", &pod, PORTS)).expect("cnitool prints the result");
    assert_eq!(result["cniVersion"], specification);
    let ip = address_of(&result, 0);
    let server = pod.serve(Proto::Tcp, &format!("{ip}:80"), "web");
    assert_eq!(client.expect(Proto::Tcp, (client.node_v4, 8080), "web").peer.ip(), client.v4);
    drop(server);
    tool.call("check", &pod, PORTS);
    if !is_peer() {
        // CHECK notices that the published port is gone. The first ADD's table is missing, so the next ADD creates it
        // again.
        node.nft("delete table inet slipway");
        let output = tool.try_call("check", pod.path(), PORTS);
        assert_ne!(output.code, Some(0), "CHECK of a flushed ruleset: {output}");
        tool.call("add", &first, PORTS);
        tool.call("del", &first, PORTS);
    }
    tool.call("del", &pod, PORTS);
    tool.call("del", &pod, PORTS);
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
    pod.remove();
    before.assert_same(&state(&node));
}

/// Both cnitools use our plugins for the same container and the same cache.
fn exchange(program: &Path, specification: &str) {
    slipway_only!();
    let (node, client) = Node::with_client();
    let theirs = Tool::new(&node, program, &list(specification));
    let ours = Tool { node: &node, program: node.bin().join("cnitool") };
    let first = node.pod("first");
    for tool in [&ours, &theirs] {
        tool.call("add", &first, PORTS);
        tool.call("del", &first, PORTS);
    }
    ours.call("gc", &first, "{}");
    let before = state(&node);
    for (adds, deletes) in [(&ours, &theirs), (&theirs, &ours)] {
        let pod = node.pod("web");
        adds.call("add", &pod, PORTS);
        deletes.call("check", &pod, PORTS);
        deletes.call("del", &pod, PORTS);
        client.expect_none(Proto::Tcp, (client.node_v4, 8080));
        pod.remove();
        // Their cnitool does not know the lock file of our ADD, which GC deletes.
        ours.call("gc", &first, "{}");
        before.assert_same(&state(&node));
    }
}

/// cnitool passes no list of valid attachments. libcni removes those in its own cache, and the plugins keep the others.
fn gc(program: &Path, specification: &str) {
    let node = Node::without_bridge_netfilter();
    let tool = Tool::new(&node, program, &list(specification));
    let pods = ["one", "two", "three"].map(|name| node.pod(name));
    tool.call("add", &pods[0], PORTS);
    tool.call("del", &pods[0], PORTS);
    tool.call("add", &pods[2], "{}");
    let records = node.list("/var/lib/cni/results");
    assert_eq!(records.len(), 1, "{records:?}");
    let forgotten = Path::new("/var/lib/cni/results").join(&records[0]);
    node.run(|| std::fs::remove_file(&forgotten)).expect("remove a record");
    // The shared chains for ports remain as long as an element refers to them.
    let elements = || state(&node).without(&["nft chain", "nft rule"]);
    let before = elements();
    tool.call("add", &pods[0], PORTS);
    tool.call("add", &pods[1], "{}");
    tool.call("gc", &pods[0], "{}");
    before.assert_same(&elements());
    // DEL works without the cache entry.
    tool.call("del", &pods[2], "{}");
    let left = elements();
    let left: Vec<_> =
        ["cnitool-", "networks/tool/10."].iter().flat_map(|text| left.matching(text)).collect();
    assert!(left.is_empty(), "{left:#?}");
}

fn status(program: &Path, specification: &str) {
    peer_fails("STATUS does not look at what ADD needs", || {
        let node = Node::without_bridge_netfilter();
        let pod = node.pod("pod");
        let tool = Tool::new(&node, program, &list(specification));
        tool.call("status", &pod, "{}");
        let mut broken = list(specification);
        broken["plugins"][0]["ipam"]["dataDir"] = "/etc/passwd".into();
        let tool = Tool::new(&node, program, &broken);
        let output = tool.try_call("status", pod.path(), "{}");
        assert_ne!(output.code, Some(0), "{output}");
        let printed = format!("{}{}", output.stdout, output.stderr);
        assert!(printed.contains("/etc/passwd"), "{printed}");
    });
}
