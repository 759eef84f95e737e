// SPDX-License-Identifier: GPL-2.0-or-later

//! The grammar of `slipway COMMAND`: the description of a command, and the reader of its arguments.
//!
//! Help, manual pages and completions are made from the same description.

use std::borrow::Cow;
use std::fmt::Display;
use std::io;

use lexopt::{Arg, Parser};

/// The exit code for wrong arguments.
pub const USAGE_ERROR: u8 = 2;

/// The reason why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// The arguments are wrong: exit code 2.
    Usage(String),
    /// The work failed: exit code 1.
    Failed(String),
    /// Standard output or standard error cannot be written: exit code 1.
    Report(io::Error),
}

impl Failure {
    /// The failure of the work itself.
    pub(crate) fn failed(error: impl Display) -> Self {
        Self::Failed(error.to_string())
    }

    pub(crate) fn usage(error: impl Display) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Report(error)
    }
}

/// One command of `slipway`.
#[derive(Debug)]
pub struct Command {
    /// The word that calls it.
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
    fn check(self, of: &str, given: String) -> Result<String, Stop> {
        let Self::OneOf(words) = self else {
            return if given.is_empty() { Err(Stop::usage(format!("{of} is empty"))) } else { Ok(given) };
        };
        match words.iter().find(|word| word.eq_ignore_ascii_case(&given)) {
            Some(word) => Ok((*word).to_owned()),
            None => Err(Stop::usage(format!(
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

    fn is_spelled(&self, spelling: &str) -> bool {
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

    /// Arguments and options in one line.
    #[must_use]
    pub fn usage(&self) -> String {
        let mut words = vec![format!("slipway {}", self.name)];
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

/// The options and arguments on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Given {
    options: Vec<(&'static str, String)>,
    arguments: Vec<String>,
    raw: Vec<String>,
}

impl Given {
    /// True if the switch was given.
    pub(crate) fn has(&self, option: &str) -> bool {
        self.values(option).next().is_some()
    }

    /// The value of an option: the last one counts.
    pub(crate) fn value(&self, option: &str) -> Option<&str> {
        self.values(option).last()
    }

    /// All values of an option.
    pub(crate) fn values(&self, option: &str) -> impl Iterator<Item = &str> {
        self.options.iter().filter(move |(name, _)| *name == option).map(|(_, value)| value.as_str())
    }

    /// The arguments that have no option before them.
    pub(crate) fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// An argument, by its place; empty if it was left out.
    pub(crate) fn argument(&self, place: usize) -> &str {
        self.arguments.get(place).map_or("", String::as_str)
    }

    /// Everything behind the command's name, for a command that reads its arguments itself.
    pub(crate) fn raw(&self) -> &[String] {
        &self.raw
    }

    /// True if JSON is to be printed.
    pub(crate) fn json(&self) -> bool {
        self.value(OUTPUT.name) == Some("json")
    }
}

/// The reason why arguments are not executed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Help is asked for.
    Help,
    /// The arguments are wrong, for this reason.
    Usage(String),
}

impl Stop {
    fn usage(text: String) -> Self {
        Self::Usage(text)
    }
}

/// Reads the arguments behind the command's name, as its reader does.
pub(crate) fn parse(command: &Command, args: &[String]) -> Result<Given, Stop> {
    if command.reader != Reader::Command {
        return by_table(command, args);
    }
    let is_help = args.iter().any(|arg| arg == "-h" || arg == "--help");
    if is_help { Err(Stop::Help) } else { Ok(Given { raw: args.to_vec(), ..Given::default() }) }
}

/// Reads the arguments behind the command's name as the table describes them.
pub(crate) fn by_table(command: &Command, args: &[String]) -> Result<Given, Stop> {
    let mut given = Given::default();
    let wrong = |error: lexopt::Error| Stop::Usage(error.to_string());
    let mut parser = Parser::from_args(args.to_vec());
    while let Some(arg) = parser.next().map_err(wrong)? {
        let spelling = match arg {
            Arg::Short('h') | Arg::Long("help") => return Err(Stop::Help),
            Arg::Value(word) => {
                let word = word.to_string_lossy().into_owned();
                given.arguments.push(argument(command, given.arguments.len(), word)?);
                continue;
            }
            Arg::Short(letter) => format!("-{letter}"),
            Arg::Long(name) => format!("--{name}"),
        };
        given.options.push(option(command, &spelling, &mut parser)?);
    }
    let missing = command.arguments.iter().skip(given.arguments.len()).find(|a| a.need == Need::Required);
    if let Some(argument) = missing {
        return Err(Stop::Usage(format!("{} is missing: {}", argument.value.shown(), argument.help)));
    }
    if let Some(option) = command.options.iter().find(|option| option.required && !given.has(option.name)) {
        return Err(Stop::Usage(format!("{} is missing: {}", option.shown(), option.help)));
    }
    Ok(given)
}

/// Checks the argument at a place.
fn argument(command: &Command, place: usize, word: String) -> Result<String, Stop> {
    match command.arguments.get(place) {
        Some(argument) => {
            let name = match argument.value {
                Value::OneOf(_) => "the argument".into(),
                value => value.shown(),
            };
            argument.value.check(&name, word)
        }
        None => Err(Stop::Usage(format!("unexpected argument {word:?}"))),
    }
}

/// Finds an option by its spelling and reads its value.
fn option(command: &Command, spelling: &str, parser: &mut Parser) -> Result<(&'static str, String), Stop> {
    let find = |spelling: &str| command.options.iter().find(|option| option.is_spelled(spelling));
    // The older short form of `--output json`.
    if spelling == "--json" && find(OUTPUT.name).is_some_and(|option| option.value == OUTPUT.value) {
        return Ok((OUTPUT.name, "json".to_owned()));
    }
    let Some(option) = find(spelling) else {
        let known = command.options.iter().map(|option| option.name).chain(["--help"]);
        return Err(Stop::Usage(format!("unknown option {spelling}{}", did_you_mean(spelling, known))));
    };
    let Some(value) = option.value else {
        return match parser.optional_value() {
            None => Ok((option.name, String::new())),
            Some(_) => Err(Stop::Usage(format!("{} takes no value", option.name))),
        };
    };
    let given =
        parser.value().map_err(|_| Stop::Usage(format!("{spelling} needs a value: {}", value.shown())))?;
    let given = given.to_string_lossy().into_owned();
    // The older word for a table.
    if *option == OUTPUT && given == "text" {
        return Ok((OUTPUT.name, "table".to_owned()));
    }
    Ok((option.name, value.check(option.name, given)?))
}

impl PartialEq for Opt {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.value == other.value
    }
}

/// `a`, `a or b`, `a, b or c`.
pub(crate) fn alternatives(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// `: did you mean X?`, if a known word is near to the one that was given.
pub(crate) fn did_you_mean<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(given, known) {
        Some(word) => format!(": did you mean {word}?"),
        None => String::new(),
    }
}

/// The known word with the fewest letters to change: at most a third of them, and at most three.
fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = (given.chars().count() / 3).clamp(1, 3);
    let with_distance = known.map(|word| (distance(given, word), word));
    with_distance.filter(|(distance, _)| *distance <= most).min().map(|(_, word)| word)
}

/// The letters that must be added, removed, replaced or swapped with the next one to get from one word to the
/// other (Damerau and Levenshtein's optimal string alignment).
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let at = |row: &[usize], place: usize| row.get(place).copied().unwrap_or(usize::MAX - 1);
            let mut least =
                (at(&last, j + 1) + 1).min(at(&row, j) + 1).min(at(&last, j) + usize::from(a != b));
            let is_swap = i > 0 && j > 0 && from.get(i - 1) == Some(b) && to.get(j - 1) == Some(a);
            if is_swap {
                least = least.min(at(&before, j - 1) + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    static COMMAND: Command = Command {
        name: "try",
        summary: "tries",
        about: "",
        arguments: &[
            Argument::new(Value::OneOf(&["up", "down"]), "the direction"),
            Argument::new(Value::Text("NAME"), "a name").optional(),
        ],
        options: &[
            Opt::switch("--dry-run", "changes nothing"),
            Opt::value("--to", Value::Directory, "a directory").required(),
            Opt::value("--from", Value::Text("NAME"), "names").many().older("--source"),
            OUTPUT,
        ],
        exit_codes: &[],
        examples: &[],
        reader: Reader::Table,
    };

    fn read(line: &str) -> Result<Given, Stop> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&COMMAND, &args)
    }

    fn wrong(line: &str) -> String {
        match read(line) {
            Err(Stop::Usage(text)) => text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_and_arguments_come_in_any_order() {
        for line in ["up web --to /a --from x --from y", "--to=/a up --from=x --source y web"] {
            let given = read(line).unwrap();
            assert_eq!(given.arguments(), ["up", "web"], "{line}");
            assert_eq!(given.value("--to"), Some("/a"), "{line}");
            assert_eq!(given.values("--from").collect::<Vec<_>>(), ["x", "y"], "{line}");
            assert!(!given.has("--dry-run") && !given.json(), "{line}");
        }
        assert!(read("UP --to /a --dry-run").unwrap().has("--dry-run"));
        assert_eq!(read("UP --to /a").unwrap().argument(0), "up");
        assert_eq!(read("up --to /a --to /b").unwrap().value("--to"), Some("/b"), "the last one counts");
    }

    #[test]
    fn output_has_a_short_form_and_older_spellings() {
        for line in ["--output json", "--output=json", "-o json", "-ojson", "--json"] {
            assert!(read(&format!("up --to /a {line}")).unwrap().json(), "{line}");
        }
        for line in ["--output table", "-o text"] {
            assert!(!read(&format!("up --to /a {line}")).unwrap().json(), "{line}");
        }
    }

    #[test]
    fn errors_name_the_argument_and_what_was_probably_meant() {
        for (line, want) in [
            ("up --to /a --ouput json", "unknown option --ouput: did you mean --output?"),
            ("up --to /a --nonsense", "unknown option --nonsense"),
            ("up --to /a -x", "unknown option -x"),
            ("up --to /a -o xml", "--output must be table or json, not \"xml\""),
            ("up --to /a -o jsno", "--output must be table or json, not \"jsno\": did you mean json?"),
            ("up --to", "--to needs a value: DIR"),
            ("up --to=", "--to is empty"),
            ("up", "--to DIR is missing: a directory"),
            ("--to /a", "up|down is missing: the direction"),
            ("donw --to /a", "the argument must be up or down, not \"donw\": did you mean down?"),
            ("up a b --to /a", "unexpected argument \"b\""),
            ("up --to /a --dry-run=yes", "--dry-run takes no value"),
        ] {
            assert_eq!(wrong(line), want, "{line}");
        }
    }

    #[test]
    fn help_is_asked_for_anywhere() {
        for line in ["--help", "up -h", "--dry-run --help --nonsense"] {
            assert_eq!(read(line), Err(Stop::Help), "{line}");
        }
    }

    #[test]
    fn the_usage_has_everything() {
        let want = "slipway try up|down [NAME] [--dry-run] --to DIR [--from NAME]... [--output table|json]";
        assert_eq!(COMMAND.usage(), want);
    }

    #[test]
    fn near_words_are_found() {
        for (given, want) in
            [("prots", Some("ports")), ("port", Some("ports")), ("x", None), ("nod", Some("node"))]
        {
            assert_eq!(nearest(given, ["ports", "node", "flows"].into_iter()), want, "{given}");
        }
        assert_eq!(distance("ca", "abc"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
    }
}
