// SPDX-License-Identifier: GPL-3.0-or-later

//! Nodes are read from JSON.

use k8s_openapi::api::core::v1::Node as FullNode;
use kube::Resource as _;

use super::*;

#[test]
fn a_node_of_the_api_is_read() {
    let text = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {
            "name": "worker-1.example", "uid": "1", "resourceVersion": "1234",
            "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"a": "b"},
            "annotations": {"other/key": "value", VXLAN_MAC: "02:00:00:00:00:09", VXLAN_PORT: "4789"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:addresses": {}}}}],
        },
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd44:0:0:1::/64"], "taints": []},
        "status": {
            "capacity": {"cpu": "2"}, "images": [{"names": ["a"], "sizeBytes": 1}],
            "addresses": [
                {"type": "Hostname", "address": "worker-1"},
                {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "ExternalIP", "address": "198.51.100.1"},
                {"type": "InternalIP", "address": "2001:db8::1"},
                {"type": "InternalIP", "address": "192.0.2.1"},
            ],
        },
    })
    .to_string();
    let object: NodeObject = serde_json::from_str(&text).unwrap();
    let node = Node::read(&object).unwrap();
    assert_eq!(node.name.as_str(), "worker-1.example");
    assert_eq!((&*node.uid, node.created), ("1", Some(1_767_323_045)));
    assert_eq!(node.pod_cidrs, [net("10.244.1.0/24"), net("fd44:0:0:1::/64")]);
    assert_eq!(node.addresses, [ip("192.0.2.1"), ip("2001:db8::1")]);
    assert_eq!(node.annotations.vxlan_mac, Some("02:00:00:00:00:09".parse().unwrap()));
    assert_eq!(node.annotations.vxlan_port.map(NonZeroU16::get), Some(4789));
    assert_eq!(node.unusable, []);
    // The same fields as those of the API's own type.
    let full: FullNode = serde_json::from_str(&text).unwrap();
    assert_eq!(object.meta().name, full.metadata.name);
    assert_eq!(object.meta().resource_version, full.metadata.resource_version);
    assert_eq!(node.created, full.metadata.creation_timestamp.map(|time| time.0.as_second()));
    assert_eq!(
        (NodeObject::url_path(&(), None), NodeObject::kind(&())),
        (FullNode::url_path(&(), None), FullNode::kind(&()))
    );
}

/// A heartbeat changes conditions and the resource version only.
#[test]
fn a_heartbeat_reads_as_the_same_node() {
    let mut beat = object("a", 1, &["10.244.1.0/24"], &["192.0.2.1"]);
    let before = read(&beat);
    beat["metadata"]["resourceVersion"] = json!("8");
    beat["status"]["conditions"] =
        json!([{"type": "PreparedDevice", "lastHeartbeatTime": "2026-01-01T00:00:10Z"}]);
    assert_eq!(read(&beat), before);
}

#[test]
fn the_field_of_one_family_counts_without_the_list() {
    let mut old = object("a", 1, &["10.244.1.0/24"], &[]);
    old["spec"].as_object_mut().unwrap().remove("podCIDRs");
    assert_eq!(read(&old).pod_cidrs, [net("10.244.1.0/24")]);
}

#[test]
fn host_bits_are_cleared() {
    assert_eq!(node("a", 1, &["10.244.1.7/24"], &[]).pod_cidrs, [net("10.244.1.0/24")]);
}

#[test]
fn values_that_no_node_can_have_are_left_out() {
    let long = "9".repeat(100_000);
    for cidr in [
        "",
        "10.244.1.0",
        "10.244.1.0/33",
        "10.244.1.0/+24",
        "10.244.1.0/",
        "010.244.1.0/24",
        "0.0.0.0/0",
        "10.0.0.0/7",
        "127.0.1.0/24",
        "169.254.0.0/24",
        "224.0.0.0/24",
        "255.255.255.0/24",
        "::/0",
        "::ffff:10.244.1.0/120",
        "fe80::/64",
        "ff02::/64",
        "2001::/16",
        "10.244.1.0/24\n",
        &long,
    ] {
        let node = node("a", 1, &[cidr], &[]);
        assert_eq!(node.pod_cidrs, [], "{cidr:.40}");
        assert!(
            matches!(node.unusable[..], [ProblemKind::PodCidr { .. }]),
            "{cidr:.40}: {:?}",
            node.unusable
        );
    }
    for address in [
        "",
        "a",
        "0.0.0.0",
        "127.0.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:192.0.2.1",
        "fe80::1",
        "ff02::1",
        "192.0.2.1/24",
        "192.0.2.1 ",
        &long,
    ] {
        let node = node("a", 1, &[], &[address]);
        assert_eq!(node.addresses, [] as [IpAddr; 0], "{address:.40}");
        assert!(
            matches!(node.unusable[..], [ProblemKind::Address { .. }]),
            "{address:.40}: {:?}",
            node.unusable
        );
    }
    for (key, value) in [
        (VXLAN_MAC, "02:00:00:00:00"),
        (VXLAN_MAC, "00:00:00:00:00:00"),
        (VXLAN_MAC, "01:00:5e:00:00:01"),
        (VXLAN_PORT, "0"),
        (VXLAN_PORT, "65536"),
        (VXLAN_PORT, "-1"),
        (VXLAN_PORT, &long),
        (WIREGUARD_PORT, "0"),
        (WIREGUARD_KEY, ""),
        (WIREGUARD_KEY, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        (WIREGUARD_KEY, "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk"),
        (WIREGUARD_KEY, "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQl="),
        (WIREGUARD_KEY, &long),
    ] {
        let mut object = object("a", 1, &[], &[]);
        object["metadata"]["annotations"] = json!({key: value});
        let node = read(&object);
        assert_eq!(node.annotations, super::super::annotations::Annotations::default(), "{key}: {value:.40}");
        assert!(matches!(node.unusable[..], [ProblemKind::Annotation { .. }]), "{key}: {value:.40}");
    }
}

#[test]
fn good_values_next_to_bad_ones_are_read() {
    let node = node(
        "a",
        1,
        &["10.244.1.0/24", "nonsense", "10.244.2.0/24", "fd44::/64"],
        &["nonsense", "192.0.2.1"],
    );
    assert_eq!(node.pod_cidrs, [net("10.244.1.0/24"), net("fd44::/64")]);
    assert_eq!(node.addresses, [ip("192.0.2.1")]);
    assert!(node.unusable.contains(&ProblemKind::SecondPodCidr { prefix: net("10.244.2.0/24") }));
}

#[test]
fn long_lists_are_cut() {
    let addresses: Vec<String> = (0..100).map(|last| format!("192.0.2.{last}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let node = node("a", 1, &[], &addresses);
    assert_eq!(node.addresses.len(), 16);
    assert_eq!(node.unusable, [ProblemKind::TooMany { field: "status.addresses", count: 84 }]);
}

#[test]
fn values_of_other_types_are_reported() {
    let nonsense = [
        json!(7),
        json!(-7),
        json!(0.5),
        json!(true),
        json!("text"),
        json!([1, {"a": 2}]),
        json!({"a": [3]}),
    ];
    let paths = [
        "metadata.annotations",
        "spec",
        "spec.podCIDRs",
        "status",
        "status.addresses",
        "status.addresses[].address",
    ];
    for value in &nonsense {
        for path in paths {
            let mut object = object("a", 1, &["10.244.1.0/24"], &["192.0.2.1"]);
            match path {
                "metadata.annotations" => object["metadata"]["annotations"] = value.clone(),
                "spec" | "status" => object[path] = value.clone(),
                "spec.podCIDRs" => object["spec"]["podCIDRs"] = value.clone(),
                "status.addresses" => object["status"]["addresses"] = value.clone(),
                _ => object["status"]["addresses"][0]["address"] = value.clone(),
            }
            let node = read(&object);
            let is_right = match path {
                "metadata.annotations" | "spec" | "status" => value.is_object(),
                "spec.podCIDRs" | "status.addresses" => value.is_array(),
                _ => value.is_string(),
            };
            let reported = node.unusable.iter().any(|kind| matches!(kind, ProblemKind::FieldType { .. }));
            assert!(reported != is_right || value.is_array(), "{path} {value}: {:?}", node.unusable);
        }
    }
}

#[test]
fn null_is_missing() {
    let mut object = object("a", 1, &["10.244.1.0/24"], &["192.0.2.1"]);
    object["spec"] = Value::Null;
    object["status"]["addresses"] = Value::Null;
    object["metadata"]["annotations"] = Value::Null;
    let node = read(&object);
    assert_eq!((node.pod_cidrs.len(), node.addresses.len(), node.unusable.len()), (0, 0, 0));
}

#[test]
fn names_are_checked() {
    let longest = "a".repeat(253);
    for good in ["a", "node-1", "ip-10-0-0-1.eu.example", "1", &longest] {
        assert!(good.parse::<NodeName>().is_ok(), "{good}");
    }
    let long = "a".repeat(254);
    for bad in ["", ".", "a.", "-a", "a-", "A", "a_b", "a\n", "a b", "ä", "../a", &long] {
        let error = bad.parse::<NodeName>().unwrap_err().to_string();
        assert!(error.len() < 200 && !error.contains('\n'), "{error:?}");
    }
    // A name that was cut while it was decoded is not a shorter, valid one.
    let mut odd = object("a", 1, &[], &[]);
    odd["metadata"]["name"] = json!(format!("{}{}", "a".repeat(253), "\u{1f600}".repeat(10)));
    let object: NodeObject = serde_json::from_str(&odd.to_string()).unwrap();
    assert!(Node::read(&object).is_err());
}

#[test]
fn annotations_are_read_as_they_are_written() {
    let mut node = with_key(announcing(node("a", 1, &[], &[]), Some(4789)), 7);
    node.annotations.wireguard_port = NonZeroU16::new(51820);
    let mut object = object("a", 1, &[], &[]);
    for (key, value) in node.annotations.values() {
        object["metadata"]["annotations"][key] = json!(value);
    }
    assert_eq!(read(&object), node);
}
