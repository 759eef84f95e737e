// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Counters of the BPF programs.

/// Counters of the BPF programs.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Packets that the BPF programs carried.
    Carried = 0,
    /// Packets that were given to the kernel's stack to be checked.
    Asked = 1,
    /// Checked packets that came out.
    Checked = 2,
    /// Checked packets that came out changed in a way that the BPF programs do not reproduce.
    Unlike = 3,
    /// FIN and RST whose sequence number was far from the connection's.
    DroppedFar = 4,
    /// Packets that could be written only in part.
    DroppedWrite = 5,
}

impl Counter {
    /// All, in the order of their numbers.
    pub const ALL: [Self; COUNTERS] =
        [Self::Carried, Self::Asked, Self::Checked, Self::Unlike, Self::DroppedFar, Self::DroppedWrite];

    /// True if it counts dropped packets.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        matches!(self, Self::DroppedFar | Self::DroppedWrite)
    }
}

/// Number of [`Counter`]s.
pub const COUNTERS: usize = 6;
