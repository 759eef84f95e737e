// SPDX-License-Identifier: GPL-2.0-or-later

//! The sample of many similar cases that a run tries.

use crate::pace::is_slow;
use crate::skip::append;

/// Reads a number from the environment; `default` if it is not set.
fn number(key: &str, default: usize) -> usize {
    std::env::var(key).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{key} is a number")))
}

/// The number N for which 1 in N cases is tried, from the variable `SLIPWAY_SAMPLE`. Without the variable it is 1,
/// which means all. If it is more, a line goes to the file that `SLIPWAY_SAMPLED` names, because the calling test does
/// less than it could.
pub fn stride() -> usize {
    let stride = configured();
    if stride > 1 {
        record(&format!("1 in {stride}"));
    }
    stride
}

fn configured() -> usize {
    let stride = number("SLIPWAY_SAMPLE", 1);
    assert!(stride > 0, "SLIPWAY_SAMPLE is 0");
    stride
}

/// Chooses the cases that this run tries: the first, the last, and every [`stride`]-th, starting where
/// `SLIPWAY_SAMPLE_SEED` says. As many runs with consecutive seeds try all cases. A line with the number of cases goes
/// to the file that `SLIPWAY_SAMPLED` names.
pub fn sample<T>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    sample_by(all, configured())
}

/// The seed of the sample.
pub(crate) fn seed() -> usize {
    number("SLIPWAY_SAMPLE_SEED", 0)
}

/// One in `step` cases. The seed of the sample, and `salt`, which differs from test to test, determine the first one.
pub fn one_in<T>(cases: impl IntoIterator<Item = T>, salt: usize, step: usize) -> impl Iterator<Item = T> {
    cases.into_iter().skip((salt + seed()) % step).step_by(step)
}

/// Chooses cases as [`sample`] does, if they are counted from 0 and their number is unknown.
pub fn sample_of_unknown() -> impl Iterator<Item = usize> {
    let (stride, seed) = (stride(), seed());
    (0..).filter(move |at: &usize| *at == 0 || (at + seed).is_multiple_of(stride))
}

/// Both cases of each pair, or on a slow machine one of them, alternately the first and the second.
/// `SLIPWAY_SAMPLE_SEED` and `salt`, which differs from test to test, determine the first choice.
pub fn one_of_each_pair_if_slow<T: Copy>(pairs: &[[T; 2]], salt: usize) -> Vec<T> {
    if !is_slow() {
        return pairs.concat();
    }
    record(&format!("{} of {}", pairs.len(), 2 * pairs.len()));
    alternate(pairs, salt + seed())
}

fn alternate<T: Copy>(pairs: &[[T; 2]], first: usize) -> Vec<T> {
    (first..).zip(pairs).map(|(at, pair)| pair[at % 2]).collect()
}

/// Chooses cases as [`sample`] does, but with another stride.
pub(crate) fn sample_by<T>(all: impl IntoIterator<Item = T>, stride: usize) -> Vec<T> {
    let all: Vec<T> = all.into_iter().collect();
    let size = all.len();
    let tried = choose(all, stride, seed());
    if tried.len() < size {
        record(&format!("{} of {size}", tried.len()));
    }
    tried
}

fn choose<T>(all: Vec<T>, stride: usize, seed: usize) -> Vec<T> {
    let last = all.len().saturating_sub(1);
    let is_tried = |at: usize| at == 0 || at == last || (at + seed).is_multiple_of(stride);
    all.into_iter().enumerate().filter(|(at, _)| is_tried(*at)).map(|(_, case)| case).collect()
}

/// Writes the line of [`sample`] with a single write in append mode, because several test processes may do so at once.
fn record(tried: &str) {
    let exe = std::env::current_exe().unwrap_or_default();
    let program = exe.file_name().unwrap_or_default().to_string_lossy();
    // Cargo appends a hash to the suite's name.
    let suite = program.rsplit_once('-').map_or(&*program, |(suite, _)| suite);
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    append("SLIPWAY_SAMPLED", &format!("{suite}::{test}: tried {tried}\n"));
}

#[cfg(test)]
mod tests {
    use super::{alternate, choose};

    #[test]
    fn consecutive_seeds_try_all_and_each_the_first_and_the_last() {
        let all: Vec<usize> = (0..23).collect();
        let mut seen: Vec<usize> = Vec::new();
        for seed in 7..12 {
            let tried = choose(all.clone(), 5, seed);
            assert_eq!((tried[0], tried[tried.len() - 1]), (0, 22));
            assert!(tried.len() <= 7, "{tried:?}");
            seen.extend(tried);
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, all);
        assert_eq!(choose(all.clone(), 1, 3), all);
        assert!(choose(Vec::<u8>::new(), 5, 3).is_empty());
    }

    #[test]
    fn two_consecutive_seeds_try_both_of_each_pair() {
        let pairs = [["a", "b"], ["c", "d"], ["e", "f"]];
        assert_eq!(alternate(&pairs, 4), ["a", "d", "e"]);
        assert_eq!(alternate(&pairs, 5), ["b", "c", "f"]);
    }
}
