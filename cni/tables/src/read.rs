// SPDX-License-Identifier: GPL-2.0-or-later

//! The reader of a command's arguments.

use std::fmt::Display;
use std::io;

use lexopt::{Arg, Parser};

use crate::table::{Command, Need, OUTPUT, Reader, Value};

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
    pub fn failed(error: impl Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// Wrong arguments.
    pub fn usage(error: impl Display) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Report(error)
    }
}

/// The options and arguments on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Given {
    options: Vec<(&'static str, String)>,
    arguments: Vec<String>,
    raw: Vec<String>,
}

impl Given {
    /// True if the switch was given.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.values(option).next().is_some()
    }

    /// The value of an option: the last one counts.
    #[must_use]
    pub fn value(&self, option: &str) -> Option<&str> {
        self.values(option).last()
    }

    /// All values of an option.
    pub fn values(&self, option: &str) -> impl Iterator<Item = &str> {
        self.options.iter().filter(move |(name, _)| *name == option).map(|(_, value)| value.as_str())
    }

    /// All options in their order, with their values; that of a switch is empty.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.options.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// The arguments that have no option before them.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// An argument, by its place; empty if it was left out.
    #[must_use]
    pub fn argument(&self, place: usize) -> &str {
        self.arguments.get(place).map_or("", String::as_str)
    }

    /// Everything behind the command's name, for a command that reads its arguments itself.
    #[must_use]
    pub fn raw(&self) -> &[String] {
        &self.raw
    }

    /// True if JSON is to be printed.
    #[must_use]
    pub fn json(&self) -> bool {
        self.value(OUTPUT.name) == Some("json")
    }
}

/// The reason why arguments are not executed.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// Help is asked for.
    Help,
    /// The arguments are wrong, for this reason.
    Usage(String),
}

/// Reads the arguments behind the command's name, as its reader does.
///
/// # Errors
/// [`Stop`]: help is asked for, or the arguments are wrong.
pub fn parse(command: &Command, args: &[String]) -> Result<Given, Stop> {
    if command.reader != Reader::Command {
        return by_table(command, args);
    }
    let is_help = args.iter().any(|arg| arg == "-h" || arg == "--help");
    if is_help { Err(Stop::Help) } else { Ok(Given { raw: args.to_vec(), ..Given::default() }) }
}

/// Reads the arguments behind the command's name as the table describes them.
///
/// # Errors
/// [`Stop`]: help is asked for, or the arguments are wrong.
pub fn by_table(command: &Command, args: &[String]) -> Result<Given, Stop> {
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

/// `a`, `a or b`, `a, b or c`.
pub(crate) fn alternatives(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// `: did you mean X?`, if a known word is near to the one that was given.
pub fn did_you_mean<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
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
    use crate::table::{Argument, Opt};

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
        assert_eq!(COMMAND.usage("slipway"), want);
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
