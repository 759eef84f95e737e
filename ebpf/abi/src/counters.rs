// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The counters of the BPF programs.

#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    Carried = 0,
    /// Packets that were noted, and given to the kernel's stack.
    Asked = 1,
    /// Noted packets that came out.
    Checked = 2,
    /// Noted packets that came out changed in a way that the BPF programs do not reproduce.
    Unlike = 3,
    /// FIN and RST whose sequence number was far from the connection's.
    DroppedFar = 4,
    /// Packets that could be written only in part.
    DroppedWrite = 5,
    /// Noted packets that came out more than once.
    Copied = 6,
}

impl Counter {
    /// In the order of their numbers.
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
