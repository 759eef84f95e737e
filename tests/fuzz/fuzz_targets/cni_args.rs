// SPDX-License-Identifier: MIT OR Apache-2.0

//! `CNI_ARGS`.
#![no_main]

use cni_spec::Args;
use libfuzzer_sys::fuzz_target;

const KNOWN: [&str; 3] = ["IP", "MAC", "GATEWAY"];

fuzz_target!(|text: &str| {
    let Ok(args) = Args::parse(text, &KNOWN) else { return };
    let pairs: Vec<String> =
        KNOWN.iter().filter_map(|key| args.get(key).map(|value| format!("{key}={value}"))).collect();
    let again = Args::parse(&pairs.join(";"), &KNOWN).unwrap();
    assert!(KNOWN.iter().all(|key| again.get(key) == args.get(key)));
});
