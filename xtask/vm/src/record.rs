// SPDX-License-Identifier: MIT OR Apache-2.0

//! The record of a kernel's runs: a row of docs/reports/kernels.md, and its data.
//!
//! A row is one state of what is tested. Runs of one commit add up, of other test programs or of the same
//! again; a run of another commit begins a new row, and a run of a changed tree is not kept.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::kernels;
use crate::outcome::{Outcome, Status, SuiteOutcome};
use xtask_base::checkout::{self, PRODUCT, Sources};
use xtask_base::error::{Error, Result};
use xtask_base::workspace::{self, Lock};

/// The file with a kernel's row, next to the output of its last run.
const FILE: &str = "row.json";

/// A kernel's row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) kernel: String,
    /// As `uname -r` prints it.
    pub(crate) release: String,
    /// The last commit that changed anything that is tested. None in rows from before they were of one commit
    /// each.
    pub(crate) commit: Option<String>,
    /// The day of the last run.
    pub(crate) date: String,
    pub(crate) boot_millis: u64,
    /// True if every test program was run.
    pub(crate) complete: bool,
    pub(crate) suites: Vec<Suite>,
}

/// A test program in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Suite {
    pub(crate) name: String,
    /// True if nothing was wrong with it.
    pub(crate) ok: bool,
    pub(crate) passed: usize,
    pub(crate) skipped: Vec<String>,
    pub(crate) failed: Vec<String>,
    pub(crate) millis: u64,
}

impl Record {
    /// The row of a run; none if the tree was changed, or if the run failed although each test program passed.
    pub(crate) fn of(outcome: &Outcome, sources: &Sources, date: &str) -> Option<Self> {
        let is_explained = outcome.passed() || outcome.suites.iter().any(|suite| !suite.passed);
        let commit = sources.commit.clone().filter(|_| is_explained && !outcome.release.is_empty())?;
        Some(Self {
            kernel: outcome.kernel.clone(),
            release: outcome.release.clone(),
            commit: Some(commit),
            date: date.to_owned(),
            boot_millis: outcome.boot.map_or(0, |boot| u64::try_from(boot.as_millis()).unwrap_or_default()),
            complete: false,
            suites: outcome.suites.iter().map(Suite::of).collect(),
        })
    }

    /// Adds the test programs that were not in this run, from an earlier row of the same commit and release.
    pub(crate) fn with(mut self, earlier: Self) -> Self {
        if self.commit.is_some() && (&self.commit, &self.release) == (&earlier.commit, &earlier.release) {
            let names: Vec<String> = self.suites.iter().map(|suite| suite.name.clone()).collect();
            self.suites.extend(earlier.suites.into_iter().filter(|suite| !names.contains(&suite.name)));
        }
        self.suites.sort_by(|one, other| one.name.cmp(&other.name));
        self
    }

    /// True if nothing was wrong with any test program.
    pub(crate) fn passed(&self) -> bool {
        self.suites.iter().all(|suite| suite.ok)
    }

    /// The numbers of tests that passed, were skipped, and failed.
    pub(crate) fn counts(&self) -> [usize; 3] {
        self.suites.iter().fold([0; 3], |[passed, skipped, failed], suite| {
            [passed + suite.passed, skipped + suite.skipped.len(), failed + suite.failed.len()]
        })
    }

    /// The reason why the row does not describe today's product, if it does not.
    pub(crate) fn stale(&self) -> Option<&'static str> {
        let Some(commit) = &self.commit else { return Some("a sum of runs of several commits") };
        (!checkout::is_unchanged(commit, &PRODUCT)).then_some("the product has changed since")
    }

    /// As it is kept: a line for each test program.
    fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string(self);
        let text = text.map_err(|e| Error::Failed(format!("print a kernel's row: {e}")))?;
        // Within a string, quotes would be escaped.
        Ok(text.replace("{\"name\":", "\n{\"name\":") + "\n")
    }

    fn write(&self, path: &Path) -> Result<()> {
        fs::write(path, self.to_json()?).map_err(|e| Error::file("write", path, e))
    }

    fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Keeps the row of a run on this machine, with what it and the page know of the same commit. `programs` are
    /// all there are.
    pub(crate) fn keep<'a>(self, mut programs: impl Iterator<Item = &'a String>) -> Result<()> {
        let path = here(&self.kernel)?;
        fs::create_dir_all(path.parent().unwrap_or(&path))
            .map_err(|e| Error::file("create the directory of", &path, e))?;
        // Another VM of this kernel may end now.
        let _alone = Lock::take(&path.with_extension("lock"))?;
        let known = [Self::read(&path), Self::read(&data(&self.kernel))];
        let mut row = known.into_iter().flatten().fold(self, Self::with);
        row.complete = programs.all(|name| row.suites.iter().any(|suite| suite.name == *name));
        row.write(&path)
    }

    /// The row of a kernel: this machine's or the page's. One of today's product wins over a stale one, then a complete
    /// one over an incomplete one.
    pub(crate) fn known(kernel: &str) -> Result<Option<Self>> {
        let (own, page) = (Self::read(&here(kernel)?), Self::read(&data(kernel)));
        Ok(match (own, page) {
            (Some(own), Some(page)) => Some(own.or_better(page, |row| row.stale().is_none())),
            (own, page) => own.or(page),
        })
    }

    fn or_better(self, page: Self, is_of_today: impl Fn(&Self) -> bool) -> Self {
        let [own, other] = [&self, &page].map(|row| (is_of_today(row), row.complete));
        if other > own { page } else { self }
    }

    /// Writes the data of the page.
    pub(crate) fn publish(&self) -> Result<()> {
        self.write(&data(&self.kernel))
    }
}

impl Suite {
    fn of(outcome: &SuiteOutcome) -> Self {
        let with = |status: Status| {
            let tests = outcome.tests.iter().filter(move |(_, own)| *own == status);
            tests.map(|(name, _)| name.clone()).collect()
        };
        Self {
            name: outcome.name.clone(),
            ok: outcome.passed,
            passed: outcome.count(Status::Passed),
            skipped: with(Status::Skipped),
            failed: with(Status::Failed),
            millis: outcome.millis,
        }
    }
}

/// The file with this machine's row of a kernel.
fn here(kernel: &str) -> Result<PathBuf> {
    Ok(kernels::cache()?.join("runs").join(kernel).join(FILE))
}

/// The file with the page's row of a kernel.
fn data(kernel: &str) -> PathBuf {
    workspace::root().join("docs/data/kernels").join(format!("{kernel}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        let tests = [("a", Status::Passed), ("b", Status::Skipped), ("c", Status::Ignored)];
        let tests = tests.map(|(name, status)| (name.to_owned(), status)).into();
        let suite = SuiteOutcome { name: "links".to_owned(), millis: 5, passed: true, tests };
        let (kernel, release) = ("6.1".to_owned(), "6.1.0-56-cloud-amd64".to_owned());
        Outcome { kernel, release, suites: vec![suite], ..Outcome::default() }
    }

    fn of(commit: &str) -> Sources {
        Sources { commit: Some(commit.to_owned()) }
    }

    fn row(commit: &str, suite: &str) -> Record {
        let mut outcome = outcome();
        outcome.suites[0].name = suite.to_owned();
        Record::of(&outcome, &of(commit), "2026-11-22").unwrap()
    }

    #[test]
    fn a_changed_tree_has_no_row() {
        assert_eq!(Record::of(&outcome(), &Sources { commit: None }, "2026-11-22"), None);
        let mut silent = outcome();
        silent.release.clear();
        assert_eq!(Record::of(&silent, &of("abc"), "2026-11-22"), None, "the VM did not boot");
        let mut other = outcome();
        other.problems.push("kernels.toml and its configuration differ".to_owned());
        assert_eq!(Record::of(&other, &of("abc"), "2026-11-22"), None, "no test program's failure");
    }

    #[test]
    fn runs_of_one_commit_add_up_and_others_do_not() {
        let names = |row: Record| row.suites.into_iter().map(|suite| suite.name).collect::<Vec<_>>();
        assert_eq!(names(row("abc", "links").with(row("abc", "bridge"))), ["bridge", "links"]);
        assert_eq!(names(row("abc", "links").with(row("abd", "bridge"))), ["links"]);
        let mut older = row("abc", "bridge");
        older.release = "6.1.0-55-cloud-amd64".to_owned();
        assert_eq!(names(row("abc", "links").with(older)), ["links"]);
        let mut again = row("abc", "links");
        again.suites[0].passed = 7;
        assert_eq!(again.clone().with(row("abc", "links")), again, "the last run counts");
    }

    #[test]
    fn a_part_does_not_take_the_place_of_a_whole() {
        let mut whole = row("abc", "links");
        whole.complete = true;
        let part = row("abd", "links");
        let of_one_product = |_: &Record| true;
        assert_eq!(part.clone().or_better(whole.clone(), of_one_product), whole);
        assert_eq!(whole.clone().or_better(part.clone(), of_one_product), whole);
        assert_eq!(part.clone().or_better(row("abe", "links"), of_one_product), part);
        let of_today = |row: &Record| row.commit == part.commit;
        assert_eq!(part.clone().or_better(whole.clone(), of_today), part);
        assert_eq!(whole.or_better(part.clone(), of_today), part);
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let row = row("abc", "a {\"name\":");
        let text = row.to_json().unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), row);
        assert_eq!(row.counts(), [1, 1, 0]);
    }

    #[test]
    fn a_sum_of_several_commits_and_an_unknown_commit_are_stale() {
        let several = Record { commit: None, ..row("abc", "links") };
        assert_eq!(several.stale(), Some("a sum of runs of several commits"));
        assert_eq!(row("no-such-commit", "links").stale(), Some("the product has changed since"));
    }
}
