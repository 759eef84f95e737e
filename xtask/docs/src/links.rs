// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks the links between the pages of the documentation.

use std::ops::Range;
use std::path::{Path, PathBuf};

use xtask_base::error::{Error, Result};
use xtask_base::files;

/// Checks every relative link in the Markdown files and returns their number. Links with a scheme are not
/// followed.
pub(crate) fn check(root: &Path) -> Result<usize> {
    let mut count = 0;
    let mut broken = Vec::new();
    for page in pages(root)? {
        let text = files::read(&page)?;
        for target in targets(&text) {
            count += 1;
            let folder = page.parent().unwrap_or(root);
            if !folder.join(target).exists() {
                let page = page.strip_prefix(root).unwrap_or(&page);
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    if broken.is_empty() {
        return Ok(count);
    }
    Err(Error::Failed(format!("links to missing files:\n    {}", broken.join("\n    "))))
}

/// The Markdown files of the checkout, without `target` and hidden folders other than `.github`.
pub(crate) fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let is_entered = |name: &str| name == ".github" || files::has_sources(name);
    let mut pages = files::below(root, is_entered)?;
    pages.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    Ok(pages)
}

/// The relative targets of `[text](target)` outside code blocks and code spans, without their anchors.
pub(crate) fn targets(text: &str) -> Vec<&str> {
    let files = linked(text).into_iter().map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty()).collect()
}

/// The same with their anchors, and those that are an anchor alone.
pub(crate) fn linked(text: &str) -> Vec<&str> {
    let all = places(text).into_iter().map(|place| &text[place]);
    all.filter(|target| !target.contains(':')).collect()
}

/// The places in the text of all targets of `[text](target)` outside code blocks and code spans.
pub(crate) fn places(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut in_block, mut in_code, mut start) = (false, false, 0);
    for line in text.split_inclusive('\n') {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        // A code span may continue in the next line, but not in the next paragraph.
        in_code &= !is_fence && !line.trim().is_empty();
        let mut at = if in_block || is_fence { line.len() } else { 0 };
        while let Some(next) = line[at..].find(['`', ']']) {
            at += next;
            let target = line[at..].strip_prefix("](").filter(|_| !in_code).and_then(|rest| rest.find(')'));
            in_code ^= line[at..].starts_with('`');
            at += 1;
            if let Some(length) = target {
                found.push(start + at + 1..start + at + 1 + length);
                at += 1 + length;
            }
        }
        start += line.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_relative_targets_outside_code_count() {
        let text = "[a](docs/a.md) and [b](docs/b.md#part), not [c](https://c.example/) or [d](#here)\n\
                    `[e](e.md)` [f](f.md)\n```\n[g](g.md)\n```\n[h](../h.md)\n";
        assert_eq!(targets(text), ["docs/a.md", "docs/b.md", "f.md", "../h.md"]);
        assert_eq!(linked(text), ["docs/a.md", "docs/b.md#part", "#here", "f.md", "../h.md"]);
    }

    #[test]
    fn a_code_span_over_two_lines_hides_no_link() {
        let text = "[`podman\nrun`](a.md) [b](b.md), `[c](c.md)\n[d](d.md)` [e](e.md)\n\nan odd ` here\n\n[f](f.md)\n";
        assert_eq!(targets(text), ["a.md", "b.md", "e.md", "f.md"]);
    }

    #[test]
    fn a_broken_link_is_named_with_its_page() {
        let dir = xtask_base::workspace::scratch("links-test").unwrap();
        fs::write(dir.join("page.md"), "[there](page.md) [gone](missing.md)").unwrap();
        let error = check(&dir).unwrap_err().to_string();
        assert_eq!(error, "links to missing files:\n    page.md: missing.md");
    }
}
