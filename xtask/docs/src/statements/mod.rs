// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks statements of the documentation against the tree and the programs.

mod mentions;
mod tests_named;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::{generated, links, spelling};
use mentions::{Helps, Program, mentions, xtask_knows};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::workspace;

/// Pages about the past, or written by a program.
const LEFT_OUT: [&str; 4] = ["CHANGELOG.md", "docs/reports/kernels.md", "docs/errors.md", "docs/commands.md"];

/// The file with the numbers of the error codes.
const ERROR_CODES: &str = "cni/spec/src/error.rs";

/// Folders with source files.
const SOURCES: [&str; 5] = ["cni", "ebpf", "tests", "vm-tests", "xtask"];

/// Sections whose tables name objects of the kernel in their first columns, and the files that define them.
const OBJECTS: [(&str, &str, &str); 2] = [
    ("docs/dataplane/table.md", "Objects", "cni/dataplane/golden/bootstrap.nft"),
    ("docs/dataplane/ebpf-reference.md", "Objects", "ebpf/abi/src/maps.rs"),
];

/// Check the links and the statements of the pages.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The built slipway
    #[arg(long)]
    slipway: PathBuf,
    /// The built slipwayd
    #[arg(long)]
    slipwayd: PathBuf,
}

/// Prints a summary of what was found to be right.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root();
    let links = links::check(root)?;
    let statements = check(root, &args.slipway, &args.slipwayd)?;
    let spelling = spelling::check(root)?;
    println!("{links} links in the pages lead somewhere; {statements}; {spelling}");
    Ok(())
}

/// Compares the pages with the tree, with the tasks of `cargo xtask` and with the commands of `slipway` and `slipwayd`.
fn check(root: &Path, slipway: &Path, slipwayd: &Path) -> Result<String> {
    let pages = pages(root)?;
    let mut wrong = tree(root, &pages)?;
    wrong.extend(generated::stale_commands(root, slipway, slipwayd)?);
    let mut commands = 0;
    let mut helps = Helps::new(slipway, slipwayd);
    for (page, text) in &pages {
        for mention in mentions(text).iter().filter(|mention| mention.program != Program::Xtask) {
            commands += 1;
            wrong.extend(helps.know(mention).err().map(|error| format!("{page}: {error}")));
        }
    }
    summary(&wrong).map(|()| format!("{commands} mentions of the programs' commands are right"))
}

/// Checks that need no built program.
fn tree(root: &Path, pages: &[(String, String)]) -> Result<Vec<String>> {
    let mut wrong = plugins(root, pages)?;
    wrong.extend(unreachable(pages));
    wrong.extend(anchors(pages));
    wrong.extend(variables(root, pages)?);
    wrong.extend(pages.iter().flat_map(|(name, text)| {
        json_errors(text).into_iter().map(move |error| format!("{name}: a block is no JSON: {error}"))
    }));
    for (name, heading, source) in OBJECTS {
        wrong.extend(
            objects(page(pages, name)?, heading, &files::read(root.join(source))?)
                .map(|object| format!("{name}: {source} has no {object}")),
        );
    }
    wrong.extend(tests_named::missing(root, page(pages, tests_named::PAGE)?)?);
    wrong.extend(generated::stale(root)?);
    let all = error_codes(&files::read(root.join(ERROR_CODES))?);
    let known: BTreeSet<u32> = all.values().copied().collect();
    wrong.extend(codes_of_plugins(root, &all, section(page(pages, "docs/protocol.md")?, "Errors"))?);
    for (name, text) in pages {
        wrong.extend(codes(text).difference(&known).map(|code| format!("{name}: no error has code {code}")));
        for mention in mentions(text).iter().filter(|mention| mention.program == Program::Xtask) {
            wrong.extend(xtask_knows(mention).err().map(|error| format!("{name}: {error}")));
        }
    }
    Ok(wrong)
}

fn summary(wrong: &[String]) -> Result<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Error::Failed(format!("statements that do not hold:\n    {}", wrong.join("\n    "))))
}

fn pages(root: &Path) -> Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    for path in links::pages(root)? {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if !LEFT_OUT.contains(&&*name) {
            pages.push((name, files::read(&path)?));
        }
    }
    Ok(pages)
}

fn page<'a>(pages: &'a [(String, String)], wanted: &str) -> Result<&'a str> {
    let found = pages.iter().find(|(name, _)| name == wanted);
    found.map(|(_, text)| &**text).ok_or_else(|| Error::Failed(format!("there is no page {wanted}")))
}

/// Compares the README's list of plugins, and the numbers of installed names, with the plugins' pages.
fn plugins(root: &Path, pages: &[(String, String)]) -> Result<Vec<String>> {
    let readme = page(pages, "README.md")?;
    let paths = files::list(root.join("docs/plugins"))?;
    let names: Vec<&str> =
        paths.iter().filter_map(|path| path.file_name()?.to_str()?.strip_suffix(".md")).collect();
    let mut wrong: Vec<String> = names
        .iter()
        .filter(|name| !readme.contains(&format!("[{name}](docs/plugins/{name}.md)")))
        .map(|name| format!("README.md: the list of plugins lacks {name}"))
        .collect();
    // The plugins, cnitool and slipway.
    let changed = format!("{0} of {0} names changed", names.len() + 2);
    for (name, text) in pages {
        let lines = text.lines().filter(|line| line.ends_with(" names changed") && !line.contains(&changed));
        wrong.extend(lines.map(|line| format!("{name}: {line:?} should end with {changed:?}")));
    }
    Ok(wrong)
}

/// The pages of `docs` that no link leads to.
fn unreachable(pages: &[(String, String)]) -> Vec<String> {
    let mut linked = BTreeSet::new();
    for (name, text) in pages {
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        linked.extend(links::targets(text).into_iter().map(|target| normal(&folder.join(target))));
    }
    let own = pages.iter().filter(|(name, _)| name.starts_with("docs/") && !linked.contains(name));
    own.map(|(name, _)| format!("{name}: no page has a link to it")).collect()
}

/// The links to headings that do not exist.
fn anchors(pages: &[(String, String)]) -> Vec<String> {
    let headings: BTreeMap<&str, BTreeSet<String>> = pages
        .iter()
        .map(|(name, text)| (&**name, text.lines().filter_map(|line| Some(anchor(heading(line)?))).collect()))
        .collect();
    let mut wrong = Vec::new();
    for (name, text) in pages {
        let folder = Path::new(name).parent().unwrap_or(Path::new(""));
        for (file, wanted) in links::linked(text).iter().filter_map(|target| target.split_once('#')) {
            let page = if file.is_empty() { name.clone() } else { normal(&folder.join(file)) };
            if headings.get(&*page).is_some_and(|headings| !headings.contains(wanted)) {
                wrong.push(format!("{name}: {page} has no heading #{wanted}"));
            }
        }
    }
    wrong
}

fn heading(line: &str) -> Option<&str> {
    line.starts_with('#').then(|| line.trim_start_matches('#').strip_prefix(' ')).flatten()
}

/// The anchor of a heading on GitHub.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The path without `..`.
pub(crate) fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.iter().filter_map(|part| part.to_str()) {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The errors of the blocks that are marked as JSON.
fn json_errors(text: &str) -> Vec<String> {
    // The fence may have more words.
    let blocks =
        text.split("```json").skip(1).filter_map(|rest| rest.split_once('\n')?.1.split("```").next());
    let parsed = blocks.map(serde_json::from_str::<serde_json::Value>);
    parsed.filter_map(|parsed| Some(parsed.err()?.to_string())).collect()
}

/// The variables `SLIPWAY_…` of the pages that no source file has.
fn variables(root: &Path, pages: &[(String, String)]) -> Result<Vec<String>> {
    let mut known = BTreeSet::new();
    for folder in SOURCES {
        for path in sources(&root.join(folder))? {
            known.extend(names_of_variables(&files::read(&path)?));
        }
    }
    let wrong = pages.iter().flat_map(|(page, text)| {
        let unknown: Vec<String> = names_of_variables(text).difference(&known).cloned().collect();
        unknown.into_iter().map(move |name| format!("{page}: no source file has {name}"))
    });
    Ok(wrong.collect())
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = files::below(folder, files::has_sources)?;
    found.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    Ok(found)
}

fn names_of_variables(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    words.filter(|word| word.starts_with("SLIPWAY_") && word.len() > 8).map(str::to_owned).collect()
}

/// The plain names in the first columns of a section's tables that `source` does not have.
fn objects<'a>(text: &'a str, heading: &str, source: &'a str) -> impl Iterator<Item = &'a str> {
    let rows = section(text, heading).lines().filter(|line| line.starts_with("| `"));
    let names =
        rows.flat_map(|row| row[1..].split('|').next().unwrap_or_default().split('`').skip(1).step_by(2));
    // A name with a mark bit is made for a container or a subnet.
    let plain = |name: &&str| {
        name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            && !name.ends_with("-13")
    };
    let words: BTreeSet<&str> = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
    names.filter(plain).filter(move |name| !words.contains(name))
}

/// The codes of the specification and of the reference by the names that `cni-spec` gives them.
pub(crate) fn error_codes(source: &str) -> BTreeMap<String, u32> {
    let arms = source.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => "));
    arms.filter_map(|(name, code)| Some((name.to_owned(), code.strip_suffix(',')?.parse().ok()?))).collect()
}

/// Compares a table of codes with the codes that source files name.
fn codes_of_plugins(root: &Path, all: &BTreeMap<String, u32>, errors: &str) -> Result<Vec<String>> {
    let mut used = BTreeSet::new();
    for path in sources(&root.join("cni"))?.iter().filter(|path| !path.ends_with(ERROR_CODES)) {
        let text = files::read(path)?;
        let names = text.split("ErrorCode::").skip(1);
        let names = names.filter_map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric()).next());
        used.extend(names.filter_map(|name| all.get(name)));
    }
    // The constructors of `CniError` name these.
    used.extend(["InvalidConfig", "Internal"].iter().filter_map(|name| all.get(*name)));
    let documented = codes(errors);
    let wrong = used.symmetric_difference(&documented);
    Ok(wrong.map(|code| format!("docs/protocol.md: code {code} is used or documented, not both")).collect())
}

/// The numbers in columns named `code`.
fn codes(text: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut column = None;
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            column = None;
        } else if let Some(at) = cells.iter().position(|cell| *cell == "code") {
            column = Some(at);
        } else if let Some(cell) = column.and_then(|at| cells.get(at)) {
            found.extend(cell.split(", ").filter_map(|code| code.parse::<u32>().ok()));
        }
    }
    found
}

/// The text of a section of the second level.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let sections = text.split("\n## ");
    sections.filter_map(|part| part.strip_prefix(heading)).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_agree_with_the_tree() {
        let root = workspace::root();
        summary(&tree(root, &pages(root).unwrap()).unwrap()).unwrap();
    }

    #[test]
    fn a_block_that_is_no_json_is_named() {
        assert_eq!(json_errors("```json\n{ \"a\": [1] }\n```\n```text\n{\n```\n"), Vec::<String>::new());
        assert_eq!(json_errors("```json fragment=bridge\n{ \"a\": 1, }\n```\n").len(), 1);
    }

    #[test]
    fn codes_are_read_from_their_columns_alone() {
        let text = "| error | code |\n|---|---|\n| `11 ports` | 7 |\n| lease | as IPAM |\n\n| code | when |\n|---|---|\n| 1, 50 | 3 |\n";
        assert_eq!(codes(text), BTreeSet::from([1, 7, 50]));
    }

    #[test]
    fn an_object_and_a_variable_that_do_not_exist_are_named() {
        let page = "# A\n\n## Objects\n\n| map | b |\n|---|---|\n| `ports4`, `gone4` | `other` |\n| `of-<x>` | c |\n";
        assert_eq!(objects(page, "Objects", "map ports4 {").collect::<Vec<_>>(), ["gone4"]);
        let names = names_of_variables("`SLIPWAY_LOG=debug`, SLIPWAY_… and $SLIPWAY_BIN_DIR");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["SLIPWAY_BIN_DIR", "SLIPWAY_LOG"]);
    }

    #[test]
    fn a_link_to_a_heading_that_does_not_exist_is_named() {
        let pages = [
            (
                "a.md",
                "## The node's `lo`, again\n[x](#the-nodes-lo-again) [y](docs/b.md#gone) [z](docs/c.md#c)",
            ),
            ("docs/b.md", "# B\n[x](../a.md#the-nodes-lo-again)"),
        ];
        let pages = pages.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(anchors(&pages), ["a.md: docs/b.md has no heading #gone"]);
    }

    #[test]
    fn a_page_without_a_link_to_it_is_named() {
        let pages = [("docs/a/b.md", "[c](../c.md)"), ("docs/c.md", "[b](a/b.md#part)"), ("docs/d.md", "")];
        let pages = pages.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(unreachable(&pages), ["docs/d.md: no page has a link to it"]);
    }
}
