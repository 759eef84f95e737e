// SPDX-License-Identifier: GPL-2.0-or-later

//! A table of schema 1, whose chains translated at dstnat: it is upgraded in place.

use slipway_tests::{FLOWTABLE, Proto, at, has_flowtable, needs, patience};

use crate::{Backend, PORT, Stage};

/// Changes the table to that of an earlier version.
fn downgrade(stage: &Stage) {
    let mut script = String::from("delete chain inet slipway schema-2\nadd chain inet slipway schema-1\n");
    for chain in ["prerouting", "output", "guard-translated"] {
        script.push_str(&format!("flush chain inet slipway {chain}\ndelete chain inet slipway {chain}\n"));
    }
    for hook in ["prerouting", "output"] {
        script.push_str(&format!(
            "add chain inet slipway {hook} {{ type nat hook {hook} priority -100; policy accept; }}\n\
             add rule inet slipway {hook} meta nfproto ipv4 fib daddr type local goto hostports4\n\
             add rule inet slipway {hook} meta nfproto ipv6 fib daddr type local goto hostports6\n"
        ));
    }
    stage.node.nft(&script);
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Asserts that the next ADD upgrades the table: elements and connections stay, and the chains are those of a
/// new table.
fn is_upgraded(stage: &Stage) {
    let _ingress = stage.publish();
    let before = stage.node.ruleset();
    downgrade(stage);
    let to = at(stage.client.node_v4, PORT);
    let mut flows =
        Proto::ALL.map(|proto| stage.client.dial(proto, None, to, patience()).expect("a connection"));
    for flow in &mut flows {
        assert_eq!(flow.request().expect("an answer").who, "ingress");
    }
    let other = stage.pod(1, "other", |attach| attach.port(Proto::Tcp, PORT + 1, 80));
    for flow in &mut flows {
        assert_eq!(flow.request().expect("the connection survives").who, "ingress");
    }
    stage.expect_published("upgraded");
    stage.network(1).del(&other.attach).expect("DEL");
    assert_eq!(sorted(&stage.node.ruleset()), sorted(&before));
}

#[test]
fn a_table_without_options_is_upgraded() {
    is_upgraded(&Stage::new(Backend::Nftables));
}

#[test]
fn a_table_with_a_flowtable_is_upgraded() {
    needs!(has_flowtable(), FLOWTABLE);
    let stage = Stage::new(Backend::Nftables);
    stage.node.own_etc();
    stage.node.write("/etc/cni/slipway.json", r#"{"flowtable": true}"#);
    is_upgraded(&stage);
    assert!(stage.node.ruleset().contains("flow add @flows"));
}

#[test]
fn restore_upgrades_the_table() {
    let stage = Stage::new(Backend::Nftables);
    let _ingress = stage.publish();
    let before = stage.node.ruleset();
    downgrade(&stage);
    stage.node.slipway("restore");
    assert_eq!(sorted(&stage.node.ruleset()), sorted(&before));
}

/// On a node with IPVS, the ADD that upgrades the table also writes the node's own addresses.
#[test]
fn a_table_on_a_node_with_ipvs_is_upgraded() {
    let stage = Stage::new(Backend::Nftables);
    let _ingress = stage.publish();
    downgrade(&stage);
    stage.node.cmd("ip link add kube-ipvs0 type bridge");
    let _other = stage.pod(1, "other", |attach| attach.port(Proto::Tcp, PORT + 1, 80));
    let ruleset = stage.node.ruleset();
    assert!(ruleset.contains("chain schema-2") && ruleset.contains("ip daddr @addresses4"), "{ruleset}");
    stage.expect_published("upgraded");
}
