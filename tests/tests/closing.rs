// SPDX-License-Identifier: GPL-2.0-or-later

//! The process that closes netfilter sockets for calls that have ended. One process serves many DELs, and no DEL
//! depends on it.

use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use slipway_tests::{Attach, Network, Node, Proto, until};

const NAME: &str = "slipway-close-sockets";
const SOCKET: &str = "/run/slipway/closing.sock";

fn network(node: &Node) -> Network<'_> {
    node.network(json!({
        "name": "net",
        "plugins": [
            {
                "type": "bridge", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
                "ipam": {"type": "host-local", "subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
            },
            {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}},
        ],
    }))
}

/// The processes in the node's network namespace that close sockets.
fn closing(node: &Node) -> Vec<Pid> {
    let own = node.run(|| std::fs::read_link("/proc/thread-self/ns/net")).expect("the node's namespace");
    let all = std::fs::read_dir("/proc").expect("/proc").flatten().filter(|entry| {
        let is_named = std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).next() == Some(NAME.as_bytes()));
        is_named && std::fs::read_link(entry.path().join("ns/net")).is_ok_and(|namespace| namespace == own)
    });
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw).collect()
}

fn until_none(node: &Node) {
    until(Duration::from_secs(10), "the end of the process", || closing(node).is_empty());
}

#[test]
fn many_dels_leave_their_sockets_to_one_process_that_soon_ends() {
    let node = Node::without_bridge_netfilter();
    let network = network(&node);
    let pods: Vec<_> = (0..8).map(|number| node.pod(&format!("pod{number}"))).collect();
    let attaches: Vec<_> =
        (8080..).zip(&pods).map(|(port, pod)| Attach::new(pod).port(Proto::Tcp, port, 80)).collect();
    for attach in &attaches {
        network.add(attach).expect("ADD");
    }
    assert_eq!(closing(&node), [], "after ADDs");
    thread::scope(|scope| {
        for attach in &attaches {
            scope.spawn(|| network.del(attach).expect("DEL"));
        }
    });
    let running = closing(&node).len();
    assert!(running <= 2, "{running} processes");
    let mode = node.run(|| std::fs::metadata(SOCKET)).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    until_none(&node);
    let ports = node.cmd("nft list map inet slipway hostports4");
    assert!(!ports.contains("elements"), "{ports}");
    // The socket file is left, but no process listens on it.
    assert_eq!(node.list("/run/slipway").iter().filter(|name| *name == "closing.sock").count(), 1);
    network.add(&attaches[0]).expect("ADD");
    network.del(&attaches[0]).expect("DEL");
    until_none(&node);
}

#[test]
fn a_del_of_nothing_starts_no_process() {
    let node = Node::without_bridge_netfilter();
    let network = network(&node);
    let pod = node.pod("pod");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    network.add(&attach).expect("ADD");
    network.del(&attach).expect("DEL");
    until_none(&node);
    network.del(&attach).expect("a second DEL");
    assert_eq!(closing(&node), []);
}

#[test]
fn a_del_does_not_need_the_process() {
    let node = Node::without_bridge_netfilter();
    let network = network(&node);
    let pod = node.pod("pod");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    let cycle = |what: &str| {
        network.add(&attach).unwrap_or_else(|error| panic!("ADD, {what}: {error}"));
        network.del(&attach).unwrap_or_else(|error| panic!("DEL, {what}: {error}"));
    };
    cycle("first");
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let mut sent = Vec::new();
        for _ in 0..20 {
            for pid in closing(&node) {
                // The process may just have ended.
                if kill(pid, signal).is_ok() {
                    sent.push(pid);
                }
            }
            cycle(signal.as_str());
        }
        assert!(!sent.is_empty(), "no process to send {signal} to");
        for pid in sent {
            // Only processes that were suspended rather than killed are still running.
            let _ = kill(pid, Signal::SIGCONT);
        }
        until_none(&node);
    }
    node.cmd(&format!("rm -f {SOCKET}"));
    node.write(SOCKET, "text");
    cycle("a file in the socket's place");
    assert_eq!(node.read(SOCKET).as_deref(), Some("text"));
    assert_eq!(closing(&node), []);
}
