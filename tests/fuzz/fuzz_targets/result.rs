// SPDX-License-Identifier: MIT OR Apache-2.0

//! The output of a plugin or delegate, read as each version and converted to each version.
#![no_main]

use cni_spec::{AddResult, Version};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for config in Version::ALL {
        let Ok(result) = AddResult::from_output(*config, bytes) else { continue };
        for version in Version::ALL {
            let Ok(text) = result.print(*version) else {
                assert!(result.ips.is_empty());
                continue;
            };
            let again = AddResult::from_output(*version, text.as_bytes()).unwrap();
            assert_eq!(again.print(*version).unwrap(), text);
        }
    }
});
