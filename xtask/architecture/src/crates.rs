// SPDX-License-Identifier: MIT OR Apache-2.0

//! The crates of the workspace and which of them each uses.

use std::collections::BTreeSet;
use std::path::Path;

use crate::circles::Graph;
use crate::error::{self, Error};

/// A member of the workspace.
#[derive(Debug, Clone)]
pub struct Crate {
    /// The crate's folder, relative to the workspace (`cni/spec`).
    pub folder: String,
    /// The name of the crate's package.
    pub package: String,
    /// The names of the packages that it depends on at run time and when it is built, without those that only tests
    /// need.
    pub dependencies: BTreeSet<String>,
}

/// Reads the members of a workspace.
///
/// # Errors
/// A manifest cannot be read, or lacks a name.
pub fn read(workspace: &Path) -> Result<Vec<Crate>, Error> {
    let path = workspace.join("Cargo.toml");
    let manifest = manifest(&path)?;
    let members = manifest.get("workspace").and_then(|table| table.get("members"));
    let members = members.and_then(toml::Value::as_array);
    let members = members.ok_or(Error::Missing { path, key: "workspace.members" })?;
    members.iter().filter_map(toml::Value::as_str).map(|folder| member(workspace, folder)).collect()
}

fn member(workspace: &Path, folder: &str) -> Result<Crate, Error> {
    let path = workspace.join(folder).join("Cargo.toml");
    let manifest = manifest(&path)?;
    let package = manifest.get("package").and_then(|table| table.get("name")).and_then(toml::Value::as_str);
    let package = package.ok_or(Error::Missing { path, key: "package.name" })?.to_owned();
    let tables = ["dependencies", "build-dependencies"];
    let tables = tables.iter().filter_map(|name| manifest.get(*name)?.as_table());
    let dependencies = tables.flat_map(|table| table.keys().cloned()).collect();
    Ok(Crate { folder: folder.to_owned(), package, dependencies })
}

fn manifest(path: &Path) -> Result<toml::Table, Error> {
    error::text(path)?.parse().map_err(|source| Error::Manifest { path: path.to_owned(), source })
}

/// For each crate's folder, the folders of the members that it uses.
#[must_use]
pub fn uses(crates: &[Crate]) -> Graph<String> {
    let folder = |package: &String| crates.iter().find(|one| one.package == *package);
    let used = |one: &Crate| one.dependencies.iter().filter_map(folder).map(|to| to.folder.clone()).collect();
    crates.iter().map(|one| (one.folder.clone(), used(one))).collect()
}

/// The crates by floor, from the ground up. A crate is one floor above the highest crate that it uses.
#[must_use]
pub fn floors(uses: &Graph<String>) -> Vec<Vec<String>> {
    let mut floors: Vec<Vec<String>> = Vec::new();
    let mut placed = BTreeSet::new();
    while placed.len() < uses.len() {
        let next: Vec<String> = uses
            .iter()
            .filter(|(folder, used)| !placed.contains(*folder) && used.is_subset(&placed))
            .map(|(folder, _)| folder.clone())
            .collect();
        // Cargo refuses circles between crates. As long as there is none, each round places at least one crate.
        if next.is_empty() {
            break;
        }
        placed.extend(next.iter().cloned());
        floors.push(next);
    }
    floors
}
