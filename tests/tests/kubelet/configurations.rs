// SPDX-License-Identifier: GPL-2.0-or-later

//! The directories of kubelet's CNI driver, and the files that the driver skips.

use serde_json::json;
use slipway_tests::{Node, quoted, slipway_only, slipwayd};

use crate::Kubelet;

fn write(node: &Node, path: &str, name: &str, kind: &str) {
    let bridge = json!({
        "type": kind, "bridge": name, "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"},
    });
    let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": [bridge]});
    node.write(path, list.to_string());
}

const UP: &str = "pod up shop/web --sandbox s1 --create-netns --network-plugin cni";
const DOWN: &str = "pod down shop/web --sandbox s1 --network-plugin cni";

#[test]
fn the_plugin_directory_has_the_configurations_unless_another_one_is_named() {
    slipway_only!();
    let kubelet = Kubelet::new();
    let node = &kubelet.node;
    write(node, "/run/plugins/10-a.conflist", "br-a", "bridge");
    write(node, "/run/net.d/10-b.conflist", "br-b", "bridge");
    for (options, bridge) in [
        ("--network-plugin-dir /run/plugins", "br-a"),
        ("--network-plugin-dir /run/plugins --cni-conf-dir /run/net.d", "br-b"),
        ("--cni-conf-dir /run/net.d", "br-b"),
    ] {
        kubelet.ok(&format!("{UP} {options}"));
        assert!(node.has_link(bridge), "{options}");
        kubelet.ok(&format!("{DOWN} {options}"));
        node.cmd(&format!("ip link delete {bridge}"));
    }
    // Without these options, the driver uses the directory of all runtimes.
    let error = kubelet.fails("pod status --network-plugin cni");
    assert!(error.contains("networks found in /etc/cni/net.d"), "{error}");
}

#[test]
fn a_file_whose_plugins_cannot_be_called_is_passed_over() {
    slipway_only!();
    let kubelet = Kubelet::new();
    let node = &kubelet.node;
    let conf = "--cni-conf-dir /run/net.d";
    node.write("/run/net.d/05-bad.conf", "{");
    write(node, "/run/net.d/10-first.conflist", "br-a", "sdn");
    let error = kubelet.fails(&format!("pod status --network-plugin cni {conf}"));
    for (text, times) in [
        ("Error loading CNI config file /run/net.d/05-bad.conf: error parsing", 1),
        (
            "Error validating CNI config file /run/net.d/10-first.conflist: failed to find plugin \"sdn\" in path",
            1,
        ),
        ("/run/net.d/05-bad.conf", 1),
        ("Unable to update cni config: No valid networks found in /run/net.d", 1),
        ("slipwayd pod status: cni config uninitialized: No valid networks found in /run/net.d\n", 1),
        ("airpin", 0),
    ] {
        assert_eq!(error.matches(text).count(), times, "{text}: {error}");
    }
    kubelet.fails(&format!("{UP} {conf}"));
    write(node, "/run/net.d/20-second.conflist", "br-b", "bridge");
    let output = kubelet.slipwayd(&format!("{UP} {conf}"));
    assert!(output.code == Some(0) && output.stderr.contains("10-first.conflist"), "{output}");
    assert!(node.has_link("br-b") && !node.has_link("br-a"));
    kubelet.ok(&format!("{DOWN} {conf}"));
    // As the control, the first file is used once its plugin exists.
    node.cmd(&format!("cp {} /run/net.d/sdn", quoted(node.bin().join("bridge"))));
    write(node, "/run/net.d/10-first.conflist", "br-a", "bridge");
    kubelet.ok(&format!("{UP} {conf}"));
    assert!(node.has_link("br-a"));
    kubelet.ok(&format!("{DOWN} {conf}"));
}

#[test]
fn plugin_directories_are_separated_by_commas() {
    slipway_only!();
    let kubelet = Kubelet::new();
    let node = &kubelet.node;
    write(node, "/run/net.d/10-a.conflist", "br-a", "bridge");
    node.cmd("mkdir -p /run/first /run/second");
    for (directory, plugin) in [("first", "bridge"), ("second", "host-local"), ("second", "loopback")] {
        node.cmd(&format!("ln -s {} /run/{directory}/{plugin}", quoted(node.bin().join(plugin))));
    }
    let run = |words: &str| node.try_cmd(&format!("{} {words}", quoted(slipwayd())));
    let options = "--cni-conf-dir /run/net.d --cni-bin-dir";
    let alone = run(&format!("{UP} {options} /run/first"));
    assert_eq!(alone.code, Some(1), "{alone}");
    let both = "/run/first,/run/second";
    for call in [format!("{UP} {options} {both}"), format!("{DOWN} {options} {both}")] {
        let output = run(&call);
        assert_eq!(output.code, Some(0), "{output}");
    }
    // The directories work without a network plugin of kubelet as well, while kubenet looks for all plugins in a single
    // directory.
    let status = run(&format!("pod status {options} {both}"));
    assert_eq!(
        (status.code, status.stdout.as_str()),
        (Some(0), "NETWORK  STATE\nbr-a     ready\n"),
        "{status}"
    );
    let kubenet = "pod status --network-plugin kubenet --pod-cidr 10.180.1.0/24 --cni-bin-dir";
    assert_eq!(run(&format!("{kubenet} {both}")).code, Some(1));
    let whole = quoted(node.bin());
    assert_eq!(run(&format!("{kubenet} /run/first,{whole}")).code, Some(0));
}

#[test]
fn an_option_that_the_driver_does_not_use_is_named() {
    slipway_only!();
    let kubelet = Kubelet::new();
    write(&kubelet.node, "/run/net.d/10-a.conflist", "br-a", "bridge");
    let status = "pod status --network-plugin cni --cni-conf-dir /run/net.d";
    let output = kubelet.slipwayd(status);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{output}");
    let output = kubelet.slipwayd(&format!("{status} --hairpin-mode hairpin-veth"));
    let wanted = "--hairpin-mode has no effect with --network-plugin cni: kubenet alone uses it";
    assert!(output.code == Some(0) && output.stderr.contains(wanted), "{output}");
}
