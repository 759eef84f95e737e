// SPDX-License-Identifier: GPL-2.0-or-later

//! Options that many commands have, and parsers of values.

use std::fmt::{Debug, Display};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The form of what a command prints: a table for people, or a document for programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    #[default]
    #[value(alias = "text")]
    Table,
    Json,
}

/// The option `--output`, to be flattened into a command's arguments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct Output {
    /// Print a table, or JSON for programs
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
    /// The same as `--output json`
    #[arg(long, hide = true)]
    json: bool,
}

impl Output {
    /// True if the command is to print JSON.
    #[must_use]
    pub fn json(self) -> bool {
        self.json || self.output == Format::Json
    }
}

/// An output whose reader may close it before the end, as `head` does. Everything that is written afterwards is
/// discarded. It is meant for commands that continue to work after they have printed something.
pub struct UnlessClosed<'a>(Option<&'a mut dyn Write>);

impl<'a> UnlessClosed<'a> {
    /// Wraps `out`. Everything that is written after the reader has closed it is discarded.
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self(Some(out))
    }

    fn unless_closed<T>(&mut self, done: io::Result<T>, discarded: T) -> io::Result<T> {
        match done {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.0 = None;
                Ok(discarded)
            }
            other => other,
        }
    }
}

impl Write for UnlessClosed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(out) = &mut self.0 else { return Ok(bytes.len()) };
        let done = out.write(bytes);
        self.unless_closed(done, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(out) = &mut self.0 else { return Ok(()) };
        let done = out.flush();
        self.unless_closed(done, ())
    }
}

/// A text that is not a number within a range.
#[derive(Debug, thiserror::Error)]
#[error("a number between {} and {}", .0.start(), .0.end())]
pub struct OutOfRange<T: Debug + Display>(RangeInclusive<T>);

/// A parser for numbers whose error shows the range.
pub fn number<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, OutOfRange<T>> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Debug + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| OutOfRange(range.clone()))
    }
}
