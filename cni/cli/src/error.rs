// SPDX-License-Identifier: GPL-2.0-or-later

//! The reasons why a command ends early, each of which is printed as one line on standard error.

use std::error::Error as _;
use std::fmt::Display;
use std::io;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// The arguments cannot be used. The exit code is 2, and the message refers to the help.
    Usage(String),
    /// The work failed. The exit code is 1.
    Failed(String),
    /// Standard output or standard error cannot be written. The exit code is 1. There is no message if the reader has
    /// closed the pipe, as `head` does when it has read enough.
    Report(io::Error),
}

impl Failure {
    /// A failure of the work itself.
    pub fn failed(error: impl Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// A failure because of arguments that cannot be used, for a reason that only the command knows.
    pub fn usage(error: impl Display) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Report(error)
    }
}

/// Formats an error from clap as one line. Words that the user typed are escaped, so a line break in one of them does
/// not end the line.
pub(crate) fn line(error: &clap::Error) -> String {
    use ContextKind::{
        InvalidArg, InvalidSubcommand, InvalidValue, PriorArg, SuggestedArg, SuggestedSubcommand,
        SuggestedValue, ValidSubcommand, ValidValue,
    };
    let all = |kind| error.get(kind).map_or_else(Vec::new, words);
    let first = |kind| all(kind).into_iter().next().unwrap_or_default();
    // The last word is the most similar one.
    let near = |kind| all(kind).last().map_or_else(String::new, |word| format!(": did you mean {word}?"));
    let (arg, value) = (first(InvalidArg), first(InvalidValue));
    let name = option_name(&arg);
    match error.kind() {
        ErrorKind::UnknownArgument if arg.starts_with('-') => {
            format!("unknown option {}{}", escaped(&arg), near(SuggestedArg))
        }
        ErrorKind::UnknownArgument => format!("unexpected argument {arg:?}"),
        ErrorKind::InvalidSubcommand => {
            format!("unknown command {:?}{}", first(InvalidSubcommand), near(SuggestedSubcommand))
        }
        ErrorKind::MissingSubcommand => {
            format!("a command is missing: {}", alternatives(&all(ValidSubcommand)))
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = all(InvalidArg);
            let names: Vec<&str> = missing.iter().map(|arg| option_name(arg)).collect();
            let verb = if names.len() == 1 { "is" } else { "are" };
            format!("{} {verb} missing", listed(&names, "and"))
        }
        ErrorKind::InvalidValue => {
            let valid = all(ValidValue);
            let name = if valid == [name] { "the argument" } else { name };
            match (alternatives(&valid), value.is_empty()) {
                (valid, true) if valid.is_empty() => format!("{name} needs a value"),
                (valid, true) => format!("{name} needs a value: {valid}"),
                (valid, false) => format!("{name} must be {valid}, not {value:?}{}", near(SuggestedValue)),
            }
        }
        // Our own parsers say what the value must be.
        ErrorKind::ValueValidation => match error.source() {
            Some(wanted) => format!("{name} must be {wanted}, not {value:?}"),
            None => format!("{name}: {value:?} cannot be used"),
        },
        ErrorKind::ArgumentConflict => format!("{name} cannot be used with {}", all(PriorArg).join(", ")),
        ErrorKind::TooManyValues | ErrorKind::WrongNumberOfValues => {
            format!("{name} takes no value {value:?}")
        }
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    }
}

/// The unknown command to which an error from clap refers.
pub(crate) fn unknown_command(error: &clap::Error) -> Option<String> {
    error.get(ContextKind::InvalidSubcommand).map(words)?.into_iter().next()
}

/// Text from the caller without control characters, because it is printed on a terminal and in one line.
pub(crate) fn escaped(text: &str) -> String {
    let escape = |letter: char| match letter.is_control() {
        true => letter.escape_debug().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Returns `--output` for `--output <FORMAT>` and `--output[=<FORMAT>]`, and `NETWORK` for `<NETWORK>`.
fn option_name(arg: &str) -> &str {
    let name = arg.split([' ', '=']).next().unwrap_or(arg);
    name.trim_matches(['<', '>', '[', ']'])
}

fn words(value: &ContextValue) -> Vec<String> {
    match value {
        ContextValue::String(word) => vec![word.clone()],
        ContextValue::Strings(words) => words.clone(),
        _ => Vec::new(),
    }
}

/// Formats `a`, `a or b`, or `a, b or c`.
fn alternatives(words: &[String]) -> String {
    listed(&words.iter().map(String::as_str).collect::<Vec<_>>(), "or")
}

fn listed(words: &[&str], conjunction: &str) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} {conjunction} {last}", first.join(", ")),
    }
}
