// SPDX-License-Identifier: GPL-2.0-or-later

//! Slipway and the reference plugins find, check and remove each other's rules.

use serde_json::{Value, json};

use slipway_tests::{REFERENCE, Reference, needs};

use crate::{Stage, VARIANTS, families, many, map};

fn each(all: &[Reference], test: impl Fn(&Stage, &Reference, &[Value], &Value)) {
    for reference in all {
        for variant in VARIANTS {
            for (mappings, keys) in [
                (families(), json!({})),
                (many(), json!({"snat": false})),
                (vec![map("udp", 53, 53)], json!({"conditionsV4": ["!", "-i", "lo"], "markMasqBit": 20})),
            ] {
                test(&Stage::new(variant), reference, &mappings, &keys);
            }
        }
    }
}

/// True if the reference plugin's CHECK succeeds after its own ADD.
fn can_check(reference: &Reference) -> bool {
    let stage = Stage::new("nft");
    let theirs = stage.plain("ADD").by(reference);
    theirs.ok();
    theirs.verb("CHECK").run().result().is_ok()
}

#[test]
fn slipway_checks_and_removes_the_references_rules() {
    let all = Reference::all();
    needs!(!all.is_empty(), REFERENCE);
    each(&all, |stage, reference, mappings, keys| {
        let call = stage.call("ADD", mappings, keys).reduced_for_the_reference();
        call.clone().by(reference).ok();
        call.clone().verb("CHECK").ok();
        // Repeating the ADD of the same attachment is not a conflict, and changes no correct rule.
        let before = stage.both();
        call.ok();
        assert_eq!(stage.both(), before);
        call.clone().verb("DEL").ok();
        stage.assert_gone();
        call.clone().verb("DEL").ok();
        let gone = call.verb("CHECK").run().error();
        assert!(gone.msg.contains("has no rule -A"), "{gone:?}");
    });
}

#[test]
fn the_reference_checks_and_removes_slipways_rules() {
    let all = Reference::all();
    needs!(!all.is_empty(), REFERENCE);
    each(&all, |stage, reference, mappings, keys| {
        let call = stage.call("ADD", mappings, keys).reduced_for_the_reference();
        call.ok();
        // CHECK of version 1.1.1 fails even for its own rules, because it looks for each family's rules in the chains
        // of both families.
        let checks = can_check(reference);
        if checks {
            call.clone().verb("CHECK").by(reference).ok();
        }
        call.clone().verb("DEL").by(reference).ok();
        let all = stage.both();
        assert!(!all.contains("CNI-DN-"), "{all}");
        // The owner's record is left. DEL or GC of Slipway removes it.
        call.clone().verb("DEL").ok();
        stage.assert_gone();
        if checks {
            call.verb("CHECK").by(reference).run().error();
        }
    });
}

#[test]
fn a_mapping_that_is_missing_is_named_by_check() {
    for stage in Stage::each() {
        let variant = stage.variant;
        let call = stage.plain("ADD");
        call.ok();
        let tool = format!("ip6tables-{variant} -t nat");
        stage.node.cmd(&format!("{tool} -D CNI-DN-328e3d85e6c0f709cddd7 2"));
        let error = call.clone().verb("CHECK").run().error();
        assert_eq!(
            error.msg,
            "table ip6 nat has no rule -A CNI-DN-328e3d85e6c0f709cddd7 -p tcp -m tcp --dport 8080 -j DNAT \
             --to-destination [fd00:22::2]:80"
        );
        call.ok();
        call.clone().verb("CHECK").ok();
        stage.node.cmd(&format!("{tool} -F PREROUTING"));
        assert!(call.clone().verb("CHECK").run().error().msg.contains("-A PREROUTING"));
        call.ok();
        call.verb("CHECK").ok();
    }
}
