// SPDX-License-Identifier: GPL-2.0-or-later

//! ipMasq with the iptables backend.

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Proto, REFERENCE, Reference, needs};

use crate::VARIANTS;

fn list(backend: &str) -> Value {
    json!({
        "name": "testnet", "cniVersion": "1.0.0",
        "plugins": [{
            "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd00:22::/64"}]],
            },
        }],
    })
}

/// Marks the node as one that uses this variant.
fn use_variant(node: &Node, variant: &str) {
    for family in ["iptables", "ip6tables"] {
        node.cmd(&format!("{family}-{variant} -t nat -N KUBE-SERVICES"));
    }
}

fn saved(node: &Node, variant: &str) -> String {
    let of = |family: &str| {
        let all = node.cmd(&format!("{family}-{variant}-save -t nat"));
        let ours: Vec<&str> = all.lines().filter(|line| line.contains("CNI-")).collect();
        format!("# {family}\n{}\n", ours.join("\n"))
    };
    of("iptables") + &of("ip6tables")
}

fn golden() -> String {
    let path = format!("{}/../cni/dataplane/golden/iptables/masquerade.txt", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

const ID: &str = "cnitool-20b4ff582526573bbe7d";

#[test]
fn the_chains_are_the_references_and_go_with_the_container() {
    for (variant, interface) in VARIANTS.into_iter().flat_map(|v| [(v, "bridge"), (v, "ptp")]) {
        let node = Node::new();
        use_variant(&node, variant);
        let list = |backend: &str| {
            let mut list = list(backend);
            list["plugins"][0]["type"] = json!(interface);
            list
        };
        let network = node.network(list("iptables"));
        let pod = node.pod("c1");
        let attach = Attach::new(&pod).container(ID);
        network.add(&attach).expect("ADD");
        assert_eq!(saved(&node, variant), golden(), "iptables-{variant}");
        network.check(&attach).expect("CHECK");
        let rule = "POSTROUTING -s 10.22.0.2/32 -j CNI-ae36f577134103263fc7b752";
        node.cmd(&format!("iptables-{variant} -t nat -A {rule}"));
        network.check(&attach).expect("CHECK with a rule more");
        // The configuration has changed to another backend.
        node.network(list("nftables")).del(&attach).expect("DEL");
        assert!(!saved(&node, variant).contains("CNI-"), "{}", saved(&node, variant));
        assert!(!node.ruleset().contains(&format!(" testnet eth0 {ID}\"")));
    }
}

#[test]
fn slipway_and_the_reference_remove_each_others_rules() {
    let all = Reference::all();
    needs!(!all.is_empty(), REFERENCE);
    for reference in all {
        for ours_first in [true, false] {
            let node = Node::new();
            let network = node.network(list("iptables"));
            let pod = node.pod("c1");
            let attach = Attach::new(&pod).container(ID);
            let bridge = reference.plugin("bridge");
            let config = network.configs(Some(&attach)).remove(0);
            let call = |verb: &str, ours: bool| {
                let call = network.prepare(verb, &config, Some(&attach));
                let call = if ours { call } else { call.instead(&bridge).env("CNI_PATH", reference.dir()) };
                call.run().ok()
            };
            let _ = call("ADD", ours_first);
            assert_eq!(saved(&node, "nft"), golden(), "{reference:?}");
            call("DEL", !ours_first);
            assert!(!saved(&node, "nft").contains("CNI-"), "{reference:?}: {}", saved(&node, "nft"));
        }
    }
}

#[test]
fn gc_removes_stale_attachments() {
    for variant in VARIANTS {
        let node = Node::new();
        use_variant(&node, variant);
        let mut list = list("iptables");
        list["cniVersion"] = json!("1.1.0");
        let network = node.network(list);
        let (one, two) = (node.pod("one"), node.pod("two"));
        let (one, two) = (Attach::new(&one), Attach::new(&two));
        network.add(&one).expect("ADD one");
        network.add(&two).expect("ADD two");
        network.forget();
        network.gc_plugins(&json!([{"containerID": "two", "ifname": "eth0"}])).expect("GC");
        let left = saved(&node, variant);
        assert!(!left.contains("\\\"one\\\"") && left.contains("\\\"two\\\""), "{left}");
    }
}

/// The node's default backend applies to configurations without a backend. DEL does not depend on it.
#[test]
fn a_default_for_the_node_is_read_from_a_file() {
    let node = Node::new();
    node.own_etc();
    let file = |text: &str| node.write("/etc/cni/slipway.json", text);
    let mut list = list("");
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    list["plugins"].as_array_mut().expect("a list").push(portmap);
    let network = node.network(list);
    let pod = node.pod("c1");
    let other = node.pod("c2");
    let attach = Attach::new(&pod).container(ID).port(Proto::Tcp, 8080, 80);
    for (text, ports, masquerade) in [
        ("{}", "nftables", "nftables"),
        (r#"{"backend": "iptables"}"#, "iptables", "iptables"),
        (r#"{"backend": "iptables", "ipMasqBackend": "nftables"}"#, "iptables", "nftables"),
        (r#"{"ipMasqBackend": "iptables"}"#, "nftables", "iptables"),
    ] {
        file(text);
        network.add(&attach).expect("ADD");
        network.check(&attach).expect("CHECK");
        let (chains, ruleset) = (saved(&node, "nft"), node.ruleset());
        assert_eq!(chains.contains("CNI-DN-"), ports == "iptables", "{text}: {chains}");
        assert_eq!(
            chains.contains("-j MASQUERADE") && chains.contains("POSTROUTING -s 10.22"),
            masquerade == "iptables",
            "{text}: {chains}"
        );
        assert_eq!(ruleset.contains("8080 comment"), ports == "nftables", "{text}: {ruleset}");
        file("{\"backend\": \"nonsense\"}");
        let error = network.add(&Attach::new(&other)).expect_err("a wrong default");
        assert_eq!(error.error.code, 7, "{error}");
        assert!(error.error.msg.contains("/etc/cni/slipway.json: "), "{error}");
        network.del(&attach).expect("DEL");
        assert!(!node.ruleset().contains("slipway1"), "{text}: {}", node.ruleset());
        assert!(!saved(&node, "nft").contains("CNI-DN-"), "{text}: {}", saved(&node, "nft"));
    }
}
