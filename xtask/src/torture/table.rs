// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a run has tried and found, as a table with one line for each row.

use std::collections::BTreeMap;
use std::time::Duration;

use xtask_base::progress::seconds;

use super::rows::{ELSEWHERE, ROWS, row_of};
use crate::pool::Verdict;

/// The sum of the tests of one row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sum {
    tests: usize,
    skipped: usize,
    /// What the tests say that they have tried.
    tried: BTreeMap<String, u64>,
    found: usize,
    took: Duration,
}

/// The sums of all rows, by index.
#[derive(Debug)]
pub(super) struct Table(Vec<Sum>);

/// A line `torture: tried=12 what=kills` of a tally.
fn tried(line: &str) -> Option<(u64, &str)> {
    let (count, what) = line.strip_prefix("torture: tried=")?.split_once(" what=")?;
    Some((count.parse().ok()?, what))
}

impl Table {
    pub(super) fn new() -> Self {
        Self(vec![Sum::default(); ROWS.len()])
    }

    pub(super) fn add(&mut self, verdict: &Verdict) {
        let Some(sum) = row_of(&verdict.title).and_then(|row| self.0.get_mut(row)) else { return };
        sum.took += verdict.took;
        sum.found += usize::from(verdict.failure.is_some());
        if verdict.tally.contains(": skipped: needs ") {
            sum.skipped += 1;
            return;
        }
        sum.tests += 1;
        for (count, what) in verdict.tally.lines().filter_map(tried) {
            *sum.tried.entry(what.to_owned()).or_default() += count;
        }
    }

    /// The number of tests that have found something.
    pub(super) fn found(&self) -> usize {
        self.0.iter().map(|sum| sum.found).sum()
    }

    /// The table, with a line for each row of which tests were wanted.
    pub(super) fn text(&self, is_wanted: impl Fn(usize) -> bool) -> String {
        let title = ["row", "tried", "how often", "found", "time"].map(str::to_owned);
        let mut lines = vec![title];
        let rows = ROWS.iter().zip(&self.0).enumerate().filter(|(row, _)| is_wanted(*row));
        lines.extend(rows.map(|(_, (row, sum))| {
            [row.name.to_owned(), row.tries.to_owned(), sum.often(), sum.found.to_string(), seconds(sum.took)]
        }));
        lines.extend(ELSEWHERE.iter().map(|(name, by)| {
            [(*name).to_owned(), format!("not here: {by}"), "–".to_owned(), "–".to_owned(), "–".to_owned()]
        }));
        let width = |column: usize| {
            lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..5).map(width).collect();
        let line = |cells: &[String; 5]| {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        lines.iter().map(line).collect()
    }
}

impl Sum {
    fn often(&self) -> String {
        let counts = self.tried.iter().map(|(what, count)| format!("{count} {what}"));
        let tests = [format!("{} tests", self.tests)].into_iter();
        let skipped = (self.skipped > 0).then(|| format!("{} skipped", self.skipped));
        counts.chain(tests).chain(skipped).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(title: &str, failure: Option<&str>, tally: &str) -> Verdict {
        let took = Duration::from_secs(2);
        Verdict {
            title: title.to_owned(),
            took,
            failure: failure.map(str::to_owned),
            tally: tally.to_owned(),
        }
    }

    #[test]
    fn counts_are_summed_by_row_and_skipped_tests_have_tried_nothing() {
        let mut table = Table::new();
        let kills = "torture: tried=1 what=kills\n";
        table.add(&verdict("reliability::a", None, &kills.repeat(3)));
        table.add(&verdict(
            "reliability::b",
            Some("left something"),
            "torture: tried=20 what=failing calls\n",
        ));
        table.add(&verdict("reliability::c", None, "reliability::c: skipped: needs vrf\n"));
        table.add(&verdict("soak::a", None, ""));
        table.add(&verdict("foreign::a", Some("x"), ""));
        assert_eq!(table.found(), 1);
        let text = table.text(|row| ["calls", "random"].contains(&ROWS[row].name));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("calls ") && lines[1].ends_with("  1      6.0 s"), "{text}");
        assert!(lines[1].contains("  20 failing calls, 3 kills, 2 tests, 1 skipped  "), "{text}");
        assert!(lines[2].contains("  1 tests ") && lines[2].ends_with("  0      2.0 s"), "{text}");
        assert_eq!(lines.len(), 3 + ELSEWHERE.len());
    }
}
