// SPDX-License-Identifier: GPL-2.0-or-later

//! Settings of the BPF programs in `/etc/cni/slipway.json`.

use aya::maps::MapData;
use serde_json::json;
use slipway_tests::{PROGRAMS, has_programs, needs};

use crate::Stage;

#[test]
fn the_uplinks_may_be_named() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let other = stage.node.host("other");
    stage.node.write("/etc/cni/slipway.json", json!({"uplinks": [other.node_link]}).to_string());
    stage.node.slipway("node setup");
    assert_eq!(stage.node.programs()["uplinks"], json!([other.node_link]));
    assert_eq!(stage.filters(&stage.client.node_link), "");
}

#[test]
fn configured_uplinks_without_programs_are_reported() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.cmd("ip link add vx0 up type vxlan external dstport 4789");
    let settings = json!({"uplinks": ["nosuch0", "vx0", stage.client.node_link]});
    stage.node.write("/etc/cni/slipway.json", settings.to_string());
    let setup = stage.node.try_slipway("node setup");
    assert!(setup.code == Some(0) && setup.stderr.contains("nosuch0"), "{setup}");
    let status = stage.node.programs();
    assert_eq!(
        status["uplinks_left_to_nftables"],
        json!([
            {"name": "nosuch0", "reason": "there is no such interface"},
            {"name": "vx0", "reason": "it is a tunnel in `external` mode, whose remote comes from routes"},
        ])
    );
}

#[test]
fn maps_have_the_configured_size_after_the_next_setup() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let sizes = || {
        let folder = "/sys/fs/bpf/slipway-flows";
        let version = stage.node.list(folder).pop().expect("a version");
        ["carried4", "carried6"].map(|name| {
            let path = format!("{folder}/{version}/{name}");
            stage
                .node
                .run(|| MapData::from_pin(&path).expect("a map").info().expect("its size").max_entries())
        })
    };
    stage.node.slipway("node setup");
    assert_eq!(sizes(), [slipway_ebpf_abi::maps::CARRIED_SIZE; 2]);
    stage.node.write("/etc/cni/slipway.json", json!({"maps": {"flows": 2048}}).to_string());
    stage.node.slipway("node teardown");
    stage.node.slipway("node setup");
    assert_eq!(sizes(), [2048; 2]);
}
