// SPDX-License-Identifier: GPL-2.0-or-later

//! Every key of every plugin, compared with the reference plugins: absent, null, empty, zero, of the wrong type, too
//! large, repeated, and in capitals. Slipway and the reference plugins run ADD, CHECK and DEL on separate nodes. Then
//! exit codes, results, kernel state and files are compared. The list of known differences must match the actual
//! differences exactly.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod cases;
mod compare;
mod known;
mod stage;
mod subjects;

use cases::Subject;
use compare::differences;
use known::Known;
use slipway_tests::{NEWER_REFERENCE, Reference};
use stage::{Side, Stage};

/// The newest reference plugins, to which the list of known differences applies.
fn newest() -> Option<Reference> {
    Reference::with_nftables().into_iter().rfind(|reference| reference.plugin("dummy").exists())
}

/// Compares all cases of a subject.
fn compare(name: &str, subject: &Subject, reference: &Reference) {
    let all = Known::all();
    let mut known: Vec<_> =
        all.iter().filter(|known| known.is_of(name)).map(|known| (known, false)).collect();
    let (mut their_stage, mut our_stage) = (None, None);
    let mut unknown = Vec::new();
    let cases = subject.cases();
    for case in &cases {
        let play = |stage: &mut Option<Stage>, side| {
            let (record, clean) = stage.get_or_insert_with(|| Stage::new(subject)).play(subject, case, side);
            if !clean {
                *stage = None;
            }
            record
        };
        let theirs = play(&mut their_stage, Side::Reference(reference));
        let ours = play(&mut our_stage, Side::Ours);
        for difference in differences(case, &theirs, &ours) {
            match known.iter_mut().find(|(known, _)| known.explains(&case.name, &difference.aspect)) {
                Some((_, seen)) => *seen = true,
                None => {
                    unknown.push(format!("{}: {}  # {}", case.name, difference.aspect, difference.detail));
                }
            }
        }
    }
    drop((their_stage, our_stage));
    let stale: Vec<_> = known.iter().filter(|(_, seen)| !seen).map(|(known, _)| known.to_string()).collect();
    assert!(
        unknown.is_empty() && stale.is_empty(),
        "{name}: {} cases; unknown differences (reference/ours):\n{}\nknown differences that do not occur:\n{}",
        cases.len(),
        unknown.join("\n"),
        stale.join("\n")
    );
}

macro_rules! subjects {
    ($($test:ident: $name:ident,)+) => {$(
        #[test]
        fn $test() {
            let Some(reference) = newest() else { slipway_tests::skip!(NEWER_REFERENCE) };
            compare(stringify!($name), &subjects::$name(), &reference);
        }
    )+};
}

subjects! {
    bandwidth_does_with_every_key_what_the_reference_does: bandwidth,
    bridge_does_with_every_key_what_the_reference_does: bridge,
    bridge_does_with_every_value_of_ipam_what_the_reference_does: bridge_ipam,
    bridge_does_with_every_vlan_what_the_reference_does: bridge_vlan,
    dhcp_does_with_every_key_what_the_reference_does: dhcp,
    dummy_does_with_every_key_what_the_reference_does: dummy,
    firewall_does_with_every_key_what_the_reference_does: firewall,
    host_device_does_with_every_key_what_the_reference_does: host_device,
    host_local_does_with_every_key_what_the_reference_does: host_local,
    ipvlan_does_with_every_key_what_the_reference_does: ipvlan,
    loopback_does_with_every_key_what_the_reference_does: loopback,
    macvlan_does_with_every_key_what_the_reference_does: macvlan,
    portmap_does_with_every_key_what_the_reference_does: portmap,
    ptp_does_with_every_key_what_the_reference_does: ptp,
    sbr_does_with_every_key_what_the_reference_does: sbr,
    static_does_with_every_key_what_the_reference_does: addresses,
    tap_does_with_every_key_what_the_reference_does: tap,
    tuning_does_with_every_key_what_the_reference_does: tuning,
    vlan_does_with_every_key_what_the_reference_does: vlan,
    vrf_does_with_every_key_what_the_reference_does: vrf,
}
