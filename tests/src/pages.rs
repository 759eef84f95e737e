// SPDX-License-Identifier: GPL-2.0-or-later

//! The code blocks of the documentation's pages, for the tests that run them.

use std::fs;
use std::path::{Path, PathBuf};

/// A fenced block of a page.
#[derive(Debug, Clone)]
pub struct Block {
    /// The page's path from the root of the checkout.
    pub page: String,
    /// The number of the line with the opening fence, from 1.
    pub line: usize,
    /// The first word of the opening fence, such as `json`; empty if there is none.
    pub language: String,
    /// The other words of the opening fence, such as `fragment=portmap`. Renderers ignore them.
    pub words: Vec<String>,
    /// The block's lines, without the indentation of the fence.
    pub lines: Vec<String>,
}

impl Block {
    /// The value of a word `key=value` on the fence.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    pub fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The page and the line, for messages.
    pub fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the checkout")
}

/// The paths of the README and of all pages below `docs`, from the root of the checkout.
pub fn names() -> Vec<String> {
    let mut found = vec!["README.md".to_owned()];
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        let path = root().join(&folder);
        let entries = fs::read_dir(&path).unwrap_or_else(|e| panic!("list {}: {e}", path.display()));
        for entry in entries.flatten() {
            let name = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(name);
            } else if name.extension().is_some_and(|extension| extension == "md") {
                found.push(name.display().to_string());
            }
        }
    }
    found.sort();
    found
}

pub fn blocks(page: &str) -> Vec<Block> {
    let path = root().join(page);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
    blocks_in(page, &text)
}

/// The content of a file that a page shows: the first block with `file=` and this path.
pub fn file(page: &str, path: &str) -> String {
    let found = blocks(page).into_iter().find(|block| block.value("file") == Some(path));
    found.unwrap_or_else(|| panic!("{page} does not show {path}")).text()
}

fn blocks_in(page: &str, text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut indent = None;
    for (at, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (indent, fence) {
            (None, Some(info)) => {
                indent = Some(line.len() - line.trim_start().len());
                let mut words = info.split_whitespace().map(str::to_owned);
                found.push(Block {
                    page: page.to_owned(),
                    line: at + 1,
                    language: words.next().unwrap_or_default(),
                    words: words.collect(),
                    lines: Vec::new(),
                });
            }
            (Some(_), Some(_)) => indent = None,
            (Some(blanks), None) => {
                let rest = line.get(blanks..).unwrap_or_default().to_owned();
                found.last_mut().expect("a block is open").lines.push(rest);
            }
            (None, None) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn blocks_have_their_words_and_lose_the_indentation_of_a_list() {
        let page = "# A\n\n1. b\n\n   ```json fragment=portmap\n   {\n     \"a\": 1\n\n   }\n   ```\n\n```\nc\n```\n";
        let found = super::blocks_in("docs/a.md", page);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].place().as_str(), found[0].value("fragment")), ("docs/a.md:5", Some("portmap")));
        assert_eq!(found[0].text(), "{\n  \"a\": 1\n\n}\n");
        assert_eq!((found[1].language.as_str(), found[1].value("fragment")), ("", None));
    }
}
