// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The hash that assigns each direction of a flow to a slot of [`YOUNG`](crate::maps::YOUNG).

/// The number of random keys: one for the initial value, and one for each 32-bit word of the longest key of
/// an entry.
pub const KEYS: usize = 12;

/// A multilinear hash (Lemire and Kaser, "Strongly universal string hashing is fast", 2014): each word is
/// multiplied by a random 64-bit key of its own, and the upper half of the sum is the hash. Two different
/// values collide with a probability of 2^-32, even if they were chosen by somebody who does not know the
/// keys.
#[derive(Clone, Copy, Debug)]
pub struct Keyed(u64);

impl Keyed {
    #[inline(always)]
    #[must_use]
    pub const fn new(first_key: u64) -> Self {
        Self(first_key)
    }

    #[inline(always)]
    #[must_use]
    pub const fn word(self, key: u64, word: u32) -> Self {
        Self(self.0.wrapping_add(key.wrapping_mul(word as u64)))
    }

    #[inline(always)]
    #[must_use]
    pub const fn hash(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of two words with keys that are derived from `seed`.
    fn hash(seed: u64, words: [u32; 2]) -> u32 {
        let key = |index: u64| (seed + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.rotate_left(17);
        Keyed::new(key(1)).word(key(2), words[0]).word(key(3), words[1]).hash()
    }

    #[test]
    fn two_values_with_the_same_hash_differ_under_other_keys() {
        // If the lower half of the sum were the hash, this pair would collide whenever both keys are odd.
        let pair = [[1, 2], [1 | 1 << 31, 2 | 1 << 31]];
        assert!((0..1000).all(|seed| hash(seed, pair[0]) != hash(seed, pair[1])));
        let found = (0..200_000_u32).find(|word| hash(7, [*word, 0]) >> 16 == hash(7, [5, 5]) >> 16);
        let one = [found.expect("a collision of 16 bits"), 0];
        assert!((8..20).any(|seed| hash(seed, one) >> 16 != hash(seed, [5, 5]) >> 16));
    }
}
