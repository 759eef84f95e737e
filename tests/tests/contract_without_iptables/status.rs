// SPDX-License-Identifier: GPL-2.0-or-later

//! A configuration that names iptables is refused before the first ADD, with a hint at the alternative. Others are not.

use serde_json::{Value, json};
use slipway_tests::{Node, has_iptables, needs, peer_fails};

/// Calls STATUS of a plugin, and returns the error's code and message.
fn status(node: &Node, plugin: &str, keys: &Value) -> Option<(u32, String)> {
    let config =
        slipway_tests::with_keys(json!({"cniVersion": "1.1.0", "name": "net", "type": plugin}), keys);
    let output = node.plugin(plugin).command("STATUS").config(&config).run();
    output.result().err().map(|error| (error.code, error.msg))
}

const CASES: [(&str, &str); 6] = [
    ("portmap", r#"{"backend": "iptables"}"#),
    ("portmap", r#"{"conditionsV4": ["-m", "comment", "--comment", "x"]}"#),
    ("portmap", r#"{"externalSetMarkChain": "KUBE-MARK-MASQ"}"#),
    ("bridge", r#"{"ipMasq": true, "ipMasqBackend": "iptables"}"#),
    ("ptp", r#"{"ipMasq": true, "ipMasqBackend": "iptables", "ipam": {"type": "static"}}"#),
    ("firewall", r#"{"backend": "iptables"}"#),
];

#[test]
fn what_names_iptables_is_refused_before_an_add() {
    slipway_tests::needs_iptables!();
    peer_fails("its plugins have no STATUS, or look for nothing", || {
        let node = Node::new();
        for (plugin, keys) in CASES {
            let keys = serde_json::from_str(keys).expect("JSON");
            assert_eq!(status(&node, plugin, &keys), None, "{plugin} {keys}, with iptables");
        }
        node.hide_iptables();
        for (plugin, keys) in CASES {
            let keys = serde_json::from_str(keys).expect("JSON");
            let (code, msg) = status(&node, plugin, &keys).unwrap_or_else(|| panic!("{plugin} {keys}"));
            assert_eq!(code, 50, "{plugin} {keys}");
            let text = "program iptables not found: install iptables, or use backend \"nftables\"";
            assert!(msg.contains(text), "{plugin} {keys}: {msg}");
        }
        for plugin in ["portmap", "firewall"] {
            assert_eq!(status(&node, plugin, &json!({})), None, "{plugin}");
        }
        assert_eq!(status(&node, "bridge", &json!({"ipMasq": true})), None);
    });
}

/// The programs are installed, but the kernel has no x_tables.
#[test]
fn what_names_iptables_is_refused_where_the_kernel_takes_none_of_its_rules() {
    needs!(!has_iptables(), "a kernel without x_tables");
    peer_fails("its plugins have no STATUS, or look for nothing", || {
        let node = Node::new();
        node.own_etc();
        for (plugin, keys) in CASES {
            let keys = serde_json::from_str(keys).expect("JSON");
            let (code, msg) = status(&node, plugin, &keys).unwrap_or_else(|| panic!("{plugin} {keys}"));
            assert_eq!(code, 50, "{plugin} {keys}: {msg}");
            assert!(msg.contains("use backend \"nftables\""), "{plugin} {keys}: {msg}");
        }
        for plugin in ["portmap", "firewall"] {
            assert_eq!(status(&node, plugin, &json!({})), None, "{plugin}");
        }
        assert_eq!(status(&node, "bridge", &json!({"ipMasq": true})), None);
        let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "ipMasq": true}, {"type": "portmap", "backend": "iptables"}, {"type": "firewall"},
        ]});
        node.write("/etc/cni/net.d/10-pods.conflist", list.to_string());
        let report = node.try_slipway("check-node").stdout;
        let line = |subject: &str| report.lines().find(|line| line.contains(subject)).unwrap_or_default();
        assert!(line("network pods, plugin portmap").starts_with("missing"), "{report}");
        assert!(line("backend iptables").starts_with("note"), "{report}");
        assert!(!report.contains("plugin firewall") && !report.contains("plugin bridge"), "{report}");
    });
}

/// `check-node` reports the same errors for the configured networks.
#[test]
fn check_node_names_networks_that_need_iptables() {
    slipway_tests::needs_iptables!();
    peer_fails("there is no check-node", || {
        let node = Node::new();
        node.own_etc();
        let plugins = json!([{"type": "bridge", "ipMasq": true}, {"type": "portmap", "backend": "iptables"}]);
        let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins});
        node.write("/etc/cni/net.d/10-pods.conflist", list.to_string());
        let line = |subject: &str| {
            let output = node.try_slipway("check-node").stdout;
            output.lines().find(|line| line.contains(subject)).map(str::to_owned)
        };
        assert_eq!(line("network pods"), None);
        assert!(line("backend iptables").is_some_and(|line| line.starts_with("ok")));
        node.hide_iptables();
        let found = line("network pods, plugin portmap").expect("a finding");
        assert!(found.starts_with("missing") && found.contains("use backend \"nftables\""), "{found}");
        assert!(line("backend iptables").is_some_and(|line| line.starts_with("note")));
    });
}
