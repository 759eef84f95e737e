// SPDX-License-Identifier: MIT OR Apache-2.0

//! Command lines that pages show, and the options that the programs have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use xtask_base::run;

/// The program of a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    Slipway,
    Slipwayd,
    Xtask,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) program: Program,
    command: String,
    options: Vec<String>,
}

/// A command line that its program would refuse.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    #[error("`{0}`: there is no such task")]
    Task(String),
    #[error("`{0}`: there is no such command")]
    Command(String),
    #[error("`{command}` has no option {option}")]
    Option { command: String, option: String },
}

/// The command lines of `slipway`, `slipwayd` and `cargo xtask` in code spans and code blocks.
pub(super) fn mentions(text: &str) -> Vec<Mention> {
    let mut found = Vec::new();
    let mut paragraph = String::new();
    let mut in_block = false;
    // A backslash continues a line.
    let text = text.split("\\\n").map(|part| part.trim_matches(' ')).collect::<Vec<_>>().join(" ");
    for line in text.lines().chain([""]) {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            // The text after two spaces explains the command.
            let line = line.trim();
            let line = line.strip_prefix("node ").unwrap_or(line);
            if let Some(command) = line.strip_prefix("# ").or_else(|| line.strip_prefix("$ ")) {
                found.extend(mention(command.split("  ").next().unwrap_or_default()));
            }
        } else if line.is_empty() {
            // Every second piece between backticks is a code span.
            found.extend(paragraph.split('`').skip(1).step_by(2).filter_map(mention));
            paragraph.clear();
        } else {
            paragraph.push_str(line);
            paragraph.push(' ');
        }
    }
    found
}

/// The command line, if it is one and its command is named.
fn mention(text: &str) -> Option<Mention> {
    let mut words = text.split_whitespace().peekable();
    let first = words.find(|word| !word.contains('='))?;
    let program = match first {
        "cargo" => (words.next()? == "xtask").then_some(Program::Xtask)?,
        word if word == "slipway" || word.ends_with("/slipway") => Program::Slipway,
        word if word == "slipwayd" || word.ends_with("/slipwayd") => Program::Slipwayd,
        _ => return None,
    };
    let command = words.next()?;
    let is_name = !command.is_empty() && command.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    if !is_name || command.starts_with('-') {
        return None;
    }
    // slipwayd's commands for pods have two words.
    let second = words.peek().filter(|_| program == Program::Slipwayd && command == "pod");
    let command = second.map_or(command.to_owned(), |second| format!("{command} {second}"));
    let words = words.take_while(|word| !matches!(*word, "|" | ";" | "&&" | ">"));
    let options = words.filter(|word| word.starts_with("--") && word.len() > 2);
    let name = |word: &str| {
        let end = word.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(word.len());
        word[..end].to_owned()
    };
    Some(Mention { program, command, options: options.map(name).collect() })
}

pub(super) fn xtask_knows(mention: &Mention) -> Result<(), Unknown> {
    let Mention { command, options, .. } = mention;
    if command == "help" {
        return Ok(());
    }
    // The options of a task are declared in the crate of the task. The small xtask only names the task.
    let crates = [xtask_dist::command(), crate::command(), xtask_vm::command(), xtask::command()];
    let task = crates.iter().find_map(|tasks| tasks.find_subcommand(command));
    let task = task.ok_or_else(|| Unknown::Task(format!("cargo xtask {command}")))?;
    // Another program reads the options that follow.
    if task.get_arguments().any(clap::Arg::is_trailing_var_arg_set) {
        return Ok(());
    }
    // A task such as `bench` has tasks of its own.
    let known: BTreeSet<String> = std::iter::once(task)
        .chain(task.get_subcommands())
        .flat_map(clap::Command::get_arguments)
        .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
        .collect();
    unknown(options, |option| known.contains(option), &format!("cargo xtask {command}"))
}

/// The helps of the built programs' commands.
#[derive(Debug)]
pub(super) struct Helps<'a> {
    slipway: &'a Path,
    slipwayd: &'a Path,
    read: BTreeMap<String, Option<String>>,
}

impl<'a> Helps<'a> {
    pub(super) fn new(slipway: &'a Path, slipwayd: &'a Path) -> Self {
        Self { slipway, slipwayd, read: BTreeMap::new() }
    }

    pub(super) fn know(&mut self, mention: &Mention) -> Result<(), Unknown> {
        let Mention { program, command, options } = mention;
        let (name, path) = match program {
            Program::Slipwayd => ("slipwayd", self.slipwayd),
            _ => ("slipway", self.slipway),
        };
        let line = format!("{name} {command}");
        let words = ["help"].into_iter().chain(command.split(' '));
        let read = || run::capture(Command::new(path).args(words)).ok();
        let help = self.read.entry(line.clone()).or_insert_with(read);
        knows(help.as_deref(), &line, options)
    }
}

fn knows(help: Option<&str>, line: &str, options: &[String]) -> Result<(), Unknown> {
    let help = help.ok_or_else(|| Unknown::Command(line.to_owned()))?;
    let words: BTreeSet<&str> = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
    unknown(options, |option| words.contains(option), line)
}

fn unknown(options: &[String], known: impl Fn(&str) -> bool, command: &str) -> Result<(), Unknown> {
    match options.iter().find(|option| *option != "--help" && !known(option)) {
        Some(option) => Err(Unknown::Option { command: command.to_owned(), option: option.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_found_in_spans_and_blocks() {
        let text = "Call `slipway\nports --output json` or `A=1 cargo xtask bench control --pods 0,100`.\n\n\
                    ```console\n# ./slipway install --to DIR   copies `slipway nothing`\nslipway no\n```\n\
                    `slipway`, `slipway COMMAND` and `cargo xtask` name no command.\n";
        let found: Vec<String> = mentions(text)
            .into_iter()
            .map(|mention| format!("{:?} {} {}", mention.program, mention.command, mention.options.join(" ")))
            .collect();
        assert_eq!(
            found,
            ["Slipway ports --output", "Xtask bench --pods", "Slipway install --to"].map(str::to_owned)
        );
    }

    #[test]
    fn a_task_and_an_option_that_do_not_exist_are_named() {
        let wrong = |text: &str| xtask_knows(&mention(text).unwrap()).unwrap_err().to_string();
        assert_eq!(wrong("cargo xtask brew"), "`cargo xtask brew`: there is no such task");
        assert_eq!(wrong("cargo xtask test --slow"), "`cargo xtask test` has no option --slow");
        xtask_knows(&mention("cargo xtask bench control --pods 0").unwrap()).unwrap();
    }

    #[test]
    fn a_command_of_the_agent_continues_in_the_next_line() {
        let found = mentions("```console\n# slipwayd pod up a/b \\\n    --port 80 \\\n    --sandbx x\n```\n");
        assert_eq!((found.len(), &*found[0].command, found[0].program), (1, "pod up", Program::Slipwayd));
        let help = Some("  --port, --sandbox");
        assert_eq!(
            knows(help, "slipwayd pod up", &found[0].options).unwrap_err().to_string(),
            "`slipwayd pod up` has no option --sandbx"
        );
        assert!(knows(None, "slipwayd pod up", &[]).is_err());
    }
}
