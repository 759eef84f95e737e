// SPDX-License-Identifier: MIT OR Apache-2.0

//! Quantiles and means, in milliseconds, and units.

use std::time::Duration;

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// The nearest-rank quantile, in per cent.
pub(crate) fn quantile(times: impl Iterator<Item = Duration>, percent: usize) -> f64 {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).copied().map_or(f64::NAN, milliseconds)
}

pub(crate) fn mean(times: impl Iterator<Item = Duration>) -> f64 {
    let (count, sum) = times.fold((0u32, Duration::ZERO), |(n, sum), time| (n + 1, sum + time));
    sum.checked_div(count).map_or(f64::NAN, milliseconds)
}

/// The middle value; of an even number of values the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.get(half.wrapping_sub(1)), values.get(half)) {
        (Some(below), Some(above)) if values.len().is_multiple_of(2) => f64::midpoint(*below, *above),
        (_, middle) => middle.copied().unwrap_or(f64::NAN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let ms = Duration::from_millis;
        let times = || (1..=20).map(ms);
        assert_eq!((quantile(times(), 50), quantile(times(), 95)), (10.0, 19.0));
        assert_eq!(quantile([ms(7)].into_iter(), 95), 7.0);
        assert!(quantile(std::iter::empty(), 50).is_nan());
    }

    #[test]
    fn the_middle_of_odd_and_even_numbers_of_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }
}
