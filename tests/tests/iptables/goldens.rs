// SPDX-License-Identifier: GPL-2.0-or-later

//! After an ADD, the kernel has exactly the rules that the reference plugins make.

use serde_json::{Value, json};
use slipway_tests::{REFERENCE, Reference, needs};

use crate::{Call, Stage, VARIANTS, families, many, map};

/// The cases, each with the name of the golden file, the mappings and the keys.
fn cases() -> Vec<(&'static str, Vec<Value>, Value)> {
    let plain = || vec![map("tcp", 8080, 80)];
    vec![
        ("plain", plain(), json!({})),
        ("families", families(), json!({})),
        ("many", many(), json!({})),
        ("nosnat", families(), json!({"snat": false})),
        ("masqall", families(), json!({"masqAll": true})),
        ("bit", plain(), json!({"markMasqBit": 5})),
        ("bit0", plain(), json!({"markMasqBit": 0})),
        ("external", plain(), json!({"externalSetMarkChain": "KUBE-MARK-MASQ"})),
        ("cond", plain(), conditions()),
    ]
}

fn conditions() -> Value {
    json!({"conditionsV4": ["-d", "192.0.2.0/24"], "conditionsV6": ["!", "-d", "2001:db8::/32"]})
}

fn golden(name: &str) -> String {
    let path = format!("{}/../cni/dataplane/golden/iptables/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn prepare(stage: &Stage) {
    for family in ["iptables", "ip6tables"] {
        stage.node.cmd(&format!("{family}-{} -t nat -N KUBE-MARK-MASQ", stage.variant));
    }
}

#[test]
fn chains_rules_comments_and_order_are_the_references() {
    for variant in VARIANTS {
        for (name, mappings, keys) in cases() {
            let stage = Stage::new(variant);
            prepare(&stage);
            let call = stage.call("ADD", &mappings, &keys);
            call.ok();
            assert_eq!(stage.both(), golden(name), "{name}, iptables-{variant}");
            // A second ADD changes nothing.
            call.ok();
            assert_eq!(stage.both(), golden(name), "{name} twice, iptables-{variant}");
            call.clone().verb("CHECK").ok();
            call.clone().verb("DEL").ok();
            stage.assert_gone();
        }
    }
}

#[test]
fn a_long_container_id_is_cut_in_comments() {
    let stage = Stage::new("nft");
    let call = stage.plain("ADD").container(&"a".repeat(300));
    call.ok();
    assert_eq!(stage.both(), golden("long"));
    call.clone().verb("CHECK").ok();
    call.verb("DEL").ok();
    stage.assert_gone();
}

/// Each version of the reference plugins on the machine reproduces the golden files.
#[test]
fn the_goldens_equal_the_rules_of_the_reference() {
    let all = Reference::all();
    needs!(!all.is_empty(), REFERENCE);
    for reference in all {
        for variant in VARIANTS {
            for (name, mappings, keys) in cases() {
                // Version 1.1.1 does not know this key.
                if name == "masqall" && !reference.portmap_knows("masqAll") {
                    continue;
                }
                let stage = Stage::new(variant);
                prepare(&stage);
                let call: Call<'_> = stage.call("ADD", &mappings, &keys).by(&reference);
                call.ok();
                let (left, golden) = (stage.both(), golden(name));
                // `reduced_for_the_reference` explains the error of the legacy ip6tables.
                let part = |text: &str| match variant {
                    "legacy" => text.split("# ip6tables").next().unwrap_or_default().to_owned(),
                    _ => text.to_owned(),
                };
                assert_eq!(part(&left), part(&golden), "{name}, iptables-{variant}, {reference:?}");
            }
        }
    }
}
