// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Incremental updates of the Internet checksum (RFC 1624).
//!
//! Words stay in network byte order, because the sum does not depend on the byte order (RFC 1071, section 2).

/// The change of a sum of 32-bit words with end-around carry, not folded to 16 bits (the kernel's `__wsum`).
#[derive(Clone, Copy, Default)]
pub(crate) struct Difference(u64);

impl Difference {
    /// Adds the change of a word from `old` to `new`.
    #[inline(always)]
    #[must_use]
    pub(crate) fn word(self, old: u32, new: u32) -> Self {
        Self(self.0 + u64::from(!old) + u64::from(new))
    }

    /// Adds the change of two ports.
    #[inline(always)]
    #[must_use]
    pub(crate) fn ports(self, old: (u16, u16), new: (u16, u16)) -> Self {
        let word = |(first, second): (u16, u16)| u32::from(first) | u32::from(second) << 16;
        self.word(word(old), word(new))
    }

    /// Folds the change to 32 bits.
    #[inline(always)]
    #[must_use]
    pub(crate) fn sum(self) -> u32 {
        // At most a few dozen words were added, so the upper half is small. Adding it to the lower half can
        // carry once more, but not a third time.
        let folded = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        ((folded & 0xffff_ffff) + (folded >> 32)) as u32
    }

    /// The new value of a checksum field that has the value `field`.
    #[inline(always)]
    #[must_use]
    pub(crate) fn apply(self, field: u16) -> u16 {
        let mut sum = u64::from(!field) + u64::from(self.sum());
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        !(sum as u16)
    }
}
