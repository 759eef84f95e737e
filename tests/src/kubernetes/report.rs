// SPDX-License-Identifier: GPL-2.0-or-later

//! The claims of a run. A test requires all of them, a demonstration shows each.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use serde_json::{Value, json};

/// The character before each record in the output of a demonstration: the record separator of RFC 7464.
pub const MARK: char = '\u{1e}';

/// Receives the claims of a run and prints them.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    is_shown: bool,
}

impl Report {
    /// A report that prints claims as lines on standard error, which libtest shows only if the test fails.
    pub fn of_test() -> Self {
        Self { is_shown: false }
    }

    /// A report that prints claims as records on standard output, each of them [`MARK`] and a JSON object.
    pub fn of_demo() -> Self {
        Self { is_shown: true }
    }

    /// Prints a heading.
    pub fn title(&self, text: &str) {
        self.write(&json!({ "title": text }));
    }

    /// Performs an operation and reports how long it took.
    pub fn step<T>(&self, text: &str, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = work();
        self.write(&json!({ "step": text, "ms": milliseconds(begin) }));
        result
    }

    pub fn request(&self, from: &str, to: &str, answer: &str) {
        if self.is_shown {
            self.write(&json!({ "from": from, "to": to, "answer": answer }));
        }
    }

    /// Reports a claim with its proof, which panics if the claim does not hold.
    pub fn claim<T>(&self, text: &str, proof: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let proven = catch_unwind(AssertUnwindSafe(proof));
        self.write(&json!({ "claim": text, "holds": proven.is_ok(), "ms": milliseconds(begin) }));
        proven.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn write(&self, record: &Value) {
        if !self.is_shown {
            eprintln!("{record}");
            return;
        }
        let mut output = std::io::stdout().lock();
        // A failure is ignored, because the reader of a demonstration may have ended.
        let _ = output.write_all(format!("{MARK}{record}\n").as_bytes()).and_then(|()| output.flush());
    }
}

fn milliseconds(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX)
}
