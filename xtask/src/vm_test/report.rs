//! What the runs came to, for people: on the terminal and in docs/kernels.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::progress::seconds;
use crate::vm_test::kernels::{Kernel, Kernels};
use crate::vm_test::outcome::{Outcome, Status};

/// A kernel that was asked for: what became of it, or why it could not be run.
pub(crate) type Row<'a> = (&'a Kernel, Result<Outcome, String>);

/// A line per kernel.
pub(crate) fn lines(rows: &[Row<'_>]) -> String {
    let mut text = format!(
        "  {:<8} {:<28} {:>8} {:>7} {:>7} {:>7} {:>10}\n",
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
        let _ = writeln!(text, "  {:<8} {line}", kernel.name);
    }
    text
}

/// What went wrong with one kernel, and what it printed about it.
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

/// The page docs/kernels.md.
pub(crate) fn page(list: &Kernels, rows: &[Row<'_>], emulator: &str) -> String {
    let mut text = String::from(
        "# Kernels\n\n\
         <!-- Made by `cargo xtask vm-test --write-docs`. Do not edit. -->\n\n\
         Slipway's test suites run inside virtual machines with the kernels below: with real packets, as \
         root, each test in network namespaces of its own. The plugins are the static binary that is \
         shipped. A skipped test counts as a failure unless `vm-tests/kernels.toml` names what is \
         missing, and so does a kernel that warned about itself. How the machines are made, and what is \
         tried less often in them than on a machine itself, is in [vm-tests](../vm-tests/README.md).\n\n\
         ```sh\ncargo xtask vm-test                # all of them\n\
         cargo xtask vm-test --kernel 6.1   # one\n```\n\n",
    );
    let _ = writeln!(
        text,
        "Machines: {emulator}, one processor. Times are those of the last run, beside whatever else the \
         machine did; with `>`, of some programs it is not known any more. `sources` is what git calls what was \
         tested; each test program's last run counts ([data](data/kernels)).\n"
    );
    text.push_str("| kernel | release | sources | passed | skipped | failed | boot | tests | |\n");
    text.push_str("|---|---|---|---:|---:|---:|---:|---:|---|\n");
    for (kernel, row) in rows {
        let _ = match row {
            Ok(one) => writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                kernel.name,
                one.release,
                one.sources(),
                one.count(Status::Passed),
                one.count(Status::Skipped),
                one.count(Status::Failed),
                one.boot.map_or("-".to_owned(), seconds),
                time(one),
                verdict(one, rows)
            ),
            Err(reason) => writeln!(text, "| {} | not run: {reason} | | | | | | | |", kernel.name),
        };
    }
    missing(&mut text, list);
    matrix(&mut text, rows);
    text
}

/// How long its test programs took.
fn time(one: &Outcome) -> String {
    let is_whole = one.suites.iter().all(|suite| suite.millis > 0);
    format!("{}{}", if is_whole { "" } else { "> " }, seconds(one.tested()))
}

/// In a word; a kernel on which a test program was not run that others ran is not done.
fn verdict(one: &Outcome, rows: &[Row<'_>]) -> String {
    let names = |one: &Outcome| one.suites.iter().map(|suite| suite.name.clone()).collect::<BTreeSet<_>>();
    let all: BTreeSet<String> =
        rows.iter().filter_map(|(_, row)| row.as_ref().ok()).flat_map(names).collect();
    let left: Vec<String> = all.difference(&names(one)).map(|name| format!("`{name}`")).collect();
    let passed = (!one.passed()).then(|| "**failed**".to_owned());
    let whole = (!left.is_empty()).then(|| format!("not run yet: {}", left.join(", ")));
    let parts: Vec<String> = passed.into_iter().chain(whole).collect();
    if parts.is_empty() { "ok".to_owned() } else { parts.join("; ") }
}

/// The README with the kernels in their place: from the mark to the next heading. None without a mark.
pub(crate) fn readme(text: &str, rows: &[Row<'_>]) -> Option<String> {
    const MARK: &str = "<!-- kernels -->\n";
    let from = text.find(MARK)? + MARK.len();
    let to = from + text[from..].find("\n## ")?;
    let mut own = String::from(
        "The tests are run on these kernels of Debian, x86-64; [docs/kernels.md](docs/kernels.md) has every \
         test on each.\n`cargo xtask vm-test` does that again, and with `--write-docs` makes that page and \
         this table.\n\n| Linux | tests passed | skipped | failed | |\n|---|---:|---:|---:|---|\n",
    );
    for (kernel, row) in rows {
        let _ = match row {
            Ok(one) => writeln!(
                own,
                "| {} | {} | {} | {} | {} |",
                one.release,
                one.count(Status::Passed),
                one.count(Status::Skipped),
                one.count(Status::Failed),
                verdict(one, rows)
            ),
            Err(_) => writeln!(own, "| {} | | | | not run |", kernel.name),
        };
    }
    Some(format!("{}{own}{}", &text[..from], &text[to..]))
}

/// What tests may be skipped for.
fn missing(text: &mut String, list: &Kernels) {
    text.push_str("\n## What may be skipped\n\n| kernel | feature | option | why |\n|---|---|---|---|\n");
    let everywhere = list.anywhere.iter().map(|one| ("any", one));
    let own = list.kernel.iter().flat_map(|kernel| kernel.missing.iter().map(|one| (&*kernel.name, one)));
    for (kernel, one) in own.chain(everywhere) {
        let option = one.option.as_ref().map_or(String::new(), |option| format!("`CONFIG_{option}`"));
        let reason = one.reason.trim().replace('\n', " ");
        let _ = writeln!(text, "| {kernel} | {} | {option} | {reason} |", one.feature);
    }
    for one in &list.left_out {
        let reason = one.reason.trim().replace('\n', " ");
        let _ = writeln!(text, "| any | all of `{}` | | {reason} |", one.suite);
    }
}

/// Every test on every kernel.
fn matrix(text: &mut String, rows: &[Row<'_>]) {
    let run: Vec<&Outcome> = rows.iter().filter_map(|(_, row)| row.as_ref().ok()).collect();
    let mut results: BTreeMap<(&str, &str), BTreeMap<&str, Status>> = BTreeMap::new();
    for outcome in &run {
        for suite in &outcome.suites {
            for (test, status) in &suite.tests {
                results.entry((&suite.name, test)).or_default().insert(&outcome.kernel, *status);
            }
        }
    }
    let suites: BTreeSet<&str> = results.keys().map(|(suite, _)| *suite).collect();
    for suite in suites {
        let _ = write!(text, "\n## {suite}\n\n| test |");
        for outcome in &run {
            let _ = write!(text, " {} |", outcome.kernel);
        }
        let _ = writeln!(text, "\n|---|{}", ":-:|".repeat(run.len()));
        for ((_, test), by_kernel) in results.iter().filter(|((own, _), _)| *own == suite) {
            let _ = write!(text, "| {test} |");
            for outcome in &run {
                let mark = match by_kernel.get(outcome.kernel.as_str()) {
                    Some(Status::Passed) => "ok",
                    Some(Status::Skipped) => "skipped",
                    Some(Status::Failed) => "**failed**",
                    Some(Status::Ignored) => "ignored",
                    None => "-",
                };
                let _ = write!(text, " {mark} |");
            }
            text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm_test::outcome::SuiteOutcome;

    fn row(kernel: &Kernel) -> Row<'_> {
        let tests = [("a", Status::Passed), ("b", Status::Skipped)];
        let tests = tests.map(|(name, status)| (name.to_owned(), status)).into();
        let suite = SuiteOutcome {
            name: "links".to_owned(),
            sources: "abc".to_owned(),
            millis: 5,
            at: 7,
            passed: true,
            tests,
        };
        let release = "6.1.0-56-cloud-amd64".to_owned();
        (
            kernel,
            Ok(Outcome { kernel: kernel.name.clone(), release, suites: vec![suite], ..Outcome::default() }),
        )
    }

    #[test]
    fn the_readmes_place_is_filled_and_nothing_else_changed() {
        let list = Kernels::load().unwrap();
        let rows = [row(&list.kernel[0]), (&list.kernel[1], Err("no such package".to_owned()))];
        let text = "before\n\n<!-- kernels -->\nold\n\n## Next\n";
        let once = readme(text, &rows).unwrap();
        let expected = format!(
            "| 6.1.0-56-cloud-amd64 | 1 | 1 | 0 | ok |\n| {} | | | | not run |\n\n## Next\n",
            list.kernel[1].name
        );
        assert!(once.starts_with("before\n\n<!-- kernels -->\nThe ") && once.ends_with(&expected), "{once}");
        assert_eq!(readme(&once, &rows).unwrap(), once);
        assert_eq!(readme("no mark\n\n## Next\n", &rows), None);
    }

    #[test]
    fn a_failure_hides_neither_itself_nor_what_was_not_run() {
        let list = Kernels::load().unwrap();
        let (mut one, two) = (row(&list.kernel[0]), row(&list.kernel[1]));
        let outcome = one.1.as_mut().unwrap();
        outcome.suites[0].name = "bridge".to_owned();
        outcome.problems.push("links: its time was over".to_owned());
        let text = readme("<!-- kernels -->\n\n## Next\n", &[one, two]).unwrap();
        assert!(text.contains("| 0 | **failed**; not run yet: `links` |\n"), "{text}");
        assert!(text.contains("| 0 | not run yet: `bridge` |\n"), "{text}");
    }

    #[test]
    fn the_page_has_every_test_of_every_kernel() {
        let list = Kernels::load().unwrap();
        let kernel = &list.kernel[0];
        let page = page(&list, &[row(kernel)], "QEMU");
        assert!(page.contains(&format!("## links\n\n| test | {} |\n|---|:-:|\n", kernel.name)), "{page}");
        assert!(page.contains("| a | ok |\n| b | skipped |\n"), "{page}");
    }
}
