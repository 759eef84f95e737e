// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask test --full --list`: the work that `--full` adds to a plain run.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;

use crate::delegate::Crate;
use xtask_base::error::{Error, Result};
use xtask_base::run;
use xtask_base::workspace;

/// The file that the tests of a plain run write the size of their samples to.
pub(crate) const SAMPLED: &str = "sampled.txt";

/// The points that one test tried in a run, and all that it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) tried: usize,
    /// 0 if the test does not know their number in advance.
    pub(crate) all: usize,
    /// The stride of a test that does not take its sample from a list; else 0.
    pub(crate) one_in: usize,
}

/// Reads the samples by test: lines `TEST: tried 12 of 60`, or `TEST: tried 1 in 5` where the number of points is
/// unknown in advance. A test may have several lines.
pub(crate) fn samples(text: &str) -> BTreeMap<&str, Sample> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    let mut found: BTreeMap<&str, Sample> = BTreeMap::new();
    for (test, size) in lines.iter().filter_map(|line| line.rsplit_once(": tried ")) {
        let sample = found.entry(test).or_default();
        if let Some((tried, all)) = size.split_once(" of ") {
            sample.tried += tried.parse::<usize>().unwrap_or_default();
            sample.all += all.parse::<usize>().unwrap_or_default();
        } else if let Some((_, stride)) = size.split_once(" in ") {
            sample.one_in = stride.parse().unwrap_or_default();
        }
    }
    found
}

/// Prints the tests and kernels of which a plain run tries a part.
pub(crate) fn list() -> Result<()> {
    let path = workspace::scratch("test")?.join(SAMPLED);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => String::new(),
        Err(e) => return Err(Error::file("read", &path, e)),
    };
    print!("{}", tests(&text, &path.display().to_string()));
    run::show(&mut Crate::Vm.cargo_run("marked"))
}

fn tests(text: &str, path: &str) -> String {
    let samples = samples(text);
    if samples.is_empty() {
        return format!(
            "Tests: unknown, because {path} is empty; a run without --full, --suite and --filter writes it\n"
        );
    }
    let mut lines =
        format!("{} tests try every point; of these the last plain run tried ({path}):\n", samples.len());
    for (test, sample) in &samples {
        let size = match sample.all {
            0 => format!("1 in {}", sample.one_in),
            all => format!("{} of {all}", sample.tried),
        };
        lines.push_str(&format!("  {test}: {size}\n"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_test() {
        let found =
            samples("a::b: tried 3 of 12\na::b: tried 2 of 9\nc: tried 1 of 1\nd: tried 1 in 5\nother\n");
        let points = |tried, all| Sample { tried, all, one_in: 0 };
        let expected =
            [("a::b", points(5, 21)), ("c", points(1, 1)), ("d", Sample { one_in: 5, ..points(0, 0) })];
        assert_eq!(found, expected.into());
    }

    #[test]
    fn the_list_has_every_sampling_test() {
        let printed = super::tests("a::b: tried 3 of 12\nd: tried 1 in 5\n", "sampled.txt");
        assert!(
            printed.starts_with("2 tests") && printed.contains("\n  a::b: 3 of 12\n  d: 1 in 5\n"),
            "{printed}"
        );
        assert!(super::tests("", "sampled.txt").contains("unknown"));
    }
}
