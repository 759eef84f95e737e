// SPDX-License-Identifier: GPL-2.0-or-later

//! A call of a program: finds the command, reads its arguments, runs its code and prints its error.

use std::io::{self, Write};

use crate::read::{Failure, Given, Stop, USAGE_ERROR, parse};
use crate::table::{Command, Program};
use crate::{help, own};

/// The code of a command. Gets the options and arguments, standard output and standard error, and returns
/// the exit code.
pub type Code = fn(&Given, &mut dyn Write, &mut dyn Write) -> Result<u8, Failure>;

/// Runs `PROGRAM ARGS` and returns the exit code: 0 for success, 1 for a failure, 2 for wrong arguments,
/// others as in the command's help. `code` has the code of the commands that are not in every program.
pub fn run(
    program: &Program,
    code: fn(&str) -> Option<Code>,
    args: &[String],
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let args = match words.as_slice() {
        [] => return exit_code(help::overview(program, out), 0),
        ["-h" | "--help", rest @ ..] => with_name("help", rest),
        ["-V" | "--version", rest @ ..] => with_name("version", rest),
        [group] | [group, "-h" | "--help"] if program.groups().contains(group) => with_name("help", &[]),
        _ => args.to_vec(),
    };
    let Some((command, behind)) = program.called(&args) else {
        return unknown(program, &args, err);
    };
    match (own::code(command.name), code(command.name)) {
        (Some(own), _) => {
            let done = read_and_run(program, command, behind, out, |given, out| own(program, given, out));
            report(program, command, done, err)
        }
        (None, Some(code)) => execute(program, command, code, behind, out, err),
        (None, None) => unknown(program, &args, err),
    }
}

/// Reads the arguments behind the name of a command and runs its code. Returns the exit code.
pub fn execute(
    program: &Program,
    command: &Command,
    code: Code,
    args: &[String],
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let done = read_and_run(program, command, args, out, |given, out| code(given, out, err));
    report(program, command, done, err)
}

fn with_name(name: &str, rest: &[&str]) -> Vec<String> {
    std::iter::once(&name).chain(rest).map(|word| (*word).to_owned()).collect()
}

fn unknown(program: &Program, args: &[String], err: &mut dyn Write) -> u8 {
    let (unknown, name) = (help::unknown_command(program, args), program.name);
    exit_code(writeln!(err, "{name}: {unknown}\n`{name} help` lists the commands"), USAGE_ERROR)
}

fn read_and_run(
    program: &Program,
    command: &Command,
    args: &[String],
    out: &mut dyn Write,
    code: impl FnOnce(&Given, &mut dyn Write) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    match parse(command, args) {
        Ok(given) => code(&given, out),
        Err(Stop::Help) => Ok(help::of_command(program, command, out).map(|()| 0)?),
        Err(Stop::Usage(text)) => Err(Failure::Usage(text)),
    }
}

/// Prints the error of a command and returns the exit code.
fn report(program: &Program, command: &Command, done: Result<u8, Failure>, err: &mut dyn Write) -> u8 {
    let call = format!("{} {}", program.name, command.name);
    match done {
        Ok(code) => code,
        Err(Failure::Failed(text)) => exit_code(writeln!(err, "{call}: {text}"), 1),
        Err(Failure::Usage(text)) => {
            let help = format!("`{call} --help` explains the arguments");
            exit_code(writeln!(err, "{call}: {text}\n{help}"), USAGE_ERROR)
        }
        Err(Failure::Report(_)) => 1,
    }
}

/// The exit code after a message; 1 if it could not be written.
#[must_use]
pub fn exit_code(written: io::Result<()>, code: u8) -> u8 {
    written.map_or(1, |()| code)
}
