// SPDX-License-Identifier: GPL-2.0-or-later

//! The migration state of an owner's objects, which is stored in the top two bits of the element count.

/// How far a migration from another backend has progressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Transit {
    #[default]
    Settled,
    /// The request is served here, but the original has not been looked at since.
    Made,
    /// The request is served here, and the original was still there afterwards, so it can be removed.
    Verified,
}

const MADE: u32 = 1 << 31;
const VERIFIED: u32 = 1 << 30;

impl Transit {
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Settled => 0,
            Self::Made => MADE,
            Self::Verified => VERIFIED,
        }
    }

    /// The state that an entry's number contains.
    pub(crate) fn of(number: u32) -> Self {
        match (number & MADE != 0, number & VERIFIED != 0) {
            (true, _) => Self::Made,
            (false, true) => Self::Verified,
            (false, false) => Self::Settled,
        }
    }
}

/// The number without the state's bits.
pub(crate) fn plain(number: u32) -> u32 {
    number & !(MADE | VERIFIED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_and_the_number_do_not_disturb_each_other() {
        for transit in [Transit::Settled, Transit::Made, Transit::Verified] {
            let number = 70_000 | transit.bits();
            assert_eq!((Transit::of(number), plain(number)), (transit, 70_000));
        }
    }
}
