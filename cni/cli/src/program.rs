// SPDX-License-Identifier: GPL-2.0-or-later

//! Runs a program: parses the arguments, runs the command's code and prints its error.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Parser};

use crate::error::{Failure, escaped, line, unknown_command};
use crate::sibling;
use crate::visible::Visible;

/// The width of help texts. It does not depend on the terminal, because the documentation shows them.
const WIDTH: usize = 100;

/// The layout of the help, which has the description between the summary and the usage, as a manual page does.
const TEMPLATE: &str = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Converts the arguments to text. If one is not UTF-8, prints the error and returns the exit code.
///
/// # Errors
/// The exit code of the program.
pub fn utf8(
    program: &str,
    args: impl Iterator<Item = OsString>,
    err: &mut dyn Write,
) -> Result<Vec<String>, u8> {
    args.map(OsString::into_string).collect::<Result<_, _>>().map_err(|other| {
        report(program, Err(Failure::Usage(format!("the argument {other:?} is not UTF-8"))), err)
    })
}

/// Runs a program and returns the exit code: 0 for success, 1 for a failure, 2 for arguments that cannot be used, and
/// others as the command's help lists them. The output is [visible](Visible).
pub fn run<P: Parser>(
    args: &[String],
    out: &mut dyn Write,
    err: &mut dyn Write,
    code: impl FnOnce(P, &mut dyn Write, &mut dyn Write) -> Result<u8, Failure>,
) -> u8 {
    let (mut out, mut err) = (Visible::new(out), Visible::new(err));
    let (out, err): (&mut dyn Write, &mut dyn Write) = (&mut out, &mut err);
    let program = command::<P>();
    let name = program.get_name().to_owned();
    // Without a command, the overview is printed, as with `help`.
    let args = if args.is_empty() && program.has_subcommands() { &["--help".to_owned()][..] } else { args };
    let words = std::iter::once(&name).chain(args);
    let parsed = program.clone().try_get_matches_from(words);
    let call = match &parsed {
        Ok(matches) => call(&name, matches),
        Err(_) => called(&program, args),
    };
    let empty = parsed.as_ref().ok().and_then(|matches| empty_value(&program, matches));
    let done = match (empty, parsed.and_then(|matches| P::from_arg_matches(&matches))) {
        (Some(name), _) => Err(Failure::Usage(format!("{name} needs a value"))),
        (None, Ok(cli)) => code(cli, out, err),
        (None, Err(error)) => match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                write!(out, "{}", error.render()).map(|()| 0).map_err(Failure::Report)
            }
            _ => Err(Failure::Usage(match command_of_sibling(&program, &call, &error) {
                Some(text) => text,
                None => line(&error),
            })),
        },
    };
    report(&call, done, err)
}

/// A message that names the other program, if that has the unknown command.
fn command_of_sibling(program: &Command, call: &str, error: &clap::Error) -> Option<String> {
    let (name, command) = (program.get_name(), unknown_command(error)?);
    // The command is also unknown below a command or after `help`.
    let is_first = call == name || call == format!("{name} help");
    let sibling = sibling::program_with(&command, name).filter(|_| is_first)?;
    Some(format!("unknown command {command:?}: `{sibling} {command}` is a command of {sibling}"))
}

/// Prints in one line why a command failed, and returns its exit code.
pub fn report(call: &str, done: Result<u8, Failure>, err: &mut dyn Write) -> u8 {
    let told = |written: io::Result<()>, code| written.map_or(1, |()| code);
    match done {
        Ok(code) => code,
        Err(Failure::Failed(text)) => told(writeln!(err, "{call}: {text}"), 1),
        Err(Failure::Usage(text)) => {
            told(writeln!(err, "{call}: {} (see `{call} --help`)", escaped(&text)), 2)
        }
        Err(Failure::Report(error)) if error.kind() == io::ErrorKind::BrokenPipe => 1,
        Err(Failure::Report(error)) => told(writeln!(err, "{call}: write the output: {error}"), 1),
    }
}

/// The name of the program, followed by that of the command that was called.
fn call(name: &str, matches: &ArgMatches) -> String {
    match matches.subcommand() {
        Some((command, inner)) => format!("{name} {}", call(command, inner)),
        None => name.to_owned(),
    }
}

/// The same for arguments that cannot be parsed, from the leading words that name commands.
fn called(program: &Command, args: &[String]) -> String {
    let (mut at, mut call) = (program, program.get_name().to_owned());
    for word in args {
        let Some(command) = at.find_subcommand(word) else { break };
        call = format!("{call} {}", command.get_name());
        at = command;
    }
    call
}

/// The first option or argument that has an empty value on the command line. An option may be empty if that is its
/// default.
fn empty_value(command: &Command, matches: &ArgMatches) -> Option<String> {
    let is_given = |arg: &Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let has_empty = |arg: &Arg| {
        let mut values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
        !arg.get_default_values().iter().any(|value| value.is_empty()) && values.any(OsStr::is_empty)
    };
    let empty = command.get_arguments().find(|arg| is_given(arg) && has_empty(arg));
    if let Some(arg) = empty {
        let argument = || arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
        return arg.get_long().map(|name| format!("--{name}")).or_else(argument);
    }
    let (name, inner) = matches.subcommand()?;
    empty_value(command.find_subcommand(name)?, inner)
}

/// The commands of a program, with the help layout that all commands share.
#[must_use]
pub fn command<P: Parser>() -> Command {
    finish(P::command())
}

/// Makes `-h` and `--help` print the same text. The last of several values counts, and the case of fixed words does not
/// matter. A negative number is taken as a value, which the option's parser then refuses with the range.
pub(crate) fn finish(command: Command) -> Command {
    let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string).unwrap_or_default();
    let (about, long) = (text(command.get_about()), text(command.get_long_about()));
    let description = long.strip_prefix(&about).unwrap_or(&long).trim_start_matches('.').trim().to_owned();
    let mut command = command
        .term_width(WIDTH)
        .args_override_self(true)
        .help_template(TEMPLATE)
        .long_about(None)
        .mut_args(|arg| {
            let takes_values = arg.get_action().takes_values();
            let is_word = takes_values && !arg.get_possible_values().is_empty();
            let is_option = takes_values && !arg.is_positional();
            arg.long_help(None).ignore_case(is_word).allow_negative_numbers(is_option)
        })
        .mut_subcommands(finish);
    if !description.is_empty() {
        command = command.before_help(description);
    }
    command
}
