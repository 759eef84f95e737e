// SPDX-License-Identifier: GPL-2.0-or-later

//! JSON output for programs. `docs/json.md` lists each field, and a test compares the page with the output.

use std::io::{self, Write};

use cni_state::documents::{Document, Form};
use serde::Serialize;

/// Prints a document with the number of its form. The fields are sorted by name.
///
/// # Errors
/// `out` cannot be written.
pub fn print<T: Serialize + Form>(document: T, out: &mut dyn Write) -> io::Result<()> {
    let document = serde_json::to_value(Document::new(document))?;
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}
