// SPDX-License-Identifier: MIT OR Apache-2.0

//! Finds forms in comments, messages and pages that a reader of the field's documentation stumbles over.
//!
//! The forms and what to write instead are in `xtask/docs/words.txt`; the words themselves are explained in
//! `docs/glossary.md`. Code is not searched, only its comments and its strings.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use xtask_base::error::{Error, Result};
use xtask_base::workspace;

/// Look for words and forms that the project does not use
///
/// Reads comments and strings of the sources, and the pages; `xtask/docs/words.txt` has the list.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files and folders to read; all of the project without one
    paths: Vec<PathBuf>,
    /// Print the number of findings per file instead of each finding
    #[arg(long)]
    count: bool,
}

/// Prints what it finds.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root();
    let found = if args.paths.is_empty() { find(&[root.to_owned()])? } else { find(&args.paths)? };
    if args.count {
        let mut files: BTreeMap<&Path, usize> = BTreeMap::new();
        for one in &found {
            *files.entry(&one.path).or_default() += 1;
        }
        for (path, count) in files {
            println!("{count:>6}  {}", path.strip_prefix(root).unwrap_or(path).display());
        }
    } else {
        for one in &found {
            println!("{}", one.line_of_text(root));
        }
    }
    if found.is_empty() { Ok(()) } else { Err(Error::Failed(format!("{} findings", found.len()))) }
}

/// Reads the whole project; returns a summary.
///
/// # Errors
/// The first findings, or a file that cannot be read.
pub(crate) fn check(root: &Path) -> Result<String> {
    let found = find(&[root.to_owned()])?;
    if found.is_empty() {
        return Ok("no form of xtask/docs/words.txt is used".to_owned());
    }
    let lines: Vec<String> = found.iter().take(20).map(|one| one.line_of_text(root)).collect();
    Err(Error::Failed(format!(
        "{} places use a form of xtask/docs/words.txt; `cargo xtask words` lists all:\n    {}",
        found.len(),
        lines.join("\n    ")
    )))
}

/// A form that the project does not use.
#[derive(Debug)]
struct Form {
    /// The words in lower case.
    words: Vec<String>,
    /// The words to write instead.
    instead: String,
}

/// A form at its place.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: PathBuf,
    line: usize,
    form: String,
    instead: String,
}

impl Finding {
    fn line_of_text(&self, root: &Path) -> String {
        let path = self.path.strip_prefix(root).unwrap_or(&self.path);
        format!("{}:{}: \"{}\": {}", path.display(), self.line, self.form, self.instead)
    }
}

/// The kind of a piece of prose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `///` and `//!`.
    Doc,
    /// `//`, `/* */` and `#`.
    Comment,
    /// A string of the code.
    Text,
    /// A paragraph of a page.
    Page,
}

/// A line of prose.
#[derive(Debug, PartialEq, Eq)]
struct Prose {
    kind: Kind,
    line: usize,
    text: String,
}

/// Files that quote what others write, or that are history.
const EXEMPT: &[&str] = &[
    "xtask/docs/words.txt",
    "xtask/docs/src/words.rs",
    "CHANGELOG.md",
    "docs/glossary.md",
    ".github/CODE_OF_CONDUCT.md",
];

/// First words of a doc comment that begin a relative clause.
const CLAUSES: &[&str] =
    &["what", "whatever", "whether", "who", "whoever", "whom", "that", "which", "where", "how"];

fn find(paths: &[PathBuf]) -> Result<Vec<Finding>> {
    let root = workspace::root();
    let list = root.join("xtask/docs/words.txt");
    let forms = forms(&fs::read_to_string(&list).map_err(|e| Error::file("read", &list, e))?);
    let mut found = Vec::new();
    for path in files(paths)? {
        let relative = path.strip_prefix(root).unwrap_or(&path);
        if EXEMPT.iter().any(|exempt| relative == Path::new(exempt)) {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|e| Error::file("read", &path, e))?;
        let prose = match path.extension().and_then(|end| end.to_str()) {
            Some("rs") => prose_of_rust(&text),
            Some("md") => prose_of_markdown(&text),
            _ => prose_of_toml(&text),
        };
        found.extend(findings(&path, &prose, &forms));
    }
    Ok(found)
}

/// The sources, pages and settings below these paths, sorted.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut left = paths.to_vec();
    while let Some(path) = left.pop() {
        let path = fs::canonicalize(&path).map_err(|e| Error::file("find", &path, e))?;
        if path.is_dir() {
            for entry in fs::read_dir(&path).map_err(|e| Error::file("list", &path, e))? {
                let entry = entry.map_err(|e| Error::file("list", &path, e))?;
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let is_hidden = name.starts_with('.') && name != ".github";
                let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
                if !is_hidden && !is_link && name != "target" {
                    left.push(entry.path());
                }
            }
        } else if path.extension().is_some_and(|end| end == "rs" || end == "md" || end == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn forms(list: &str) -> Vec<Form> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    let of_pair = |(forms, instead): (&str, &str)| -> Vec<Form> {
        let words = |form: &str| form.split_whitespace().map(str::to_lowercase).collect();
        forms.split(',').map(|form| Form { words: words(form), instead: instead.trim().to_owned() }).collect()
    };
    pairs.flat_map(of_pair).collect()
}

fn findings(path: &Path, prose: &[Prose], forms: &[Form]) -> Vec<Finding> {
    let finding = |line: usize, form: String, instead: &str| Finding {
        path: path.to_owned(),
        line,
        form,
        instead: instead.to_owned(),
    };
    let mut found = Vec::new();
    for (index, one) in prose.iter().enumerate() {
        let words = words(&one.text);
        for form in forms {
            let hit = words.windows(form.words.len()).any(|window| window == form.words);
            if hit {
                found.push(finding(one.line, form.words.join(" "), &form.instead));
            }
        }
        if one.kind != Kind::Doc {
            continue;
        }
        let before = index.checked_sub(1).and_then(|index| prose.get(index));
        let follows = |doc: &Prose| doc.kind == Kind::Doc && doc.line + 1 == one.line;
        let first = words.first().map_or("", String::as_str);
        let heading = before.filter(|doc| follows(doc)).map(|doc| doc.text.trim());
        let is_first = heading.is_none() || heading == Some("# Errors");
        if is_first && CLAUSES.contains(&first) && one.text.trim_start().starts_with(char::is_uppercase) {
            found.push(finding(one.line, format!("{first} …"), "begin with a verb or a noun"));
        }
    }
    found
}

/// The words of a text in lower case; code between backticks and quoted examples of a list are none.
fn words(text: &str) -> Vec<String> {
    let prose: Vec<&str> = text.split('`').step_by(2).collect();
    let is_part = |c: char| c.is_alphanumeric() || c == '\'' || c == '_' || c == '-';
    // Something that is no word stands between two pieces, so that no phrase spans them.
    let joined = prose.join(" \u{1} ");
    joined
        .split(|c: char| !is_part(c) && c != '\u{1}')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// Comments and strings of a Rust source, line by line.
fn prose_of_rust(source: &str) -> Vec<Prose> {
    let mut prose = Vec::new();
    let bytes = source.as_bytes();
    let (mut at, mut line) = (0, 1);
    let rest = |at: usize| source.get(at..).unwrap_or_default();
    while let Some(&byte) = bytes.get(at) {
        let here = rest(at);
        let before = at.checked_sub(1).and_then(|at| bytes.get(at)).copied().unwrap_or(b' ');
        let length = if here.starts_with("//") {
            let text = here.lines().next().unwrap_or_default();
            let is_doc = (text.starts_with("///") && !text.starts_with("////")) || text.starts_with("//!");
            let kind = if is_doc { Kind::Doc } else { Kind::Comment };
            let words = text.trim_start_matches('/').trim_start_matches('!');
            prose.push(Prose { kind, line, text: words.to_owned() });
            text.len()
        } else if here.starts_with("/*") {
            let length = here.find("*/").map_or(here.len(), |end| end + 2);
            push_lines(&mut prose, Kind::Comment, line, &here[..length]);
            length
        } else if let Some(hashes) = raw_string(here, before) {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = hashes + 2;
            let length = rest(at + begin).find(&end).map_or(here.len(), |found| begin + found + end.len());
            push_lines(&mut prose, Kind::Text, line, &here[..length]);
            length
        } else if byte == b'"' {
            let length = string_length(here);
            push_lines(&mut prose, Kind::Text, line, &without_arguments(&here[..length].replace("\\n", " ")));
            length
        } else if byte == b'\'' {
            character_length(here)
        } else {
            here.chars().next().map_or(1, char::len_utf8)
        };
        line += here[..length].matches('\n').count();
        at += length;
    }
    prose
}

/// A format string without `{…}`, which names variables.
fn without_arguments(text: &str) -> String {
    let mut pieces = text.split('{');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + "\u{1}" + piece.split_once('}').map_or("", |(_, after)| after))
}

fn push_lines(prose: &mut Vec<Prose>, kind: Kind, first: usize, text: &str) {
    let lines = text.lines().enumerate();
    prose.extend(lines.map(|(index, text)| Prose { kind, line: first + index, text: text.to_owned() }));
}

/// The number of `#` of a raw string that begins here.
fn raw_string(here: &str, before: u8) -> Option<usize> {
    if before.is_ascii_alphanumeric() && before != b'b' && before != b'c' || before == b'_' {
        return None;
    }
    let after = here.strip_prefix('r')?;
    let hashes = after.bytes().take_while(|byte| *byte == b'#').count();
    (after.as_bytes().get(hashes) == Some(&b'"')).then_some(hashes)
}

/// The length of a string with its quotes.
fn string_length(here: &str) -> usize {
    let mut escaped = false;
    for (index, byte) in here.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return index + 1,
            _ => {}
        }
    }
    here.len()
}

/// The length of a character with its quotes, or of the quote of a lifetime.
fn character_length(here: &str) -> usize {
    let mut characters = here.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => here.get(3..).and_then(|rest| rest.find('\'')).map_or(1, |end| end + 4),
        Some(_) => match characters.next() {
            Some((index, '\'')) => index + 1,
            _ => 1,
        },
        None => 1,
    }
}

/// The lines of a page outside code blocks.
fn prose_of_markdown(page: &str) -> Vec<Prose> {
    let mut prose = Vec::new();
    let mut in_block = false;
    for (index, text) in page.lines().enumerate() {
        if text.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose.push(Prose { kind: Kind::Page, line: index + 1, text: text.to_owned() });
        }
    }
    prose
}

/// The comments of a settings file.
fn prose_of_toml(text: &str) -> Vec<Prose> {
    let lines = text.lines().enumerate();
    let comment = |(index, line): (usize, &str)| {
        let (_, text) = line.split_once('#')?;
        Some(Prose { kind: Kind::Comment, line: index + 1, text: text.to_owned() })
    };
    lines.filter_map(comment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(usize, String)> {
        let forms = forms("# a comment\nbeside, anew = next to\nthe stack = netfilter\n");
        let found = findings(Path::new("x.rs"), &prose_of_rust(source), &forms);
        found.into_iter().map(|one| (one.line, one.form)).collect()
    }

    #[test]
    fn comments_and_strings_are_read_and_code_is_not() {
        assert_eq!(found("let beside = 1;\n// Beside it.\nf(\"runs anew\\n\");\n").len(), 2);
        assert_eq!(found("let x = r#\"anew \" beside\"#; // anew").len(), 3);
        assert_eq!(found("panic!(\"{beside}: no {anew:?}\")"), []);
        assert_eq!(found("let quote = '\"'; let beside = '\\''; // fine\nlet a: &'static str;"), []);
        assert_eq!(found("/* the\nstack */ /* of the stack */"), [(2, "the stack".to_owned())]);
    }

    #[test]
    fn only_whole_words_outside_code_spans_count() {
        assert_eq!(found("// besides `beside` and the `x` stack"), []);
        assert_eq!(found("// the  Stack, anew"), [(1, "anew".to_owned()), (1, "the stack".to_owned())]);
    }

    #[test]
    fn doc_comments_begin_with_a_verb_or_a_noun() {
        assert_eq!(found("/// What it is.\nfn f() {}"), [(1, "what …".to_owned())]);
        assert_eq!(found("/// Reads a file.\n/// Which one is asked.\nfn f() {}"), []);
        assert_eq!(
            found("/// Reads.\n///\n/// # Errors\n/// What failed.\nfn f() {}"),
            [(4, "what …".to_owned())]
        );
        assert_eq!(found("// What is more, this is no doc comment."), []);
    }

    #[test]
    fn pages_are_read_outside_their_code_blocks() {
        let prose = prose_of_markdown("one\n```\ntwo\n```\nthree");
        let lines: Vec<usize> = prose.iter().map(|one| one.line).collect();
        assert_eq!(lines, [1, 5]);
    }

    #[test]
    fn of_settings_the_comments_are_read() {
        let prose = prose_of_toml("key = \"value\" # beside\n[table]\n");
        assert_eq!(prose, [Prose { kind: Kind::Comment, line: 1, text: " beside".to_owned() }]);
    }
}
