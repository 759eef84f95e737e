// SPDX-License-Identifier: GPL-2.0-or-later

//! The state of the BPF programs, for tests of the eBPF backend.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc;
use serde_json::Value;

use crate::Node;

/// The feature that [`has_programs`] checks, for [`crate::skip!`].
pub const PROGRAMS: &str = "a binary with the BPF programs";

/// True if the plugins under test carry BPF programs.
///
/// # Panics
/// If `slipway node` does not print JSON.
#[must_use]
pub fn has_programs() -> bool {
    if crate::is_peer() {
        return false;
    }
    Node::new().programs()["built_in"] == true
}

impl Node {
    /// The output of `slipway node status` on this node.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn programs(&self) -> Value {
        let text = self.slipway("node status --output json");
        serde_json::from_str(&text).expect("slipway node prints JSON")
    }

    /// The counter of this name; dropped packets have counters, too.
    #[must_use]
    pub fn counted(&self, name: &str) -> u64 {
        let status = self.programs();
        ["counters", "dropped"].into_iter().find_map(|kind| status[kind][name].as_u64()).unwrap_or_default()
    }
}

/// Attaches a program to the ingress of a link by tcx, as no link: it stays until it is detached.
///
/// # Errors
/// EINVAL before Linux 6.6.
#[allow(unsafe_code, reason = "bpf is a system call that nix does not wrap, and aya attaches by links only")]
pub fn attach_tcx(link: u32, program: BorrowedFd<'_>) -> Result<(), Errno> {
    /// `BPF_PROG_ATTACH` (enum bpf_cmd of `linux/bpf.h`).
    const ATTACH: libc::c_long = 8;
    /// `BPF_TCX_INGRESS` (enum bpf_attach_type).
    const TCX_INGRESS: u32 = 46;
    // The beginning of `union bpf_attr`: target, program, type, flags; the rest stays zero.
    let attributes = [link, program.as_raw_fd().cast_unsigned(), TCX_INGRESS, 0, 0, 0, 0, 0];
    // SAFETY: the kernel reads the bytes of `attributes`, which lives through the call, and writes nothing there.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, ATTACH, attributes.as_ptr(), std::mem::size_of_val(&attributes))
    };
    Errno::result(result).map(drop)
}
