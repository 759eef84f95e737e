// SPDX-License-Identifier: GPL-3.0-or-later

//! libFuzzer for any target of `tests/targets`, which the variable `SLIPWAY_FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use slipway_fuzz_targets::{Target, find, run};

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("SLIPWAY_FUZZ_TARGET").expect("SLIPWAY_FUZZ_TARGET names a target");
    find(&name).unwrap_or_else(|| panic!("{name:?} is not a target"))
});

fuzz_target!(|bytes: &[u8]| {
    if let Err(problem) = run(&TARGET, bytes) {
        panic!("{problem}");
    }
});
