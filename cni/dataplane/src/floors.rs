// SPDX-License-Identifier: GPL-2.0-or-later

//! The order of this crate's files, compared with their imports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the ground up. A file or folder imports nothing from a later line; those of one line may import each
/// other, but not in a circle.
const FLOORS: &[&[&str]] = &[
    &[
        "lib",
        "owner",
        "port",
        "policy",
        "run_dir",
        "chain_name",
        "options",
        "difference",
        "error",
        "backend",
        "flow",
        "fake",
        "lock",
    ],
    &["owned_table", "service_links"],
    &["nftables", "macspoof", "duplicates"],
    &["iptables"],
    &["firewall"],
    &["reference", "dump", "explain", "trace"],
    &["ebpf"],
    &["node", "migrate", "teardown", "other_backends"],
    &["dispatch"],
];

/// Not compared: `lib.rs` names every file.
const EXCEPT: [&str; 1] = ["lib"];

/// Names that `lib.rs` exports, by the file that has them; all others are names of modules.
fn exports(lib: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for line in statements(lib).iter().filter_map(|line| line.strip_prefix("pub use ")) {
        let Some((module, names)) = line.split_once("::") else { continue };
        for name in names.trim_matches(['{', '}', ' ']).split(',') {
            found.insert(name.trim().to_owned(), module.to_owned());
        }
    }
    found
}

/// The statements of a file in one line each, without its comments and its tests.
fn statements(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    let code = lines.collect::<Vec<_>>().join(" ");
    code.split(';').map(|one| one.trim().to_owned()).collect()
}

/// The first path segments that follow `crate::` (or, in a folder, `super::`) anywhere in a file.
fn imported(text: &str, root: &str) -> BTreeSet<String> {
    let code = statements(text).join(";");
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(root) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + root.len()..];
        match rest.strip_prefix('{') {
            Some(list) => names.extend(top_level(list)),
            None => drop(names.insert(word(rest))),
        }
    }
    names
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The first segments of the paths in a list of imports, which may have lists in it.
fn top_level(list: &str) -> Vec<String> {
    let (mut depth, mut begins, mut names) = (0, true, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            c if begins && depth == 0 && !c.is_whitespace() => {
                names.push(word(&list[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every file below a folder, with its path without the ending.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            all.extend(files(&entry.path()).into_iter().map(|(file, text)| (format!("{name}/{file}"), text)));
        } else if let Some(stem) =
            name.strip_suffix(".rs").filter(|stem| *stem != "tests" && *stem != "floors")
        {
            all.insert(stem.to_owned(), fs::read_to_string(entry.path()).unwrap());
        }
    }
    all
}

fn floor(name: &str) -> usize {
    let found = FLOORS.iter().position(|floor| floor.contains(&name));
    found.unwrap_or_else(|| panic!("{name} has no floor: give it one in {}", file!()))
}

/// Removes what imports nothing that is left, again and again: what stays is in a circle, or above one.
fn circles(mut imports: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    loop {
        let known: BTreeSet<String> = imports.keys().cloned().collect();
        let before = imports.len();
        imports.retain(|name, to| to.iter().any(|other| other != name && known.contains(other)));
        if imports.len() == before {
            return imports;
        }
    }
}

#[test]
fn no_file_imports_from_a_later_floor() {
    let all = files(&source());
    let exports = exports(&all["lib"]);
    let mut wrong = Vec::new();
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in all.iter().filter(|(file, _)| !EXCEPT.contains(&file.as_str())) {
        let own = file.split('/').next().unwrap();
        for name in imported(text, "crate::") {
            let to = exports.get(&name).unwrap_or(&name);
            if floor(to) > floor(own) {
                wrong.push(format!("{file} imports {to}, which stands above it"));
            }
            imports.entry(own.to_owned()).or_default().insert(to.clone());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(circles(imports), BTreeMap::new());
}

#[test]
fn no_files_of_a_folder_import_each_other_in_a_circle() {
    for folder in ["nftables", "nftables/schema", "iptables", "firewall", "migrate", "ebpf"] {
        let all = files(&source().join(folder));
        let inside = |name: &String| {
            *name != "mod" && (all.contains_key(name) || all.contains_key(&format!("{name}/mod")))
        };
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        // A folder's mod.rs names its files, and they may name it for what it exports.
        for (file, text) in all.iter().filter(|(file, _)| *file != "mod") {
            let (own, root) = match file.split_once('/') {
                Some((own, "mod")) => (own, "super::"),
                Some((own, _)) => (own, "super::super::"),
                None => (file.as_str(), "super::"),
            };
            imports
                .entry(own.to_owned())
                .or_default()
                .extend(imported(text, root).into_iter().filter(inside));
        }
        assert_eq!(circles(imports), BTreeMap::new(), "in {folder}");
    }
}
