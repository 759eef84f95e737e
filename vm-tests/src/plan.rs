// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tasks of the guest.

use serde::{Deserialize, Serialize};

/// The path of the plan in the guest, as JSON.
pub const PLAN: &str = "/vm/plan.json";

/// The path of the file that tests write their skips to.
pub const SKIPS: &str = "/vm/skips.txt";

/// The drivers of a guest's disk. Without udev(8) no process loads them when the kernel finds one.
pub const DISK_DRIVERS: &[&str] = &["virtio_pci", "virtio_blk"];

/// Everything that one guest runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Begins every line about the run. Letters and digits, different for each VM.
    pub nonce: String,
    /// The device of the serial port for reports. The kernel's console is another one.
    pub reports: String,
    /// Kernel modules that are not loaded on demand, by name. One that this kernel lacks is no error: a test that needs
    /// it is skipped.
    pub preload: Vec<String>,
    /// The directory at which the guest's disk is mounted, if it has one: ext4, read-only.
    pub disk: Option<String>,
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
    /// Absolute path in the guest.
    pub program: String,
    /// The folder it starts in, which is also its `CARGO_MANIFEST_DIR`: its package's own, as with
    /// `cargo test`.
    pub dir: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Seconds after which it is ended and counts as failed.
    pub limit: u64,
}
