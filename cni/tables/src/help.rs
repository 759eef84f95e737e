// SPDX-License-Identifier: GPL-2.0-or-later

//! The text of `PROGRAM help` and of `PROGRAM COMMAND --help`.

use std::io::{self, Write};

use crate::read::{Failure, Given, USAGE_ERROR, did_you_mean};
use crate::table::{Command, Opt, Program};

/// The width of the text, in columns.
pub(crate) const WIDTH: usize = 100;

/// The exit codes that all commands have.
pub(crate) const EXIT_CODES: [(u8, &str); 3] = [(0, "success"), (1, "failure"), (2, "wrong arguments")];

/// Prints the list of commands, or the help of one.
pub(crate) fn run(program: &Program, given: &Given, out: &mut dyn Write) -> Result<u8, Failure> {
    match given.arguments() {
        [] => overview(program, out)?,
        [group] if program.groups().contains(&group.as_str()) => overview(program, out)?,
        words => {
            let command = program.find(&words.join(" "));
            let command = command.ok_or_else(|| Failure::Usage(unknown_command(program, words)))?;
            of_command(program, command, out)?;
        }
    }
    Ok(0)
}

/// The error for words that call no command.
pub(crate) fn unknown_command(program: &Program, words: &[String]) -> String {
    let in_group = words.first().is_some_and(|word| program.groups().contains(&word.as_str()));
    let called = words.get(..words.len().min(1 + usize::from(in_group))).unwrap_or_default().join(" ");
    let known = program.shown().map(|command| command.name);
    format!("unknown command {called:?}{}", did_you_mean(&called, known))
}

/// Prints the list of commands.
pub(crate) fn overview(program: &Program, out: &mut dyn Write) -> io::Result<()> {
    let Program { name, version, summary, about, environment, .. } = program;
    writeln!(out, "{name} {version}: {summary}")?;
    writeln!(out, "\nusage: {name} COMMAND [ARGUMENTS]\n\ncommands:")?;
    let lines: Vec<(String, String)> =
        program.shown().map(|command| (command.name.to_owned(), command.summary.to_owned())).collect();
    columns(&lines, out)?;
    writeln!(
        out,
        "\n`{name} help COMMAND` explains a command. Exit codes: 0 success, 1 failure, 2 wrong arguments."
    )?;
    paragraph(&about(), out)?;
    environment.iter().try_for_each(|(variable, meaning)| paragraph(&format!("{variable}: {meaning}."), out))
}

/// Prints the help of a command.
pub(crate) fn of_command(program: &Program, command: &Command, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{} {}: {}\n", program.name, command.name, command.summary)?;
    hanging("usage: ", &command.usage(program.name), out)?;
    if !command.about.is_empty() {
        writeln!(out)?;
        paragraph(command.about, out)?;
    }
    let arguments: Vec<(String, String)> = command
        .shown_arguments()
        .map(|argument| (argument.value.shown().into_owned(), argument.help.to_owned()))
        .collect();
    if !arguments.is_empty() {
        writeln!(out, "\narguments:")?;
        columns(&arguments, out)?;
    }
    writeln!(out, "\noptions:")?;
    let mut options: Vec<(String, String)> = command.options.iter().map(described).collect();
    options.push(("-h, --help".to_owned(), "print this".to_owned()));
    columns(&options, out)?;
    writeln!(out, "\nexit codes:")?;
    let codes: Vec<(String, String)> =
        exit_codes(command).map(|(code, meaning)| (code.to_string(), meaning.to_owned())).collect();
    columns(&codes, out)?;
    writeln!(out, "\nexamples:")?;
    command.examples.iter().try_for_each(|(line, meaning)| writeln!(out, "  {line}\n      {meaning}"))
}

/// The exit codes of a command, with those of all; one with an empty meaning is not used.
pub(crate) fn exit_codes(command: &Command) -> impl Iterator<Item = (u8, &'static str)> {
    let own = |code: &u8| command.exit_codes.iter().find(|(own, _)| own == code).copied();
    let common = EXIT_CODES.into_iter().map(move |(code, meaning)| own(&code).unwrap_or((code, meaning)));
    let more = command.exit_codes.iter().copied().filter(|(code, _)| *code > USAGE_ERROR);
    common.chain(more).filter(|(_, meaning)| !meaning.is_empty())
}

fn described(option: &Opt) -> (String, String) {
    let short = match option.short {
        Some(letter) => format!("-{letter}, "),
        None if option.name.starts_with("--") => "    ".to_owned(),
        None => String::new(),
    };
    let many = if option.many { "; any number of times" } else { "" };
    (format!("{short}{}", option.shown()), format!("{}{many}", option.help))
}

/// Prints two columns, the second one wrapped. Where the first is wide, the second begins on the next line.
fn columns(lines: &[(String, String)], out: &mut dyn Write) -> io::Result<()> {
    const WIDEST: usize = 32;
    let fitting = lines.iter().map(|(left, _)| left.chars().count()).filter(|width| *width <= WIDEST);
    let width = fitting.max().unwrap_or(0);
    for (left, right) in lines {
        let wrapped = wrap(right, WIDTH - width - 4);
        let mut rest = wrapped.iter();
        if left.chars().count() > width {
            writeln!(out, "  {left}")?;
        } else {
            writeln!(out, "  {left:width$}  {}", rest.next().map_or("", String::as_str))?;
        }
        rest.try_for_each(|line| writeln!(out, "  {:width$}  {line}", ""))?;
    }
    Ok(())
}

fn paragraph(text: &str, out: &mut dyn Write) -> io::Result<()> {
    wrap(text, WIDTH).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// Prints a text behind a word, its lines indented.
fn hanging(word: &str, text: &str, out: &mut dyn Write) -> io::Result<()> {
    let indent = word.len();
    for (number, line) in wrap(text, WIDTH - indent).iter().enumerate() {
        let before = if number == 0 { word } else { "" };
        writeln!(out, "{before:indent$}{line}")?;
    }
    Ok(())
}

/// Breaks a text at blanks.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
