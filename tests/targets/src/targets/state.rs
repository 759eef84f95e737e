// SPDX-License-Identifier: GPL-3.0-or-later

//! Files and messages of the agent, and Kubernetes quantities.

use std::fmt::Debug;

use cni_runtime::quantity;
use cni_state::report::Report;
use cni_state::subnet_file::SubnetFile;

/// The file of the node's subnets. A file that is accepted must pass the check.
pub(crate) fn subnet_json(bytes: &[u8]) -> impl Debug {
    SubnetFile::parse(bytes).inspect(|file| {
        assert!(file.check().is_ok());
        assert!(!file.subnets.is_empty() && file.families().iter().all(|(_, subnets)| !subnets.is_empty()));
    })
}

/// A plugin's report. An accepted report must contain only names that a metric may have, and must stay the same when it
/// is written again.
pub(crate) fn report(bytes: &[u8]) -> impl Debug {
    Report::parse(bytes).inspect(|report| {
        for name in [&report.plugin, &report.network] {
            assert!(name.len() <= 128 && !name.chars().any(char::is_control), "{name:?}");
        }
        assert_eq!(&Report::parse(&report.to_json()).unwrap(), report);
    })
}

/// A quantity. If the text is an integer, the quantity must be its value.
pub(crate) fn quantity(bytes: &[u8]) -> impl Debug {
    let text = String::from_utf8_lossy(bytes);
    let read = quantity::quantity(&text);
    if let Ok(number) = &read {
        assert_eq!(quantity::quantity(&number.to_string()), Ok(*number), "{text:?}");
    }
    let is_number = text.strip_prefix('-').unwrap_or(&text).bytes().all(|byte| byte.is_ascii_digit());
    if let (true, Ok(number)) = (is_number, text.parse::<i64>()) {
        assert!(number == i64::MIN || read == Ok(number), "{text:?}");
    }
    read
}
