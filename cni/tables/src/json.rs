// SPDX-License-Identifier: GPL-2.0-or-later

//! JSON for programs. `docs/json.md` has each field, and a test compares it with what is printed.

use std::io::{self, Write};

use serde_json::{Value, json};

/// The number of the documents' form. It changes if a field is removed or gets another meaning.
const SCHEMA: u32 = 1;

/// Prints a document with the number of its form.
///
/// # Errors
/// `out` cannot be written.
pub fn print(mut document: Value, out: &mut dyn Write) -> io::Result<()> {
    if let Value::Object(fields) = &mut document {
        fields.insert("schema".to_owned(), json!(SCHEMA));
    }
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}
