// SPDX-License-Identifier: GPL-3.0-or-later

//! The parsers that are not public, for fuzzing: each takes any bytes and returns what it has read.

use std::fmt::Debug;

pub use crate::cluster::fuzzing::node;
use crate::garbage::{cri, wire};
use crate::top::read;

/// The reply of a container runtime to `ListPodSandbox`, with gRPC's prefix.
pub fn sandboxes(bytes: &[u8]) -> impl Debug {
    let read = cri::message(bytes).map(wire::sandboxes);
    if let Ok(Ok(ids)) = &read {
        // Each ID has at least two bytes before it, and the sandbox two more.
        assert!(ids.iter().map(|id| id.len() + 4).sum::<usize>() <= bytes.len());
    }
    read
}

/// The counters of conntrack in `/proc`.
pub fn conntrack_counters(text: &[u8]) -> impl Debug {
    let drops = read::of_conntrack(&String::from_utf8_lossy(text));
    drops.iter().map(|drops| (drops.reason, drops.packets)).collect::<Vec<_>>()
}
