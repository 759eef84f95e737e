// SPDX-License-Identifier: GPL-2.0-or-later

//! VLANs, on kernels with bridge VLAN filtering.

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Proto, address_of, has_ipv6, peer_fails, skip};

use super::pair::{add, network, outer};

/// True if bridges filter by VLAN. Kernels without VLAN filtering refuse the setting or ignore it.
fn has_filtering(node: &Node) -> bool {
    if node.try_cmd("ip link add probe type bridge vlan_filtering 1").code != Some(0) {
        return false;
    }
    let filters = node.link("probe")["linkinfo"]["info_data"]["vlan_filtering"] == 1;
    node.cmd("ip link delete probe");
    filters
}

/// Returns `(VLAN, flags)` of a port, from `bridge -j vlan`.
fn vlans(node: &Node, port: &str) -> Vec<(u64, Vec<String>)> {
    let all: Value = serde_json::from_str(&node.cmd("bridge -j vlan show")).expect("JSON");
    let ports = all.as_array().expect("a list").iter();
    let of_port = ports
        .filter(|entry| entry["ifname"] == port)
        .flat_map(|entry| entry["vlans"].as_array().expect("vlans"));
    let mut found = Vec::new();
    for vlan in of_port {
        let flags: Vec<String> = vlan["flags"]
            .as_array()
            .map(|flags| flags.iter().map(|flag| flag.as_str().expect("text").to_owned()).collect())
            .unwrap_or_default();
        let first = vlan["vlan"].as_u64().expect("a number");
        let last = vlan["vlanEnd"].as_u64().unwrap_or(first);
        found.extend((first..=last).map(|id| (id, flags.clone())));
    }
    found.sort();
    found
}

fn native() -> Vec<String> {
    vec!["PVID".to_owned(), "Egress Untagged".to_owned()]
}

#[test]
fn a_kernel_without_vlan_filtering_is_reported() {
    let node = Node::new();
    if has_filtering(&node) {
        return; // The other tests of this file cover these kernels.
    }
    peer_fails("does not notice, or fails with \"operation not supported\"", || {
        let pod = node.pod("pod");
        for keys in [json!({"vlan": 5}), json!({"vlanTrunk": [{"id": 7}]})] {
            let failure = network(&node, &keys).add(&Attach::new(&pod)).expect_err("no filtering");
            assert!(failure.error.msg.contains("CONFIG_BRIDGE_VLAN_FILTERING"), "{failure}");
            assert!(!pod.has_link("eth0"));
            assert_eq!(node.cmd("ip -o link show type veth"), "");
        }
    });
}

#[test]
fn ports_of_different_vlans_are_isolated() {
    let node = Node::new();
    if !has_filtering(&node) {
        skip!("bridge vlan filtering");
    }
    let pods = ["a", "b", "c"].map(|name| node.pod(name));
    let (five, six) = (network(&node, &json!({"vlan": 5})), network(&node, &json!({"vlan": 6})));
    let result = add(&five, &pods[0]);
    assert_eq!(vlans(&node, &outer(&result)), [(5, native())]);
    add(&five, &pods[1]);
    add(&six, &pods[2]);
    let target = address_of(&result, 0);
    let _server = pods[0].serve(Proto::Tcp, "0.0.0.0:80", "a");
    pods[1].expect(Proto::Tcp, (target, 80), "a");
    pods[2].expect_none(Proto::Tcp, (target, 80));
    five.check(&Attach::new(&pods[0])).expect("CHECK");
}

#[test]
fn the_default_vlan_stays_when_asked() {
    let node = Node::new();
    if !has_filtering(&node) {
        skip!("bridge vlan filtering");
    }
    let pod = node.pod("pod");
    let result = add(&network(&node, &json!({"vlan": 5, "preserveDefaultVlan": true})), &pod);
    assert_eq!(vlans(&node, &outer(&result)), [(1, vec!["Egress Untagged".to_owned()]), (5, native())]);
}

#[test]
fn a_trunk_carries_its_vlans_tagged() {
    let node = Node::new();
    if !has_filtering(&node) {
        skip!("bridge vlan filtering");
    }
    let (one, two) = (node.pod("one"), node.pod("two"));
    let trunk = json!([{"minID": 10, "maxID": 12}, {"id": 20}]);
    let trunk_only = network(&node, &json!({"vlanTrunk": trunk}));
    let tagged = |id| (id, Vec::new());
    let result = add(&trunk_only, &one);
    assert_eq!(
        vlans(&node, &outer(&result)),
        [(1, native()), tagged(10), tagged(11), tagged(12), tagged(20)]
    );
    trunk_only.check(&Attach::new(&one)).expect("CHECK");
    let result = add(&network(&node, &json!({"vlan": 5, "vlanTrunk": trunk})), &two);
    assert_eq!(
        vlans(&node, &outer(&result)),
        [(5, native()), tagged(10), tagged(11), tagged(12), tagged(20)]
    );
}

#[test]
fn the_gateway_of_a_vlan_has_a_link_of_its_own() {
    let node = Node::new();
    if !has_filtering(&node) {
        skip!("bridge vlan filtering");
    }
    let (one, two) = (node.pod("one"), node.pod("two"));
    let network = network(&node, &json!({"vlan": 5, "isGateway": true}));
    let result = add(&network, &one);
    let interfaces = result["interfaces"].as_array().expect("interfaces");
    assert_eq!((interfaces.len(), &interfaces[3]["name"]), (4, &json!("br0.5")));
    assert_eq!(interfaces[3]["mac"], node.mac("br0.5"));
    peer_fails("believes router advertisements of containers there", || {
        let accepts = node.sysctl_get("net/ipv6/conf/br0.5/accept_ra");
        assert_eq!(accepts.as_deref(), has_ipv6().then_some("0"));
    });
    assert!(node.cmd("ip address show dev br0.5").contains("10.1.2.1/24"));
    assert!(!node.cmd("ip -4 address show dev br0").contains("inet"));
    let _server = node.serve(Proto::Tcp, "10.1.2.1:80", "node");
    one.expect(Proto::Tcp, ([10, 1, 2, 1], 80), "node");
    add(&network, &two);
    two.expect(Proto::Tcp, ([10, 1, 2, 1], 80), "node");
    network.check(&Attach::new(&one)).expect("CHECK");
}

/// Two networks on one bridge, as after a configuration has been renamed.
#[test]
fn vlans_may_have_the_same_address_but_one_vlan_has_none_twice() {
    slipway_tests::slipway_only!();
    let node = Node::new();
    if !has_filtering(&node) {
        skip!("bridge vlan filtering");
    }
    let network = |name: &str, keys: &Value| {
        // Each range has a single address, so that all networks of the node reserve the same one.
        let ipam = json!({
            "type": "host-local", "subnet": "10.9.0.0/24", "rangeStart": "10.9.0.5", "rangeEnd": "10.9.0.5",
        });
        let plugin = json!({"type": "bridge", "bridge": "br0", "ipam": ipam});
        node.network(json!({"name": name, "plugins": [slipway_tests::with_keys(plugin, keys)]}))
    };
    let pods: Vec<_> = ["a", "b", "c", "d"].into_iter().map(|name| node.pod(name)).collect();
    network("one", &json!({"vlan": 5})).add(&Attach::new(&pods[0])).expect("ADD to VLAN 5");
    network("two", &json!({"vlan": 6})).add(&Attach::new(&pods[1])).expect("ADD to VLAN 6");
    let taken = network("three", &json!({"vlan": 5})).add(&Attach::new(&pods[2])).expect_err("taken");
    assert_eq!(taken.error.code, 11, "{taken}");
    assert!(taken.error.msg.contains("10.9.0.5 is taken by network one"), "{taken}");
    network("four", &json!({"vlan": 7})).add(&Attach::new(&pods[3])).expect("ADD to VLAN 7");
}
