// SPDX-License-Identifier: GPL-2.0-or-later

//! What a test has tried, for `cargo xtask torture`.

use crate::skip::append;

/// Counts something that was tried, in the plural: "kills". The line goes to the file that `SLIPWAY_TALLY` names, at
/// once, because a test that finds something panics.
pub fn tally(what: &str, count: u64) {
    append("SLIPWAY_TALLY", &format!("torture: tried={count} what={what}\n"));
}
