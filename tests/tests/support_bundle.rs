// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway support-bundle` on a node with containers: the file's content, which must not include secrets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use slipway_tests::{Attach, Node, Proto, Snapshot};

const COMMAND: &str = "support-bundle -o /run/bundle.tar --config-dir /run/net.d --plugin-dir /run/nowhere";

#[test]
fn the_bundle_has_the_state_of_the_node_and_no_secrets() {
    let node = Node::new();
    let network = node.network(json!({"name": "pods", "plugins": [
        {
            "type": "bridge", "bridge": "br1", "isGateway": true, "ipMasq": true, "macspoofchk": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/24"}]]},
        },
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]}));
    let pod = node.pod("web");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    network.add(&attach).expect("ADD");
    network.write_cache(&attach);
    node.write(
        "/run/net.d/10-pods.conflist",
        r#"{"name": "pods", "plugins": [{"type": "bridge", "bridge": "br1", "etcdPassword": "hunter2"}],
            "etcd": "http://a:2379,http://root:hunter2@b:2379", "env": ["X_PASSWORD=hunter2"], "hunter2": 1}"#,
    );
    // All other files in which a secret may have been left.
    node.own_etc();
    node.write("/etc/cni/slipway.json", r#"{"backend": "nftables"}"#);
    node.cmd("rm -f /etc/os-release");
    node.write("/etc/cni/other.json", r#"{"token": "hunter2"}"#);
    node.write("/etc/os-release", "ID=debian\nTOKEN=hunter2\n");
    node.cmd("ip link add spare type bridge");
    node.cmd("ip link set spare alias password-hunter2");
    node.nft("add element inet slipway hairpin-own4 { 10.99.0.1 comment \"hunter2\" : drop }");
    node.write("/var/lib/cni/networks/pods/secret.txt", "hunter2");
    node.write("/var/lib/cni/networks/pods/10.22.0.99", "token hunter2 x");
    node.write("/var/lib/cni/results/pods-x-eth0", r#"{"kind": "hunter2"}"#);
    node.write("/var/lib/cni/results/pods-y-eth0", r#""hunter2""#);
    let config = r#"{"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "bridge", "mtu": "hunter2", "ipMasq": true}]}"#;
    let cached = json!({
        "kind": "cniCacheV1", "containerId": "z", "ifName": "eth0", "networkName": "n",
        "netns": "/run/netns/web", "config": STANDARD.encode(config), "result": {"cniVersion": "1.1.0"},
    });
    node.write("/var/lib/cni/results/n-z-eth0", cached.to_string());
    node.write("/var/lib/cni/pending/8f3b", "hunter2");
    node.write(
        "/run/slipway/subnet.json",
        r#"{"schema": 1, "subnets": ["10.22.0.0/24"], "mtu": 1450, "hunter2": 1}"#,
    );
    node.write("/run/net.d/kubeconfig", "token: hunter2");
    let state = || Snapshot::take(&node, &[&pod]).without(&["bundle.tar"]);
    let before = state();
    let printed = node.slipway(COMMAND);
    before.assert_same(&state());

    assert_eq!(node.cmd("stat -c %a /run/bundle.tar").trim(), "600");
    node.cmd("tar -xf /run/bundle.tar -C /run");
    let names = node.cmd("tar -tf /run/bundle.tar");
    for name in names.lines() {
        let name = name.strip_prefix("slipway-support/").expect("all in one folder");
        assert!(printed.contains(name), "{name} is not printed: {printed}");
    }
    for (name, texts) in [
        ("about.txt", &["slipway ", "plugins bandwidth bridge ", "Linux", "namespace net:["][..]),
        ("check-node.txt", &["nf_tables, inet family", "exit code"]),
        ("ports.txt", &["web", "0.0.0.0:8080", "10.22.0.2:80"]),
        ("restore.txt", &["present", "0 missing"]),
        (
            "nftables.txt",
            &[
                "map hostports4: 1 elements",
                "tcp . 8080 : 10.22.0.2 . 80",
                "pods eth0 web",
                "chain guard",
                "table bridge slipway",
            ],
        ),
        ("links.txt", &["br1: Bridge", "10.22.0.1/24", "route_localnet", "alias \"slipway1", "routes, IPv4"]),
        ("sysctl.txt", &["net/ipv4/ip_forward = 1"]),
        ("plugins.txt", &["cannot be read", "/run/nowhere"]),
        ("reservations.txt", &["10.22.0.2 web eth0", "10.22.0.99 (text of 15 characters)"]),
        ("subnets.txt", &["subnets 10.22.0.0/24", "mtu 1450"]),
        ("cache.txt", &["bridge portmap", "/run/netns/web", "pending: 1 pending sandboxes", "8f3b 7 bytes"]),
        (
            "networks/10-pods.conflist",
            &["\"bridge\": \"br1\"", "12 characters)\": \"(text of 7 characters)\""],
        ),
    ] {
        let text = node
            .read(&format!("/run/slipway-support/{name}"))
            .unwrap_or_else(|| panic!("no {name}: {names}"));
        for wanted in texts {
            assert!(text.contains(wanted), "{name} lacks {wanted:?}:\n{text}");
        }
    }
    assert_eq!(node.try_cmd("grep -r hunter2 /run/slipway-support").code, Some(1), "a secret is in it");
}

/// Errors about settings and configurations quote invalid values, which may be secret.
#[test]
fn invalid_values_of_settings_are_not_quoted() {
    let node = Node::new();
    node.own_etc();
    for settings in
        [r#"{"backend": "hunter2"}"#, r#"{"hunter2": 1}"#, r#"{"log": {"level": "hunter2"}}"#, "hunter2"]
    {
        node.write("/etc/cni/slipway.json", settings);
        node.write("/run/net.d/a.conf", settings);
        node.cmd("rm -rf /run/bundle.tar /run/slipway-support");
        node.slipway(COMMAND);
        node.cmd("tar -xf /run/bundle.tar -C /run");
        let found = node.try_cmd("grep -r hunter2 /run/slipway-support");
        assert_eq!(found.code, Some(1), "{settings}: {}", found.stdout);
        let check = node.read("/run/slipway-support/check-node.txt").unwrap();
        assert!(check.contains("slipway.json: (text of "), "{check}");
    }
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let node = Node::new();
    node.write("/run/bundle.tar", "mine");
    let output = node.try_slipway(COMMAND);
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stderr.contains("write /run/bundle.tar: File exists"), "{output}");
    assert_eq!(node.read("/run/bundle.tar").as_deref(), Some("mine"));
}

/// The bundle is made on an empty node, in a folder that the caller chooses.
#[test]
fn an_empty_node_gets_a_bundle() {
    let node = Node::new();
    let printed = node.slipway(COMMAND);
    assert!(printed.contains("Before you share it, look it over"), "{printed}");
    node.cmd("tar -xf /run/bundle.tar -C /run");
    let text = node.read("/run/slipway-support/nftables.txt").unwrap();
    assert!(text.contains("table inet slipway: does not exist"), "{text}");
    assert!(node.read("/run/slipway-support/networks/none.txt").unwrap().contains("/run/net.d"));
}
