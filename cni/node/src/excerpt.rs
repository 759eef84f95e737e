// SPDX-License-Identifier: GPL-3.0-or-later

//! Texts that another host or program wrote, cut and escaped for a log or a message.

use std::fmt;

/// The number of characters of an [`Excerpt`], before they are escaped.
const EXCERPT: usize = 64;

/// The beginning of a text that another host wrote: 64 characters at most, those outside printable ASCII escaped. Prints
/// with quotation marks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Excerpt(String);

impl Excerpt {
    /// Cuts and escapes a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(bounded(text, EXCERPT))
    }
}

/// The first characters of a text, those outside printable ASCII escaped.
#[must_use]
pub(crate) fn bounded(text: &str, limit: usize) -> String {
    let mut start: String = text.chars().take(limit).flat_map(char::escape_default).collect();
    if text.chars().nth(limit).is_some() {
        start.push_str("...");
    }
    start
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}
