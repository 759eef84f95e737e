// SPDX-License-Identifier: GPL-2.0-or-later

//! Delegation to a plugin that is not an IPAM plugin, or that delegates back.

use serde_json::{Value, json};
use slipway_tests::{Node, Output, Pod, Snapshot, is_peer, quoted, slipway_only};

/// Plugins that delegate to the plugin that `ipam.type` names.
const DELEGATING: &[&str] = &["bridge", "dummy", "host-device", "ipvlan", "macvlan", "ptp", "tap", "vlan"];
const VERBS: &[&str] = &["ADD", "CHECK", "STATUS", "DEL", "GC"];
const ERROR: &str = "exit status";

fn config(plugin: &str, ipam: &str) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": plugin, "device": "dev0", "master": "out0", "vlanId": 5,
        "ipam": {"type": ipam}, "cni.dev/valid-attachments": [],
        "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "out0"}]},
    })
}

fn node() -> Node {
    let node = Node::new();
    node.cmd("ip link add dev0 type veth peer name wire0");
    node.cmd("ip link add out0 type veth peer name wire1");
    node
}

fn call(node: &Node, pod: &Pod, verb: &str, config: &Value) -> Output {
    let path = format!("{}:/run/bin", node.bin().display());
    let plugin = config["type"].as_str().expect("a type");
    node.plugin(plugin).command(verb).for_pod(pod).config(config).env("CNI_PATH", path).run()
}

#[test]
fn a_plugin_that_is_not_ipam_is_refused_and_removal_succeeds() {
    if is_peer() {
        return; // The reference's calls never end.
    }
    let node = node();
    let pod = node.pod("pod");
    let before = Snapshot::take(&node, &[&pod]);
    for plugin in DELEGATING {
        for ipam in [plugin, "flannel"] {
            for verb in VERBS {
                let output = call(&node, &pod, verb, &config(plugin, ipam));
                if ["DEL", "GC"].contains(verb) {
                    let _ = output.ok();
                    continue;
                }
                let error = output.error();
                if error.msg.contains("Unknown device type") || error.msg.contains("has no links of kind") {
                    continue; // The kernel lacks the plugin's kind of link.
                }
                let expected = format!("key \"ipam.type\": plugin \"{ipam}\" is not an IPAM plugin");
                assert!(error.code == 7 && error.msg.ends_with(&expected), "{plugin} {verb}: {error:?}");
            }
        }
    }
    before.assert_same(&Snapshot::take(&node, &[&pod]));
}

/// Installs a plugin with this name that executes `plugin`, at most 50 times.
fn proxy(node: &Node, name: &str, plugin: &str) {
    let script = format!(
        "#!/bin/sh\necho $CNI_COMMAND >>/run/calls\n\
         [ $(wc -l </run/calls) -gt 50 ] && {{ echo '{{\"code\": 999, \"msg\": \"{ERROR}\"}}'; exit 1; }}\n\
         exec {}/{plugin}\n",
        quoted(node.bin())
    );
    node.write(&format!("/run/bin/{name}"), script);
    node.cmd(&format!("chmod 755 /run/bin/{name}"));
}

#[test]
fn a_delegation_loop_through_another_plugin_ends() {
    if is_peer() {
        return; // The reference's calls never end.
    }
    let node = node();
    let pod = node.pod("pod");
    proxy(&node, "proxy", "bridge");
    let config = config("bridge", "proxy");
    for verb in VERBS {
        node.cmd("rm -f /run/calls");
        let output = call(&node, &pod, verb, &config);
        let calls = node.read("/run/calls").unwrap_or_default().lines().count();
        assert!((1..=8).contains(&calls), "{verb}: {calls} calls");
        if ["DEL", "GC"].contains(verb) {
            let _ = output.ok();
        } else {
            let error = output.error();
            let expected = "plugin \"proxy\": more than 8 plugins delegate to each other";
            assert_eq!((error.code, error.msg.as_str()), (7, expected), "{verb}");
        }
        assert!(!pod.has_link("eth0"));
    }
}

#[test]
fn a_foreign_plugin_with_a_known_name_may_be_the_ipam_plugin() {
    let node = node();
    let pod = node.pod("pod");
    let answer = r#"{"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.5/24"}]}"#;
    let script = format!("#!/bin/sh\n[ $CNI_COMMAND = ADD ] && echo '{answer}' || exit 0\n");
    node.write("/run/bin/tuning", script);
    node.cmd("chmod 755 /run/bin/tuning");
    let path = format!("/run/bin:{}", node.bin().display());
    let config = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "tuning"}});
    let call = |verb: &str| node.plugin("bridge").command(verb).for_pod(&pod).env("CNI_PATH", &path);
    let result = call("ADD").config(&config).run();
    slipway_only!();
    assert_eq!(result.ok()["ips"][0]["address"], "10.1.2.5/24");
    let _ = call("DEL").config(&config).run().ok();
    assert!(!pod.has_link("eth0"));
}

#[test]
fn flannel_does_not_delegate_to_itself() {
    if is_peer() {
        return; // The reference set has no flannel.
    }
    let node = node();
    let pod = node.pod("pod");
    let share =
        "FLANNEL_NETWORK=10.88.0.0/16\nFLANNEL_SUBNET=10.88.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
    node.write("/run/flannel/subnet.env", share);
    let mut config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "flannel", "delegate": {"type": "flannel"},
        "cni.dev/valid-attachments": [],
    });
    for verb in ["ADD", "STATUS"] {
        let error = call(&node, &pod, verb, &config).error();
        let expected = "key \"delegate.type\": flannel cannot delegate to itself";
        assert_eq!((error.code, error.msg.as_str()), (7, expected), "{verb}");
    }
    let _ = call(&node, &pod, "DEL", &config).ok();
    // An older version may have left this file behind.
    config["dataDir"] = "/var/lib/cni/flannel".into();
    node.write("/var/lib/cni/flannel/pod", config.to_string());
    let _ = call(&node, &pod, "DEL", &config).ok();
    assert!(node.list("/var/lib/cni/flannel").iter().all(|name| name != "pod"));
}
