// SPDX-License-Identifier: MIT OR Apache-2.0

//! The crates in a program, from cargo's own view: for bills of materials and for the licences of packages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, cargo};
use xtask_base::workspace;

/// The registry's name in `Cargo.lock` and in cargo's metadata.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// `NAME VERSION` of each crate in a build of one package, procedural macros included. Cargo's metadata have the
/// features, and so the dependencies, of a build of the whole workspace.
fn built_crates(package: &str, triple: &str) -> Result<BTreeSet<String>> {
    let mut command = cargo(&["tree", "--locked", "--edges=normal", "--prefix=none", "--format={p}"]);
    let printed = run::capture(command.args(["--package", package, "--target", triple]))?;
    Ok(printed.lines().filter_map(title_in_tree).collect())
}

/// The name and version in a line such as `serde v1.0.228 (proc-macro)`.
fn title_in_tree(line: &str) -> Option<String> {
    let (name, rest) = line.split_once(" v")?;
    Some(format!("{name} {}", rest.split(' ').next()?))
}

/// The dependencies of a package that run on a node: neither build scripts, nor procedural macros, nor what
/// these need.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) root: String,
    /// The description in the manifest of the root.
    pub(crate) description: String,
    pub(crate) packages: BTreeMap<String, Package>,
    pub(crate) edges: BTreeMap<String, BTreeSet<String>>,
    /// `NAME VERSION` of all others that the build needs.
    pub(crate) compiled_with: BTreeSet<String>,
}

#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: String,
    /// True if it comes from crates.io.
    pub(crate) published: bool,
    /// SHA-256 of the crate's file, from the lock file.
    pub(crate) checksum: Option<String>,
    /// The people whom its manifest names.
    pub(crate) authors: Vec<String>,
    /// The folder of its sources.
    pub(crate) folder: PathBuf,
}

impl Graph {
    /// Reads the crates of a program, by the folder and name of its package.
    pub(crate) fn of_program(folder: &str, name: &str, triple: &str) -> Result<Self> {
        let built = built_crates(name, triple)?;
        let words = ["--filter-platform", triple];
        Self::read(&format!("{folder}/Cargo.toml"), "Cargo.lock", &words, |title| built.contains(title))
    }

    /// Reads the crates of the BPF programs.
    pub(crate) fn of_bpf_programs() -> Result<Self> {
        Self::read("ebpf/programs/Cargo.toml", "ebpf/Cargo.lock", &[], |_| true)
    }

    /// Reads the graph of a manifest, with those crates of which `is_built` is true.
    fn read(manifest: &str, lock: &str, words: &[&str], is_built: impl Fn(&str) -> bool) -> Result<Self> {
        let mut command = cargo(&["metadata", "--format-version=1", "--locked", "--manifest-path", manifest]);
        let printed = run::capture(command.args(words))?;
        let metadata: Value = serde_json::from_str(&printed)
            .map_err(|e| Error::Failed(format!("read cargo's metadata of {manifest}: {e}")))?;
        let checksums = checksums(&workspace::root().join(lock))?;
        Self::of(&metadata, &checksums, is_built)
            .ok_or_else(|| Error::Failed(format!("cargo's metadata of {manifest} have another form")))
    }

    fn of(
        metadata: &Value,
        checksums: &BTreeMap<String, String>,
        is_built: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
            .as_array()?
            .iter()
            .filter_map(|node| Some((node["id"].as_str()?, node)))
            .collect();
        let about: BTreeMap<&str, &Value> = metadata["packages"]
            .as_array()?
            .iter()
            .filter_map(|package| Some((package["id"].as_str()?, package)))
            .collect();
        let root = metadata["resolve"]["root"].as_str()?;
        let mut graph = Self {
            root: root.to_owned(),
            description: about.get(root)?["description"].as_str().unwrap_or_default().to_owned(),
            packages: BTreeMap::new(),
            edges: BTreeMap::new(),
            compiled_with: BTreeSet::new(),
        };
        let (mut left, mut compiled) = (vec![root], Vec::new());
        while let Some(id) = left.pop() {
            if graph.packages.contains_key(id) {
                continue;
            }
            graph.packages.insert(id.to_owned(), Package::of(about.get(id)?, checksums)?);
            for (to, kinds) in dependencies(nodes.get(id)?) {
                let is_normal = kinds.contains(&"normal");
                if is_normal && !is_built(&Package::of(about.get(to)?, checksums)?.title()) {
                    continue;
                }
                if is_normal && !is_macro(about.get(to)?) {
                    graph.edges.entry(id.to_owned()).or_default().insert(to.to_owned());
                    left.push(to);
                } else if kinds != ["dev"] {
                    compiled.push(to);
                }
            }
        }
        while let Some(id) = compiled.pop() {
            if graph.compiled_with.insert(Package::of(about.get(id)?, checksums)?.title()) {
                let needed = dependencies(nodes.get(id)?);
                compiled.extend(needed.filter(|(_, kinds)| *kinds != ["dev"]).map(|(to, _)| to));
            }
        }
        Some(graph)
    }
}

/// The dependencies of a node of the graph, each with its kinds: `normal`, `build`, `dev`.
fn dependencies(node: &Value) -> impl Iterator<Item = (&str, Vec<&str>)> {
    node["deps"].as_array().into_iter().flatten().filter_map(|dependency| {
        let kinds = dependency["dep_kinds"].as_array()?.iter();
        let mut kinds: Vec<&str> = kinds.map(|kind| kind["kind"].as_str().unwrap_or("normal")).collect();
        kinds.sort_unstable();
        kinds.dedup();
        Some((dependency["pkg"].as_str()?, kinds))
    })
}

/// True if a package is a procedural macro, which runs in the compiler.
fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array().into_iter().flatten();
    targets
        .flat_map(|target| target["kind"].as_array().into_iter().flatten())
        .any(|kind| kind == "proc-macro")
}

impl Package {
    fn of(package: &Value, checksums: &BTreeMap<String, String>) -> Option<Self> {
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        let (name, version) = (text("name")?, text("version")?);
        let checksum = checksums.get(&format!("{name} {version}")).cloned();
        // `/` is how licences were separated before SPDX expressions.
        let licence = text("license")?.replace('/', " OR ");
        let authors = package["authors"].as_array().into_iter().flatten();
        let authors = authors.filter_map(Value::as_str).map(str::to_owned).collect();
        let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent()?.to_owned();
        let published = package["source"] == CRATES_IO;
        Some(Self { name, version, licence, published, checksum, authors, folder })
    }

    pub(crate) fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }
}

/// The checksums of a lock file, by name and version.
fn checksums(path: &Path) -> Result<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(serde::Deserialize)]
    struct Locked {
        name: String,
        version: String,
        checksum: Option<String>,
    }
    let text = files::read(path)?;
    let lock: Lock = toml::from_str(&text).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
    let pairs = lock.package.into_iter();
    Ok(pairs.filter_map(|one| Some((format!("{} {}", one.name, one.version), one.checksum?))).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_versions_are_read_from_the_tree() {
        assert_eq!(title_in_tree("serde v1.0.228 (proc-macro)").as_deref(), Some("serde 1.0.228"));
        assert_eq!(title_in_tree("cni-spec v0.1.0 (/a/cni/spec) (*)").as_deref(), Some("cni-spec 0.1.0"));
        assert_eq!(title_in_tree(""), None);
    }

    #[test]
    fn what_runs_in_the_compiler_is_not_in_the_program() {
        let package = |id: &str, kind: &str| {
            json!({ "id": id, "name": id, "version": "1.0.0", "license": "MIT/Apache-2.0",
                    "source": CRATES_IO, "manifest_path": "/a/Cargo.toml", "targets": [{ "kind": [kind] }] })
        };
        let on = |id: &str, kind: Value| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("a", "bin"), package("b", "lib"), package("c", "proc-macro"),
                         package("d", "lib"), package("e", "lib"), package("f", "lib")],
            "resolve": { "root": "a", "nodes": [
                { "id": "a", "deps": [on("b", Value::Null), on("c", Value::Null), on("e", json!("build"))] },
                { "id": "b", "deps": [on("f", json!("dev"))] },
                { "id": "c", "deps": [on("d", Value::Null)] },
                { "id": "d", "deps": [] }, { "id": "e", "deps": [] }, { "id": "f", "deps": [] },
            ] },
        });
        let checksums = BTreeMap::from([("b 1.0.0".to_owned(), "00ff".to_owned())]);
        let without_b = Graph::of(&metadata, &checksums, |title| title != "b 1.0.0").unwrap();
        assert_eq!(without_b.packages.keys().collect::<Vec<_>>(), ["a"]);
        let graph = Graph::of(&metadata, &checksums, |_| true).unwrap();
        assert_eq!(graph.packages.keys().collect::<Vec<_>>(), ["a", "b"]);
        let b = &graph.packages["b"];
        assert_eq!((b.licence.as_str(), b.checksum.as_deref()), ("MIT OR Apache-2.0", Some("00ff")));
        assert_eq!(graph.compiled_with.iter().collect::<Vec<_>>(), ["c 1.0.0", "d 1.0.0", "e 1.0.0"]);
    }
}
