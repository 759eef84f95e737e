// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies the pages for mdBook, with links that hold in the site.

use std::path::{Path, PathBuf};

use super::contents;
use crate::links;
use crate::statements::normal;
use xtask_base::error::Result;
use xtask_base::files;

/// The outcome for a link.
#[derive(Debug, PartialEq, Eq)]
enum Link {
    To(String),
    /// The link's text, and the path from the root.
    Text(String),
}

/// Writes each page, and the files of `docs` that pages link to, below `into`.
pub(super) fn stage(root: &Path, into: &Path, source_url: Option<&str>) -> Result<()> {
    for page in contents::pages() {
        let path = root.join(page);
        let text = files::read(&path)?;
        let mut files: Vec<String> = Vec::new();
        let staged = rewrite(&text, |target| {
            let link = link(page, target, source_url);
            if let Some(file) = in_docs(page, target) {
                files.push(file);
            }
            link
        });
        write(&into.join(contents::place(page)), staged.as_bytes())?;
        for file in files {
            let from = root.join(&file);
            let bytes = files::read_bytes(&from)?;
            write(&into.join(&file), &bytes)?;
        }
    }
    write(&into.join("SUMMARY.md"), contents::summary(root)?.as_bytes())
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    files::create_dir(folder)?;
    files::write(path, bytes)
}

/// The path from the root that a page's relative link leads to, and its anchor.
fn resolved<'a>(page: &str, target: &'a str) -> Option<(String, &'a str)> {
    if target.contains(':') {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, ""), |(file, anchor)| (file, anchor));
    if file.is_empty() {
        return None;
    }
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    Some((normal(&folder.join(file)), anchor))
}

fn is_page(path: &str) -> bool {
    contents::pages().any(|page| page == path)
}

/// The file of `docs`, not a page, that the link leads to.
fn in_docs(page: &str, target: &str) -> Option<String> {
    let (path, _) = resolved(page, target)?;
    (path.starts_with("docs/") && !is_page(&path) && Path::new(&path).extension().is_some()).then_some(path)
}

fn link(page: &str, target: &str, source_url: Option<&str>) -> Link {
    let Some((path, anchor)) = resolved(page, target) else { return Link::To(target.to_owned()) };
    let up = "../".repeat(contents::place(page).matches('/').count());
    let anchor = if anchor.is_empty() { String::new() } else { format!("#{anchor}") };
    if is_page(&path) {
        let html = PathBuf::from(contents::place(&path)).with_extension("html");
        return Link::To(format!("{up}{}{anchor}", html.display()));
    }
    if in_docs(page, target).is_some() {
        return Link::To(format!("{up}{path}"));
    }
    match source_url {
        Some(base) => Link::To(format!("{}/{path}{anchor}", base.trim_end_matches('/'))),
        None => Link::Text(path),
    }
}

/// The text with other links, outside code.
fn rewrite(text: &str, mut link: impl FnMut(&str) -> Link) -> String {
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for target in links::places(text) {
        out.push_str(&text[copied..target.start - "](".len()]);
        copied = target.end + ")".len();
        place(&mut out, link(&text[target]));
    }
    out.push_str(&text[copied..]);
    out
}

/// Ends the link whose text `out` ends with.
fn place(out: &mut String, link: Link) {
    match link {
        Link::To(target) => out.push_str(&format!("]({target})")),
        Link::Text(path) => {
            let mut open = 1;
            let start = out.rfind(|c| {
                open += i32::from(c == ']') - i32::from(c == '[');
                open == 0
            });
            let text = start.map(|at| out.split_off(at)).unwrap_or_default();
            let text = text.strip_prefix('[').unwrap_or_default();
            out.push_str(text);
            if text.trim_matches('`') != path {
                out.push_str(&format!(" (`{path}`)"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(page: &str, text: &str, base: Option<&str>) -> String {
        rewrite(text, |target| link(page, target, base))
    }

    #[test]
    fn links_to_pages_and_files_of_docs_hold_in_the_site() {
        let text = "[a](../dataplane.md#the-contract) [b](../../README.md) [c](../../.github/CONTRIBUTING.md)\n\
                    ![d](../images/traffic.svg) [e](#keys) [f](https://f.example/x.md)";
        assert_eq!(
            staged("docs/plugins/bridge.md", text, None),
            "[a](../../docs/dataplane.html#the-contract) [b](../../index.html) [c](../../CONTRIBUTING.html)\n\
             ![d](../../docs/images/traffic.svg) [e](#keys) [f](https://f.example/x.md)"
        );
        assert_eq!(staged(".github/CONTRIBUTING.md", "[a](../docs/json.md)", None), "[a](docs/json.html)");
    }

    #[test]
    fn a_link_to_a_source_is_its_path_or_a_link_below_the_given_address() {
        let text = "[the `[x]`\ntests](../tests/tests/contract), [deny.toml](../deny.toml)";
        let expected = "the `[x]`\ntests (`tests/tests/contract`), deny.toml";
        assert_eq!(staged("docs/a.md", text, None), expected);
        let expected = "[the `[x]`\ntests](https://s.example/t/tests/tests/contract), \
                        [deny.toml](https://s.example/t/deny.toml)";
        assert_eq!(staged("docs/a.md", text, Some("https://s.example/t/")), expected);
    }

    #[test]
    fn code_stays_and_a_span_of_two_lines_ends() {
        let text = "`[a](b.md)\nc` [`slipway dhcp\ndaemon`](json.md)\n```\n[a](json.md)\n```\n";
        let expected = "`[a](b.md)\nc` [`slipway dhcp\ndaemon`](../docs/json.html)\n```\n[a](json.md)\n```\n";
        assert_eq!(staged("docs/a.md", text, None), expected);
    }
}
