// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipwayd pod` with `--network-plugin`.

use serde_json::{Value, json};
use slipway_tests::{CommandOutput, Proto, quoted, slipway_only, slipwayd};

use crate::Kubelet;

impl Kubelet {
    pub(crate) fn slipwayd(&self, args: &str) -> CommandOutput {
        let bin = quoted(self.node.bin());
        self.node.try_cmd(&format!("{} {args} --cni-bin-dir {bin}", quoted(slipwayd())))
    }

    pub(crate) fn ok(&self, args: &str) -> String {
        let output = self.slipwayd(args);
        assert_eq!(output.code, Some(0), "{args}: {output}");
        output.stdout
    }

    pub(crate) fn fails(&self, args: &str) -> String {
        let output = self.slipwayd(args);
        assert_eq!(output.code, Some(1), "{args}: {output}");
        output.stderr
    }
}

const KUBENET: &str =
    "--network-plugin kubenet --pod-cidr 10.180.1.0/24,fd00:180::/64 --hairpin-mode hairpin-veth";

#[test]
fn the_command_line_sets_up_and_tears_down_pods_of_kubenet() {
    slipway_only!();
    let kubelet = Kubelet::new();
    let client = kubelet.node.host("client");
    let ready = kubelet.ok(&format!("pod status {KUBENET} --output json"));
    let ready: Value = serde_json::from_str(&ready).expect("JSON");
    assert_eq!(ready, json!({"schema": 1, "network": null, "network_plugin": "kubenet", "ready": true}));
    let up = format!("pod up shop/web --sandbox s1 --create-netns --port 8080:80 --bandwidth 20M {KUBENET}");
    let printed: Value = serde_json::from_str(&kubelet.ok(&format!("{up} --output json"))).expect("JSON");
    let pod = json!({"namespace": "shop", "name": "web", "sandbox": "s1"});
    assert_eq!(printed, json!({"schema": 1, "pod": pod, "addresses": ["10.180.1.2", "fd00:180::2"]}));
    let web = kubelet.node.namespace("web", "/run/netns/slipwayd-s1".as_ref());
    let server = web.serve(Proto::Tcp, "0.0.0.0:80", "web");
    client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
    assert!(kubelet.node.cmd("tc qdisc show").contains("rate 20Mbit"));
    drop((server, web));
    let table = kubelet.ok(&format!("pod status shop/web --sandbox s1 {KUBENET}"));
    assert!(table.contains("10.180.1.2 fd00:180::2"), "{table}");
    kubelet.ok(&format!("pod down shop/web --sandbox s1 {KUBENET}"));
    assert!(!kubelet.node.list("/run/netns").contains(&"slipwayd-s1".to_owned()));
    client.expect_none(Proto::Tcp, (client.node_v4, 8080));
    kubelet.ok(&format!("pod down shop/web --sandbox s1 {KUBENET}"));
}

#[test]
fn the_command_line_reports_what_is_wrong() {
    slipway_only!();
    let kubelet = Kubelet::new();
    let error = kubelet.fails("pod status --network-plugin nothing");
    assert!(error.ends_with("slipwayd pod status: Network plugin \"nothing\" not found.\n"), "{error}");
    let error = kubelet.fails("pod status --network-plugin kubenet --pod-cidr 10.1.0.0/24,x");
    assert!(
        error.contains(
            "Failed to generate CNI network config with cidr x at index 1: invalid CIDR address: x"
        ),
        "{error}"
    );
    assert!(error.ends_with("This is most likely due to lack of PodCIDR\n"), "{error}");
    let error = kubelet.fails("pod status a/b --sandbox nope --network-plugin kubenet");
    assert!(error.contains("the namespace of sandbox nope is not known: name it with --netns"), "{error}");
    let error =
        kubelet.fails(&format!("pod up shop/web --sandbox s1 --create-netns --bandwidth 10 {KUBENET}"));
    assert!(
        error
            .ends_with("error reading pod bandwidth annotations: resource is unreasonably small (< 1kbit)\n"),
        "{error}"
    );
    assert!(!kubelet.node.list("/run/netns").contains(&"slipwayd-s1".to_owned()));
}
