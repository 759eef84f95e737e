// SPDX-License-Identifier: MIT OR Apache-2.0

//! The spelling of pages, comments, names and messages. The dictionary, which is that of the program typos, has common
//! misspellings rather than all words: names need no dictionary of their own, and the list of exceptions is short.

use std::borrow::Cow;
use std::path::Path;

use typos::tokens::{Case, Identifier, Tokenizer, Word};
use typos::{Dictionary, Status, Typo};
use unicase::UniCase;

use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, tool};

/// Names of the kernel's, of crates and of programs, or parts of them.
const NAMES: [&str; 12] =
    ["emitable", "flate", "iif", "inh", "mke", "oif", "parms", "ratatui", "restor", "rto", "ser", "wronly"];

/// Words of tests, most of which mistype something.
const OF_TESTS: [&str; 13] = [
    "abd", "addresss", "alikes", "ba", "backned", "brigde", "chec", "hree", "mapings", "nce", "ouput",
    "subent", "ype",
];

/// The files that are checked, as git(1) selects them; the texts of licences are not ours.
const FILES: [&str; 8] = [
    "*.md",
    "*.rs",
    "*.sh",
    "*.toml",
    "*.yaml",
    "*.service",
    ".github",
    ":(exclude)xtask/dist/src/package/licences",
];

/// Returns a line for people.
pub(crate) fn check(root: &Path) -> Result<String> {
    let mut list = tool("git", &["ls-files", "--cached", "--others", "--exclude-standard", "--"]);
    let listed = run::capture(list.args(FILES).current_dir(root))?;
    let mut wrong = Vec::new();
    for name in listed.lines() {
        let text = files::read(root.join(name))?;
        wrong.extend(faults(&text).into_iter().map(|fault| format!("{name}:{fault}")));
    }
    if wrong.is_empty() {
        return Ok(format!("the spelling of {} files is right", listed.lines().count()));
    }
    Err(Error::Failed(format!("the spelling is wrong:\n  {}", wrong.join("\n  "))))
}

/// The misspellings of a text, each with its line and what may be meant.
fn faults(text: &str) -> Vec<String> {
    let fault = |typo: Typo<'_>| {
        let line = 1 + text[..typo.byte_offset].matches('\n').count();
        let meant = match &typo.corrections {
            Status::Corrections(words) => words.join(" or "),
            Status::Valid | Status::Invalid => "another word".to_owned(),
        };
        format!("{line}: {}, for {meant}", typo.typo)
    };
    typos::check_str(text, &Tokenizer::new(), &Misspellings).map(fault).collect()
}

/// The dictionary without the words that are right here.
struct Misspellings;

impl Dictionary for Misspellings {
    fn correct_ident<'s>(&'s self, _: Identifier<'_>) -> Option<Status<'s>> {
        None
    }

    fn correct_word<'s>(&'s self, word: Word<'_>) -> Option<Status<'s>> {
        let text = word.token();
        let mut right = NAMES.iter().chain(&OF_TESTS);
        if word.case() == Case::None || right.any(|right| right.eq_ignore_ascii_case(text)) {
            return None;
        }
        let meant = typos_dict::WORD.find(&UniCase::new(text))?;
        Some(Status::Corrections(meant.iter().map(|word| Cow::Borrowed(*word)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelling_is_found_in_prose_and_in_names() {
        // The words are put together here, because the check would otherwise find them in this file.
        let (prose, name) = (["rec", "ieve"].concat(), ["sep", "erate"].concat());
        let text = format!("A node can receive it.\nThe pods {prose} packets.\nlet {name}_table = 1;\n");
        assert_eq!(faults(&text), [format!("2: {prose}, for receive"), format!("3: {name}, for separate")]);
    }

    #[test]
    fn names_of_the_field_hashes_and_words_of_the_list_are_right() {
        let text =
            "The CNI plugin's conntrack zone, netavark, iif, 0xdeadbeef, 5d41402abc4b2a76b9719d911017c592.\n";
        assert_eq!(faults(text), Vec::<String>::new());
    }
}
