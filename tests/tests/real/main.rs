// SPDX-License-Identifier: GPL-2.0-or-later

//! Real runtimes with the plugins under test: podman (with CNI and with netavark), containerd (through its CRI, as
//! kubelet uses it, and through ctr), and the CNI project's cnitool. Each runs in a separate system; see
//! [`slipway_tests::system`].
//!
//! `cargo xtask test --runtimes` fetches the runtimes and names the folder in `SLIPWAY_RUNTIMES`. Without the variable,
//! every test here is skipped.

mod agents_list;
mod cnitool;
mod containerd;
mod cri;
mod deployment;
mod engines;
mod garbage;
mod netavark;
mod podman;

use slipway_tests::{Node, Snapshot};

/// The plugins' objects and the runtimes' namespaces, all of which must be gone in the end. A runtime's own files are
/// left out.
fn state(node: &Node) -> Snapshot {
    Snapshot::take(node, &[]).without(&[
        // These are derived from the reservations, or are the last reserved addresses.
        "networks/.slipway/",
        "last_reserved_ip",
        "/run/containerd",
        "/run/containers",
        "/run/libpod",
        "/run/lock",
        "/run/runc",
        "/var/lib/containers",
    ])
}
