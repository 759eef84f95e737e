// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tests that the page of security names for what it promises.

use std::collections::BTreeSet;
use std::path::Path;

use super::sources;
use xtask_base::error::Result;
use xtask_base::files;

/// The page, in whose tables and sentences a test is `contract::udp::name`, or `cni/kernel: name`. A name alone belongs
/// to the suite or crate before it.
pub(super) const PAGE: &str = "docs/security.md";

/// The tests of the page that do not exist.
pub(super) fn missing(root: &Path, page: &str) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    for (folder, name) in named(page) {
        // A suite is a folder, or a file.
        let (place, file) = (root.join(&folder), root.join(&folder).with_extension("rs"));
        let paths = if place.is_dir() {
            sources(&place)?
        } else {
            vec![file].into_iter().filter(|file| file.is_file()).collect()
        };
        let declaration = format!("fn {name}(");
        let mut found = false;
        for path in &paths {
            found |= files::read(path)?.contains(&declaration);
        }
        if !found {
            missing.push(format!("{PAGE}: {folder} has no test {name}"));
        }
    }
    Ok(missing)
}

/// The tests that the page names, each with the folder of its suite or crate.
fn named(page: &str) -> BTreeSet<(String, String)> {
    let mut named = BTreeSet::new();
    for line in page.lines() {
        let mut folder: Option<String> = None;
        for word in line.split('`').skip(1).step_by(2) {
            if let Some((of_crate, test)) = word.split_once(": ").filter(|(name, _)| name.starts_with("cni/"))
            {
                folder = Some(of_crate.to_owned());
                named.insert((of_crate.to_owned(), test.to_owned()));
            } else if let Some((suite, rest)) =
                word.split_once("::").filter(|(suite, _)| *suite == suite.to_lowercase())
            {
                let suite = format!("tests/tests/{suite}");
                named.insert((suite.clone(), rest.rsplit("::").next().unwrap_or(rest).to_owned()));
                folder = Some(suite);
            } else if let Some(folder) = folder.clone().filter(|_| is_name(word)) {
                named.insert((folder, word.to_owned()));
            }
        }
    }
    named
}

/// True for the name of a test, which has several words.
fn is_name(word: &str) -> bool {
    word.matches('_').count() > 1
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_with_their_suite_or_crate() {
        let page = "| Holds | `contract::guard::a_pod_cannot`, `packets_cannot_join_it` |\n\
                    | A file of `/etc` | `cni/kernel: links_are_refused`, `and_large_ones_too` |\n\
                    with `NET_RAW`, `macspoofchk` and `a_b_c` outside\n";
        let found: Vec<String> =
            named(page).into_iter().map(|(folder, name)| format!("{folder} {name}")).collect();
        let wanted = [
            "cni/kernel and_large_ones_too",
            "cni/kernel links_are_refused",
            "tests/tests/contract a_pod_cannot",
            "tests/tests/contract packets_cannot_join_it",
        ];
        assert_eq!(found, wanted);
    }
}
