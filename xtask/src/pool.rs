// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the tests of all test programs in one pool, each test as a process of its own.
//!
//! `cargo test` runs one program after the other, and within one as many tests at a time as there are processors.
//! The network tests mostly wait: for a timeout, for a server, for a grace period of the kernel. So more of them run at
//! once than there are processors, whatever program they are in. Tests that start a control plane and agents wait for
//! minutes: they run next to the others in a lane of their own (`tests/heavy.txt`). Tests that measure run afterwards, one
//! at a time (`tests/alone.txt`). A test that fails has failed: none is run again.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::failures::{self, Failure};
use xtask_base::error::{Error, Result};
use xtask_base::progress::{Log, seconds};
use xtask_base::run;
use xtask_base::test_programs::{TestProgram, passed};
use xtask_base::workspace;

/// Tests at a time, per processor.
const PER_PROCESSOR: usize = 2;

/// Tests at a time in the lane of `tests/heavy.txt`.
const HEAVY: usize = 2;

/// The longest that one test may take. The harness ends each command after two minutes.
const LIMIT: Duration = Duration::from_secs(900);

/// The number of slowest tests, and of slowest test programs, that a run lists.
const SLOWEST: usize = 8;

#[derive(Debug)]
pub(crate) struct Settings {
    /// Words before each program: `unshare …` for a user without root's rights.
    pub(crate) prefix: Vec<String>,
    /// Variables of the environment.
    pub(crate) env: Vec<(String, OsString)>,
    /// Runs only the tests whose names contain this.
    pub(crate) filter: Option<String>,
    /// Runs each test this many times.
    pub(crate) repeat: usize,
    /// Gives each test a file for what it has tried and for its skip.
    pub(crate) tallies: bool,
}

/// The tests of some programs.
#[derive(Debug)]
pub(crate) struct Pool {
    settings: Settings,
    programs: Vec<TestProgram>,
    pooled: Vec<Job>,
    heavy: Vec<Job>,
    alone: Vec<Job>,
    /// The milliseconds that each test took in earlier runs, and their file.
    durations: Mutex<BTreeMap<String, u64>>,
    durations_file: PathBuf,
}

/// The kinds of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Run several at a time.
    Pooled,
    /// Start a control plane and agents: run in a lane of their own, next to the pooled ones.
    Heavy,
    /// Measure, and so run one at a time.
    Alone,
}

/// One run of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Job {
    /// The index of the test's program.
    program: usize,
    /// libtest's name of the test.
    name: String,
    /// `program::name`, as in skips.txt.
    title: String,
    /// Counts the runs of the same test, from 0.
    round: usize,
}

/// The end of one run.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) title: String,
    pub(crate) took: Duration,
    /// The reason and all output, of a test that failed.
    pub(crate) failure: Option<String>,
    /// The content of the file for what the test has tried.
    pub(crate) tally: String,
}

/// The sum of a run.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Number of runs that passed.
    passed: usize,
    /// The runs that failed.
    failed: Vec<Failure>,
    /// The slowest tests, slowest first.
    slowest: Vec<(String, Duration)>,
    /// The test programs with the longest sums of their tests, longest first.
    programs: Vec<(String, Duration)>,
}

impl Summary {
    /// The slowest tests as text, one a line, and the slowest programs.
    pub(crate) fn slowest(&self) -> String {
        let line = |(title, took): &(String, Duration)| format!("\n          {:>8}  {title}", seconds(*took));
        let tests: String = self.slowest.iter().map(line).collect();
        let programs: String = self.programs.iter().map(line).collect();
        format!("{tests}\n          by test program, all tests together:{programs}")
    }

    /// Returns the number of runs that passed, or an error that describes those that failed.
    pub(crate) fn verdict(&self, repeat: usize, log: &Path) -> Result<usize> {
        if self.failed.is_empty() {
            return Ok(self.passed);
        }
        let tests = self.passed + self.failed.len();
        Err(Error::Failed(failures::describe(&self.failed, tests, repeat, log)))
    }
}

impl Pool {
    /// Lists the tests of these programs. Those that are marked `ignore` run by hand only.
    ///
    /// # Errors
    /// A program that does not list its tests, or a list in `tests` that cannot be read.
    pub(crate) fn new(programs: Vec<TestProgram>, settings: Settings) -> Result<Self> {
        let mut jobs = Vec::new();
        for (program, test) in programs.iter().enumerate() {
            let ignored = names(test, &["--ignored"])?;
            for name in names(test, &[])?.into_iter().filter(|name| !ignored.contains(name)) {
                let title = format!("{}::{name}", test.name);
                if settings.filter.as_ref().is_none_or(|text| title.contains(text.as_str())) {
                    let job = |round| Job { program, name: name.clone(), title: title.clone(), round };
                    jobs.extend((0..settings.repeat.max(1)).map(job));
                }
            }
        }
        let (alone, others) = split(jobs, &beginnings("alone.txt")?);
        let (heavy, pooled) = split(others, &beginnings("heavy.txt")?);
        let durations_file = workspace::scratch("test")?.join("durations.json");
        let durations = Mutex::new(read_durations(&durations_file));
        Ok(Self { settings, programs, pooled, heavy, alone, durations, durations_file })
    }

    /// True if there is no such test.
    pub(crate) fn is_empty(&self, which: Which) -> bool {
        self.jobs(which).is_empty()
    }

    fn jobs(&self, which: Which) -> &[Job] {
        match which {
            Which::Pooled => &self.pooled,
            Which::Heavy => &self.heavy,
            Which::Alone => &self.alone,
        }
    }

    /// Runs the tests of one kind. The log gets a line for each, and all output of those that fail.
    ///
    /// # Errors
    /// A program that cannot be started, or files that cannot be written. A failed test is not an error here.
    pub(crate) fn run(&self, which: Which, log: &Log) -> Result<Summary> {
        let jobs = longest_first(self.jobs(which).to_vec(), &self.known());
        let verdicts = self.work(which, jobs, None, log)?;
        self.keep_durations(&verdicts)?;
        Ok(summary(verdicts))
    }

    /// The titles of the tests of one kind.
    pub(crate) fn titles(&self, which: Which) -> impl Iterator<Item = &str> {
        self.jobs(which).iter().map(|job| job.title.as_str())
    }

    /// Runs tests of one kind in the order of these titles, and begins none after `until`.
    ///
    /// # Errors
    /// As those of [`Pool::run`].
    pub(crate) fn run_until(
        &self,
        which: Which,
        titles: &[String],
        until: Instant,
        log: &Log,
    ) -> Result<Vec<Verdict>> {
        let named = |title: &String| self.jobs(which).iter().find(|job| job.title == *title).cloned();
        self.work(which, titles.iter().filter_map(named).collect(), Some(until), log)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.durations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_durations(&self, verdicts: &[Verdict]) -> Result<()> {
        // Held while the file is written: tests of two kinds run at once.
        let mut known = self.known();
        for verdict in verdicts.iter().filter(|verdict| verdict.failure.is_none()) {
            known.insert(verdict.title.clone(), u64::try_from(verdict.took.as_millis()).unwrap_or(u64::MAX));
        }
        let file = &self.durations_file;
        let text = serde_json::to_string(&*known).map_err(|e| Error::Failed(format!("{file:?}: {e}")))?;
        fs::write(file, text).map_err(|e| Error::file("write", file, e))
    }

    /// Runs the jobs in their order, and begins none after `until`.
    fn work(&self, which: Which, jobs: Vec<Job>, until: Option<Instant>, log: &Log) -> Result<Vec<Verdict>> {
        let output = workspace::scratch("test")?.join(format!("output-{which:?}").to_lowercase());
        fs::create_dir_all(&output).map_err(|e| Error::file("create the directory", &output, e))?;
        let workers = match which {
            Which::Pooled => PER_PROCESSOR * thread::available_parallelism().map_or(1, usize::from),
            Which::Heavy => HEAVY,
            Which::Alone => 1,
        };
        let queue = Mutex::new(VecDeque::from(jobs));
        let (verdicts, trouble) = (Mutex::new(Vec::new()), Mutex::new(None));
        let number = AtomicUsize::new(0);
        let is_over = || until.is_some_and(|until| Instant::now() >= until);
        let next = || match is_over() {
            true => None,
            false => queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front(),
        };
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some(job) = next() {
                        let file = output.join(format!("{}.txt", number.fetch_add(1, Ordering::Relaxed)));
                        match self.programs.get(job.program).map(|program| self.one(program, &job, &file)) {
                            Some(Ok(verdict)) => {
                                note(&verdict, log);
                                verdicts.lock().unwrap_or_else(PoisonError::into_inner).push(verdict);
                            }
                            Some(Err(error)) => {
                                *trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                                return;
                            }
                            None => return,
                        }
                    }
                });
            }
        });
        match trouble.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(verdicts.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Runs one test to its end.
    fn one(&self, program: &TestProgram, job: &Job, path: &Path) -> Result<Verdict> {
        let file = File::create(path).map_err(|e| Error::file("create", path, e))?;
        let copy = || file.try_clone().map_err(|e| Error::file("duplicate the descriptor of", path, e));
        let mut words = self.settings.prefix.iter().map(PathBuf::from).chain([program.path.clone()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .args(["--exact", &job.name, "--color=never"])
            .envs(self.settings.env.iter().cloned());
        command.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package);
        command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?);
        let tally = path.with_extension("tally");
        if self.settings.tallies {
            let _ = fs::remove_file(&tally);
            command.env("SLIPWAY_TALLY", &tally).env("SLIPWAY_SKIPS", &tally);
        }
        let begun = Instant::now();
        let mut child = command.spawn().map_err(|e| Error::file("start", &program.path, e))?;
        let ending = wait(&mut child, begun)?;
        let printed = fs::read(path).map_err(|e| Error::file("read", path, e))?;
        // The output has been read. If the file stays, the next run empties it.
        let _ = fs::remove_file(path);
        let printed = String::from_utf8_lossy(&printed);
        let failure = reason(&ending, &printed).map(|reason| format!("{reason}\n{printed}"));
        let took = begun.elapsed();
        // A test that counts nothing and is not skipped writes no file.
        let tally = if self.settings.tallies { fs::read_to_string(&tally) } else { Ok(String::new()) };
        Ok(Verdict { title: job.title.clone(), took, failure, tally: tally.unwrap_or_default() })
    }
}

/// The names of a program's tests.
fn names(program: &TestProgram, which: &[&str]) -> Result<Vec<String>> {
    let listed = run::capture(Command::new(&program.path).args(["--list", "--format", "terse"]).args(which))?;
    Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// The end of a test's process.
#[derive(Debug)]
enum Ending {
    /// The process ended by itself.
    Status(ExitStatus),
    /// The process was killed at the time limit, together with the processes in the list.
    Killed(String),
}

fn wait(child: &mut Child, begun: Instant) -> Result<Ending> {
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(status) = child.try_wait().map_err(|e| Error::system("wait for a test", e))? {
            return Ok(Ending::Status(status));
        }
        if begun.elapsed() > LIMIT {
            return Ok(Ending::Killed(run::kill_family(child)));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// The reason why a test has failed. A program that ran no test, or an ignored one, proves nothing.
fn reason(ending: &Ending, printed: &str) -> Option<String> {
    match ending {
        Ending::Killed(family) => {
            Some(format!("took longer than {} and was killed:\n{family}", seconds(LIMIT)))
        }
        Ending::Status(status) if !status.success() => Some(format!("ended with {status}")),
        Ending::Status(_) if passed(printed) != 1 => Some("ran no test".to_owned()),
        Ending::Status(_) => None,
    }
}

/// Writes a line, and the output of a failed test, with a single write, because several threads use the file.
fn note(verdict: &Verdict, log: &Log) {
    let took = seconds(verdict.took);
    let text = match &verdict.failure {
        None => format!("test {} ... ok ({took})\n", verdict.title),
        Some(failure) => format!("test {} ... FAILED\n--- ({took}) {failure}\n", verdict.title),
    };
    // The verdict does not depend on the log.
    let _ = (&log.file).write_all(text.as_bytes());
}

/// The lines of a list in `tests`, each the beginning of a title.
fn beginnings(list: &str) -> Result<Vec<String>> {
    let path = workspace::root().join("tests").join(list);
    let text = fs::read_to_string(&path).map_err(|e| Error::file("read", &path, e))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

/// The jobs whose titles begin with one of these texts, and the others.
fn split(jobs: Vec<Job>, listed: &[String]) -> (Vec<Job>, Vec<Job>) {
    jobs.into_iter().partition(|job| listed.iter().any(|beginning| job.title.starts_with(beginning.as_str())))
}

/// The longest tests first, so that none of them runs on when all others have ended. Tests of unknown length go first.
fn longest_first(mut jobs: Vec<Job>, known: &BTreeMap<String, u64>) -> Vec<Job> {
    let length = |job: &Job| known.get(&job.title).copied().unwrap_or(u64::MAX);
    jobs.sort_by_key(|job| (job.round, std::cmp::Reverse(length(job))));
    jobs
}

/// The milliseconds of earlier runs; none when there was none or the file is broken.
fn read_durations(path: &Path) -> BTreeMap<String, u64> {
    fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn summary(verdicts: Vec<Verdict>) -> Summary {
    let mut all = Summary::default();
    let mut slowest: BTreeMap<String, Duration> = BTreeMap::new();
    let mut programs: BTreeMap<String, Duration> = BTreeMap::new();
    for Verdict { title, took, failure, .. } in verdicts {
        let program = title.split("::").next().unwrap_or_default();
        *programs.entry(program.to_owned()).or_default() += took;
        let longest = slowest.entry(title.clone()).or_default();
        *longest = took.max(*longest);
        match failure {
            None => all.passed += 1,
            Some(output) => all.failed.push(Failure { title, output }),
        }
    }
    all.slowest = longest(slowest);
    all.programs = longest(programs);
    all
}

fn longest(times: BTreeMap<String, Duration>) -> Vec<(String, Duration)> {
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    times.truncate(SLOWEST);
    times
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn job(title: &str, round: usize) -> Job {
        Job { program: 0, name: title.to_owned(), title: title.to_owned(), round }
    }

    #[test]
    fn long_tests_begin_first_and_rounds_follow_each_other() {
        let known = [("a", 5), ("b", 900)].map(|(title, ms)| (title.to_owned(), ms)).into();
        let sorted = longest_first(vec![job("a", 0), job("b", 1), job("b", 0), job("new", 0)], &known);
        assert_eq!(sorted, [job("new", 0), job("b", 0), job("a", 0), job("b", 1)]);
    }

    #[test]
    fn listed_tests_are_known_by_the_beginning_of_their_titles() {
        let jobs = vec![job("bandwidth::rates", 0), job("gc::a", 0)];
        let (listed, others) = split(jobs, &["bandwidth::".to_owned()]);
        assert_eq!((listed, others), (vec![job("bandwidth::rates", 0)], vec![job("gc::a", 0)]));
    }

    #[test]
    fn no_test_is_of_two_lists() {
        let lists = ["alone.txt", "heavy.txt"].map(|list| beginnings(list).unwrap());
        for listed in &lists[0] {
            for other in &lists[1] {
                assert!(!listed.starts_with(other.as_str()) && !other.starts_with(listed.as_str()));
            }
        }
    }

    #[test]
    fn only_a_test_that_ran_has_passed() {
        let ok = || Ending::Status(ExitStatus::from_raw(0));
        assert_eq!(reason(&ok(), "test result: ok. 1 passed; 0 failed; 0 ignored\n"), None);
        assert_eq!(reason(&ok(), "test result: ok. 0 passed; 0 failed; 1 ignored\n").unwrap(), "ran no test");
        let failed = Ending::Status(ExitStatus::from_raw(101 << 8));
        assert_eq!(reason(&failed, "").unwrap(), "ended with exit status: 101");
        assert!(reason(&Ending::Killed("1: x".to_owned()), "").unwrap().contains("1: x"));
    }

    #[test]
    fn failures_are_counted_by_test() {
        let verdict = |title: &str, ms, failure: Option<&str>| Verdict {
            title: title.to_owned(),
            took: Duration::from_millis(ms),
            failure: failure.map(str::to_owned),
            tally: String::new(),
        };
        let sum =
            summary(vec![verdict("a", 1, None), verdict("b", 9, Some("x")), verdict("b", 3, Some("x"))]);
        assert_eq!((sum.passed, sum.failed.len()), (1, 2));
        let text = sum.verdict(2, Path::new("log")).unwrap_err().to_string();
        assert!(text.contains("b: 2 of 2 times"), "{text}");
        assert_eq!(sum.slowest.first().unwrap(), &("b".to_owned(), Duration::from_millis(9)));
    }
}
