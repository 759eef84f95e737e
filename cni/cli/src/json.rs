// SPDX-License-Identifier: GPL-2.0-or-later

//! JSON for programs. `docs/json.md` has each field, and a test compares it with what is printed.

use std::io::{self, Write};

use cni_state::documents::{Document, Form};
use serde::Serialize;

/// Prints a document with the number of its form, its fields sorted by their names.
///
/// # Errors
/// `out` cannot be written.
pub fn print<T: Serialize + Form>(document: T, out: &mut dyn Write) -> io::Result<()> {
    let document = serde_json::to_value(Document::new(document))?;
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}
