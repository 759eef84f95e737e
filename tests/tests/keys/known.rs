// SPDX-License-Identifier: GPL-2.0-or-later

//! The list of intended differences: tests/golden/keys-differences.toml.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// An entry of the list: the cases, the reason, and the place in a page that documents the difference.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Known {
    /// The names of subjects. The entry must occur in the run of each of them.
    subjects: Vec<String>,
    /// Patterns for the names of cases, in which `*` stands for any text.
    #[serde(default = "any")]
    cases: Vec<String>,
    /// Patterns for aspects.
    aspects: Vec<String>,
    reason: String,
    /// The page's path below docs, and words that it contains.
    page: String,
    line: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    difference: Vec<Known>,
}

impl List {
    fn read() -> Self {
        let path = root().join("tests/golden/keys-differences.toml");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
        toml::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }
}

fn any() -> Vec<String> {
    vec!["*".to_owned()]
}

impl Known {
    pub(crate) fn all() -> Vec<Self> {
        List::read().difference
    }

    pub(crate) fn is_of(&self, subject: &str) -> bool {
        self.subjects.iter().any(|name| name == subject)
    }

    pub(crate) fn explains(&self, case: &str, aspect: &str) -> bool {
        let fits = |patterns: &[String], text: &str| patterns.iter().any(|pattern| matches(pattern, text));
        fits(&self.cases, case) && fits(&self.aspects, aspect)
    }
}

impl std::fmt::Display for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}: {}", self.cases, self.aspects, self.reason)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("")
}

/// True if `text` matches `pattern`, in which each star stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}

#[test]
fn stars_match_any_text() {
    for (pattern, text, fits) in [
        ("*", "", true),
        ("a*c", "abc", true),
        ("a*c", "abcd", false),
        ("*b*", "abc", true),
        ("abc", "abcd", false),
        ("/mtu=*", "/mtu=7", true),
    ] {
        assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
    }
}

/// Joins the lines of a page, which may be broken anywhere in a sentence.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn each_known_difference_is_on_its_page() {
    for known in List::read().difference {
        let path = root().join("docs").join(&known.page);
        let page = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
        let documented = !known.line.is_empty() && unwrapped(&page).contains(&unwrapped(&known.line));
        assert!(documented, "{} does not contain {:?} ({known})", path.display(), known.line);
        assert!(known.reason.ends_with('.'), "a reason is a sentence: {known}");
    }
}
