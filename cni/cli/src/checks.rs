// SPDX-License-Identifier: GPL-2.0-or-later

//! Checks for the tests of both programs: of their commands, and of JSON documents against `docs/json.md`.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a panic reports what failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command as Process, Stdio};

use clap::Command;
use serde::Serialize;
use serde_json::Value;

use crate::completions::{Shell, script};
use crate::error::line;
use crate::manual;
use crate::program::{command, finish};
use crate::sibling;

/// The documentation page about the JSON documents.
const PAGE: &str = include_str!("../../../docs/json.md");

/// The type of CNI results, whose fields the page does not list.
const RESULT: &str = "CNI result";

/// Parses the arguments of one command.
///
/// # Errors
/// The message that the program would print.
pub fn args<A: clap::Args>(words: &str) -> Result<A, String> {
    let command = finish(A::augment_args(Command::new("command").no_binary_name(true)));
    let matches = command.try_get_matches_from(words.split_whitespace());
    matches.and_then(|matches| A::from_arg_matches(&matches)).map_err(|error| line(&error))
}

/// Checks the commands of a program: that clap accepts their definitions, that the other program's list of them is
/// complete, that everything visible has a summary and a help text, that the examples can be parsed, and that groff and
/// the machine's shells can read manual pages and completions.
///
/// # Panics
/// Something is missing or invalid.
pub fn assert_complete<P: clap::Parser>() {
    P::command().debug_assert();
    let program = command::<P>();
    siblings_know_the_commands(&program);
    described(&program);
    examples_are_valid(&program);
    groff_reads_the_pages(&program);
    shells_read_the_scripts(&program);
}

fn siblings_know_the_commands(program: &Command) {
    let both_have = ["completions", "manual", "version", "help"];
    let names = program.get_subcommands().map(Command::get_name).filter(|name| !both_have.contains(name));
    if let Some(known) = sibling::commands(program.get_name()) {
        assert_eq!(
            known,
            names.collect::<Vec<_>>(),
            "src/sibling.rs and the commands of {}",
            program.get_name()
        );
    }
}

fn described(command: &Command) {
    let name = command.get_name();
    let summary = command.get_about().map(ToString::to_string).unwrap_or_default();
    is_phrase(name, &summary);
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        is_phrase(name, &argument.get_help().map(ToString::to_string).unwrap_or_default());
    }
    // Possible values with help texts of their own would give the long help another layout.
    let help = |option| command.clone().try_get_matches_from([name, option]).map_err(|help| help.to_string());
    assert_eq!(help("-h").err(), help("--help").err(), "{name} -h, and {name} --help on the right");
    command.get_subcommands().for_each(described);
}

fn is_phrase(name: &str, text: &str) {
    let is_phrase = !text.is_empty() && !text.ends_with('.') && !text.contains('\n');
    assert!(is_phrase && text.chars().count() <= 160, "{name}: {text:?}");
}

/// Parses each line after `Examples:` that calls the program.
fn examples_are_valid(program: &Command) {
    let mut found = Vec::new();
    collect_examples(program, &mut found);
    for example in found {
        let words = example.split_whitespace().skip_while(|word| *word != program.get_name());
        // A comment, a pipe or a redirection ends the call.
        let words = words.take_while(|word| !matches!(*word, "#" | "|" | ">"));
        if let Err(error) = program.clone().try_get_matches_from(words) {
            assert!(!error.use_stderr(), "{example}: {error}");
        }
    }
}

fn collect_examples(command: &Command, found: &mut Vec<String>) {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let examples = after.split("Examples:\n").nth(1).unwrap_or_default();
    found.extend(examples.lines().take_while(|line| !line.is_empty()).map(str::to_owned));
    command.get_subcommands().for_each(|inner| collect_examples(inner, found));
}

/// Checks that groff, if it is installed, reports no error.
fn groff_reads_the_pages(program: &Command) {
    for page in manual::pages(program).unwrap() {
        let mut groff = Process::new("groff");
        let groff = groff.args(["-man", "-ww", "-z"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut child) = groff.spawn() else { return };
        child.stdin.take().unwrap().write_all(page.text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && complaints.is_empty(), "{}: {complaints}", page.name);
    }
}

/// Checks that each installed shell finds no mistake. (QEMU's user emulation does not report a program that cannot be
/// started.)
fn shells_read_the_scripts(program: &Command) {
    let folders: Vec<_> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let name = format!("{shell:?}").to_lowercase();
        if !folders.iter().any(|folder| folder.join(&name).is_file()) {
            continue;
        }
        let process = Process::new(&name).arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = process.unwrap();
        child.stdin.take().unwrap().write_all(script(shell, program).as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The fields with the types that each of them has.
type Fields = BTreeMap<String, BTreeSet<String>>;

/// The cells of the table below a heading in `docs/json.md`, without the table's head.
///
/// # Panics
/// The page has no such heading.
#[must_use]
pub fn rows(heading: &str) -> Vec<Vec<String>> {
    let heading = format!("## {heading}\n");
    let (_, section) = PAGE.split_once(&heading).unwrap_or_else(|| panic!("no {heading:?} in the page"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    let cells = |line: &str| line.trim_matches(['|', ' ']).split(" | ").map(str::to_owned).collect();
    lines.map(cells).collect()
}

fn documented(heading: &str) -> Fields {
    let field = |cells: Vec<String>| {
        let types = cells[1].split(" or ").map(str::to_owned).collect();
        (cells[0].trim_matches('`').to_owned(), types)
    };
    rows(heading).into_iter().map(field).collect()
}

/// Compares the fields of documents with those below a heading in `docs/json.md`, in both directions. Together, the
/// documents must contain every type that a field can have.
///
/// # Panics
/// The fields differ.
pub fn assert_documented<T: Serialize>(heading: &str, documents: &[T]) {
    let wanted = documented(heading);
    let mut found = Fields::new();
    for document in documents {
        let document = serde_json::to_value(document).expect("a document");
        in_object("", &document, &wanted, &mut found);
    }
    assert_eq!(found, wanted, "{heading}, and docs/json.md on the right");
}

fn in_object(above: &str, value: &Value, wanted: &Fields, found: &mut Fields) {
    for (name, value) in value.as_object().expect("an object") {
        // The keys of this object are names.
        let is_map = wanted.contains_key(&format!("{above}*"));
        let path = if is_map { format!("{above}*") } else { format!("{above}{name}") };
        if wanted.get(&path).is_some_and(|types| types.contains(RESULT)) {
            assert!(value.is_object(), "{path}: {value}");
            found.entry(path).or_default().insert(RESULT.to_owned());
            continue;
        }
        if let Some(kind) = kind(value) {
            found.entry(path.clone()).or_default().insert(kind.to_owned());
        }
        match value {
            Value::Object(_) => in_object(&format!("{path}."), value, wanted, found),
            Value::Array(items) if items.iter().any(Value::is_object) => {
                items.iter().for_each(|item| in_object(&format!("{path}[]."), item, wanted, found));
            }
            _ => {}
        }
    }
}

/// The type as the page names it. None for an empty array, whose elements could have any type.
fn kind(value: &Value) -> Option<&'static str> {
    Some(match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Object(_) => "object",
        Value::Array(items) if items.is_empty() => return None,
        Value::Array(items) if items.iter().all(Value::is_object) => "array of objects",
        Value::Array(_) => "array of strings",
    })
}
