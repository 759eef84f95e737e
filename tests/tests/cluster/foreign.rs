// SPDX-License-Identifier: GPL-2.0-or-later

//! If another program's objects occupy the place of the agent's, the agent leaves them alone and the node is not ready.

use serde_json::Value;
use slipway_tests::ClusterNode;
use slipwayd::cluster::desired::TunnelMode;

use crate::{CONFLIST, Lab};

/// A configuration of another program.
const OTHER: &str = r#"{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "ptp"}]}"#;

/// Compares the first node with its desired state, and returns why it is not ready.
fn reason(lab: &Lab) -> Option<String> {
    lab.compare(1, true).reason()
}

fn lab() -> Lab {
    Lab::new(1, TunnelMode::Always)
}

/// The properties of a bridge that the agent would change.
fn shown(node: &ClusterNode, name: &str) -> (Value, Value, String) {
    let link = node.link(name);
    let addresses = node.cmd(&format!("ip -oneline address show dev {name} scope global"));
    (link["address"].clone(), link["mtu"].clone(), addresses)
}

fn set_alias(node: &ClusterNode, name: &str, alias: &str) {
    node.cmd_input("sh -e", &format!("ip link set {name} alias '{alias}'"));
}

#[test]
fn a_foreign_bridge_stays_as_it_is() {
    let lab = lab();
    let node = lab.node(1);
    node.cmd("ip link add slipway0 address 02:00:00:00:00:07 mtu 1400 type bridge");
    node.cmd("ip link set slipway0 up");
    let before = shown(node, "slipway0");
    let expected = "bridge: a bridge \"slipway0\" exists that Slipway did not make: delete it, or choose another name with \
                    --bridge";
    assert_eq!(reason(&lab).as_deref(), Some(expected));
    assert_eq!(shown(node, "slipway0"), before);
    assert_eq!(node.read(CONFLIST), None);
    node.cmd("ip link del slipway0");
    assert_eq!(reason(&lab), None);
}

/// A process that is killed after it has created a link and before it has set the alias leaves such a link.
#[test]
fn a_link_that_was_not_finished_is_taken() {
    let mut lab = Lab::new(2, TunnelMode::Always);
    lab.settle();
    let node = lab.node(1);
    for name in ["slipway0", "slipway-vxlan"] {
        node.cmd(&format!("ip link set {name} down"));
        set_alias(node, name, "");
        assert_eq!(reason(&lab), None, "{name}");
        assert!(node.cmd(&format!("ip link show {name}")).contains("alias made by slipway"), "{name}");
    }
    // As the control, a link without the alias that is in use belongs to another program.
    for name in ["slipway0", "slipway-vxlan"] {
        set_alias(node, name, "");
        assert!(reason(&lab).is_some_and(|reason| reason.contains("that Slipway did not make")), "{name}");
        set_alias(node, name, "made by slipway");
    }
}

#[test]
fn a_foreign_configuration_stays_as_it_is() {
    let lab = lab();
    let node = lab.node(1);
    node.cmd("mkdir -p /run/net.d");
    node.write(CONFLIST, OTHER);
    let expected = format!(
        "configuration: {CONFLIST:?} is another program's: delete it, or choose another path with --conflist"
    );
    assert_eq!(reason(&lab), Some(expected));
    assert_eq!(node.read(CONFLIST).as_deref(), Some(OTHER));
    // A configuration that no runtime can read is replaced, and so is one of ours that another program has changed.
    node.write(CONFLIST, "");
    assert_eq!(reason(&lab), None);
    let ours = node.read(CONFLIST).expect("a configuration");
    node.write(CONFLIST, ours.replace("\"mtu\": 1450", "\"mtu\": 1000").replace("pods", "elsewhere"));
    assert_eq!(reason(&lab), None);
    assert_eq!(node.read(CONFLIST), Some(ours));
}
