// SPDX-License-Identifier: MIT OR Apache-2.0

//! Finds which file's code names items of which other file.
//!
//! An arrow leads to the file that defines an item, through all re-exports. Therefore a folder's `mod.rs` that only
//! re-exports the names of its files imports none of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, UseTree, Visibility};

use crate::circles::Graph;
use crate::modules::{Meaning, Module, ModulePath, Modules, is_for_tests};

/// The most re-exports that one name may go through, so that the search ends in a loop of `use`.
const LONGEST_CHAIN: usize = 16;

/// The arrows between the files of a crate. A folder's first file and the files below it may name each other, as they
/// do for a trait and its implementations: such arrows are left out.
#[must_use]
pub fn imports(modules: &Modules) -> Graph<PathBuf> {
    let mut graph = Graph::new();
    for (path, module) in modules {
        let mut paths = Paths::default();
        for item in &module.items {
            match item {
                // A name that is only re-exported draws no arrow.
                Item::Use(one) if !matches!(one.vis, Visibility::Inherited) => {}
                Item::Use(one) => paths.add_use(&mut Vec::new(), &one.tree),
                other => paths.visit_item(other),
            }
        }
        let files = graph.entry(module.file.clone()).or_default();
        for named in &paths.found {
            if let Some(file) = defining_file(modules, path, named, LONGEST_CHAIN) {
                files.insert(file);
            }
        }
        files.retain(|file| {
            !is_first_file_above(file, &module.file) && !is_first_file_above(&module.file, file)
        });
    }
    graph
}

/// True if `first` is the file itself, or the first file (`mod.rs`, `lib.rs`, `main.rs`, or `NAME.rs` beside the
/// folder `NAME`) of a folder that it lies in.
fn is_first_file_above(first: &Path, file: &Path) -> bool {
    let folder = match first.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") => first.parent().unwrap_or(Path::new("")).to_owned(),
        _ => first.with_extension(""),
    };
    first == file || file.starts_with(folder)
}

/// The file that defines what a path means in a module; nothing for other crates' items.
fn defining_file(modules: &Modules, at: &ModulePath, path: &[String], hops: usize) -> Option<PathBuf> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => from_module(modules, &Vec::new(), rest, hops),
        "self" => from_module(modules, at, rest, hops),
        "super" => from_module(modules, &at.split_last()?.1.to_vec(), rest, hops),
        _ => from_module(modules, at, path, hops),
    }
}

fn from_module(modules: &Modules, at: &ModulePath, path: &[String], hops: usize) -> Option<PathBuf> {
    let module = modules.get(at)?;
    let Some((first, rest)) = path.split_first() else { return Some(module.file.clone()) };
    if first == "super" {
        return from_module(modules, &at.split_last()?.1.to_vec(), rest, hops);
    }
    match module.names.get(first) {
        Some(Meaning::Item) => Some(module.file.clone()),
        Some(Meaning::Module) => {
            let child: ModulePath = at.iter().cloned().chain([first.clone()]).collect();
            from_module(modules, &child, rest, hops)
        }
        Some(Meaning::Use(used)) => {
            let whole: Vec<String> = used.iter().chain(rest).cloned().collect();
            // `use log::…` in a module that has no child of this name means another crate.
            (used.first() != Some(first) || used.len() > 1)
                .then(|| defining_file(modules, at, &whole, hops.checked_sub(1)?))?
        }
        None => from_globs(modules, at, module, path, hops.checked_sub(1)?),
    }
}

fn from_globs(
    modules: &Modules,
    at: &ModulePath,
    module: &Module,
    path: &[String],
    hops: usize,
) -> Option<PathBuf> {
    module.globs.iter().find_map(|glob| {
        let whole: Vec<String> = glob.iter().chain(path).cloned().collect();
        defining_file(modules, at, &whole, hops)
    })
}

/// The paths in a piece of code.
#[derive(Default)]
struct Paths {
    found: BTreeSet<Vec<String>>,
}

impl Paths {
    fn add_use(&mut self, prefix: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.add_use(prefix, &path.tree);
                prefix.pop();
            }
            UseTree::Name(name) if name.ident == "self" => drop(self.found.insert(prefix.clone())),
            UseTree::Name(syn::UseName { ident }) | UseTree::Rename(syn::UseRename { ident, .. }) => {
                self.found.insert(prefix.iter().cloned().chain([ident.to_string()]).collect());
            }
            // Names that a glob imports are found where the code uses them.
            UseTree::Glob(_) => {}
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(prefix, tree)),
        }
    }

    /// The paths in a macro's arguments, which the parser leaves as tokens.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons < 2 {
                        self.end(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end(&mut path);
                    self.add_tokens(group.stream());
                }
                _ => self.end(&mut path),
            }
        }
        self.end(&mut path);
    }

    fn end(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.found.insert(path.clone());
        }
        path.clear();
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.found.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, one: &'ast syn::Macro) {
        self.add_tokens(one.tokens.clone());
        visit::visit_macro(self, one);
    }

    fn visit_item_use(&mut self, one: &'ast syn::ItemUse) {
        self.add_use(&mut Vec::new(), &one.tree);
    }

    fn visit_impl_item_fn(&mut self, one: &'ast syn::ImplItemFn) {
        if !is_for_tests(&one.attrs) {
            visit::visit_impl_item_fn(self, one);
        }
    }
}
