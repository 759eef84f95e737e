// SPDX-License-Identifier: MIT OR Apache-2.0

//! The helps of `docs/commands.md`, as the programs print them from their declarations for clap. Manual pages and
//! completions come from the same declarations.

use std::path::Path;
use std::process::Command;

use xtask_base::error::Result;
use xtask_base::run;

/// The commands of both programs.
pub(super) fn text(slipway: &Path, slipwayd: &Path) -> Result<String> {
    let mut text = String::new();
    for (name, program) in [("slipway", slipway), ("slipwayd", slipwayd)] {
        let read = |words: &[&str]| {
            // Without a terminal clap breaks lines at its default width.
            run::capture(Command::new(program).arg("help").args(words).env_remove("COLUMNS"))
        };
        add(name, &[], &read, &mut text)?;
    }
    Ok(text)
}

/// Adds the help of a command, and those of the commands below it.
fn add(
    program: &str,
    words: &[&str],
    read: &impl Fn(&[&str]) -> Result<String>,
    text: &mut String,
) -> Result<()> {
    let help = read(words)?;
    let call = [&[program][..], words].concat().join(" ");
    text.push_str(&format!("## {call}\n\n```text\n{}\n```\n\n", help.trim_matches('\n')));
    for inner in commands(&help) {
        add(program, &[words, &[inner]].concat(), read, text)?;
    }
    Ok(())
}

/// The names in the list of commands.
fn commands(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let entries = lines.take_while(|line| line.starts_with(' '));
    // Further lines of an entry are indented more.
    let names = entries.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_follows_the_one_above_it() {
        let read = |words: &[&str]| {
            Ok(match words {
                [] => "Does things\n\nCommands:\n  pod      Sets up\n           pods\n  help     Prints this\n\nOptions:\n  -h\n",
                ["pod"] => "Sets up pods\n\nCommands:\n  up  Sets one up\n",
                _ => "Sets one up\n",
            }
            .to_owned())
        };
        let mut text = String::new();
        add("slipwayd", &[], &read, &mut text).unwrap();
        let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(headings, ["## slipwayd", "## slipwayd pod", "## slipwayd pod up"]);
        assert!(text.ends_with("## slipwayd pod up\n\n```text\nSets one up\n```\n\n"), "{text}");
    }
}
