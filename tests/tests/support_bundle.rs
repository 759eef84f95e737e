//! `slipway support-bundle` on a node with containers: what is in the file, and what is not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::json;
use slipway_tests::{Attach, Node, Proto, Snapshot};

const COMMAND: &str = "support-bundle -o /run/bundle.tar --config-dir /run/net.d --plugin-dir /run/nowhere";

#[test]
fn it_has_what_a_report_needs_and_no_secrets() {
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
        r#"{"name": "pods", "plugins": [], "etcdPassword": "hunter2"}"#,
    );
    node.write("/run/net.d/kubeconfig", "token: hunter2");
    let state = || Snapshot::take(&node, &[&pod]).without(&["bundle.tar"]);
    let before = state();
    let said = node.slipway(COMMAND);
    before.assert_same(&state());

    assert_eq!(node.cmd("stat -c %a /run/bundle.tar").trim(), "600");
    node.cmd("tar -xf /run/bundle.tar -C /run");
    let names = node.cmd("tar -tf /run/bundle.tar");
    for name in names.lines() {
        let name = name.strip_prefix("slipway-support/").expect("all in one folder");
        assert!(said.contains(name), "{name} is not told: {said}");
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
        ("plugins.txt", &["could not be had", "/run/nowhere"]),
        ("reservations.txt", &["10.22.0.2 \"web eth0\""]),
        ("cache.txt", &["bridge portmap", "/run/netns/web"]),
        ("networks/10-pods.conflist", &["\"etcdPassword\": \"(redacted)\""]),
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

#[test]
fn a_file_that_is_there_is_not_overwritten() {
    let node = Node::new();
    node.write("/run/bundle.tar", "mine");
    let output = node.try_slipway(COMMAND);
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stderr.contains("write /run/bundle.tar: File exists"), "{output}");
    assert_eq!(node.read("/run/bundle.tar").as_deref(), Some("mine"));
}

/// On a node where there is nothing yet, and in a folder of one's own choice.
#[test]
fn an_empty_node_has_one_too() {
    let node = Node::new();
    let said = node.slipway(COMMAND);
    assert!(said.contains("Before you share it, look it over"), "{said}");
    node.cmd("tar -xf /run/bundle.tar -C /run");
    let text = node.read("/run/slipway-support/nftables.txt").unwrap();
    assert!(text.contains("table inet slipway: not there"), "{text}");
    assert!(node.read("/run/slipway-support/networks/none.txt").unwrap().contains("/run/net.d"));
}
