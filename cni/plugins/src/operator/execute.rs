// SPDX-License-Identifier: GPL-2.0-or-later

//! The call of one command: reads its arguments, runs its code and prints its error.

use std::io::{self, Write};

use super::cli::{self, Command, Failure, Given, Stop, USAGE_ERROR};
use super::help;

/// The code of a command. Gets the options and arguments, standard output and standard error, and returns
/// the exit code.
pub(super) type Code = fn(&Given, &mut dyn Write, &mut dyn Write) -> Result<u8, Failure>;

/// Reads the arguments of a command and runs its code.
pub(super) fn execute(
    command: &Command,
    code: Code,
    args: &[String],
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let done = match cli::parse(command, args) {
        Ok(given) => code(&given, out, err),
        Err(Stop::Help) => help::of_command(command, out).map(|()| 0).map_err(Failure::from),
        Err(Stop::Usage(text)) => Err(Failure::Usage(text)),
    };
    let name = command.name;
    match done {
        Ok(code) => code,
        Err(Failure::Failed(text)) => exit_code(writeln!(err, "slipway {name}: {text}"), 1),
        Err(Failure::Usage(text)) => {
            let help = format!("`slipway {name} --help` explains the arguments");
            exit_code(writeln!(err, "slipway {name}: {text}\n{help}"), USAGE_ERROR)
        }
        Err(Failure::Report(_)) => 1,
    }
}

/// The exit code after a message; 1 if it could not be written.
pub(super) fn exit_code(written: io::Result<()>, code: u8) -> u8 {
    written.map_or(1, |()| code)
}
