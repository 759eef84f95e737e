// SPDX-License-Identifier: GPL-2.0-or-later

//! The state of the BPF programs, for tests of the eBPF backend.

use serde_json::Value;

use crate::Node;

/// The feature that [`has_programs`] checks, for [`crate::skip!`].
pub const PROGRAMS: &str = "a binary with the BPF programs";

/// True if the plugins under test carry BPF programs.
pub fn has_programs() -> bool {
    if crate::is_peer() {
        return false;
    }
    Node::new().programs()["built_in"] == true
}

impl Node {
    /// The output of `slipway node status` on this node.
    pub fn programs(&self) -> Value {
        let text = self.slipway("node status --output json");
        serde_json::from_str(&text).expect("slipway node prints JSON")
    }

    /// The value of the counter with this name, which may also be a counter of dropped packets.
    pub fn counted(&self, name: &str) -> u64 {
        let status = self.programs();
        ["counters", "dropped"].into_iter().find_map(|kind| status[kind][name].as_u64()).unwrap_or_default()
    }
}
