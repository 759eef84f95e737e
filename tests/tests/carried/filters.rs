// SPDX-License-Identifier: GPL-2.0-or-later

//! Filters of other programs before ours are named, and are no error.

use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use serde_json::{Value, json};
use slipway_ebpf_abi::carried;
use slipway_tests::{Attach, PROGRAMS, Proto, has_programs, needs};

use crate::{Engine, PORT, Stage};

const SUBJECT: &str = "tc filters before the BPF programs";

/// The finding of `slipway check-node`, which succeeds.
fn finding(stage: &Stage) -> Option<Value> {
    let output = stage.node.try_slipway("check-node --output json");
    let report: Value = serde_json::from_str(&output.stdout).expect("check-node prints JSON");
    assert_eq!(report["ok"], true, "{report:#}");
    report["findings"].as_array().expect("a list").iter().find(|one| one["subject"] == SUBJECT).cloned()
}

#[test]
fn filters_before_ours_are_named() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let pod = stage.node.pod("web");
    let attach = Attach::new(&pod).port(Proto::Tcp, PORT, 80);
    let network = stage.network();
    let result = network.add(&attach).expect("ADD");
    let (uplink, link) = (&stage.client.node_link, result["interfaces"][1]["name"].as_str().expect("a link"));
    assert_eq!((&stage.node.programs()["earlier_filters"], finding(&stage)), (&json!([]), None));
    for (place, preference) in [
        (format!("{uplink} ingress"), 7),
        // After ours.
        (format!("{uplink} egress"), 30_000),
        (format!("{link} egress"), 1),
    ] {
        stage.node.cmd(&format!(
            "tc filter add dev {place} protocol all pref {preference} u32 match u32 0 0 flowid :1"
        ));
    }
    let mut expected = vec![
        json!({"interface": uplink, "hook": "ingress", "kind": "u32", "preference": 7}),
        json!({"interface": link, "hook": "egress", "kind": "u32", "preference": 1}),
    ];
    let by_name = |one: &Value| one["interface"].to_string();
    expected.sort_by_key(by_name);
    let found = || {
        let status = stage.node.programs();
        let mut found = status["earlier_filters"].as_array().expect("a list").clone();
        found.sort_by_key(by_name);
        found
    };
    assert_eq!(found(), expected);
    let report = finding(&stage).expect("a finding");
    assert_eq!(report["state"], "note");
    let text = report["found"].as_str().expect("a text");
    assert!(text.contains(&format!("{uplink} ingress: u32, preference 7")), "{text}");
    let text = stage.node.slipway("node status");
    assert!(text.contains(&format!("before      {link} egress: u32, preference 1")), "{text}");
    network.check(&attach).expect("CHECK");
    network.status().expect("STATUS");
    stage.node.cmd(&format!("tc filter del dev {uplink} ingress pref 7"));
    stage.node.cmd(&format!("tc filter del dev {link} egress pref 1"));
    assert_eq!((found(), finding(&stage)), (Vec::new(), None));
}

#[test]
fn a_tcx_program_before_ours_is_named() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (_pod, _) = stage.pod("web");
    let uplink = &stage.client.node_link;
    let path = stage.pin(carried::INGRESS);
    stage.node.run(|| {
        let mut program = SchedClassifier::from_pin(path).expect("open the program");
        let order = TcAttachOptions::TcxOrder(LinkOrder::default());
        if program.attach_with_options(uplink, TcAttachType::Ingress, order).is_err() {
            eprintln!("no tcx, which begins with Linux 6.6");
            return;
        }
        let status = stage.node.programs();
        let expected = json!([{"interface": uplink, "hook": "ingress", "kind": "tcx", "preference": null}]);
        assert_eq!(status["earlier_filters"], expected);
        assert!(finding(&stage).expect("a finding").to_string().contains("ingress: tcx"));
        drop(program);
        assert_eq!(stage.node.programs()["earlier_filters"], json!([]));
    });
}
