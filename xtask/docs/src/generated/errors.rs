// SPDX-License-Identifier: MIT OR Apache-2.0

//! The messages of `docs/errors.md`: every text of an error in `cni`, by plugin and command. Texts and codes come from the
//! sources, sections, causes and remedies from `errors.toml`, which can neither leave out a file nor explain a message that
//! no longer exists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprCall, ImplItem, Item, Lit, LitStr, Pat, Token, Type};

use super::source;
use xtask_base::error::{Error, Result};
use xtask_base::files;

const EXPLANATIONS: &str = "xtask/docs/src/generated/errors.toml";
const SOURCES: &str = "cni";
/// The numbers of the specification's codes.
const CODES: &str = "cni/spec/src/error.rs";

pub(super) fn text(root: &Path) -> Result<String> {
    let explained: Explained = toml::from_str(&files::read(root.join(EXPLANATIONS))?)
        .map_err(|error| Error::Failed(format!("decode {EXPLANATIONS}: {error}")))?;
    let codes = crate::statements::error_codes(&files::read(root.join(CODES))?);
    let mut messages = Vec::new();
    let mut paths = files::below(root.join(SOURCES), files::has_sources)?;
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "rs"));
    paths.sort();
    for path in paths {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if name.contains("/src/") && !is_of_tests(&name) {
            messages.extend(Reader::read(&source::parse(&path)?, &name, &codes));
        }
    }
    for one in &explained.error {
        let Some(file) = one.source.clone() else { continue };
        let source = files::read(root.join(&file))?;
        if source.contains(&one.text) || source.contains(&one.text.replace('"', "\\\"")) {
            messages.push(Message { text: one.shown(), file, code: None });
        }
    }
    page(&explained, &messages)
}

fn is_of_tests(name: &str) -> bool {
    name.contains("/tests/")
        || name.ends_with("tests.rs")
        || name.contains("/test_")
        || name.ends_with("/fake.rs")
}

/// The file `errors.toml`.
#[derive(Deserialize)]
struct Explained {
    section: Vec<Section>,
    #[serde(default)]
    error: Vec<Explanation>,
    /// Texts that no user meets.
    #[serde(default)]
    hidden: Vec<String>,
}

/// A plugin or command.
#[derive(Deserialize)]
struct Section {
    title: String,
    /// Beginnings of paths below `cni`; of several that fit a file the longest counts.
    sources: Vec<String>,
    /// Code, cause and remedy of the messages that have no explanation of their own.
    about: String,
}

#[derive(Deserialize)]
struct Explanation {
    text: String,
    /// The file with this format, for a message that is in no error's type.
    source: Option<String>,
    code: Option<String>,
    why: String,
}

impl Explanation {
    /// As the page has it.
    fn shown(&self) -> String {
        if self.source.is_some() { shown(&self.text) } else { self.text.clone() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    text: String,
    file: String,
    /// The code, where the source names it next to the text.
    code: Option<u32>,
}

/// The texts of a section, each with its code, where a source names it.
type Messages<'a> = BTreeMap<&'a str, Option<u32>>;

fn page(explained: &Explained, messages: &[Message]) -> Result<String> {
    let mut wrong = unknown(explained, messages);
    wrong.extend(repeated(explained, messages));
    let mut sections: BTreeMap<usize, Messages<'_>> = BTreeMap::new();
    for message in messages.iter().filter(|one| !explained.hidden.contains(&one.text)) {
        match place(&explained.section, &message.file) {
            Some(at) => {
                let code = sections.entry(at).or_default().entry(&message.text).or_default();
                *code = code.or(message.code);
            }
            None => wrong.push(format!("no section has {}", message.file)),
        }
    }
    if !wrong.is_empty() {
        return Err(Error::Failed(format!("{EXPLANATIONS}:\n    {}", wrong.join("\n    "))));
    }
    Ok(sections.into_iter().map(|(at, messages)| section(explained, at, &messages)).collect())
}

/// Explanations of messages that do not exist.
fn unknown(explained: &Explained, messages: &[Message]) -> Vec<String> {
    let texts: BTreeSet<&str> = messages.iter().map(|one| &*one.text).collect();
    let named = explained.error.iter().map(Explanation::shown).chain(explained.hidden.iter().cloned());
    named.filter(|text| !texts.contains(&**text)).map(|text| format!("no source has {text:?}")).collect()
}

/// Explanations with a code of a message whose code is in the sources.
fn repeated(explained: &Explained, messages: &[Message]) -> Vec<String> {
    let coded: BTreeSet<&str> =
        messages.iter().filter(|one| one.code.is_some()).map(|one| &*one.text).collect();
    let wrong = explained.error.iter().filter(|one| one.code.is_some() && coded.contains(&*one.shown()));
    wrong.map(|one| format!("the sources have the code of {:?}: delete it", one.text)).collect()
}

fn place(sections: &[Section], file: &str) -> Option<usize> {
    let file = file.strip_prefix("cni/")?;
    let fits = |section: &Section| {
        let fitting = section.sources.iter().filter(|start| file.starts_with(start.as_str()));
        fitting.map(String::len).max()
    };
    let all = sections.iter().enumerate().filter_map(|(at, section)| Some((fits(section)?, at)));
    all.max_by_key(|(length, _)| *length).map(|(_, at)| at)
}

fn section(explained: &Explained, at: usize, messages: &Messages<'_>) -> String {
    let Section { title, about, .. } = &explained.section[at];
    let mut rows = String::new();
    let mut others = Vec::new();
    for (text, code) in messages {
        let Some(one) = explained.error.iter().find(|one| one.shown() == *text) else {
            others.push(code.map_or_else(|| (*text).to_owned(), |code| format!("{text}  [{code}]")));
            continue;
        };
        let code = one.code.clone().or_else(|| code.map(|code| code.to_string())).unwrap_or_default();
        let marks = if text.contains('`') { "``" } else { "`" };
        rows += &format!("| {marks}{}{marks} | {code} | {} |\n", text.replace('|', "\\|"), one.why);
    }
    let mut written = format!("## {title}\n\n{}\n\n", about.trim());
    if !rows.is_empty() {
        written += &format!("| message | code | cause and remedy |\n|---|---|---|\n{rows}\n");
    }
    if !others.is_empty() {
        written += &format!("```text\n{}\n```\n\n", others.join("\n"));
    }
    written
}

/// Collects the messages of a file.
struct Reader<'a> {
    file: &'a str,
    codes: &'a BTreeMap<String, u32>,
    /// The codes that a method `code` gives to the variants of an enum, by the names of both.
    of_variants: BTreeMap<(String, String), u32>,
    found: Vec<Message>,
}

impl<'a> Reader<'a> {
    fn read(source: &syn::File, file: &'a str, codes: &'a BTreeMap<String, u32>) -> Vec<Message> {
        let of_variants = codes_of_variants(source, codes);
        let mut reader = Self { file, codes, of_variants, found: Vec::new() };
        reader.visit_file(source);
        reader.found
    }

    fn add(&mut self, format: &str, code: Option<u32>) {
        let text = shown(format);
        // A message that passes on another one's text has no words of its own.
        if text.chars().any(char::is_lowercase) {
            self.found.push(Message { text, file: self.file.to_owned(), code });
        }
    }

    /// The texts in `#[error("…")]`.
    fn attributes(&mut self, attributes: &[Attribute], code: Option<u32>) {
        for attribute in attributes.iter().filter(|one| one.path().is_ident("error")) {
            let format = attribute.parse_args_with(|input: syn::parse::ParseStream<'_>| {
                let format: LitStr = input.parse()?;
                // Arguments of the format.
                input.parse::<proc_macro2::TokenStream>()?;
                Ok(format.value())
            });
            if let Ok(format) = format {
                self.add(&format, code);
            }
        }
    }
}

/// The arms of `fn code(&self) -> ErrorCode` in each implementation.
fn codes_of_variants(source: &syn::File, codes: &BTreeMap<String, u32>) -> BTreeMap<(String, String), u32> {
    let mut found = BTreeMap::new();
    for item in &source.items {
        let Item::Impl(one) = item else { continue };
        let Type::Path(of) = &*one.self_ty else { continue };
        let Some(name) = of.path.segments.last().map(|one| one.ident.to_string()) else { continue };
        for member in &one.items {
            let ImplItem::Fn(method) = member else { continue };
            if method.sig.ident == "code" {
                let mut arms = Arms::default();
                arms.visit_block(&method.block);
                let coded =
                    arms.0.into_iter().filter_map(|(variant, code)| Some((variant, *codes.get(&code)?)));
                found.extend(coded.map(|(variant, code)| ((name.clone(), variant), code)));
            }
        }
    }
    found
}

/// The variants that arms of a `match` name, with the last name of their results.
#[derive(Default)]
struct Arms(Vec<(String, String)>);

impl<'ast> Visit<'ast> for Arms {
    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some(code) = last_name(&arm.body) {
            let cases = match &arm.pat {
                Pat::Or(several) => several.cases.iter().collect(),
                one => vec![one],
            };
            let named = cases.into_iter().filter_map(|case| match case {
                Pat::Struct(one) => one.path.segments.last(),
                Pat::TupleStruct(one) => one.path.segments.last(),
                Pat::Path(one) => one.path.segments.last(),
                _ => None,
            });
            self.0.extend(named.map(|one| (one.ident.to_string(), code.clone())));
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let is_test = match item {
            Item::Mod(one) => one.attrs.iter().any(|attribute| attribute.path().is_ident("cfg")),
            Item::Struct(one) => {
                self.attributes(&one.attrs, None);
                false
            }
            _ => false,
        };
        if !is_test {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_enum(&mut self, one: &'ast syn::ItemEnum) {
        for variant in &one.variants {
            let names = (one.ident.to_string(), variant.ident.to_string());
            let code = self.of_variants.get(&names).copied();
            self.attributes(&variant.attrs, code);
        }
    }

    /// `CniError::config("…")`, `CniError::new(ErrorCode::Io, format!("…"))` and the like.
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(function) = &*call.func {
            let names: Vec<String> = function.path.segments.iter().map(|one| one.ident.to_string()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            if let [.., "CniError", kind @ ("config" | "internal" | "new")] = names[..] {
                let mut arguments = call.args.iter();
                let code = match kind {
                    "config" => self.codes.get("InvalidConfig").copied(),
                    "internal" => self.codes.get("Internal").copied(),
                    _ => arguments.next().and_then(last_name).and_then(|name| self.codes.get(&name).copied()),
                };
                if let Some(format) = arguments.next().and_then(literal) {
                    self.add(&format, code);
                }
            }
        }
        visit::visit_expr_call(self, call);
    }
}

fn last_name(expression: &Expr) -> Option<String> {
    let Expr::Path(path) = expression else { return None };
    path.path.segments.last().map(|one| one.ident.to_string())
}

/// The text of `"…"` or `format!("…", …)`.
fn literal(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        Expr::Macro(call) if call.mac.path.is_ident("format") => {
            let arguments = call.mac.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated).ok()?;
            arguments.first().and_then(literal)
        }
        _ => None,
    }
}

/// The format as a reader sees it: names in capitals for the values, `…` for those without a name. A blank separates a
/// value from a word or value that touches it, because a value may bring its own separator or be empty.
fn shown(format: &str) -> String {
    let mut text = String::new();
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            text.push_str(brace);
            rest = after;
            continue;
        }
        let (value, after) = rest.split_once('}').unwrap_or((rest, ""));
        let name = value.split(':').next().unwrap_or_default();
        let is_named = name.starts_with(|first: char| first.is_ascii_alphabetic());
        if text.ends_with(|last: char| last.is_alphanumeric() || last == '…') {
            text.push(' ');
        }
        text.push_str(&if is_named { name.to_uppercase() } else { "…".to_owned() });
        if after.starts_with(char::is_alphanumeric) {
            text.push(' ');
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(source: &str) -> Vec<Message> {
        let codes = BTreeMap::from([("InvalidConfig".to_owned(), 7), ("Io".to_owned(), 5)]);
        Reader::read(&syn::parse_file(source).unwrap(), "cni/a/src/b.rs", &codes)
    }

    #[test]
    fn texts_are_found_in_attributes_and_calls_but_not_in_tests() {
        let found = messages(
            "enum E { #[error(\"set {link:?} to {{{0}}}: {}\", self.0)] A, #[error(transparent)] B, #[error(\"{0}\")] C }\n\
             impl E { fn code(&self) -> ErrorCode { match self { Self::A { .. } | Self::B(_) => ErrorCode::Io, _ => x() } } }\n\
             fn f() { CniError::config(\"no name\"); g(|| CniError::new(ErrorCode::Io, format!(\"read {path}\"))); }\n\
             #[cfg(test)] mod tests { fn f() { CniError::config(\"of a test\"); } }",
        );
        let found: Vec<_> = found.iter().map(|one| (&*one.text, one.code)).collect();
        assert_eq!(found, [("set LINK to {…}: …", Some(5)), ("no name", Some(7)), ("read PATH", Some(5))]);
    }

    #[test]
    fn a_value_that_touches_a_word_or_a_value_is_set_apart() {
        assert_eq!(shown("bug{place}: {}"), "bug PLACE: …");
        assert_eq!(shown("{plugin}Route {}{via} in {}m"), "PLUGIN Route … VIA in … m");
        assert_eq!(shown("conf/{link}/mtu {value:?}"), "conf/LINK/mtu VALUE");
    }

    #[test]
    fn a_file_without_a_section_and_an_explanation_without_a_message_are_named() {
        let section = |title: &str, source: &str| Section {
            title: title.to_owned(),
            sources: vec![source.to_owned()],
            about: "About.".to_owned(),
        };
        let why = |text: &str| Explanation {
            text: text.to_owned(),
            source: None,
            code: None,
            why: "Why.".to_owned(),
        };
        let mut explained = Explained {
            section: vec![section("A", "a/"), section("B", "a/src/b.rs")],
            error: vec![why("no name")],
            hidden: Vec::new(),
        };
        let found = messages("fn f() { CniError::config(\"no name\"); CniError::config(\"no type\"); }");
        let text = page(&explained, &found).unwrap();
        let expected = "## B\n\nAbout.\n\n| message | code | cause and remedy |\n|---|---|---|\n| `no name` | 7 | Why. |\n\n\
                        ```text\nno type  [7]\n```\n\n";
        assert_eq!(text, expected);
        explained.section.clear();
        explained.error.push(why("gone"));
        let error = page(&explained, &found).unwrap_err().to_string();
        assert!(error.contains("no section has cni/a/src/b.rs") && error.contains("\"gone\""), "{error}");
    }
}
