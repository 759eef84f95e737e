// SPDX-License-Identifier: MIT OR Apache-2.0

//! The public items of the published crates, compared with the committed listings `api/*.txt`. A changed listing
//! is a change for those who depend on the crate: a removed or changed line needs a new major version (before
//! 1.0 a new minor one). `UPDATE_EXPECT=1 cargo test -p cni-runtime --test api` writes the listings.
#![allow(clippy::unwrap_used, reason = "a panic is how a test reports a failure")]

use std::fs;
use std::path::Path;

use expect_test::expect_file;

#[test]
fn the_public_items_of_cni_runtime_are_those_listed() {
    expect_file!["../api/cni-runtime.txt"].assert_eq(&listing(Path::new("src")));
}

#[test]
fn the_public_items_of_cni_spec_are_those_listed() {
    expect_file!["../api/cni-spec.txt"].assert_eq(&listing(Path::new("../spec/src")));
}

/// The declarations of a crate's public items, by file. What the feature `fuzzing` adds is for the workspace alone.
fn listing(source: &Path) -> String {
    let mut files = Vec::new();
    collect(source, &mut files);
    files.sort();
    let mut all = String::new();
    for file in files {
        let name = file.strip_prefix(source).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let without_tests = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let items = items(&without_tests.replace("#[cfg(feature = \"fuzzing\")]\npub mod fuzzing;\n", ""));
        if !items.is_empty() && !name.ends_with("tests.rs") && !name.ends_with("fuzzing.rs") {
            all.push_str(&format!("{name}\n    {}\n", items.join("\n    ")));
        }
    }
    all
}

fn collect(directory: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// The lines that begin with `pub`, joined up to the body; of public enums and traits the lines inside as well.
fn items(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut lines = text.lines();
    let mut open = false;
    while let Some(line) = lines.next() {
        let inside = open && line != "}";
        open = inside;
        let trimmed = line.trim();
        let is_code = !trimmed.is_empty() && !trimmed.starts_with("//") && !trimmed.starts_with('#');
        let is_function = trimmed.starts_with("fn ");
        let implements = trimmed.starts_with("impl") && trimmed.contains(" for ");
        // Bodies of a trait's provided functions are indented more.
        let of_open = inside && is_code && (line.starts_with("    ") && !line.starts_with("         "));
        if !(trimmed.starts_with("pub ") || implements || of_open) {
            continue;
        }
        open |= trimmed.starts_with("pub enum") || trimmed.starts_with("pub trait");
        let mut item = trimmed.to_owned();
        let whole = |item: &str| item.ends_with(['{', ';', ',', '}']) && balanced(item);
        while !whole(&item) && (!inside || is_function) {
            let Some(next) = lines.next() else { break };
            item.push(' ');
            item.push_str(next.trim());
        }
        let item = item.trim_end_matches([' ', '{', ';', ',']).to_owned();
        if item != "}" {
            items.push(item);
        }
    }
    items
}

/// True if no parenthesis or bracket is open.
fn balanced(item: &str) -> bool {
    let count = |one: char| item.matches(one).count();
    count('(') == count(')') && count('[') == count(']')
}
