// SPDX-License-Identifier: MIT OR Apache-2.0

//! The direction of all imports: between crates as docs/ARCHITECTURE.md draws them, and without circles inside a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::circles::circles;
use crate::{crates, imports, modules};

/// The floors inside `cni/dataplane`, from the ground up. A file or folder imports nothing from a later line. In the
/// other crates, circles are the only thing that is forbidden.
const DATAPLANE: &[&[&str]] = &[
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
        "networks",
        "flow",
        "fake",
        "lock",
        "document",
    ],
    &["owned_table", "service_links"],
    &["nftables", "macspoof", "duplicates", "tunnel_guard"],
    &["namespace_record"],
    &["iptables"],
    &["firewall"],
    &["reference", "dump", "explain", "foreign_nat", "trace", "whereabouts"],
    &["ebpf"],
    &["node", "migrate", "teardown", "other_backends"],
    &["dispatch", "dropping", "owner_search", "fuzzing"],
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The root files of all crates: those of the workspace, and those of `ebpf`, which is a workspace of its own.
fn roots() -> Vec<PathBuf> {
    let members = crates::read(&workspace()).unwrap().into_iter().map(|one| one.folder);
    let folders = members.chain(["ebpf/abi".to_owned(), "ebpf/programs".to_owned()]);
    let mut roots = Vec::new();
    for folder in folders {
        let source = workspace().join(&folder).join("src");
        roots.extend(
            ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().filter(|file| file.is_file()),
        );
        if let Ok(programs) = fs::read_dir(source.join("bin")) {
            let files = programs.map(|entry| entry.unwrap().path());
            roots.extend(files.filter(|file| file.extension().is_some_and(|ending| ending == "rs")));
        }
    }
    roots
}

fn name(root: &Path) -> String {
    root.strip_prefix(workspace()).unwrap().display().to_string()
}

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    let mut files = 0;
    let mut found = Vec::new();
    for root in roots() {
        let graph = imports::imports(&modules::read(&root).unwrap());
        files += graph.len();
        for circle in circles(&graph) {
            let arrows = circle.iter().flat_map(|from| {
                graph[from]
                    .intersection(&circle)
                    .map(move |to| format!("  {} -> {}", from.display(), to.display()))
            });
            found.push(format!("{}:\n{}", name(&root), arrows.collect::<Vec<_>>().join("\n")));
        }
    }
    assert!(files > 500, "only {files} files were read");
    assert!(found.is_empty(), "{} circles:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_files_of_the_dataplane_import_from_their_floor_and_those_below() {
    let floor = |file: &Path| {
        let first = file.components().next().unwrap().as_os_str().to_str().unwrap();
        let first = first.trim_end_matches(".rs");
        let found = DATAPLANE.iter().position(|floor| floor.contains(&first));
        found.unwrap_or_else(|| panic!("{first} has no floor: give it one in {}", file!()))
    };
    let root = workspace().join("cni/dataplane/src/lib.rs");
    let graph = imports::imports(&modules::read(&root).unwrap());
    let upwards = graph.iter().flat_map(|(from, all)| {
        let higher = all.iter().filter(|to| floor(to) > floor(from));
        higher.map(|to| format!("{} imports {}, which stands above it", from.display(), to.display()))
    });
    assert_eq!(upwards.collect::<Vec<_>>(), Vec::<String>::new());
}

/// The text of the code block or table that follows a comment line of this name in docs/ARCHITECTURE.md.
fn checked_block(page: &str, name: &str) -> String {
    let begin = format!("<!-- {name}: checked by a test -->\n");
    let (_, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("docs/ARCHITECTURE.md has no {begin}"));
    let (block, _) = rest.split_once("<!-- end -->").unwrap();
    block.trim().to_owned()
}

fn page() -> String {
    fs::read_to_string(workspace().join("docs/ARCHITECTURE.md")).unwrap()
}

#[test]
fn the_drawing_of_the_architecture_shows_the_floors_of_the_crates() {
    let uses = crates::uses(&crates::read(&workspace()).unwrap());
    let product: BTreeMap<String, BTreeSet<String>> =
        uses.into_iter().filter(|(folder, _)| folder.starts_with("cni/")).collect();
    let short = |folder: &String| folder.trim_start_matches("cni/").to_owned();
    let floors = crates::floors(&product);
    let lines = floors.iter().rev().map(|floor| floor.iter().map(short).collect::<Vec<_>>().join("   "));
    let drawing = format!("```text\n{}\n```", lines.collect::<Vec<_>>().join("\n"));
    assert_eq!(checked_block(&page(), "floors"), drawing, "write this into docs/ARCHITECTURE.md:\n{drawing}");
}

#[test]
fn the_table_of_the_architecture_says_which_crate_uses_which() {
    let mut expected = crates::uses(&crates::read(&workspace()).unwrap());
    expected.retain(|folder, _| folder.starts_with("cni/"));
    let short = |folder: &str| folder.trim_start_matches("cni/").to_owned();
    let mut named = BTreeMap::new();
    for row in checked_block(&page(), "crates").lines().filter(|row| row.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let folder = cells[1].split('`').nth(1).unwrap().to_owned();
        let used: BTreeSet<String> = cells[3]
            .split(", ")
            .filter(|cell| *cell != "–")
            .map(|cell| cell.trim_matches('`').to_owned())
            .collect();
        named.insert(folder, used);
    }
    for (folder, used) in expected {
        let used: BTreeSet<String> = used.iter().map(|one| short(one)).collect();
        assert_eq!(named.remove(&folder), Some(used), "the row of {folder} in docs/ARCHITECTURE.md");
    }
    assert_eq!(named, BTreeMap::new(), "rows without a crate");
}

#[test]
fn the_architecture_takes_three_screens() {
    let lines = page().lines().count();
    assert!(lines <= 150, "docs/ARCHITECTURE.md has {lines} lines");
}
