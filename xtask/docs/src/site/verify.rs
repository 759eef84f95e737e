// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks the rendered site: links, anchors, and that nothing is loaded from other hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::statements::normal;
use xtask_base::error::{Error, Result};
use xtask_base::files;

/// Elements that load what their attributes name.
const LOADING: [&str; 5] = ["script ", "link ", "img ", "iframe ", "source "];

/// Checks all pages and styles below `site`, and returns the number of links.
pub(super) fn check(site: &Path) -> Result<usize> {
    let mut texts = BTreeMap::new();
    let mut files = BTreeSet::new();
    for path in files::below(site, |_| true)? {
        let name = path.strip_prefix(site).unwrap_or(&path).display().to_string();
        if name.ends_with(".html") || name.ends_with(".css") {
            texts.insert(name.clone(), files::read(&path)?);
        }
        files.insert(name);
    }
    let ids: BTreeMap<&str, BTreeSet<&str>> =
        texts.iter().map(|(name, text)| (&**name, values(text, " id=\"", '"').collect())).collect();
    let (mut count, mut wrong) = (0, Vec::new());
    for (name, text) in &texts {
        wrong.extend(loaded(text).into_iter().map(|what| format!("{name}: loads {what}")));
        for target in targets(name, text) {
            count += 1;
            wrong.extend(broken(name, target, &files, &ids).map(|why| format!("{name}: {target}: {why}")));
        }
    }
    if wrong.is_empty() {
        return Ok(count);
    }
    Err(Error::Failed(format!("the site is wrong:\n    {}", wrong.join("\n    "))))
}

/// The texts between `before` and `end`.
fn values<'a>(text: &'a str, before: &'a str, end: char) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(move |rest| rest.split(end).next())
}

/// The relative links of a page or of a style.
fn targets<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
    let all: Vec<&str> = if name.ends_with(".css") {
        values(text, "url(", ')').map(|url| url.trim_matches(['"', '\''])).collect()
    } else {
        values(text, " href=\"", '"').chain(values(text, " src=\"", '"')).collect()
    };
    all.into_iter().filter(|target| !is_foreign(target) && !target.starts_with("data:")).collect()
}

fn is_foreign(target: &str) -> bool {
    ["http:", "https:", "//", "mailto:"].iter().any(|start| target.starts_with(start))
}

/// The files of other hosts that an element or a style loads.
fn loaded(text: &str) -> Vec<&str> {
    let elements = text.split('<').filter(|part| LOADING.iter().any(|name| part.starts_with(name)));
    let named = elements.flat_map(|part| values(part, "=\"", '"')).chain(values(text, "url(", ')'));
    named.map(|value| value.trim_matches(['"', '\''])).filter(|value| is_foreign(value)).collect()
}

/// Why a link leads nowhere.
fn broken(
    page: &str,
    target: &str,
    files: &BTreeSet<String>,
    ids: &BTreeMap<&str, BTreeSet<&str>>,
) -> Option<&'static str> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let path = PathBuf::from(path.split('?').next().unwrap_or_default());
    let file = if path.as_os_str().is_empty() { page.to_owned() } else { normal(&folder.join(path)) };
    if !files.contains(&file) {
        return Some("no such file");
    }
    let known = ids.get(&*file).is_none_or(|ids| ids.contains(anchor));
    (!anchor.is_empty() && !known).then_some("no such anchor")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use xtask_base::workspace;

    fn checked(page: &str) -> Result<usize> {
        let site = workspace::scratch(&format!("docs-verify-{}", page.len())).unwrap();
        fs::write(site.join("a.html"), page).unwrap();
        fs::write(site.join("b.css"), "b { src: url(\"b.css\") }").unwrap();
        check(&site)
    }

    #[test]
    fn a_link_an_anchor_and_a_file_of_another_host_are_named() {
        let page = "<h1 id=\"x\">a</h1><a href=\"#x\">b</a> <a href=\"https://h.example/\">c</a><link href=\"b.css\">";
        assert_eq!(checked(page).unwrap(), 3);
        let page = "<a href=\"c.html\"></a><a href=\"a.html#y\"></a><img src=\"https://h.example/i.png\">";
        let error = checked(page).unwrap_err().to_string();
        for line in [
            "a.html: c.html: no such file",
            "a.html: a.html#y: no such anchor",
            "a.html: loads https://h.example/i.png",
        ] {
            assert!(error.contains(line), "{error}");
        }
    }
}
