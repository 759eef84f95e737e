// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reference pages that are written from the sources, so that nothing is said twice: `docs/json.md` from the types of the
//! documents, `docs/errors.md` from the texts of the errors, `docs/commands.md` from the helps of the built programs.
//! `cargo xtask docs --write` writes them, and the check of the pages compares them.

mod commands;
mod errors;
mod json;
mod source;

use std::path::Path;

use xtask_base::error::{Error, Result};
use xtask_base::files;

/// A page, and what makes the part of it between the marks.
type Page = (&'static str, fn(&Path) -> Result<String>);

const PAGES: [Page; 2] = [("docs/json.md", json::text), ("docs/errors.md", errors::text)];

/// The page that is made from what the programs print.
const COMMANDS: &str = "docs/commands.md";

const BEGIN: &str = "<!-- written by cargo xtask docs --write -->\n";
const END: &str = "<!-- end of what is written -->\n";

/// Writes the pages that are made from the sources, and returns their names.
pub(crate) fn write(root: &Path) -> Result<Vec<&'static str>> {
    for (page, text) in PAGES {
        let path = root.join(page);
        files::write(&path, filled(page, &files::read(&path)?, &text(root)?)?)?;
    }
    Ok(PAGES.map(|(page, _)| page).into())
}

/// Writes the page that is made from what the programs print.
pub(crate) fn write_commands(root: &Path, slipway: &Path, slipwayd: &Path) -> Result<&'static str> {
    let path = root.join(COMMANDS);
    files::write(&path, filled(COMMANDS, &files::read(&path)?, &commands::text(slipway, slipwayd)?)?)?;
    Ok(COMMANDS)
}

/// The pages that differ from the sources.
pub(crate) fn stale(root: &Path) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for (page, text) in PAGES {
        let is_stale = differs(root, page, &text(root)?)?;
        wrong.extend(
            is_stale.then(|| format!("{page} differs from the sources: run `cargo xtask docs --write`")),
        );
    }
    Ok(wrong)
}

/// The same of the page that is made from what the programs print.
pub(crate) fn stale_commands(root: &Path, slipway: &Path, slipwayd: &Path) -> Result<Option<String>> {
    let is_stale = differs(root, COMMANDS, &commands::text(slipway, slipwayd)?)?;
    Ok(is_stale.then(|| {
        format!(
            "{COMMANDS} differs from what the programs print: build them, and run `cargo xtask docs --write`"
        )
    }))
}

fn differs(root: &Path, page: &str, text: &str) -> Result<bool> {
    let written = files::read(root.join(page))?;
    Ok(filled(page, &written, text)? != written)
}

/// The page with this text between the marks.
fn filled(page: &str, written: &str, text: &str) -> Result<String> {
    let parts = written.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) =
        parts.ok_or_else(|| Error::Failed(format!("{page} lacks the lines {BEGIN:?} and {END:?}")))?;
    Ok(format!("{before}{BEGIN}\n{}\n\n{END}{after}", text.trim_matches('\n')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_marks_is_replaced() {
        let page = format!("# A\n\n{BEGIN}old\n{END}\nafter\n");
        let once = filled("a.md", &page, "\nnew\n").unwrap();
        assert_eq!(once, format!("# A\n\n{BEGIN}\nnew\n\n{END}\nafter\n"));
        assert_eq!(filled("a.md", &once, "new").unwrap(), once);
        let error = filled("a.md", "# A\n", "new").unwrap_err().to_string();
        assert!(error.starts_with("a.md lacks the lines"), "{error}");
    }
}
