// SPDX-License-Identifier: MIT OR Apache-2.0

//! Parsers that are not public, for the fuzz targets.

use std::fmt::Debug;

use crate::subnet_env::SubnetEnv;

/// Reads flanneld's file. Content that is accepted and can be written must be the same when it is read again.
pub fn subnet_env(bytes: &[u8]) -> impl Debug {
    let text = String::from_utf8_lossy(bytes);
    let read = SubnetEnv::parse("subnet.env", &text);
    if let Ok(env) = &read
        && let Ok(written) = env.text("subnet.env")
    {
        let again = SubnetEnv::parse("subnet.env", &written);
        assert!(again.as_ref().is_ok_and(|again| again == env), "{again:?} instead of {env:?}");
    }
    read
}
