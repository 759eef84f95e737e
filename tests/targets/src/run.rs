// SPDX-License-Identifier: GPL-3.0-or-later

//! Runs a target on one input, and reports what is wrong.

use std::cell::RefCell;
use std::fmt;
use std::panic::{self, PanicHookInfo, UnwindSafe};
use std::sync::Once;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::shape::Shape;
use crate::target::Target;

/// The maximum time for one input. Inputs from real programs take less than a millisecond.
const LIMIT: Duration = Duration::from_secs(1);
/// The maximum length of the result as text, in bytes: a constant, plus a number for each byte of the input.
const OUTPUT: usize = 64 << 10;
const OUTPUT_EACH: usize = 512;

/// An assertion or limit that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The place and the message of a panic.
    Panic { place: String, message: String },
    /// The time of the fastest of three runs.
    Slow(Duration),
    /// The result is far longer than the input.
    Long { input: usize, output: usize },
}

impl Problem {
    /// The kind of mistake, which is the same for all inputs that reveal the same one.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Panic { place, .. } => place,
            Self::Slow(_) => "slow",
            Self::Long { .. } => "long",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic { place, message } => write!(f, "panic at {place}: {message}"),
            Self::Slow(time) => write!(f, "takes {:.1} s", time.as_secs_f64()),
            Self::Long { input, output } => write!(f, "{input} bytes are read into {output} bytes of text"),
        }
    }
}

thread_local! {
    /// The last panic of this thread, while its panics are caught.
    static CAUGHT: RefCell<Option<Option<Problem>>> = const { RefCell::new(None) };
}

/// Reads an input and returns the shape of the result.
///
/// # Errors
/// The problem that the input reveals.
pub fn run(target: &Target, input: &[u8]) -> Result<Shape, Problem> {
    let (shape, time) = timed(target, input)?;
    if time > LIMIT {
        // The time counts only if further runs take as long: interrupts and a slow virtual machine count, too.
        let again = (0..2).filter_map(|_| timed(target, input).ok()).map(|(_, time)| time);
        let fastest = again.fold(time, Duration::min);
        if fastest > LIMIT {
            return Err(Problem::Slow(fastest));
        }
    }
    if shape.length() > OUTPUT + OUTPUT_EACH * input.len() {
        return Err(Problem::Long { input: input.len(), output: shape.length() });
    }
    Ok(shape)
}

/// The processor time of the reading: on a busy machine, other processes may have the processor for seconds.
fn timed(target: &Target, input: &[u8]) -> Result<(Shape, Duration), Problem> {
    let begin = processor_time();
    let shape = caught(|| (target.read)(input))?;
    Ok((shape, processor_time().saturating_sub(begin)))
}

/// The processor time that this thread has had.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// Calls a function and returns its panic, if any, instead of printing it.
fn caught<T>(work: impl FnOnce() -> T + UnwindSafe) -> Result<T, Problem> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !note(info) {
                before(info);
            }
        }));
    });
    CAUGHT.set(Some(None));
    let done = panic::catch_unwind(work);
    let noted = CAUGHT.take().flatten();
    done.map_err(|_| noted.unwrap_or(Problem::Panic { place: "unknown".to_owned(), message: String::new() }))
}

/// Records a panic if panics of this thread are caught.
fn note(info: &PanicHookInfo<'_>) -> bool {
    CAUGHT.with_borrow_mut(|caught| {
        let Some(caught) = caught else { return false };
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let message = info.payload_as_str().unwrap_or_default().to_owned();
        *caught = Some(Problem::Panic { place, message });
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(read: fn(&[u8]) -> Shape) -> Target {
        Target { name: "test", input: "a test's", read, words: &[] }
    }

    #[test]
    fn a_panic_is_a_problem_with_its_place() {
        let target = target(|input| {
            assert!(input.len() < 3, "three bytes");
            Shape::of(&input)
        });
        assert!(run(&target, b"ab").is_ok());
        let Err(Problem::Panic { place, message }) = run(&target, b"abc") else { panic!("no problem") };
        assert!(place.contains("run.rs") && message == "three bytes", "{place} {message}");
    }

    #[test]
    fn an_output_that_grows_faster_than_the_input_is_a_problem() {
        let target = target(|input| Shape::of(&vec![1; input.len() * 100_000]));
        assert!(run(&target, b"").is_ok());
        assert_eq!(run(&target, b"a"), Err(Problem::Long { input: 1, output: 300_000 }));
    }
}
