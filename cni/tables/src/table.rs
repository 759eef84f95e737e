// SPDX-License-Identifier: GPL-2.0-or-later

//! The description of a program: its commands, their arguments and options.

use std::borrow::Cow;

use crate::read::{Stop, alternatives, did_you_mean};

/// A program that does its work in commands.
#[derive(Debug)]
pub struct Program {
    /// The word that calls it.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// One line about it.
    pub summary: &'static str,
    /// More about it, in sentences.
    pub about: fn() -> String,
    /// All commands, in the order of the help text.
    pub commands: &'static [Command],
    /// Variables of the environment, with their meaning.
    pub environment: &'static [(&'static str, &'static str)],
    /// Files and directories, with their meaning.
    pub files: &'static [(&'static str, &'static str)],
    /// The words that a text with this name can be; none if it is free.
    pub words: fn(&str) -> Vec<&'static str>,
}

impl Program {
    /// The command of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&'static Command> {
        self.commands.iter().find(|command| command.name == name)
    }

    /// The command whose words begin the arguments, and the arguments behind them.
    pub(crate) fn called<'a>(&self, args: &'a [String]) -> Option<(&'static Command, &'a [String])> {
        self.commands.iter().find_map(|command| {
            let words: Vec<&str> = command.name.split(' ').collect();
            let (first, behind) = args.split_at_checked(words.len())?;
            (first == words.as_slice()).then_some((command, behind))
        })
    }

    /// The commands that help and manual show.
    pub fn shown(&self) -> impl Iterator<Item = &'static Command> {
        self.commands.iter().filter(|command| command.reader != Reader::Hidden)
    }

    /// The first words of commands with two, such as `pod` of `pod up`.
    pub(crate) fn groups(&self) -> Vec<&'static str> {
        let mut groups: Vec<&str> =
            self.shown().filter_map(Command::in_group).map(|(group, _)| group).collect();
        groups.dedup();
        groups
    }

    /// The words that a value can be, as far as the program knows them.
    pub(crate) fn words(&self, value: Value) -> Vec<&'static str> {
        match value {
            Value::Text("COMMAND") => self.first_words(),
            Value::Text(name) => (self.words)(name),
            value => value.words().to_vec(),
        }
    }

    /// The words that can follow the program's name.
    pub(crate) fn first_words(&self) -> Vec<&'static str> {
        let mut words: Vec<&str> =
            self.shown().map(|command| command.in_group().map_or(command.name, |(group, _)| group)).collect();
        words.dedup();
        words
    }
}

/// One command of a program.
#[derive(Debug)]
pub struct Command {
    /// The word that calls it, or two with a blank between them.
    pub name: &'static str,
    /// One line for the list of commands.
    pub summary: &'static str,
    /// More about it, in sentences; empty where the summary is enough.
    pub about: &'static str,
    /// Its arguments, in order.
    pub arguments: &'static [Argument],
    /// Its options.
    pub options: &'static [Opt],
    /// Exit codes besides 0, 1 and 2, with their meaning.
    pub exit_codes: &'static [(u8, &'static str)],
    /// Command lines with their meaning. Each option is in one of them.
    pub examples: &'static [(&'static str, &'static str)],
    /// The reader of its arguments.
    pub reader: Reader,
}

/// The reader of a command's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The table of the command's arguments.
    Table,
    /// The command itself, which behaves like another project's tool. `Given::raw` has the arguments.
    Command,
    /// As [`Self::Table`], but help and manual leave the command out.
    Hidden,
}

/// An argument that has no option before it.
#[derive(Debug)]
pub struct Argument {
    /// Its name in capitals, or the values that it can have.
    pub value: Value,
    /// Its meaning.
    pub help: &'static str,
    /// The number of times that it may be given.
    pub need: Need,
}

/// The number of times that an argument may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Once.
    Required,
    /// Once or not at all.
    Optional,
    /// Once or not at all, and in no help: an older spelling.
    Hidden,
}

/// An option.
#[derive(Debug)]
pub struct Opt {
    /// With its dashes.
    pub name: &'static str,
    /// The letter of its short form.
    pub short: Option<char>,
    /// An older spelling that is read, and in no help.
    pub older: Option<&'static str>,
    /// Its value; none for a switch.
    pub value: Option<Value>,
    /// The number of times that it may be given.
    pub many: bool,
    /// True if the command does not work without it.
    pub required: bool,
    /// Its meaning.
    pub help: &'static str,
}

/// The value of an option or an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Any text, under this name.
    Text(&'static str),
    /// A file's path.
    File,
    /// A directory's path.
    Directory,
    /// One of these words, in any case.
    OneOf(&'static [&'static str]),
}

impl Value {
    /// As help and manual show it.
    #[must_use]
    pub fn shown(self) -> Cow<'static, str> {
        match self {
            Self::Text(name) => name.into(),
            Self::File => "FILE".into(),
            Self::Directory => "DIR".into(),
            Self::OneOf(words) => words.join("|").into(),
        }
    }

    /// The words that it can be; none if it is free.
    #[must_use]
    pub const fn words(self) -> &'static [&'static str] {
        match self {
            Self::OneOf(words) => words,
            _ => &[],
        }
    }

    /// Checks a value that was given for `of`, and spells it as the description does.
    pub(crate) fn check(self, of: &str, given: String) -> Result<String, Stop> {
        let Self::OneOf(words) = self else {
            return if given.is_empty() { Err(Stop::Usage(format!("{of} is empty"))) } else { Ok(given) };
        };
        match words.iter().find(|word| word.eq_ignore_ascii_case(&given)) {
            Some(word) => Ok((*word).to_owned()),
            None => Err(Stop::Usage(format!(
                "{of} must be {}, not {given:?}{}",
                alternatives(words),
                did_you_mean(&given, words.iter().copied())
            ))),
        }
    }
}

impl Opt {
    /// An option without a value.
    #[must_use]
    pub const fn switch(name: &'static str, help: &'static str) -> Self {
        Self { name, short: None, older: None, value: None, many: false, required: false, help }
    }

    /// An option with a value.
    #[must_use]
    pub const fn value(name: &'static str, value: Value, help: &'static str) -> Self {
        Self { value: Some(value), ..Self::switch(name, help) }
    }

    /// With a short form.
    #[must_use]
    pub const fn short(self, letter: char) -> Self {
        Self { short: Some(letter), ..self }
    }

    /// With an older spelling.
    #[must_use]
    pub const fn older(self, name: &'static str) -> Self {
        Self { older: Some(name), ..self }
    }

    /// To be given any number of times.
    #[must_use]
    pub const fn many(self) -> Self {
        Self { many: true, ..self }
    }

    /// To be given always.
    #[must_use]
    pub const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// As help shows it: `--network NAME`.
    #[must_use]
    pub fn shown(&self) -> String {
        match self.value {
            Some(value) => format!("{} {}", self.name, value.shown()),
            None => self.name.to_owned(),
        }
    }

    pub(crate) fn is_spelled(&self, spelling: &str) -> bool {
        let is_short = |letter: char| spelling.strip_prefix('-').is_some_and(|s| s == letter.to_string());
        self.name == spelling || self.older == Some(spelling) || self.short.is_some_and(is_short)
    }
}

impl Argument {
    /// An argument that must be given.
    #[must_use]
    pub const fn new(value: Value, help: &'static str) -> Self {
        Self { value, help, need: Need::Required }
    }

    /// An argument that may be left out.
    #[must_use]
    pub const fn optional(self) -> Self {
        Self { need: Need::Optional, ..self }
    }

    /// An older spelling.
    #[must_use]
    pub const fn hidden(self) -> Self {
        Self { need: Need::Hidden, ..self }
    }
}

impl Command {
    /// The arguments that help shows.
    pub fn shown_arguments(&self) -> impl Iterator<Item = &'static Argument> {
        self.arguments.iter().filter(|argument| argument.need != Need::Hidden)
    }

    /// The two words of a name that has two.
    pub(crate) fn in_group(&self) -> Option<(&'static str, &'static str)> {
        self.name.split_once(' ')
    }

    /// Arguments and options in one line, behind the program's name.
    #[must_use]
    pub fn usage(&self, program: &str) -> String {
        let mut words = vec![format!("{program} {}", self.name)];
        words.extend(self.shown_arguments().map(|argument| match argument.need {
            Need::Required => argument.value.shown().into_owned(),
            _ => format!("[{}]", argument.value.shown()),
        }));
        words.extend(self.options.iter().map(|option| match (option.required, option.many) {
            (true, _) => option.shown(),
            (false, false) => format!("[{}]", option.shown()),
            (false, true) => format!("[{}]...", option.shown()),
        }));
        words.join(" ")
    }
}

/// The option of all commands that print data.
pub const OUTPUT: Opt =
    Opt::value("--output", Value::OneOf(&["table", "json"]), "print a table (default), or JSON for programs")
        .short('o');

impl PartialEq for Opt {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.value == other.value
    }
}
