// SPDX-License-Identifier: GPL-2.0-or-later

//! The reader of a page, who types its commands and compares their output.

use std::path::Path;
use std::process::Command;

use slipway_tests::pages::{self, Block};
use slipway_tests::{CommandOutput, Space};

/// Commands that no test runs, one on each line: the page, the beginning of the command, and the reason.
const NOT_RUN: &str = include_str!("not-run.txt");

/// Ports from this one on differ from run to run: those of clients, and the free port of `slipway connectivity-test`.
const EPHEMERAL: u16 = 20000;

/// A command on a page with the output that the page shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// The page and the line.
    pub(crate) place: String,
    pub(crate) command: String,
    pub(crate) output: Vec<String>,
}

/// The commands of a page's blocks of type `console`.
pub(crate) fn steps(page: &str) -> Vec<Step> {
    pages::blocks(page).iter().filter(|block| block.language == "console").flat_map(steps_in).collect()
}

/// Scripts and configurations of other programs, with a step for each block. No scene runs them.
pub(crate) fn others(page: &str) -> Vec<Step> {
    let blocks = pages::blocks(page).into_iter().filter(|block| matches!(&*block.language, "sh" | "toml"));
    let step = |block: Block| Step { place: block.place(), command: block.text(), output: Vec::new() };
    blocks.map(step).collect()
}

fn steps_in(block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut continues = false;
    for (at, line) in block.lines.iter().enumerate() {
        let begins = line.strip_prefix("# ").or_else(|| line.strip_prefix("$ "));
        match (begins, steps.last_mut()) {
            (_, Some(step)) if continues => {
                step.command.push('\n');
                step.command.push_str(line);
            }
            (Some(command), _) => steps.push(Step {
                place: format!("{}:{}", block.page, block.line + 1 + at),
                // Text after two blanks explains the command and is not part of it.
                command: command.split("  ").next().unwrap_or_default().to_owned(),
                output: Vec::new(),
            }),
            (None, Some(step)) => step.output.push(line.clone()),
            (None, None) => panic!("{}: the block begins with no command", block.place()),
        }
        continues = steps.last().is_some_and(|step| step.command.ends_with(['\\', '|']));
    }
    steps
}

/// A line in the list of commands that are not run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotRun {
    pub(crate) page: &'static str,
    pub(crate) command: &'static str,
    pub(crate) reason: &'static str,
}

pub(crate) fn not_run() -> Vec<NotRun> {
    let lines = NOT_RUN.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &'static str| {
        let mut parts = line.splitn(3, ": ");
        let mut part =
            || parts.next().unwrap_or_else(|| panic!("not-run.txt: {line:?}: page: command: reason"));
        NotRun { page: part(), command: part(), reason: part() }
    };
    lines.map(entry).collect()
}

impl NotRun {
    pub(crate) fn is_for(&self, page: &str, step: &Step) -> bool {
        self.page == page && step.command.starts_with(self.command)
    }
}

/// True for a task of `cargo xtask`, which `cargo xtask test` compares with the tasks' own list of options.
pub(crate) fn is_task(step: &Step) -> bool {
    step.command.lines().all(|line| line.starts_with("cargo xtask "))
}

/// A page that is being read.
#[derive(Debug)]
pub(crate) struct Reader {
    page: &'static str,
    steps: std::collections::VecDeque<Step>,
}

impl Reader {
    pub(crate) fn new(page: &'static str) -> Self {
        let listed = not_run();
        let is_run = |step: &Step| !is_task(step) && !listed.iter().any(|one| one.is_for(page, step));
        Self { page, steps: steps(page).into_iter().filter(is_run).collect() }
    }

    #[track_caller]
    fn next(&mut self, begin: &str) -> Step {
        let step = self.steps.pop_front().unwrap_or_else(|| panic!("{}: no command is left", self.page));
        assert!(
            step.command.starts_with(begin),
            "{}: {:?} should begin with {begin:?}",
            step.place,
            step.command
        );
        step
    }

    pub(crate) fn page(&self) -> &'static str {
        self.page
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Types the page's next command, which must begin with `begin`. The output must be the one that the page shows. If
    /// it shows none, the command has to succeed.
    #[track_caller]
    pub(crate) fn types(&mut self, space: &Space, begin: &str) -> CommandOutput {
        self.types_in(space, "/", begin)
    }

    /// Does the same in a directory.
    #[track_caller]
    pub(crate) fn types_in(&mut self, space: &Space, directory: &str, begin: &str) -> CommandOutput {
        let step = self.next(begin);
        let output = shell(space, directory, &step.command);
        step.compare(&output, str::to_owned);
        output
    }

    /// Does the same for output in which the numbers differ from node to node.
    #[track_caller]
    pub(crate) fn types_without_numbers(&mut self, space: &Space, directory: &str, begin: &str) {
        let step = self.next(begin);
        let output = shell(space, directory, &step.command);
        step.compare(&output, |line| {
            let words = line.split_whitespace();
            words.map(|word| word.parse::<u64>().map_or(word, |_| "N")).collect::<Vec<_>>().join(" ")
        });
    }

    /// Skips the page's next command, which must begin with `begin`, because the test machine lacks its program. The
    /// scene does the command's work instead.
    #[track_caller]
    pub(crate) fn plays(&mut self, begin: &str) {
        self.next(begin);
    }

    /// Skips the rest of the page, because the machine lacks something.
    pub(crate) fn leaves(&mut self) {
        self.steps.clear();
    }

    pub(crate) fn ends(self) {
        assert!(self.steps.is_empty(), "{}: not run: {:#?}", self.page, self.steps);
    }
}

/// Runs a command line as if an administrator had typed it.
fn shell(space: &Space, directory: &str, line: &str) -> CommandOutput {
    let mut command = Command::new("sh");
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(["-c", &format!("exec 2>&1; cd {directory} && {line}")]);
    command
        .env("PATH", format!("{}:{path}", crate::world::PATH))
        .env("LC_ALL", "C.UTF-8")
        .env_remove("SLIPWAY_LOG");
    space.exec(command, b"")
}

impl Step {
    /// True if the step comes from a block of type `console`.
    pub(crate) fn is_command(&self) -> bool {
        !self.command.ends_with('\n')
    }

    #[track_caller]
    fn compare(&self, output: &CommandOutput, more: impl Fn(&str) -> String) {
        let Self { place, command, output: shown } = self;
        if shown.is_empty() {
            assert_eq!(output.code, Some(0), "{place}: {command}: {output}");
            return;
        }
        let comparable = |line: &str| more(&without_variables(line));
        let printed: Vec<String> = output.stdout.lines().map(comparable).collect();
        let wanted: Vec<String> = shown.iter().map(|line| comparable(line)).collect();
        assert!(
            matches(&wanted, &printed),
            "{place}: {command}\n--- the page has\n{}\n--- printed\n{}",
            wanted.join("\n"),
            printed.join("\n")
        );
    }
}

/// True if the printed lines match those of the page, in which `…` or `...` stands for any number of lines. Empty lines
/// at the end do not count.
fn matches(wanted: &[String], printed: &[String]) -> bool {
    let is_gap = |line: &str| line == "…" || line == "..." || line.starts_with("… ");
    match wanted.split_first() {
        None => printed.iter().all(String::is_empty),
        Some((gap, rest)) if is_gap(gap) => (0..=printed.len()).any(|at| matches(rest, &printed[at..])),
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(own, others)| is_line(line, own) && matches(rest, others))
        }
    }
}

/// True if the line matches that of the page, in which ` … ` stands for any text.
fn is_line(wanted: &str, printed: &str) -> bool {
    match wanted.split_once(" … ") {
        Some((begin, end)) => printed.starts_with(begin) && printed.ends_with(end),
        None => wanted == printed,
    }
}

/// The line without the widths of columns, and with placeholders for what differs from run to run: MAC addresses, a
/// client's port, the index of a link, times and process IDs.
fn without_variables(line: &str) -> String {
    let words: Vec<String> =
        line.split_whitespace().enumerate().map(|(at, word)| placeholder(at, word)).collect();
    words.join(" ")
}

fn placeholder(at: usize, word: &str) -> String {
    let is_hex = |part: &str| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit());
    let parts = || word.split(':');
    if parts().count() == 6 && parts().all(is_hex) && word != "ff:ff:ff:ff:ff:ff" {
        return "MAC".to_owned();
    }
    if at == 0 && word.strip_suffix(':').is_some_and(|number| number.parse::<u32>().is_ok()) {
        return "N:".to_owned();
    }
    if word.starts_with("pid=") {
        return "pid=N".to_owned();
    }
    let time = word.trim_end_matches(',');
    if matches!(time.len(), 20 | 24) && time.ends_with('Z') && time.contains('T') {
        return "TIME".to_owned();
    }
    match word.trim_end_matches(',').rsplit_once(':') {
        Some((address, port))
            if address.contains('.') && port.parse::<u16>().is_ok_and(|port| port >= EPHEMERAL) =>
        {
            format!("{address}:PORT")
        }
        _ => word.to_owned(),
    }
}

#[test]
fn lines_are_compared_but_for_what_differs_from_run_to_run() {
    let lines = |text: &str| text.lines().map(without_variables).collect::<Vec<_>>();
    let page = lines(
        "3: veth1@if2:  up\n  link/ether 1a:5a:55:30:4b:e0 from 192.0.2.9:34292, pid=7\n…\nend { a … } b",
    );
    let same =
        "7: veth1@if2: up\nlink/ether 02:00:00:00:00:07 from 192.0.2.9:60001, pid=99\nx\n\nend { a b c } b\n";
    assert!(matches(&page, &lines(same)), "{page:?} {:?}", lines(same));
    for other in [
        same.replace("192.0.2.9", "192.0.2.8"),
        same.replace("60001", "80"),
        same.replace("veth1", "veth2"),
        format!("{same}more"),
    ] {
        assert!(!matches(&page, &lines(&other)), "{other}");
    }
}

#[test]
fn commands_end_at_their_explanation_and_continue_behind_a_backslash() {
    let lines = ["# a --x \\", "    --y", "out", "$ b   explains", "# c"].map(str::to_owned).to_vec();
    let block = Block { page: "p".into(), line: 3, language: "console".into(), words: vec![], lines };
    let found: Vec<_> =
        steps_in(&block).into_iter().map(|step| (step.place, step.command, step.output.len())).collect();
    let step = |line: u8, command: &str, count| (format!("p:{line}"), command.to_owned(), count);
    assert_eq!(found, [step(4, "a --x \\\n    --y", 1), step(7, "b", 0), step(8, "c", 0)]);
    assert!(Path::new(crate::world::PATH.split(':').next().unwrap()).is_absolute());
}
