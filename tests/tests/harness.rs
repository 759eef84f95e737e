// SPDX-License-Identifier: GPL-2.0-or-later

//! Tests of the harness.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use slipway_tests::{BridgeNetfilter, Node, Proto, Snapshot, at, patience, within};

#[test]
fn nodes_do_not_see_each_other_nor_the_machine() {
    let (one, two) = (Node::new(), Node::new());
    one.write("/var/lib/cni/mark", "one");
    one.write("/run/cni/mark", "one");
    let _pod = one.pod("pod");
    for place in ["/var/lib/cni/mark", "/run/cni/mark"] {
        assert_eq!(one.read(place).as_deref(), Some("one"));
        assert_eq!(two.read(place), None);
        assert!(!std::path::Path::new(place).exists(), "{place} is on the machine");
    }
    assert_eq!(one.list("/run/netns"), ["pod"]);
    assert!(two.list("/run/netns").is_empty());
    assert!(!std::path::Path::new("/run/netns/pod").exists());
    one.cmd("ip link add br-harness type bridge");
    assert!(one.has_link("br-harness") && !two.has_link("br-harness"));
}

#[test]
fn replies_name_the_server_and_the_clients_address() {
    let node = Node::new();
    let (client, far) = (node.host("client"), node.host("far"));
    node.forward();
    for proto in Proto::ALL {
        let _four = far.serve(proto, "0.0.0.0:80", "far4");
        let _six = far.serve(proto, &format!("[{}]:81", far.v6), "far6");
        let answer = client.expect(proto, (far.v4, 80), "far4");
        assert_eq!(answer.peer, answer.own);
        assert_eq!(answer.peer.ip(), client.v4);
        let answer = client.expect(proto, (far.v6, 81), "far6");
        assert_eq!(answer.peer.ip(), client.v6);
        let answer = client
            .request_from(proto, Some(at(client.v4, 4321)), at(far.v4, 80), patience())
            .expect("a reply");
        assert_eq!(answer.peer, at(client.v4, 4321));
        client.expect_none(proto, (far.v4, 82));
    }
}

#[test]
fn a_flow_lasts_until_the_server_ends() {
    let node = Node::new();
    let client = node.host("client");
    for proto in Proto::ALL {
        let server = node.serve(proto, &at(client.node_v4, 80).to_string(), "node");
        let mut flow = client.dial(proto, None, at(client.node_v4, 80), patience()).expect("a connection");
        for _ in 0..3 {
            assert_eq!(flow.request().expect("a reply").who, "node");
        }
        drop(server);
        let error = flow.request().expect_err("no server listens");
        let kinds = [
            ErrorKind::UnexpectedEof,
            ErrorKind::ConnectionRefused,
            ErrorKind::ConnectionReset,
            ErrorKind::BrokenPipe,
            ErrorKind::TimedOut,
        ];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}

#[test]
fn a_removed_pod_takes_its_links_along() {
    let (node, pod) = Node::with_pod();
    node.cmd("ip link add veth0 type veth peer name eth0 netns pod");
    assert!(node.has_link("veth0") && pod.has_link("eth0"));
    let before = pod.path().to_owned();
    pod.remove();
    assert!(node.list("/run/netns").is_empty());
    // The kernel removes namespaces in the background.
    for _ in 0..200 {
        if !node.has_link("veth0") {
            let again = node.pod("pod");
            assert_eq!(again.path(), before);
            assert!(!again.has_link("eth0"));
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the link outlives its namespace");
}

#[test]
fn a_snapshot_sees_every_kind_of_change() {
    let (node, pod) = Node::with_pod();
    let before = Snapshot::take(&node, &[&pod]);
    before.assert_same(&Snapshot::take(&node, &[&pod]));
    let expect = |text: &str| {
        let changes = before.changes(&Snapshot::take(&node, &[&pod]));
        assert!(
            changes.iter().any(|line| line.starts_with('+') && line.contains(text)),
            "{text} is not in {changes:#?}"
        );
    };
    node.nft(
        "table inet t {
            map m { type ipv4_addr : verdict; elements = { 10.1.2.3 comment \"mine\" : accept }; }
            chain c { ip saddr 10.0.0.1 counter accept; }
        }",
    );
    expect("nft element inet t m");
    expect("nft rule inet t c");
    node.cmd("ip link add br0 type bridge");
    expect("[node] link br0");
    node.cmd("ip address add 10.9.9.1/24 dev br0");
    expect("address \"br0\" \"10.9.9.1\"/24");
    node.cmd("ip link set br0 up");
    node.cmd("ip route add 10.8.0.0/16 via 10.9.9.2 dev br0");
    expect("route 10.8.0.0/16 via 10.9.9.2");
    pod.cmd("ip rule add from 10.1.1.1 lookup 77");
    expect("[pod] rule");
    node.write("/var/lib/cni/networks/n/10.1.2.3", "id");
    expect("file /var/lib/cni/networks/n/10.1.2.3 \"id\"");
}

#[test]
fn bridge_netfilter_is_per_node() {
    let (one, two) = (Node::new(), Node::new());
    let key = "net/bridge/bridge-nf-call-iptables";
    if !one.bridge_netfilter(BridgeNetfilter::Off) {
        slipway_tests::skip!("br_netfilter");
    }
    assert_eq!(one.sysctl_get(key).as_deref(), Some("0"));
    two.bridge_netfilter(BridgeNetfilter::On);
    assert_eq!(one.sysctl_get(key).as_deref(), Some("0"));
    assert_eq!(two.sysctl_get(key).as_deref(), Some("1"));
}

/// The report of a failed test is printed while a panic drops the node, and a second panic there would abort the
/// process.
#[test]
fn a_failure_reports_what_was_run() {
    let failed = std::panic::catch_unwind(|| {
        let node = Node::new();
        let _pod = node.pod("pod");
        node.cmd("ip link show dev does-not-exist");
    });
    let message = failed.expect_err("the command fails");
    let text = message.downcast_ref::<String>().expect("a message");
    assert!(text.contains("does-not-exist"), "{text}");
}

/// A process that a command leaves running keeps the command's output open, and without a limit the harness would wait
/// forever.
#[test]
fn a_command_that_leaves_a_process_running_fails() {
    let failed = std::panic::catch_unwind(|| {
        let node = Node::new();
        node.cmd_input("sh", &format!("sleep {} &\n", within(Duration::from_secs(15)).as_secs()));
    });
    let message = failed.expect_err("sleep runs on");
    let text = message.downcast_ref::<String>().expect("a message");
    assert!(text.contains("something that it started has not"), "{text}");
}

/// The situation occurs while a child process still has the descriptor of a socket that was closed.
#[test]
fn an_address_that_becomes_free_soon_is_bound() {
    let node = Node::new();
    let socket = node.bind(|| UdpSocket::bind("127.0.0.1:0")).expect("a socket");
    let address = socket.local_addr().expect("an address");
    let held = socket.try_clone().expect("another descriptor");
    drop(socket);
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(held);
        });
        node.bind(|| UdpSocket::bind(address)).expect("the same address");
    });
    let _held = node.bind(|| UdpSocket::bind(address)).expect("the same address");
    let refused = node.bind(|| UdpSocket::bind(address)).expect_err("it is in use");
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
}
