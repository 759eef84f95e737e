// SPDX-License-Identifier: MIT OR Apache-2.0

//! The modules of a crate: which file each is in, and what its names mean.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, UseTree};

use crate::error::{self, Error};

/// The path of a module from the crate's root, which is the empty path.
pub type ModulePath = Vec<String>;

/// The meaning of a name in a module.
#[derive(Debug, Clone)]
pub enum Meaning {
    /// An item that this module defines.
    Item,
    /// A child module.
    Module,
    /// A name brought in by `use`, with the path it stands for.
    Use(Vec<String>),
}

/// A module, inline or in a file of its own.
pub struct Module {
    /// The file, relative to the crate's source folder.
    pub file: PathBuf,
    /// The names in the module.
    pub names: BTreeMap<String, Meaning>,
    /// The paths of the module's glob imports.
    pub globs: Vec<Vec<String>>,
    /// The module's items without tests. Items of an inline module belong to that module.
    pub items: Vec<Item>,
}

/// All modules of a crate.
pub type Modules = BTreeMap<ModulePath, Module>;

/// Reads a crate from its root file (`lib.rs` or `main.rs`), without modules that only tests have.
///
/// # Errors
/// A file cannot be read or parsed.
pub fn read(root: &Path) -> Result<Modules, Error> {
    let source = root.parent().unwrap_or(Path::new(""));
    let mut modules = Modules::new();
    let place = Place { source, file: root.to_owned(), children: source.to_owned() };
    add_file(&mut modules, Vec::new(), &place)?;
    Ok(modules)
}

/// Where a module is.
struct Place<'a> {
    /// The crate's source folder.
    source: &'a Path,
    file: PathBuf,
    /// The folder of the files of its child modules.
    children: PathBuf,
}

fn add_file(modules: &mut Modules, path: ModulePath, place: &Place<'_>) -> Result<(), Error> {
    let text = error::text(&place.file)?;
    let parsed = syn::parse_file(&text).map_err(|source| Error::Rust { path: place.file.clone(), source })?;
    add_items(modules, path, parsed.items, place)
}

fn add_items(
    modules: &mut Modules,
    path: ModulePath,
    items: Vec<Item>,
    place: &Place<'_>,
) -> Result<(), Error> {
    let file = place.file.strip_prefix(place.source).unwrap_or(&place.file).to_owned();
    let mut module = Module { file, names: BTreeMap::new(), globs: Vec::new(), items: Vec::new() };
    for item in items {
        if is_for_tests(attributes(&item)) {
            continue;
        }
        match item {
            Item::Mod(child) => {
                let name = child.ident.to_string().trim_start_matches("r#").to_owned();
                module.names.insert(name.clone(), Meaning::Module);
                let child_path: ModulePath = path.iter().cloned().chain([name.clone()]).collect();
                let children = place.children.join(&name);
                if let Some((_, items)) = child.content {
                    let place = Place { source: place.source, file: place.file.clone(), children };
                    add_items(modules, child_path, items, &place)?;
                } else {
                    let file = child_file(&child.attrs, &name, place);
                    add_file(modules, child_path, &Place { source: place.source, file, children })?;
                }
            }
            Item::Use(one) => {
                add_use(&mut module, &mut Vec::new(), &one.tree);
                module.items.push(Item::Use(one));
            }
            other => {
                if let Some(name) = item_name(&other) {
                    module.names.insert(name, Meaning::Item);
                }
                module.items.push(other);
            }
        }
    }
    modules.insert(path, module);
    Ok(())
}

fn child_file(attributes: &[Attribute], name: &str, place: &Place<'_>) -> PathBuf {
    let named = attributes.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    if let Some(named) = named {
        return place.file.parent().unwrap_or(Path::new("")).join(named);
    }
    let flat = place.children.join(format!("{name}.rs"));
    if flat.is_file() { flat } else { place.children.join(name).join("mod.rs") }
}

fn add_use(module: &mut Module, prefix: &mut Vec<String>, tree: &UseTree) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            add_use(module, prefix, &path.tree);
            prefix.pop();
        }
        UseTree::Name(name) => {
            let (bound, path) = used_name(prefix, &name.ident.to_string());
            module.names.entry(bound).or_insert(Meaning::Use(path));
        }
        UseTree::Rename(rename) => {
            let (_, path) = used_name(prefix, &rename.ident.to_string());
            module.names.entry(rename.rename.to_string()).or_insert(Meaning::Use(path));
        }
        UseTree::Glob(_) => module.globs.push(prefix.clone()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| add_use(module, prefix, tree)),
    }
}

/// The name that a leaf of a `use` binds, and its whole path: `a::b::self` binds `b`.
fn used_name(prefix: &[String], name: &str) -> (String, Vec<String>) {
    if name == "self" {
        (prefix.last().cloned().unwrap_or_default(), prefix.to_vec())
    } else {
        (name.to_owned(), prefix.iter().cloned().chain([name.to_owned()]).collect())
    }
}

/// True for `#[cfg(test)]`, `#[cfg(all(test, …))]`, `#[cfg(doctest)]` and `#[test]`.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let text = list.tokens.to_string();
            text == "test" || text == "doctest" || text.starts_with("all (test")
        }
        meta => meta.path().is_ident("test"),
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(one) => &one.attrs,
        Item::Enum(one) => &one.attrs,
        Item::Fn(one) => &one.attrs,
        Item::Impl(one) => &one.attrs,
        Item::Macro(one) => &one.attrs,
        Item::Mod(one) => &one.attrs,
        Item::Static(one) => &one.attrs,
        Item::Struct(one) => &one.attrs,
        Item::Trait(one) => &one.attrs,
        Item::Type(one) => &one.attrs,
        Item::Use(one) => &one.attrs,
        _ => &[],
    }
}

fn item_name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(one) => &one.ident,
        Item::Enum(one) => &one.ident,
        Item::Fn(one) => &one.sig.ident,
        Item::Macro(one) => one.ident.as_ref()?,
        Item::Static(one) => &one.ident,
        Item::Struct(one) => &one.ident,
        Item::Trait(one) => &one.ident,
        Item::Type(one) => &one.ident,
        Item::Union(one) => &one.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
