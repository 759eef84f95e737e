// SPDX-License-Identifier: MIT OR Apache-2.0

//! The output of failed tests, short enough for a terminal or the log of a CI job.

use std::path::Path;

/// The number of failed tests whose output is shown.
const SHOWN: usize = 5;
/// The number of lines that a panic message may have.
const MESSAGE_LINES: usize = 30;
/// The number of characters that are shown of a line.
const WIDTH: usize = 300;
/// The number of lines that are shown of the end of a test's output.
const LAST_LINES: usize = 60;

/// The heading under which the harness lists the commands that a test ran, and the one after it.
const HARNESS: [&str; 2] = ["=== what was run ===", "=== state when the test failed ==="];

/// A failed test and all that it printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) title: String,
    pub(crate) output: String,
}

/// The failed tests in the output of `cargo test`, with the sections in which libtest repeats their output.
pub(crate) fn in_output(printed: &str) -> Vec<Failure> {
    let failed = printed.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    failed
        .map(|title| {
            let heading = format!("---- {title} stdout ----\n");
            let section = printed.split_once(&heading).map_or("", |(_, rest)| rest);
            let end =
                section.find("\n---- ").or_else(|| section.find("\nfailures:")).unwrap_or(section.len());
            Failure { title: title.to_owned(), output: section[..end].to_owned() }
        })
        .collect()
}

/// The message for people: how many failed, what each of the first printed, the names of all, and the log.
pub(crate) fn describe(failures: &[Failure], tests: usize, repeat: usize, log: &Path) -> String {
    let mut names: Vec<(&str, usize)> = Vec::new();
    let mut text = String::new();
    for failure in failures {
        match names.iter_mut().find(|(title, _)| *title == failure.title) {
            Some((_, times)) => *times += 1,
            None => {
                if names.len() < SHOWN {
                    text.push_str(&format!("\n--- {}\n", failure.title));
                    for line in excerpt(&failure.output) {
                        let end = line.char_indices().nth(WIDTH).map_or(line.len(), |(at, _)| at);
                        let rest = if end < line.len() { "…" } else { "" };
                        text.push_str(&format!("    {}{rest}\n", &line[..end]));
                    }
                }
                names.push((&failure.title, 1));
            }
        }
    }
    text.push_str(&format!("\n{} of {tests} failed (all output is in {}):", failures.len(), log.display()));
    names.sort_unstable();
    for (title, times) in names {
        text.push_str(&match repeat {
            0 | 1 => format!("\n    {title}"),
            _ => format!("\n    {title}: {times} of {repeat} times"),
        });
    }
    text
}

/// The panic message, and the last lines of the output. Of a network test, whose output ends with the state of its
/// namespaces, the last commands instead.
fn excerpt(output: &str) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().map(str::trim_end).collect();
    let end_of_message =
        |line: &&str| line.is_empty() || HARNESS.contains(line) || line.starts_with("note: ");
    let message: Vec<&str> = lines
        .iter()
        .copied()
        .skip_while(|line| !line.contains(" panicked at "))
        .take_while(|line| !end_of_message(line))
        .take(MESSAGE_LINES)
        .collect();
    let state = lines.iter().position(|line| *line == HARNESS[1]).unwrap_or(lines.len());
    let rest = &lines[..state];
    let mut last: Vec<&str> = rest[rest.len().saturating_sub(LAST_LINES)..].to_vec();
    if last.len() == LAST_LINES {
        last.insert(0, "…");
    }
    // Short outputs have the message in their last lines.
    match message.first() {
        Some(first) if !last.contains(first) => message.into_iter().chain(last).collect(),
        _ => last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_output_is_shown_as_its_message_and_its_last_commands() {
        let commands: String = (0..100).map(|n| format!("command {n}\n")).collect();
        let output = format!(
            "running 1 test\nthread 'a' panicked at x.rs:1:2:\nleft: 1\nnote: run with\n\n{}\n{commands}{}\nstate\n",
            HARNESS[0], HARNESS[1]
        );
        let shown = excerpt(&output);
        assert_eq!(shown[..3], ["thread 'a' panicked at x.rs:1:2:", "left: 1", "…"]);
        assert_eq!(shown.last(), Some(&"command 99"));
        assert_eq!(shown.len(), 3 + LAST_LINES);
    }

    #[test]
    fn a_short_output_is_shown_once() {
        assert_eq!(excerpt("thread 'a' panicked at x.rs:1:2:\nno\n").len(), 2);
    }

    #[test]
    fn sections_of_libtest_are_found_by_their_tests() {
        let printed = "test a::b ... FAILED\ntest c ... ok\ntest d ... FAILED\n\nfailures:\n\n\
                       ---- a::b stdout ----\none\n\n---- d stdout ----\ntwo\n\n\nfailures:\n    a::b\n    d\n";
        let failure =
            |title: &str, output: &str| Failure { title: title.to_owned(), output: output.to_owned() };
        assert_eq!(in_output(printed), [failure("a::b", "one\n"), failure("d", "two\n\n")]);
    }

    #[test]
    fn failures_are_counted_by_test_and_the_first_are_shown() {
        let failure = |n: usize| Failure { title: format!("t{n}"), output: format!("output {n}") };
        let all: Vec<Failure> = [0, 1, 1, 2, 3, 4, 5].map(failure).into();
        let text = describe(&all, 20, 3, Path::new("/log"));
        assert!(text.contains("7 of 20 failed (all output is in /log):"), "{text}");
        assert!(text.contains("t1: 2 of 3 times") && text.contains("output 4"), "{text}");
        assert!(text.contains("t5: 1 of 3 times") && !text.contains("output 5"), "{text}");
    }
}
