// SPDX-License-Identifier: GPL-2.0-or-later

//! Random choices that the same seed repeats.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A generator of random numbers: SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator with the seed in the variable `SLIPWAY_SEED`, or else the current time. The seed is printed.
    pub fn seeded() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = std::env::var("SLIPWAY_SEED")
            .map_or(now.as_secs(), |text| text.parse().expect("SLIPWAY_SEED is a number"));
        eprintln!("SLIPWAY_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let limit = from.len() as u64;
        &from[usize::try_from(self.below(limit)).expect("an index")]
    }

    /// A time below `limit`, in whole microseconds.
    pub fn time_below(&mut self, limit: Duration) -> Duration {
        let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.below(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_the_choices() {
        let choices = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(choices(7), choices(7));
        assert_ne!(choices(7), choices(8));
        assert!(choices(7).iter().all(|choice| *choice < 1000));
        assert!(Random::new(1).time_below(Duration::from_micros(1)).is_zero());
    }
}
