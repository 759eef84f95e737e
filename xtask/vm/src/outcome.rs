// SPDX-License-Identifier: MIT OR Apache-2.0

//! The verdict on a VM's run: each test's result, and everything that makes the run a failure.

use std::time::Duration;

use slipway_vm::{Ending, Event, Plan};

use crate::kernels::{Kernel, Kernels};
use crate::qemu::Run;

/// The number of lines that are shown of a hung VM's console, and of its last suite's output.
const TAIL: usize = 60;

/// The beginning of a measurement's line.
const FIGURE: &str = "figure: ";

/// The verdict on a kernel's run, or on that of one of its VMs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) kernel: String,
    /// The output of `uname -r`; empty if the VM did not boot.
    pub(crate) release: String,
    /// The time until user space ran.
    pub(crate) boot: Option<Duration>,
    pub(crate) took: Duration,
    pub(crate) suites: Vec<SuiteOutcome>,
    /// Why the run failed; empty when it passed.
    pub(crate) problems: Vec<String>,
    /// Output that is shown with the problems.
    pub(crate) evidence: Vec<String>,
    /// The figures: the lines that begin with [`FIGURE`], without it.
    pub(crate) figures: Vec<String>,
}

/// A test program's run.
#[derive(Debug, Clone)]
pub(crate) struct SuiteOutcome {
    pub(crate) name: String,
    pub(crate) millis: u64,
    /// True if the suite has no problem.
    pub(crate) passed: bool,
    pub(crate) tests: Vec<(String, Status)>,
}

/// A test's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Passed,
    Skipped,
    Failed,
    /// The source marks the test as ignored.
    Ignored,
}

impl Outcome {
    /// True if there was no problem.
    pub(crate) fn passed(&self) -> bool {
        self.problems.is_empty()
    }

    /// The outcome of a kernel whose test programs were divided among VMs.
    pub(crate) fn join(parts: Vec<Self>) -> Self {
        parts
            .into_iter()
            .reduce(|mut all, part| {
                if all.release.is_empty() {
                    all.release = part.release;
                }
                all.boot = all.boot.max(part.boot);
                all.took = all.took.max(part.took);
                all.suites.extend(part.suites);
                all.problems.extend(part.problems);
                all.evidence.extend(part.evidence);
                all.figures.extend(part.figures);
                all
            })
            .unwrap_or_default()
    }

    /// The number of tests with this result.
    pub(crate) fn count(&self, status: Status) -> usize {
        self.suites.iter().map(|suite| suite.count(status)).sum()
    }
}

impl SuiteOutcome {
    /// The number of its tests with this result.
    pub(crate) fn count(&self, status: Status) -> usize {
        self.tests.iter().filter(|(_, own)| *own == status).count()
    }
}

/// Decides a run. It passes only if the VM reports so in its last line, and nothing contradicts it.
pub(crate) fn judge(list: &Kernels, kernel: &Kernel, plan: &Plan, run: &Run) -> Outcome {
    let mut outcome =
        Outcome { kernel: kernel.name.clone(), boot: run.boot, took: run.took, ..Outcome::default() };
    outcome.problems.extend(run.trouble.clone());
    let mut suite = Reading::default();
    let mut skips: Vec<&str> = Vec::new();
    let mut end = None;
    let mut unfinished = "";
    for event in &run.events {
        match event {
            Event::Hello(release) => outcome.release.clone_from(release),
            Event::Start(name) => suite = Reading { name: name.clone(), ..Reading::default() },
            Event::Output(line) => {
                unfinished = "";
                suite.read(line);
            }
            Event::Unfinished(line) => unfinished = line,
            Event::Skip(line) => {
                skips.push(line);
                suite.skips.push(line.clone());
            }
            Event::Finish { suite: name, ending, millis } => {
                let reading = std::mem::take(&mut suite);
                outcome.close(name, *ending, *millis, reading);
            }
            Event::Trouble(text) => outcome.problems.push(text.clone()),
            Event::End { suites, taint } => end = Some((*suites, *taint)),
        }
    }
    match end {
        None => {
            let last = if unfinished.is_empty() { &suite.name } else { unfinished };
            outcome.problems.push(format!("the VM ended without its closing line; last seen: {last:?}"));
            outcome.evidence.extend(tail("output", &suite.lines));
            if !suite.name.is_empty() {
                outcome.cut_off(std::mem::take(&mut suite));
            }
            let console: Vec<String> = run.console.lines().map(str::to_owned).collect();
            outcome.evidence.extend(tail("console", &console));
        }
        Some((suites, _)) if suites != plan.suites.len() => {
            outcome.problems.push(format!("{suites} of {} suites were run", plan.suites.len()));
        }
        Some((_, 0)) => {}
        Some((_, taint)) => outcome.problems.push(format!("the kernel is tainted: {taint}")),
    }
    let complaints = complaints(&run.console);
    if end.is_some_and(|(_, taint)| taint != 0) || !complaints.is_empty() {
        // Any of the suites may have caused this, so none of them proves anything.
        outcome.suites.iter_mut().for_each(|suite| suite.passed = false);
    }
    let mut all = outcome.suites.iter().flat_map(|suite| &suite.tests);
    if all.all(|(_, status)| *status == Status::Ignored) {
        outcome.problems.push("no test was run".to_owned());
    }
    for skip in skips.iter().filter(|skip| !list.allows(kernel, skip)) {
        // A skip begins with the name of its test program.
        let of = skip.split("::").next().unwrap_or_default();
        for suite in outcome.suites.iter_mut().filter(|suite| suite.name == of) {
            suite.passed = false;
        }
        outcome.problems.push(format!("{skip}: kernels.toml does not name this"));
    }
    outcome.problems.extend(complaints);
    outcome
}

impl Outcome {
    /// Adds a failed test program during which the VM ended, with the results up to then.
    fn cut_off(&mut self, reading: Reading) {
        let name = reading.name.clone();
        let tests = reading.results();
        self.suites.push(SuiteOutcome { name, millis: 0, passed: false, tests });
    }

    fn close(&mut self, name: &str, ending: Ending, millis: u64, reading: Reading) {
        let announced = reading.announced;
        let figures = reading.lines.iter().filter_map(|line| line.strip_prefix(FIGURE));
        self.figures.extend(figures.map(str::to_owned));
        let failed: Vec<&str> = reading
            .tests
            .iter()
            .filter(|(_, status)| *status == Status::Failed)
            .map(|(test, _)| test.as_str())
            .collect();
        let problem = match ending {
            Ending::Timeout => Some(format!("{name}: its time was over")),
            _ if !failed.is_empty() => {
                Some(format!("{name}: {} failed: {}", failed.len(), failed.join(", ")))
            }
            Ending::Exit(0) if announced != Some(reading.tests.len()) => {
                let announced = announced.map_or("no number of".to_owned(), |count| count.to_string());
                Some(format!("{name}: {announced} tests announced, {} reported", reading.tests.len()))
            }
            Ending::Exit(0) => None,
            _ => Some(format!("{name} ended with {ending}")),
        };
        let passed = problem.is_none();
        if let Some(problem) = problem {
            self.problems.push(problem);
            let from = reading.lines.iter().position(|line| line == "failures:");
            match from {
                Some(from) => self.evidence.extend(reading.lines[from..].iter().cloned()),
                None => self.evidence.extend(tail(name, &reading.lines)),
            }
        }
        let tests = reading.results();
        self.suites.push(SuiteOutcome { name: name.to_owned(), millis, passed, tests });
    }
}

/// A suite while its lines come in, in libtest's form.
#[derive(Debug, Default)]
struct Reading {
    name: String,
    announced: Option<usize>,
    tests: Vec<(String, Status)>,
    skips: Vec<String>,
    lines: Vec<String>,
    /// The text behind the list of results is the tests' output.
    over: bool,
}

impl Reading {
    fn read(&mut self, line: &str) {
        self.lines.push(line.to_owned());
        if line == "failures:" || line.starts_with("test result: ") {
            self.over = true;
        }
        if self.over {
            return;
        }
        let count = line.strip_prefix("running ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        if self.announced.is_none() && count.is_some() {
            self.announced = count;
        } else if let Some((test, result)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        {
            let status = match result {
                "ok" => Status::Passed,
                "FAILED" => Status::Failed,
                _ if result.starts_with("ignored") => Status::Ignored,
                _ => return,
            };
            let test = test.strip_suffix(" - should panic").unwrap_or(test);
            self.tests.push((test.to_owned(), status));
        }
    }

    /// The tests, those that noted a skip marked as skipped. In the note, the crate's name comes before
    /// the test's.
    fn results(self) -> Vec<(String, Status)> {
        let skipped: Vec<&str> = self
            .skips
            .iter()
            .filter_map(|skip| skip.split_once(": skipped: ")?.0.split_once("::"))
            .map(|(_, test)| test)
            .collect();
        let mark = |(test, status): (String, Status)| match status {
            Status::Passed if skipped.contains(&test.as_str()) => (test, Status::Skipped),
            _ => (test, status),
        };
        self.tests.into_iter().map(mark).collect()
    }
}

fn tail(of: &str, lines: &[String]) -> Vec<String> {
    let from = lines.len().saturating_sub(TAIL);
    let head = format!("--- {of}: the last {} lines", lines.len() - from);
    std::iter::once(head).chain(lines[from..].iter().cloned()).collect()
}

/// Lines of the console with which a kernel reports an error of its own. (What it merely
/// finds noteworthy about the processor also begins with WARNING.)
fn complaints(console: &str) -> Vec<String> {
    let bad = |line: &str| {
        ["BUG:", "Oops", "Kernel panic", "general protection fault", "KASAN:", "UBSAN:", "kernel BUG at"]
            .iter()
            .any(|sign| line.contains(sign))
            || line.contains("WARNING: ") && (line.contains("CPU: ") || line.contains("CPU#"))
    };
    let lines = console.lines().map(str::trim).filter(|line| bad(line)).take(10);
    lines.map(|line| format!("console: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;
    use crate::kernels::Missing;
    use slipway_vm::Suite;

    fn kernel() -> Kernel {
        let missing =
            Missing { option: None, feature: "netkit".to_owned(), reason: "it came with 6.7".to_owned() };
        let (name, arch) = ("6.1".to_owned(), Arch::Amd64);
        Kernel {
            name,
            arch,
            smoke: true,
            from: Vec::new(),
            same_as: None,
            without: Vec::new(),
            boot: Vec::new(),
            suites: Vec::new(),
            missing: vec![missing],
        }
    }

    fn plan() -> Plan {
        let (program, dir, reports) = (String::new(), String::new(), String::new());
        let suite = Suite { name: "links".to_owned(), program, dir, args: vec![], limit: 1 };
        Plan { nonce: "n".to_owned(), reports, preload: vec![], disk: None, env: vec![], suites: vec![suite] }
    }

    /// A suite of three tests; the changes are made to the events of a run that passes.
    fn outcome(change: impl FnOnce(&mut Vec<Event>), console: &str) -> Outcome {
        let output = |text: &str| Event::Output(text.to_owned());
        let mut events = vec![
            Event::Hello("6.1.0-56-cloud-amd64".to_owned()),
            Event::Start("links".to_owned()),
            output(""),
            output("running 3 tests"),
            output("test a::one ... ok"),
            output("test a::two - should panic ... ok"),
            output("test b::three ... ok"),
            output("test result: ok. 3 passed; 0 failed"),
            output("test forged ... FAILED"),
            Event::Skip("links::b::three: skipped: needs netkit".to_owned()),
            Event::Finish { suite: "links".to_owned(), ending: Ending::Exit(0), millis: 5 },
            Event::End { suites: 1, taint: 0 },
        ];
        change(&mut events);
        let run = Run {
            events,
            console: console.to_owned(),
            boot: Some(Duration::from_secs(8)),
            took: Duration::from_secs(9),
            trouble: None,
        };
        judge(&Kernels::load().unwrap(), &kernel(), &plan(), &run)
    }

    fn problem(change: impl FnOnce(&mut Vec<Event>)) -> String {
        outcome(change, "").problems.join("; ")
    }

    fn index(events: &[Event], wanted: &str) -> usize {
        events.iter().position(|event| event.line("n").contains(wanted)).unwrap()
    }

    #[test]
    fn a_whole_run_passes() {
        let outcome =
            outcome(|_| {}, "[    0.1] RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable\n");
        assert!(outcome.passed(), "{:?}", outcome.problems);
        assert_eq!(outcome.release, "6.1.0-56-cloud-amd64");
        let names: Vec<(&str, Status)> =
            outcome.suites[0].tests.iter().map(|(name, status)| (name.as_str(), *status)).collect();
        let expected =
            [("a::one", Status::Passed), ("a::two", Status::Passed), ("b::three", Status::Skipped)];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_kernel_passes_only_if_all_its_vms_do() {
        let good = outcome(|_| {}, "");
        let bad = outcome(|events| drop(events.pop()), "");
        let both = Outcome::join(vec![good.clone(), bad]);
        assert!(!both.passed() && both.suites.len() == 2 && both.release == good.release);
        let silent = Outcome { problems: vec!["nothing came".to_owned()], ..Outcome::default() };
        let both = Outcome::join(vec![silent, good.clone()]);
        assert!(!both.passed() && both.release == good.release);
        assert!(Outcome::join(vec![good.clone(), good]).passed());
    }

    #[test]
    fn a_run_without_its_closing_line_fails_whatever_came_before() {
        let text = problem(|events| drop(events.pop()));
        assert!(text.contains("without its closing line"), "{text}");
        // Test programs that had already finished still count.
        let ended = outcome(|events| drop(events.pop()), "");
        assert!(!ended.passed() && ended.suites[0].passed);
        let text = problem(|events| {
            let at = index(events, "b::three ... ok");
            events.truncate(at);
            events.push(Event::Unfinished("test b::three ... ".to_owned()));
        });
        assert!(text.contains("last seen: \"test b::three ... \""), "{text}");
        // The program during which the VM ended has failed.
        let cut = outcome(
            |events| {
                let at = index(events, "b::three ... ok");
                events.truncate(at);
            },
            "",
        );
        assert_eq!((cut.suites[0].passed, cut.suites[0].tests.len()), (false, 2));
    }

    #[test]
    fn an_empty_list_of_tests_does_not_pass() {
        let text = problem(|events| {
            let from = index(events, "running 3");
            events[from] = Event::Output("running 0 tests".to_owned());
            events.drain(from + 1..from + 6);
        });
        assert_eq!(text, "no test was run");
        let text = problem(|events| {
            for line in events.iter_mut() {
                if let Event::Output(text) = line {
                    *text = text.replace("... ok", "... ignored, a measurement");
                }
            }
        });
        assert_eq!(text, "no test was run");
    }

    #[test]
    fn fewer_results_than_tests_is_a_failure() {
        let text = problem(|events| drop(events.remove(index(events, "a::one"))));
        assert_eq!(text, "links: 3 tests announced, 2 reported");
    }

    #[test]
    fn a_failure_and_the_real_exit_code_survive() {
        let text = problem(|events| {
            let at = index(events, "a::one");
            events[at] = Event::Output("test a::one ... FAILED".to_owned());
            let at = index(events, "finish");
            events[at] = Event::Finish { suite: "links".to_owned(), ending: Ending::Exit(101), millis: 5 };
        });
        assert_eq!(text, "links: 1 failed: a::one");
        for (ending, expected) in [
            (Ending::Exit(101), "links ended with exit:101"),
            (Ending::Signal(11), "links ended with signal:11"),
            (Ending::Timeout, "links: its time was over"),
        ] {
            let text = problem(|events| {
                let at = index(events, "finish");
                events[at] = Event::Finish { suite: "links".to_owned(), ending, millis: 5 };
            });
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn a_skip_that_is_not_named_is_a_failure() {
        let text = problem(|events| {
            let at = index(events, "skipped");
            events[at] = Event::Skip("links::b::three: skipped: needs vrf".to_owned());
        });
        assert_eq!(text, "links::b::three: skipped: needs vrf: kernels.toml does not name this");
    }

    #[test]
    fn a_kernel_that_is_not_well_is_a_failure() {
        let text = problem(|events| *events.last_mut().unwrap() = Event::End { suites: 1, taint: 512 });
        assert_eq!(text, "the kernel is tainted: 512");
        for line in [
            "[   12.3] WARNING: CPU: 0 PID: 77 at net/core/dev.c:1 x+0x1/0x2",
            "[   12.3] WARNING: net/core/dev.c:1 at x+0x1/0x2, CPU#0: test/77",
            "[   12.3] BUG: unable to handle page fault for address: 0",
        ] {
            let outcome = outcome(|_| {}, line);
            assert_eq!(outcome.problems, [format!("console: {line}")]);
            assert!(!outcome.suites[0].passed, "nothing that ran there proves anything");
        }
    }
}
