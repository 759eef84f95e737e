// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of `docs/json.md`, from the types in `cni/state/src/documents`: a row for each field, whose meaning is the
//! field's doc comment. Tests of the programs compare the same page with what is printed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::{Fields, GenericArgument, Item, ItemEnum, ItemStruct, PathArguments, Type};

use super::source;
use xtask_base::error::{Error, Result};
use xtask_base::files;

const TYPES: &str = "cni/state/src/documents";

/// The sections of the page and the types of their documents.
const DOCUMENTS: [(&str, &str); 19] = [
    ("slipway ports", "Ports"),
    ("slipway check-node", "CheckNode"),
    ("slipway node", "BpfNode"),
    ("slipway explain", "Explain"),
    ("slipway trace", "Trace"),
    ("slipway connectivity-test", "ConnectivityTest"),
    ("slipway restore", "Restore"),
    ("slipway detach", "Detach"),
    ("slipway migrate", "Migrate"),
    ("slipway plugins", "Plugins"),
    ("slipway version", "Version"),
    ("slipway cnitool", "CnitoolOutcome"),
    ("slipwayd status", "AgentStatus"),
    ("slipwayd top", "Top"),
    ("slipwayd pod up, slipwayd pod status", "AttachedPod"),
    ("slipwayd pod up, slipwayd pod status with a network plugin", "PodAddresses"),
    ("slipwayd pod status without a pod", "NodeReady"),
    ("slipwayd pod list", "Attachments"),
    ("slipwayd networks", "Networks"),
];

/// A document between the programs, which no command prints.
const NOT_PRINTED: &str = "Activity";

pub(super) fn text(root: &Path) -> Result<String> {
    let mut paths = files::list(root.join(TYPES))?;
    paths.sort();
    let sources = paths.iter().map(|path| source::parse(path)).collect::<Result<Vec<_>>>()?;
    let types = Types::new(sources.into_iter().flat_map(|file| file.items));
    types.complete()?;
    let mut page = Page { types: &types, explained: BTreeMap::new() };
    let sections = DOCUMENTS.iter().map(|(heading, name)| page.section(heading, name));
    Ok(sections.collect::<Result<Vec<_>>>()?.join("\n"))
}

/// The types, by their names.
struct Types {
    structs: BTreeMap<String, ItemStruct>,
    enums: BTreeMap<String, ItemEnum>,
    /// The types of whole documents.
    documents: BTreeSet<String>,
}

impl Types {
    fn new(items: impl Iterator<Item = Item>) -> Self {
        let mut types = Self { structs: BTreeMap::new(), enums: BTreeMap::new(), documents: BTreeSet::new() };
        for item in items {
            match item {
                Item::Struct(one) => drop(types.structs.insert(one.ident.to_string(), one)),
                Item::Enum(one) => drop(types.enums.insert(one.ident.to_string(), one)),
                Item::Macro(one) if one.mac.path.is_ident("first_form") => {
                    let tokens = one.mac.tokens.into_iter().map(|token| token.to_string());
                    types.documents.extend(tokens.filter(|token| token != ","));
                }
                Item::Impl(one) => {
                    let is_form = one.trait_.as_ref().is_some_and(|(_, path, _)| path.is_ident("Form"));
                    types.documents.extend(named(&one.self_ty).filter(|_| is_form).map(|(name, _)| name));
                }
                _ => {}
            }
        }
        types
    }

    /// Checks that each type of a document has a section.
    fn complete(&self) -> Result<()> {
        let listed: BTreeSet<&str> = DOCUMENTS.iter().map(|(_, name)| *name).chain([NOT_PRINTED]).collect();
        let known: BTreeSet<&str> = self.documents.iter().map(String::as_str).collect();
        if listed == known {
            return Ok(());
        }
        let differing: Vec<_> = listed.symmetric_difference(&known).collect();
        Err(Error::Failed(format!("xtask/docs/src/generated/json.rs and {TYPES} differ in {differing:?}")))
    }
}

/// A type's last name and its arguments.
fn named(of: &Type) -> Option<(String, Vec<&Type>)> {
    let Type::Path(path) = of else { return None };
    let last = path.path.segments.last()?;
    let arguments = match &last.arguments {
        PathArguments::AngleBracketed(list) => list.args.iter().collect(),
        _ => Vec::new(),
    };
    let types = arguments.into_iter().filter_map(|argument| match argument {
        GenericArgument::Type(one) => Some(one),
        _ => None,
    });
    Some((last.ident.to_string(), types.collect()))
}

struct Page<'a> {
    types: &'a Types,
    /// The types whose fields have been explained, and the section that did.
    explained: BTreeMap<&'a str, &'static str>,
}

impl<'a> Page<'a> {
    fn section(&mut self, heading: &'static str, name: &str) -> Result<String> {
        let mut table = Table { heading, rows: String::new(), see: BTreeSet::new() };
        let document = self.find(name)?;
        self.rows(document, "", &mut table)?;
        let mut text = format!("## {heading}\n\n");
        // The first paragraph tells a reader of the source which command prints it.
        for paragraph in source::doc(&document.attrs).iter().skip(1) {
            text += &format!("{paragraph}\n\n");
        }
        for other in &table.see {
            let anchor = other.replace(',', "").replace(' ', "-");
            text += &format!("[{other}](#{anchor}) explains the fields without a text.\n\n");
        }
        Ok(format!("{text}| field | type | meaning |\n|---|---|---|\n{}", table.rows))
    }

    fn find(&self, name: &str) -> Result<&'a ItemStruct> {
        let missing = || Error::Failed(format!("{TYPES} has no struct {name}"));
        self.types.structs.get(name).ok_or_else(missing)
    }

    /// A row for each field below `above`, which is empty, `name.` or `name[].`.
    fn rows(&mut self, of: &'a ItemStruct, above: &str, table: &mut Table) -> Result<()> {
        let Some((name, _)) = self.types.structs.get_key_value(&of.ident.to_string()) else { return Ok(()) };
        let explained = *self.explained.entry(name).or_insert(table.heading);
        let Fields::Named(fields) = &of.fields else {
            return Err(Error::Failed(format!("{TYPES}: {name} has no named fields")));
        };
        for field in &fields.named {
            let serde = |key| source::setting(&field.attrs, "serde", key);
            if serde("flatten").is_some() {
                let (inner, _) = named(&field.ty).unwrap_or_default();
                self.rows(self.find(&inner)?, above, table)?;
                continue;
            }
            let ident = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
            let path = format!("{above}{}", serde("rename").unwrap_or(ident));
            let mut kind = self.kind(&field.ty);
            if serde("skip_serializing_if").is_some() {
                kind.null = false;
            }
            let mut meaning = source::doc(&field.attrs).join(" ");
            meaning = [meaning, kind.values.clone()].join(" ").trim().to_owned();
            if explained != table.heading {
                table.see.extend((!meaning.is_empty()).then_some(explained));
                meaning.clear();
            }
            table.rows += &format!("| `{path}` | {} | {meaning} |\n", kind.text());
            if kind.is_map {
                table.rows += &format!("| `{path}.*` | number | |\n");
            }
            if let Some(inner) = kind.inner {
                let dots = if kind.is_array { "[]." } else { "." };
                self.rows(inner, &format!("{path}{dots}"), table)?;
            }
        }
        Ok(())
    }

    fn kind(&self, of: &Type) -> Kind<'a> {
        let (name, arguments) = named(of).unwrap_or_default();
        let plain = |name| Kind { name, ..Kind::default() };
        match (&*name, arguments.first()) {
            ("Option", Some(inner)) => Kind { null: true, ..self.kind(inner) },
            ("Vec", Some(inner)) => {
                let inner = self.kind(inner).inner;
                let name = if inner.is_some() { "array of objects" } else { "array of strings" };
                Kind { name, inner, is_array: true, ..Kind::default() }
            }
            ("BTreeMap", _) => Kind { is_map: true, ..plain("object") },
            ("Map", _) => plain("CNI result"),
            ("bool", _) => plain("boolean"),
            ("u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" | "f64", _) => plain("number"),
            (name, _) => match (self.types.structs.get(name), self.types.enums.get(name)) {
                (Some(inner), _) => Kind { inner: Some(inner), ..plain("object") },
                (_, Some(variants)) => Kind { values: values(variants), ..plain("string") },
                _ => plain("string"),
            },
        }
    }
}

/// A section's table while it is written.
struct Table {
    heading: &'static str,
    rows: String,
    /// The sections that explain fields of this one.
    see: BTreeSet<&'static str>,
}

/// A field's type.
#[derive(Default)]
struct Kind<'a> {
    name: &'static str,
    null: bool,
    is_array: bool,
    is_map: bool,
    /// The object that the field holds.
    inner: Option<&'a ItemStruct>,
    /// The values of an enum, with their meanings.
    values: String,
}

impl Kind<'_> {
    fn text(&self) -> String {
        if self.null { format!("{} or null", self.name) } else { self.name.to_owned() }
    }
}

/// The values of an enum whose variants are printed in lower case.
fn values(of: &ItemEnum) -> String {
    let value = |variant: &syn::Variant| {
        let name = variant.ident.to_string().to_lowercase();
        let meaning = source::doc(&variant.attrs).join(" ");
        if meaning.is_empty() { format!("`{name}`.") } else { format!("`{name}`: {meaning}") }
    };
    of.variants.iter().map(value).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(source: &str) -> String {
        let types = Types::new(syn::parse_file(source).unwrap().items.into_iter());
        let mut page = Page { types: &types, explained: BTreeMap::new() };
        ["one", "two"].map(|heading| page.section(heading, "Document").unwrap()).join("\n")
    }

    #[test]
    fn a_field_has_its_type_its_comment_and_the_fields_of_its_object() {
        let text = section(
            "/// `one`.\n///\n/// Of the\n/// last hour.\nstruct Document {\n/// The items,\n/// in order.\nitems: Vec<Item>,\n\
             #[serde(flatten)] more: More, }\nstruct Item { #[serde(rename = \"type\")] kind: Option<String>, state: State }\n\
             struct More { counters: BTreeMap<String, u64> }\nenum State { /// It runs.\n Running, Gone }",
        );
        let table = "| field | type | meaning |\n|---|---|---|\n\
                     | `items` | array of objects | The items, in order. |\n\
                     | `items[].type` | string or null |  |\n\
                     | `items[].state` | string | `running`: It runs. `gone`. |\n\
                     | `counters` | object |  |\n| `counters.*` | number | |\n";
        assert!(text.starts_with(&format!("## one\n\nOf the last hour.\n\n{table}")), "{text}");
        assert!(text.contains("[one](#one) explains the fields without a text."), "{text}");
        assert!(text.contains("| `items` | array of objects |  |\n"), "{text}");
    }
}
