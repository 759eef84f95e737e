// SPDX-License-Identifier: GPL-2.0-or-later

//! The text of `slipway help` and of `slipway COMMAND --help`.

use std::io::{self, Write};

use super::cli::{Command, Failure, Given, Opt, USAGE_ERROR, did_you_mean};
use super::commands;
use crate::registry;

/// The width of the text, in columns.
const WIDTH: usize = 100;

/// The exit codes that all commands have.
pub(super) const EXIT_CODES: [(u8, &str); 3] = [(0, "success"), (1, "failure"), (2, "wrong arguments")];

/// Prints the list of commands, or the help of one.
pub(super) fn run(given: &Given, out: &mut dyn Write, _err: &mut dyn Write) -> Result<u8, Failure> {
    match given.arguments() {
        [] => overview(out)?,
        [name, ..] => {
            let command = commands::find(name).ok_or_else(|| Failure::Usage(unknown_command(name)))?;
            of_command(command, out)?;
        }
    }
    Ok(0)
}

/// The error for a word that is no command.
pub(super) fn unknown_command(name: &str) -> String {
    let known = commands::shown().map(|command| command.name);
    format!("unknown command {name:?}{}", did_you_mean(name, known))
}

/// Prints the list of commands.
pub(super) fn overview(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "slipway {}: CNI plugins for nodes with many containers", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "\nusage: slipway COMMAND [ARGUMENTS]\n\ncommands:")?;
    let lines: Vec<(String, String)> =
        commands::shown().map(|command| (command.name.to_owned(), command.summary.to_owned())).collect();
    columns(&lines, out)?;
    writeln!(
        out,
        "\n`slipway help COMMAND` explains a command. Exit codes: 0 success, 1 failure, 2 wrong arguments."
    )?;
    let names = registry::names().join(", ");
    paragraph(&format!("Called by the name of a plugin, this binary is that plugin: {names}."), out)?;
    writeln!(out, "SLIPWAY_LOG=debug makes plugins and commands log each step to standard error.")
}

/// Prints the help of a command.
pub(super) fn of_command(command: &Command, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "slipway {}: {}\n", command.name, command.summary)?;
    hanging("usage: ", &command.usage(), out)?;
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
pub(super) fn exit_codes(command: &Command) -> impl Iterator<Item = (u8, &'static str)> {
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

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn printed(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_command_is_explained() {
        let command = commands::find("restore").unwrap();
        expect![[r#"
            slipway restore: put back what running containers lost when the ruleset was flushed

            usage: slipway restore [--dry-run] [--cache-dir DIR]... [--output table|json]

            Restores published ports, masquerade and the guard against spoofed addresses of each container that
            is in a runtime's cache and that the kernel shows to be running. Does nothing where nothing is
            missing.

            options:
                  --dry-run            only report what is missing
                  --cache-dir DIR      the runtime's cache, if it is neither /var/lib/cni nor
                                       /var/lib/cni/cache; its files are in DIR/results; any number of times
              -o, --output table|json  print a table (default), or JSON for programs
              -h, --help               print this

            exit codes:
              0  success
              1  something could not be read or restored; everything else was restored
              2  wrong arguments
              3  with --dry-run: something is missing

            examples:
              slipway restore
                  after `nft flush ruleset`
              slipway restore --dry-run --output json
                  from monitoring
              slipway restore --cache-dir /var/lib/containers/cni
                  with a cache in another place
        "#]].assert_eq(&printed(|out| of_command(command, out)));
    }

    #[test]
    fn each_command_and_each_option_is_in_the_help() {
        let overview = printed(|out| overview(out));
        for command in commands::shown() {
            assert!(overview.contains(command.summary), "{}", command.name);
            let help = printed(|out| of_command(command, out));
            for option in command.options {
                assert!(help.contains(option.name), "{} {}", command.name, option.name);
            }
            assert!(help.lines().all(|line| line.chars().count() <= WIDTH + 10), "{help}");
        }
        assert!(!overview.contains("\n  manual "), "it is hidden");
    }

    #[test]
    fn exit_codes_are_those_of_all_and_its_own() {
        let codes: Vec<u8> = exit_codes(commands::find("migrate").unwrap()).map(|(code, _)| code).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4]);
    }
}
