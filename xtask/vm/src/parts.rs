// SPDX-License-Identifier: MIT OR Apache-2.0

//! A kernel's test programs, divided among several VMs: an emulated VM uses one processor.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use xtask_base::test_programs::TestProgram;

/// The time of a test program that has never been run, in milliseconds, which is a typical time.
const UNKNOWN: u64 = 30_000;

/// The test programs of one VM.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    /// The part's place among the VMs of its kernel, from 1.
    number: usize,
    pub(crate) tests: Vec<&'a TestProgram>,
}

impl Part<'_> {
    /// The folder of the part's files, below that of its kernel.
    pub(crate) fn folder(&self) -> String {
        self.number.to_string()
    }

    /// True if the part runs one of these test programs.
    pub(crate) fn has_any(&self, names: &[String]) -> bool {
        self.tests.iter().any(|test| names.contains(&test.name))
    }
}

/// Divides test programs into at most `count` parts that take about the same time. The longest programs are assigned
/// first, each to the part that has the least to do. `times` are those of earlier runs, in milliseconds. Within a part,
/// the programs keep the order in which they came.
pub(crate) fn divide<'a>(
    tests: &[&'a TestProgram],
    times: &BTreeMap<&str, u64>,
    count: usize,
) -> Vec<Part<'a>> {
    let millis = |test: &TestProgram| times.get(test.name.as_str()).copied().unwrap_or(UNKNOWN);
    let mut longest_first: Vec<usize> = (0..tests.len()).collect();
    longest_first.sort_by_key(|at| Reverse(millis(tests[*at])));
    let mut parts: Vec<(u64, Vec<usize>)> = vec![(0, Vec::new()); count.min(tests.len())];
    for at in longest_first {
        if let Some((sum, part)) = parts.iter_mut().min_by_key(|(sum, part)| (*sum, part.len())) {
            *sum += millis(tests[at]);
            part.push(at);
        }
    }
    let sorted = |mut part: Vec<usize>| {
        part.sort_unstable();
        part.into_iter().map(|at| tests[at]).collect()
    };
    (1..).zip(parts).map(|(number, (_, part))| Part { number, tests: sorted(part) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn divided(names: &[&str], times: &[(&'static str, u64)], count: usize) -> Vec<Vec<String>> {
        let program = |name: &&str| TestProgram {
            name: (*name).to_owned(),
            path: PathBuf::new(),
            package: PathBuf::new(),
        };
        let tests: Vec<TestProgram> = names.iter().map(program).collect();
        let tests: Vec<&TestProgram> = tests.iter().collect();
        let parts = divide(&tests, &times.iter().copied().collect(), count);
        parts.iter().map(|part| part.tests.iter().map(|test| test.name.clone()).collect()).collect()
    }

    #[test]
    fn the_parts_take_about_as_long() {
        let times = [("a", 10_000), ("b", 90_000), ("c", 20_000), ("e", 20_000)];
        assert_eq!(divided(&["a", "b", "c", "d", "e"], &times, 2), [["b"].as_slice(), &["a", "c", "d", "e"]]);
    }

    #[test]
    fn no_part_is_empty_and_no_program_is_lost() {
        assert_eq!(divided(&["a"], &[], 2), [["a"]]);
        assert_eq!(divided(&["a", "b"], &[("a", 0), ("b", 0)], 2), [["a"], ["b"]]);
        assert!(divided(&[], &[], 2).is_empty());
    }
}
