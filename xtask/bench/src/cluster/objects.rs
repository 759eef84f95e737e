// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nodes as kubelets register them: of some five kilobytes each, most of it images and conditions.

use serde_json::{Value, json};

/// The path of all Nodes.
pub(super) const NODES: &str = "/api/v1/nodes";

/// A Node's name, by its number from 0.
pub(super) fn name(number: u32) -> String {
    format!("node-{number}")
}

/// The addresses of its pods.
pub(super) fn pod_cidr(number: u32) -> String {
    format!("10.{}.{}.0/24", 128 + number / 256, number % 256)
}

/// Its InternalIP, in 10.50.0.0/16.
pub(super) fn address(number: u32) -> String {
    format!("10.50.{}.{}", number / 250, number % 250 + 1)
}

/// Another InternalIP for it, which no other Node has, for one of 100 changes.
pub(super) fn other_address(change: u32) -> String {
    format!("10.50.250.{}", change % 100 + 1)
}

/// The conditions, with a time in seconds.
fn conditions(time: u32) -> Vec<Value> {
    let time = format!("2026-01-01T{:02}:{:02}:{:02}Z", time / 3600 % 24, time / 60 % 60, time % 60);
    ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
        .iter()
        .map(|kind| {
            json!({
                "type": kind, "status": if *kind == "Ready" { "True" } else { "False" }, "reason": format!("Kubelet{kind}"),
                "message": format!("kubelet reports its condition {kind} as it is"),
                "lastHeartbeatTime": time, "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        })
        .collect()
}

pub(super) fn node(number: u32) -> Value {
    let image = |image: u32| {
        json!({
            "names": [
                format!("registry.example/team/image-{image}@sha256:{}", "0123456789abcdef".repeat(4)),
                format!("registry.example/team/image-{image}:1.{image}"),
            ],
            "sizeBytes": 10_000_000 + image,
        })
    };
    let name = name(number);
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": {
            "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
        } },
        "spec": { "podCIDR": pod_cidr(number), "podCIDRs": [pod_cidr(number)] },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": address(number) }, { "type": "Hostname", "address": name },
            ],
            "allocatable": { "cpu": "4", "memory": "16Gi", "pods": "110" },
            "capacity": { "cpu": "4", "memory": "16Gi", "pods": "110" },
            "conditions": conditions(0),
            "images": (0..20).map(image).collect::<Vec<_>>(),
        },
    })
}

/// A kubelet's report that changes nothing but times: a strategic merge patch of the status.
pub(super) fn heartbeat(time: u32) -> Value {
    json!({ "status": { "conditions": conditions(time) } })
}

/// A changed InternalIP: a merge patch of the status.
pub(super) fn moved(number: u32, address: &str) -> Value {
    json!({ "status": { "addresses": [
        { "type": "InternalIP", "address": address }, { "type": "Hostname", "address": name(number) },
    ] } })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn nodes_differ_in_subnet_and_address() {
        let all = 0..10_000;
        assert_eq!(all.clone().map(pod_cidr).collect::<BTreeSet<_>>().len(), 10_000);
        let addresses: BTreeSet<_> = all.map(address).chain((0..100).map(other_address)).collect();
        assert_eq!(addresses.len(), 10_100);
        assert_eq!((pod_cidr(300), address(0)), ("10.129.44.0/24".to_owned(), "10.50.0.1".to_owned()));
        assert!((4_000..8_000).contains(&node(1).to_string().len()), "{}", node(1).to_string().len());
    }
}
