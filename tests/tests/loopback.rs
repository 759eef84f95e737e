// SPDX-License-Identifier: GPL-2.0-or-later

//! The loopback plugin.

use serde_json::{Value, json};
use slipway_tests::{Node, Pod, golden_result, newest_version, peer_fails};

fn config(version: &str) -> Value {
    json!({"cniVersion": version, "name": "cni-loopback", "type": "loopback"})
}

fn is_up(pod: &Pod) -> bool {
    pod.link("lo")["flags"].as_array().expect("flags").contains(&"UP".into())
}

#[test]
fn add_sets_the_link_up_and_del_down() {
    let (node, pod) = Node::with_pod();
    assert!(!is_up(&pod));
    // The plugin works on lo, whatever CNI_IFNAME says.
    let call = |verb: &str| node.plugin("loopback").command(verb).for_pod(&pod).config(&config("1.0.0"));
    let result = call("ADD").run().ok();
    assert!(is_up(&pod));
    assert_eq!(result["interfaces"][0]["name"], "lo");
    let again = call("ADD").run().ok();
    assert_eq!(again, result);
    assert!(call("DEL").run().ok().is_null());
    assert!(!is_up(&pod));
    assert!(call("DEL").run().ok().is_null());
}

#[test]
fn the_results_of_every_version_are_the_golden_ones() {
    peer_fails("old results have the shape of the newest", || {
        let (node, pod) = Node::with_pod();
        for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let call = node.plugin("loopback").command("ADD").for_pod(&pod).config(&config(version));
            golden_result("loopback", version, &call.run().ok());
        }
    });
}

#[test]
fn a_previous_result_passes_through() {
    let (node, pod) = Node::with_pod();
    let mut config = config("1.0.0");
    let before = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": "/run/netns/pod"}],
        "ips": [{"interface": 0, "address": "10.1.2.3/24", "gateway": "10.1.2.1"}],
        "dns": {"nameservers": ["10.1.0.1"]},
    });
    config["prevResult"] = before.clone();
    let result = node.plugin("loopback").command("ADD").for_pod(&pod).config(&config).run().ok();
    assert_eq!(result, before);
    assert!(is_up(&pod));
}

#[test]
fn check_sees_a_link_that_is_down() {
    let (node, pod) = Node::with_pod();
    let call =
        |verb: &str, config: &Value| node.plugin("loopback").command(verb).for_pod(&pod).config(config);
    let mut config = config("1.0.0");
    config["prevResult"] = call("ADD", &config).run().ok();
    assert!(call("CHECK", &config).run().ok().is_null());
    pod.cmd("ip link set lo down");
    let error = call("CHECK", &config).run().error();
    assert!(error.msg.contains("loopback interface is down"), "{error:?}");
}

/// If lo has an address that is not a loopback address, the plugin refuses and leaves lo unchanged.
#[test]
fn a_foreign_address_is_refused() {
    peer_fails("it leaves the link up", || {
        let (node, pod) = Node::with_pod();
        pod.cmd("ip address add 10.9.9.9/32 dev lo");
        let call = node.plugin("loopback").command("ADD").for_pod(&pod).config(&config("1.0.0"));
        let error = call.run().error();
        assert!(error.msg.contains("loopback interface found with non-loopback address"), "{error:?}");
        assert!(error.msg.contains("10.9.9.9"), "{error:?}");
        assert!(!is_up(&pod));
    });
}

#[test]
fn del_succeeds_without_a_namespace() {
    let node = Node::new();
    for netns in ["", "/run/netns/gone"] {
        let call = node.plugin("loopback").command("DEL").container("c").ifname("lo").args("");
        assert!(call.netns(netns).config(&config("1.0.0")).run().ok().is_null());
    }
    let call = node.plugin("loopback").command("ADD").container("c").ifname("lo").netns("/run/netns/gone");
    let error = call.config(&config("1.0.0")).run().error();
    assert!(error.msg.contains("/run/netns/gone"), "{error:?}");
}

/// The plugin must not set the loopback of the node itself down.
#[test]
fn the_nodes_own_namespace_is_refused() {
    peer_fails("it looks only afterwards", || {
        let node = Node::new();
        let own = node.pod("own");
        drop(own);
        // Binds the node's own namespace to a path.
        node.cmd("touch /run/netns/self");
        node.cmd("mount --bind /proc/self/ns/net /run/netns/self");
        for verb in ["DEL", "ADD"] {
            let call = node.plugin("loopback").command(verb).container("c").ifname("lo");
            let error = call.netns("/run/netns/self").config(&config("1.0.0")).run().error();
            assert_eq!(error.code, 8, "{error:?}");
            assert_eq!(error.msg, "plugin's netns and netns from CNI_NETNS should not be the same");
            let flags = node.link("lo")["flags"].clone();
            assert!(flags.as_array().expect("flags").contains(&"UP".into()), "{verb} set lo down");
        }
    });
}

#[test]
fn status_and_gc_succeed_silently() {
    if newest_version() == "1.0.0" {
        // An older peer has neither of these verbs.
        return;
    }
    let node = Node::new();
    let mut config = config("1.1.0");
    config["cni.dev/valid-attachments"] = json!([]);
    for verb in ["STATUS", "GC"] {
        let output = node.plugin("loopback").command(verb).config(&config).run();
        assert!(output.ok().is_null());
    }
}
