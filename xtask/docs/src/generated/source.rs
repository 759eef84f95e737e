// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads what the generated pages need from Rust sources.

use std::path::Path;

use syn::{Attribute, Expr, Lit, LitStr, Meta, Token};
use xtask_base::error::{Error, Result};
use xtask_base::files;

pub(super) fn parse(path: &Path) -> Result<syn::File> {
    syn::parse_file(&files::read(path)?)
        .map_err(|error| Error::Failed(format!("parse {}: {error}", path.display())))
}

/// The paragraphs of a doc comment, each as one line.
pub(super) fn doc(attributes: &[Attribute]) -> Vec<String> {
    let lines = attributes.iter().filter_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else { return None };
        let Expr::Lit(literal) = &pair.value else { return None };
        match &literal.lit {
            Lit::Str(text) if pair.path.is_ident("doc") => Some(text.value().trim().to_owned()),
            _ => None,
        }
    });
    let mut paragraphs = vec![Vec::new()];
    for line in lines {
        if line.is_empty() {
            paragraphs.push(Vec::new());
        } else if let Some(last) = paragraphs.last_mut() {
            last.push(line);
        }
    }
    paragraphs.retain(|lines| !lines.is_empty());
    paragraphs.into_iter().map(|lines| lines.join(" ")).collect()
}

/// The value of `key = "value"` in an attribute such as `#[serde(rename = "value")]`; empty for a key without a value.
pub(super) fn setting(attributes: &[Attribute], attribute: &str, key: &str) -> Option<String> {
    let mut found = None;
    for one in attributes.iter().filter(|one| one.path().is_ident(attribute)) {
        // A key with another form, which no page needs, ends the reading of its attribute.
        let _ = one.parse_nested_meta(|meta| {
            let value = match meta.input.peek(Token![=]) {
                true => meta.value()?.parse::<LitStr>()?.value(),
                false => String::new(),
            };
            if meta.path.is_ident(key) {
                found = Some(value);
            }
            Ok(())
        });
    }
    found
}
