//! What the machine is to do.

use serde::{Deserialize, Serialize};

/// Where the plan lies in the machine, as JSON.
pub const PLAN: &str = "/vm/plan.json";

/// Where the tests of the machine note what they skipped.
pub const SKIPS: &str = "/vm/skips.txt";

/// Everything that one machine runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Begins every line about the run. Letters and digits, another for each machine.
    pub nonce: String,
    /// Kernel modules that nothing loads by itself, by name. One that this kernel lacks is no error:
    /// a test that needs it says so.
    pub preload: Vec<String>,
    /// Variables for every suite.
    pub env: Vec<(String, String)>,
    /// In this order, one after the other.
    pub suites: Vec<Suite>,
}

/// One test program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suite {
    /// One word.
    pub name: String,
    /// Absolute path in the machine.
    pub program: String,
    /// The folder it starts in, which is also its `CARGO_MANIFEST_DIR`: its package's own, as with
    /// `cargo test`.
    pub dir: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Seconds after which it is ended and counts as failed.
    pub limit: u64,
}
