// SPDX-License-Identifier: MIT OR Apache-2.0

//! A plugin's standard input.
#![no_main]

use cni_spec::{NetConf, check_network};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(conf) = NetConf::parse(bytes) else { return };
    check_network(&conf.name).unwrap();
    assert_eq!(conf.bytes, bytes);
    for attachment in conf.valid_attachments.iter().flatten() {
        assert_eq!(attachment.network(), conf.name);
    }
    drop(conf.runtime_config());
});
