// SPDX-License-Identifier: MIT OR Apache-2.0

//! The reports of the guest, and their form on the serial line.

use std::fmt;

/// A line from the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// User space runs, on this kernel release.
    Hello(String),
    /// A suite starts.
    Start(String),
    /// A suite printed this line. Bytes that are not UTF-8 and control characters are replaced.
    Output(String),
    /// The beginning of a line of output that may be longer; the whole line follows as [`Event::Output`].
    Unfinished(String),
    /// A test left this line in the file of skips.
    Skip(String),
    /// A suite ended.
    Finish {
        /// The suite's name.
        suite: String,
        ending: Ending,
        /// The time that the suite took in milliseconds, by the guest's clock.
        millis: u64,
    },
    /// The guest itself failed at something.
    Trouble(String),
    /// The closing line.
    End {
        /// The number of suites that were run.
        suites: usize,
        /// `/proc/sys/kernel/tainted`; 0 if the kernel is not tainted.
        taint: u64,
    },
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The process ended by itself, with this code.
    Exit(i32),
    Signal(i32),
    /// The process was killed at its time limit.
    Timeout,
}

impl Event {
    /// The line without its newline.
    #[must_use]
    pub fn line(&self, nonce: &str) -> String {
        let clean = |text: &str| text.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}");
        match self {
            Self::Hello(release) => format!("@{nonce} hello {}", clean(release)),
            Self::Start(suite) => format!("@{nonce} start {}", clean(suite)),
            Self::Output(text) => format!("|{}", clean(text)),
            Self::Unfinished(text) => format!("~{}", clean(text)),
            Self::Skip(text) => format!("@{nonce} skip {}", clean(text)),
            Self::Finish { suite, ending, millis } => {
                format!("@{nonce} finish {} {ending} {millis}", clean(suite))
            }
            Self::Trouble(text) => format!("@{nonce} trouble {}", clean(text)),
            Self::End { suites, taint } => format!("@{nonce} end {suites} {taint}"),
        }
    }

    /// Reads a line. None for one that is not of this run or not of this form.
    #[must_use]
    pub fn parse(line: &str, nonce: &str) -> Option<Self> {
        let line = line.trim_end_matches(['\r', '\n']);
        if let Some(text) = line.strip_prefix('|') {
            return Some(Self::Output(text.to_owned()));
        }
        if let Some(text) = line.strip_prefix('~') {
            return Some(Self::Unfinished(text.to_owned()));
        }
        let rest = line.strip_prefix('@')?.strip_prefix(nonce)?.strip_prefix(' ')?;
        let (verb, rest) = rest.split_once(' ')?;
        let mut words = rest.split(' ');
        match verb {
            "hello" => Some(Self::Hello(rest.to_owned())),
            "start" => Some(Self::Start(rest.to_owned())),
            "skip" => Some(Self::Skip(rest.to_owned())),
            "trouble" => Some(Self::Trouble(rest.to_owned())),
            "finish" => Some(Self::Finish {
                suite: words.next()?.to_owned(),
                ending: Ending::parse(words.next()?)?,
                millis: words.next()?.parse().ok()?,
            }),
            "end" => {
                Some(Self::End { suites: words.next()?.parse().ok()?, taint: words.next()?.parse().ok()? })
            }
            _ => None,
        }
    }
}

impl Ending {
    fn parse(word: &str) -> Option<Self> {
        match word.split_once(':') {
            Some(("exit", code)) => code.parse().ok().map(Self::Exit),
            Some(("signal", number)) => number.parse().ok().map(Self::Signal),
            None if word == "timeout" => Some(Self::Timeout),
            _ => None,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit:{code}"),
            Self::Signal(number) => write!(f, "signal:{number}"),
            Self::Timeout => f.write_str("timeout"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_comes_back_from_its_line() {
        for event in [
            Event::Hello("6.1.0-56-cloud-amd64".to_owned()),
            Event::Start("contract".to_owned()),
            Event::Output("test a::b ... ok".to_owned()),
            Event::Output(String::new()),
            Event::Unfinished("test a::b ... ".to_owned()),
            Event::Skip("a::b: skipped: needs vrf".to_owned()),
            Event::Finish { suite: "contract".to_owned(), ending: Ending::Exit(101), millis: 12 },
            Event::Finish { suite: "contract".to_owned(), ending: Ending::Signal(9), millis: 0 },
            Event::Finish { suite: "contract".to_owned(), ending: Ending::Timeout, millis: 7 },
            Event::Trouble("mount /proc: ENODEV".to_owned()),
            Event::End { suites: 3, taint: 512 },
        ] {
            assert_eq!(Event::parse(&event.line("n0nce"), "n0nce"), Some(event));
        }
    }

    #[test]
    fn what_a_test_prints_is_never_taken_for_an_event() {
        let forged = Event::End { suites: 1, taint: 0 }.line("n0nce");
        let printed = Event::Output(format!("\n{forged}")).line("n0nce");
        assert_eq!(printed.lines().count(), 1);
        assert!(matches!(Event::parse(&printed, "n0nce"), Some(Event::Output(_))));
        assert_eq!(Event::parse(&forged, "other"), None);
        assert_eq!(Event::parse("@n0nce end", "n0nce"), None);
        assert_eq!(Event::parse("", "n0nce"), None);
    }
}
