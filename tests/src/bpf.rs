//! What the tests of the eBPF backend look at.

use serde_json::Value;

use crate::Node;

/// What [`has_programs`] looks for, for [`crate::skip!`].
pub const PROGRAMS: &str = "a binary with the BPF programs";

/// Whether the plugins under test carry BPF programs and this kernel takes them.
///
/// # Panics
/// When `slipway node` prints something else than JSON.
#[must_use]
pub fn has_programs() -> bool {
    if crate::is_peer() {
        return false;
    }
    Node::new().programs()["built_in"] == true
}

impl Node {
    /// What `slipway node status` says of the programs on this node.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn programs(&self) -> Value {
        let text = self.slipway("node status --output json");
        serde_json::from_str(&text).expect("slipway node prints JSON")
    }

    /// What the programs have counted under a name, dropped packets included.
    #[must_use]
    pub fn counted(&self, name: &str) -> u64 {
        let status = self.programs();
        ["counters", "dropped"].into_iter().find_map(|kind| status[kind][name].as_u64()).unwrap_or_default()
    }
}
