// SPDX-License-Identifier: GPL-2.0-or-later

//! Checks for the tests of the programs: the table of commands, and JSON documents against `docs/json.md`.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a panic reports what failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command as Process, Stdio};

use serde_json::Value;

use crate::completions::SHELLS;
use crate::manual::escaped;
use crate::read::by_table;
use crate::table::{Command, Program, Reader};
use crate::{help, manual};

/// The page about the documents.
const PAGE: &str = include_str!("../../../docs/json.md");

/// The type of a result of the CNI specification, whose fields are not on the page.
const RESULT: &str = "CNI result";

/// Checks that the table is complete and that help, manual pages and completions have everything in it; that
/// the formatter and the shells of this machine read the texts.
///
/// # Panics
/// Something is missing or invalid.
pub fn assert_complete(program: &Program) {
    names_differ(program);
    for command in program.commands {
        examples_are_valid_and_have_each_option(program, command);
        descriptions_are_one_phrase(command);
    }
    manual_is_complete(program);
    manual_has_no_stray_macros(program);
    groff_reads_the_pages(program);
    help_is_complete(program);
    completions_are_complete(program);
    shells_read_the_scripts(program);
}

fn names_differ(program: &Program) {
    let mut names: Vec<&str> = program.commands.iter().map(|command| command.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), program.commands.len());
}

fn examples_are_valid_and_have_each_option(program: &Program, command: &Command) {
    assert!(!command.examples.is_empty(), "{}", command.name);
    let call = format!("{} {}", program.name, command.name);
    let mut used: Vec<String> = Vec::new();
    for (example, _) in command.examples {
        let (_, behind) = example.split_once(&call).expect("a call of the command");
        let words: Vec<String> = behind.split_whitespace().map(str::to_owned).collect();
        // Options with one dash, as Go's, are read by the command itself.
        if command.options.iter().all(|option| option.name.starts_with("--")) {
            assert!(by_table(command, &words).is_ok(), "{example}: {:?}", by_table(command, &words));
        }
        used.extend(words);
    }
    for option in command.options {
        let short = option.short.map(|letter| format!("-{letter}")).unwrap_or_default();
        let is_used = used.iter().any(|word| word == option.name || *word == short);
        assert!(is_used, "no example of {} has {}", command.name, option.name);
    }
}

fn descriptions_are_one_phrase(command: &Command) {
    let options = command.options.iter().map(|option| option.help);
    let arguments = command.shown_arguments().map(|argument| argument.help);
    for phrase in options.chain(arguments).chain([command.summary]) {
        let is_phrase = !phrase.is_empty() && !phrase.ends_with('.') && !phrase.contains('\n');
        assert!(is_phrase && phrase.chars().count() <= 120, "{}: {phrase:?}", command.name);
    }
    let sentences = command.about.is_empty() || command.about.ends_with('.');
    assert!(sentences && !command.about.contains('\n'), "{}", command.name);
}

fn manual_is_complete(program: &Program) {
    let pages = manual::pages(program);
    let overview = &pages[0].text;
    for command in program.shown() {
        let name = manual::page_name(program, command);
        let page = pages.iter().find(|page| page.name == name).expect("a page");
        assert!(overview.contains(&escaped(&name)) && overview.contains(&escaped(command.summary)));
        let options =
            command.options.iter().map(|option| format!("{}\\fR\n", escaped(&manual::spellings(option))));
        let examples = command.examples.iter().map(|(line, _)| escaped(line));
        let arguments = command.shown_arguments().map(|argument| escaped(&argument.value.shown()));
        for text in options.chain(examples).chain(arguments) {
            assert!(page.text.contains(&text), "{name}: {text:?}");
        }
    }
}

fn manual_has_no_stray_macros(program: &Program) {
    let macros = [".\\\"", ".TH", ".SH", ".TP", ".B ", ".BR ", ".I "];
    for page in manual::pages(program) {
        assert!(page.text.starts_with(&format!(".\\\" {}\n", manual::mark(program))), "{}", page.name);
        for line in page.text.lines() {
            let is_text = !line.is_empty() && !line.starts_with(['.', '\'']);
            let is_macro = macros.iter().any(|known| line.starts_with(known));
            assert!(is_text || is_macro, "{}: {line:?}", page.name);
        }
    }
}

/// The formatter, if there is one, reports no error.
fn groff_reads_the_pages(program: &Program) {
    for page in manual::pages(program) {
        let mut groff = Process::new("groff");
        let groff = groff.args(["-man", "-ww", "-z"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut child) = groff.spawn() else { return };
        child.stdin.take().unwrap().write_all(page.text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && complaints.is_empty(), "{}: {complaints}", page.name);
    }
}

fn help_is_complete(program: &Program) {
    let printed = |print: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        print(&mut out);
        String::from_utf8(out).unwrap()
    };
    let overview = printed(&|out| help::overview(program, out).unwrap());
    for command in program.shown() {
        assert!(overview.contains(command.summary), "{}", command.name);
        let help = printed(&|out| help::of_command(program, command, out).unwrap());
        for option in command.options {
            assert!(help.contains(option.name), "{} {}", command.name, option.name);
        }
        let text = help.split("\nexamples:\n").next().unwrap_or_default();
        assert!(text.lines().all(|line| line.chars().count() <= help::WIDTH + 10), "{text}");
    }
    for command in program.commands.iter().filter(|command| command.reader == Reader::Hidden) {
        assert!(!overview.contains(&format!("\n  {} ", command.name)), "{} is not hidden", command.name);
    }
}

fn completions_are_complete(program: &Program) {
    for shell in &SHELLS {
        let script = shell.script(program);
        assert!(script.lines().take(2).any(|line| line.contains(&manual::mark(program))), "{}", shell.name);
        for command in program.shown() {
            assert!(command.name.split(' ').all(|word| script.contains(word)), "{}", command.name);
            for option in command.options {
                let of = format!("_command {}'", command.name);
                let wanted = match (shell.name, option.name.strip_prefix("--")) {
                    ("fish", Some(long)) => format!("{of} -l {long}"),
                    ("fish", None) => format!("{of} -o {}", &option.name[1..]),
                    _ => option.name.to_owned(),
                };
                assert!(script.contains(&wanted), "{} {wanted}", shell.name);
                for word in option.value.map(|value| program.words(value)).unwrap_or_default() {
                    assert!(script.contains(word), "{} {wanted} {word}", shell.name);
                }
            }
        }
        for command in program.commands.iter().filter(|command| command.reader == Reader::Hidden) {
            let name = command.name;
            for hidden in [format!("\"{name}\")"), format!("'{name}:"), format!("_command {name}'")] {
                assert!(!script.contains(&hidden), "{}: {name} is not hidden", shell.name);
            }
        }
    }
}

/// Each shell that there is finds no mistake. (QEMU's user emulation does not report a program that cannot be started.)
fn shells_read_the_scripts(program: &Program) {
    let folders: Vec<_> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    for shell in SHELLS.iter().filter(|shell| folders.iter().any(|folder| folder.join(shell.name).is_file()))
    {
        let mut process = Process::new(shell.name);
        let process = process.arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = process.spawn().unwrap();
        child.stdin.take().unwrap().write_all(shell.script(program).as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}: {}", shell.name, String::from_utf8_lossy(&output.stderr));
    }
}

/// Each field with the types that it has.
type Fields = BTreeMap<String, BTreeSet<String>>;

/// The cells of the table below a heading of `docs/json.md`, without the head of the table.
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

/// Compares the fields of documents with those below a heading of `docs/json.md`, in both directions. The
/// documents together have each type that a field can have.
///
/// # Panics
/// They differ.
pub fn assert_documented(heading: &str, documents: &[Value]) {
    let wanted = documented(heading);
    let mut found = Fields::new();
    for document in documents {
        in_object("", document, &wanted, &mut found);
    }
    assert_eq!(found, wanted, "{heading}, and docs/json.md on the right");
}

fn in_object(above: &str, value: &Value, wanted: &Fields, found: &mut Fields) {
    for (name, value) in value.as_object().expect("an object") {
        // An object that has names for keys.
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

/// The type as the page names it; none for an empty array, which may be of anything.
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
