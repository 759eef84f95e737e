//! The Internet checksum's arithmetic (RFC 1624): what a checksum has to be changed by.
//!
//! Words are taken as they lie in memory; the sum does not depend on the byte order (RFC 1071, section 2).

/// Sum of 32-bit words with end-around carry, not folded to 16 bits: what the kernel calls `__wsum`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Difference(u64);

impl Difference {
    /// What [`Self::sum`] gave.
    #[inline(always)]
    #[must_use]
    pub(crate) fn of(sum: u32) -> Self {
        Self(sum as u64)
    }

    /// A word became another one.
    #[inline(always)]
    #[must_use]
    pub(crate) fn word(self, old: u32, new: u32) -> Self {
        Self(self.0 + u64::from(!old) + u64::from(new))
    }

    /// Both changes.
    #[inline(always)]
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// Two ports became two others.
    #[inline(always)]
    #[must_use]
    pub(crate) fn ports(self, old: (u16, u16), new: (u16, u16)) -> Self {
        let word = |(first, second): (u16, u16)| u32::from(first) | u32::from(second) << 16;
        self.word(word(old), word(new))
    }

    /// Folded to 32 bits.
    #[inline(always)]
    #[must_use]
    pub(crate) fn sum(self) -> u32 {
        // At most a few dozen words were added: one carry of a carry.
        let folded = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        ((folded & 0xffff_ffff) + (folded >> 32)) as u32
    }

    /// The checksum field after the change.
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
