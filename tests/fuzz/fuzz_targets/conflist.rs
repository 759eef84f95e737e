// SPDX-License-Identifier: MIT OR Apache-2.0

//! A configuration list, a single configuration, and what their plugins would get.
#![no_main]

use cni_spec::{AddResult, NetConf, NetConfList, check_network};
use libfuzzer_sys::fuzz_target;
use serde_json::Map;

fuzz_target!(|bytes: &[u8]| {
    for list in [NetConfList::parse(bytes), NetConfList::of_single(bytes)].into_iter().flatten() {
        for plugin in &list.plugins {
            // Without addresses a result has no form in the oldest versions.
            let Ok(input) = list.input(plugin, Some(&AddResult::default()), &Map::new()) else { continue };
            let bytes = serde_json::to_vec(&input).unwrap();
            if check_network(&list.name).is_ok() && list.version.known().is_some() {
                // Its own keys may still be wrong; name and version are not.
                if let Err(error) = NetConf::parse(bytes) {
                    assert_eq!(error.code.number(), 7, "{error}");
                }
            }
        }
    }
});
