// SPDX-License-Identifier: MIT OR Apache-2.0

//! The results for people: on the terminal and in docs/reports/kernels.md.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use crate::kernels::{Kernel, Kernels};
use crate::outcome::{Outcome, Status};
use crate::record::Record;
use xtask_base::error::{Error, Result};
use xtask_base::progress::seconds;
use xtask_base::workspace;

/// The reason why a kernel was not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotRun {
    /// The same error for all kernels.
    #[error("{0}")]
    NoEmulator(Arc<Error>),
    #[error("its package cannot be had: {0}")]
    NoPackage(Error),
}

/// The results of a kernel that was asked for.
pub(crate) type Row<'a> = (&'a Kernel, Result<Outcome, NotRun>);

/// A line per kernel.
pub(crate) fn lines(rows: &[Row<'_>]) -> String {
    let mut text = format!(
        "  {:<10} {:<28} {:>8} {:>7} {:>7} {:>7} {:>10}\n",
        "kernel", "release", "boot", "passed", "skipped", "failed", "time"
    );
    for (kernel, row) in rows {
        let line = match row {
            Ok(outcome) => format!(
                "{:<28} {:>8} {:>7} {:>7} {:>7} {:>10}  {}",
                outcome.release,
                outcome.boot.map_or("-".to_owned(), seconds),
                outcome.count(Status::Passed),
                outcome.count(Status::Skipped),
                outcome.count(Status::Failed),
                seconds(outcome.took),
                if outcome.passed() { "ok" } else { "FAIL" }
            ),
            Err(reason) => format!("SKIP: {reason}"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:<10} {line}", kernel.name);
    }
    text
}

/// The problems of one kernel, with their output.
pub(crate) fn failure(outcome: &Outcome) -> String {
    let mut text = format!("{} failed:\n", outcome.kernel);
    for problem in &outcome.problems {
        let _ = writeln!(text, "  - {problem}");
    }
    for line in &outcome.evidence {
        let _ = writeln!(text, "    {line}");
    }
    text
}

/// Writes the page docs/reports/kernels.md and its data from what is known.
pub(crate) fn write(list: &Kernels) -> Result<()> {
    let mut rows = Vec::new();
    for kernel in &list.kernel {
        let known = Record::known(&kernel.name)?;
        if let Some(record) = &known {
            record.publish()?;
        }
        rows.push((kernel.name.as_str(), known.map(|record| (record.stale(), record))));
    }
    let path = workspace::root().join("docs/reports/kernels.md");
    fs::write(&path, page(list, &rows)).map_err(|e| Error::file("write", &path, e))
}

/// Prints the kernels whose rows do not describe today's product, with the reasons.
pub(crate) fn print_stale() -> Result<()> {
    for kernel in Kernels::load()?.kernel {
        match Record::known(&kernel.name)? {
            None => println!("{} (not run)", kernel.name),
            Some(record) => {
                record.stale().into_iter().for_each(|why| println!("{} ({why})", kernel.name));
            }
        }
    }
    Ok(())
}

/// A kernel's name; if it was run, why its row is stale, and the row.
type Known<'a> = (&'a str, Option<(Option<&'static str>, Record)>);

/// The page docs/reports/kernels.md.
fn page(list: &Kernels, rows: &[Known<'_>]) -> String {
    let mut text = String::from(
        "# Kernels\n\n\
         <!-- Made by `cargo xtask vm-test --write-docs`. Do not edit. -->\n\n\
         For those who want to know whether Slipway works with their kernel: the results of the test suites on each of \
         these kernels, and the tests that were skipped there.\n\n\
         The suites run as root in virtual machines, with real packets and the static binary that is shipped. A skipped \
         test counts as a failure unless `vm-tests/kernels.toml` names what is missing, and so does a kernel that warned \
         about itself. [vm-tests](../../vm-tests/README.md) explains the virtual machines and how to repeat this. A row is \
         one commit; it is stale if `cni` or `ebpf` has changed since. Times are of one emulated processor. The \
         [data](../data/kernels) name each test that was skipped or failed. On ARM64 only the test programs that depend on \
         the processor are run.\n\n\
         | kernel | release | commit | date | passed | skipped | failed | boot | tests | |\n\
         |---|---|---|---|---:|---:|---:|---:|---:|---|\n",
    );
    for (kernel, row) in rows {
        let _ = match row {
            Some((stale, one)) => {
                let [passed, skipped, failed] = one.counts();
                let millis = one.suites.iter().map(|suite| suite.millis).sum();
                writeln!(
                    text,
                    "| {kernel} | {} | {} | {} | {passed} | {skipped} | {failed} | {} | {} | {} |",
                    one.release,
                    one.commit.as_deref().unwrap_or("several"),
                    one.date,
                    seconds(Duration::from_millis(one.boot_millis)),
                    seconds(Duration::from_millis(millis)),
                    verdict(one, *stale)
                )
            }
            None => writeln!(text, "| {kernel} | not run | | | | | | | | |"),
        };
    }
    variants(&mut text, list);
    missing(&mut text, list);
    programs(&mut text, rows);
    text
}

/// The kernels that differ from another one of the list.
fn variants(text: &mut String, list: &Kernels) {
    text.push_str(
        "\n## Kernels that lack something\n\nEach is a kernel from above, without some modules or with arguments at boot, and \
         runs the test programs for which that matters.\n\n| kernel | is | without the modules | booted with | test programs \
         |\n|---|---|---|---|---|\n",
    );
    let code = |words: &[String]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    for kernel in &list.kernel {
        let Some(same_as) = &kernel.same_as else { continue };
        let [without, boot] = [&kernel.without, &kernel.boot].map(|words| code(words));
        let suites = kernel.suites.join(", ");
        let _ = writeln!(text, "| {} | {same_as} | {without} | {boot} | {suites} |", kernel.name);
    }
}

/// A row in a word.
fn verdict(one: &Record, stale: Option<&str>) -> String {
    let failed = (!one.passed()).then(|| "**failed**".to_owned());
    let part = (!one.complete).then(|| format!("only {} test programs were run", one.suites.len()));
    let stale = stale.map(|why| format!("stale: {why}"));
    let parts: Vec<String> = failed.into_iter().chain(part).chain(stale).collect();
    if parts.is_empty() { "ok".to_owned() } else { parts.join("; ") }
}

/// The features for which tests may be skipped.
fn missing(text: &mut String, list: &Kernels) {
    text.push_str("\n## What may be skipped\n\n| kernel | feature | option | why |\n|---|---|---|---|\n");
    let everywhere = list.anywhere.iter().map(|one| ("any", one));
    let own = list.kernel.iter().flat_map(|kernel| kernel.missing.iter().map(|one| (&*kernel.name, one)));
    for (kernel, one) in own.chain(everywhere) {
        let option = one.option.as_ref().map_or(String::new(), |option| format!("`CONFIG_{option}`"));
        let reason = one.reason.trim().replace('\n', " ");
        let _ = writeln!(text, "| {kernel} | {} | {option} | {reason} |", one.feature);
    }
    for (suite, part) in &list.arm64_only {
        let why = "the others need many emulated processors";
        let _ = writeln!(text, "| arm64 | tests of `{suite}` without `{part}` in their names | | {why} |");
    }
    for one in &list.left_out {
        let reason = one.reason.trim().replace('\n', " ");
        let _ = writeln!(text, "| any | all of `{}` | | {reason} |", one.suite);
    }
}

/// The programs of which a test was skipped or failed, or whose kernels have different results. The others are counted.
fn programs(text: &mut String, rows: &[Known<'_>]) {
    let run: Vec<&Record> =
        rows.iter().filter_map(|(_, row)| row.as_ref().map(|(_, record)| record)).collect();
    let names: BTreeSet<&str> =
        run.iter().flat_map(|row| row.suites.iter().map(|suite| suite.name.as_str())).collect();
    let (mut table, mut unremarkable) = (String::new(), 0);
    for name in names {
        // Almost every program has the same result everywhere, so one cell for all kernels is readable on any screen.
        let mut results: Vec<(String, Vec<&str>)> = Vec::new();
        let mut all_passed = true;
        for row in &run {
            let Some(suite) = row.suites.iter().find(|suite| suite.name == name) else { continue };
            all_passed &= suite.ok && suite.skipped.is_empty();
            let result = match suite {
                suite if !suite.ok => "**failed**".to_owned(),
                suite if suite.skipped.is_empty() => suite.passed.to_string(),
                suite => format!("{} ({})", suite.passed, suite.skipped.len()),
            };
            match results.iter_mut().find(|(known, _)| *known == result) {
                Some((_, kernels)) => kernels.push(&row.kernel),
                None => results.push((result, vec![&row.kernel])),
            }
        }
        results.sort_by_key(|(_, kernels)| Reverse(kernels.len()));
        let count: usize = results.iter().map(|(_, kernels)| kernels.len()).sum();
        let Some(((usual, _), others)) = results.split_first() else { continue };
        if all_passed && others.is_empty() {
            unremarkable += 1;
            continue;
        }
        let others = others.iter().map(|(result, kernels)| format!("{}: {result}", kernels.join(", ")));
        let _ = writeln!(table, "| {name} | {usual} | {count} | {} |", others.collect::<Vec<_>>().join("; "));
    }
    let _ = write!(
        text,
        "\n## Test programs\n\nThe table lists each program of which a test was skipped or failed on some kernel, or \
         whose results differ between kernels. On every kernel that ran them, {unremarkable} other programs passed \
         all their tests.\n\nThe columns have the number of tests that passed, in brackets that of skipped ones, and \
         the number of kernels that ran the program.\n\n\
         | program | passed | kernels | differences |\n|---|---:|---:|---|\n{table}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Suite;

    fn record(kernel: &str) -> Record {
        let skipped = vec!["b".to_owned()];
        let suite =
            Suite { name: "links".to_owned(), ok: true, passed: 1, skipped, failed: Vec::new(), millis: 5 };
        Record {
            kernel: kernel.to_owned(),
            release: "6.1.0-56-cloud-amd64".to_owned(),
            commit: Some("abc".to_owned()),
            date: "2026-11-22".to_owned(),
            boot_millis: 4100,
            complete: true,
            suites: vec![suite],
        }
    }

    #[test]
    fn a_verdict_hides_neither_a_failure_nor_an_old_or_partial_row() {
        let mut one = record("6.1");
        assert_eq!(verdict(&one, None), "ok");
        assert_eq!(verdict(&one, Some("old")), "stale: old");
        (one.complete, one.suites[0].ok) = (false, false);
        assert_eq!(verdict(&one, Some("old")), "**failed**; only 1 test programs were run; stale: old");
    }

    #[test]
    fn a_kernel_with_another_result_is_named() {
        let rows = ["5.10", "6.1", "6.12", "arm64"].map(|name| (name, Some((None, record(name)))));
        let mut rows = Vec::from(rows);
        if let Some((_, Some((_, one)))) = rows.get_mut(2) {
            one.suites[0].passed = 9;
        }
        if let Some((_, Some((_, one)))) = rows.get_mut(3) {
            one.suites.clear();
        }
        let page = page(&Kernels::load().unwrap(), &rows);
        assert!(page.ends_with("\n| links | 1 (1) | 3 | 6.12: 9 (1) |\n"), "{page}");
    }

    #[test]
    fn the_page_has_every_program_with_a_skipped_test() {
        let mut other = record("6.12");
        other.suites[0].name = "bridge".to_owned();
        other.commit = None;
        let rows = [("6.1", Some((None, record("6.1")))), ("6.12", Some((Some("old"), other)))];
        let page = page(&Kernels::load().unwrap(), &rows);
        let table = "|---|---:|---:|---|\n| bridge | 1 (1) | 1 |  |\n| links | 1 (1) | 1 |  |\n";
        assert!(page.ends_with(table), "{page}");
        assert!(page.contains("| abc | 2026-11-22 | 1 | 1 | 0 | 4.1 s | 0.0 s | ok |\n"), "{page}");
        assert!(page.contains("| several | 2026-11-22 |") && page.contains("| stale: old |\n"), "{page}");
    }

    #[test]
    fn a_program_that_passed_all_tests_everywhere_is_only_counted() {
        let rows = ["6.1", "6.12"].map(|name| {
            let mut one = record(name);
            one.suites[0].skipped.clear();
            (name, Some((None, one)))
        });
        let page = page(&Kernels::load().unwrap(), &rows);
        assert!(page.contains("On every kernel that ran them, 1 other programs passed all"), "{page}");
        assert!(page.ends_with("|---|---:|---:|---|\n"), "{page}");
    }
}
