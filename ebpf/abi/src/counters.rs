// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! What the BPF programs count. User space names the counters in `cni/dataplane/src/ebpf/names.rs`.

#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    Carried = 0,
    /// Packets, or clones of carried packets, of which a record was written before the kernel's stack handled
    /// them.
    Asked = 1,
    /// Recorded packets that came out for the first time, changed in no other way than the BPF programs can
    /// reproduce.
    Checked = 2,
    /// Packets that came out with the index of a record, but from which nothing can be learnt. The kernel's
    /// stack may have changed them in a way that the BPF programs do not reproduce, or sent them back through
    /// the interface on which they arrived. A bridge may have flooded them to a container that they are not
    /// for. Or the index came with another packet than the recorded one.
    Unlike = 3,
    /// FIN and RST segments that were dropped because their sequence number was far from what the container
    /// had acknowledged.
    DroppedFar = 4,
    /// Packets that were dropped because the kernel refused a write to them. An earlier write may have
    /// succeeded, so they could no longer be left to the kernel's stack.
    DroppedWrite = 5,
    /// Further copies of recorded packets that had come out already.
    Copied = 6,
}

impl Counter {
    pub const ALL: [Self; COUNTERS] = [
        Self::Carried,
        Self::Asked,
        Self::Checked,
        Self::Unlike,
        Self::DroppedFar,
        Self::DroppedWrite,
        Self::Copied,
    ];

    #[must_use]
    pub const fn is_drop(self) -> bool {
        matches!(self, Self::DroppedFar | Self::DroppedWrite)
    }
}

pub const COUNTERS: usize = 7;
