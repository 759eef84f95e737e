// SPDX-License-Identifier: GPL-2.0-or-later

//! JSON for programs. `docs/json.md` has each field, and a test compares it with what is printed.

use std::io::{self, Write};

use serde_json::{Value, json};

/// The number of the documents' form. It changes if a field is removed or gets another meaning.
const SCHEMA: u32 = 1;

/// Prints a document with the number of its form.
pub(super) fn print(mut document: Value, out: &mut dyn Write) -> io::Result<()> {
    if let Value::Object(fields) = &mut document {
        fields.insert("schema".to_owned(), json!(SCHEMA));
    }
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

#[cfg(test)]
pub(super) use documented::{assert_documented, rows};

/// The comparison with `docs/json.md`.
#[cfg(test)]
mod documented {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::Value;

    const PAGE: &str = include_str!("../../../../docs/json.md");

    /// Each field with the types that it has.
    type Fields = BTreeMap<String, BTreeSet<String>>;

    /// The cells of the table below a heading of the page, without the head of the table.
    pub(in crate::operator) fn rows(heading: &str) -> Vec<Vec<String>> {
        let heading = format!("## {heading}\n");
        let (_, section) = PAGE.split_once(&heading).unwrap_or_else(|| panic!("no {heading:?} in the page"));
        let section = section.split("\n## ").next().unwrap_or_default();
        let lines = section.lines().filter(|line| line.starts_with("| `"));
        let cells = |line: &str| line.trim_matches(['|', ' ']).split(" | ").map(str::to_owned).collect();
        lines.map(cells).collect()
    }

    fn documented(command: &str) -> Fields {
        let field = |cells: Vec<String>| {
            let types = cells[1].split(" or ").map(str::to_owned).collect();
            (cells[0].trim_matches('`').to_owned(), types)
        };
        rows(&format!("slipway {command}")).into_iter().map(field).collect()
    }

    /// Compares the fields of documents with those on the page, in both directions. The documents together
    /// have each type that a field can have.
    pub(in crate::operator) fn assert_documented(command: &str, documents: &[Value]) {
        let wanted = documented(command);
        let mut found = Fields::new();
        for document in documents {
            in_object("", document, &wanted, &mut found);
        }
        assert_eq!(found, wanted, "slipway {command}, and docs/json.md on the right");
    }

    fn in_object(above: &str, value: &Value, wanted: &Fields, found: &mut Fields) {
        for (name, value) in value.as_object().expect("an object") {
            // An object that has names for keys.
            let is_map = wanted.contains_key(&format!("{above}*"));
            let path = if is_map { format!("{above}*") } else { format!("{above}{name}") };
            if let Some(kind) = kind(value) {
                found.entry(path.clone()).or_default().insert(kind.to_owned());
            }
            match value {
                Value::Object(_) => in_object(&format!("{path}."), value, wanted, found),
                Value::Array(items) if items.iter().any(Value::is_object) => {
                    items.iter().for_each(|item| in_object(&format!("{path}[]."), item, wanted, found));
                }
                _ => {}
            }
        }
    }

    /// The type as the page names it; none for an empty array, which may be of anything.
    fn kind(value: &Value) -> Option<&'static str> {
        Some(match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Object(_) => "object",
            Value::Array(items) if items.is_empty() => return None,
            Value::Array(items) if items.iter().all(Value::is_object) => "array of objects",
            Value::Array(_) => "array of strings",
        })
    }
}
