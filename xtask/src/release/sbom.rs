// SPDX-License-Identifier: MIT OR Apache-2.0

//! The bill of materials of a binary, in CycloneDX 1.5.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::dist::{Library, Program};
use crate::error::{Error, Result};
use crate::run::{self, cargo};
use crate::workspace;

/// The registry's name in `Cargo.lock` and in cargo's metadata.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The subject of a bill.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    /// The binary.
    pub(super) program: Program,
    /// The version of the workspace.
    pub(super) version: &'a str,
    /// The target, as the compiler calls it.
    pub(super) triple: &'a str,
    /// The binary's SHA-256.
    pub(super) sha256: &'a str,
    /// When the commit was made, as RFC 3339 has it.
    pub(super) time: &'a str,
    /// The C libraries in the binary.
    pub(super) libraries: &'a [Library],
    /// True if it carries the BPF programs.
    pub(super) has_bpf_programs: bool,
}

/// A bill, and the crates that the binary's own list must agree with.
#[derive(Debug)]
pub(super) struct Bill {
    /// As JSON.
    pub(super) document: Value,
    /// `NAME VERSION` of each crate that the binary itself contains, without those of its BPF programs.
    pub(super) crates: BTreeSet<String>,
    /// The same of each crate that only the compiler runs, for the binary.
    pub(super) compiled_with: BTreeSet<String>,
}

/// Lists the crates in the binary, those in the BPF programs that it carries, and the C libraries.
///
/// # Errors
/// Cargo's metadata or a lock file cannot be read.
pub(super) fn bill(subject: &Subject<'_>) -> Result<Bill> {
    let manifest = format!("{}/Cargo.toml", subject.program.package);
    let built = built_crates(subject.program.name, subject.triple)?;
    let binary = Graph::read(&manifest, "Cargo.lock", &["--filter-platform", subject.triple], |title| {
        built.contains(title)
    })?;
    let programs = || Graph::read("ebpf/programs/Cargo.toml", "ebpf/Cargo.lock", &[], |_| true);
    let programs = subject.has_bpf_programs.then(programs).transpose()?;
    let crates = binary.packages.values().map(Package::title).collect();
    let compiled_with = binary.compiled_with.clone();
    let package = &binary.packages[&binary.root];
    let root = reference(package);
    let mut components = BTreeMap::new();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for graph in [&binary].into_iter().chain(&programs) {
        for (id, package) in &graph.packages {
            components.insert(reference(package), package.component());
            let to = graph.edges.get(id).into_iter().flatten().map(|to| reference(&graph.packages[to]));
            edges.entry(reference(package)).or_default().extend(to);
        }
    }
    let own = edges.entry(root.clone()).or_default();
    own.extend(programs.iter().map(|programs| reference(&programs.packages[&programs.root])));
    for library in subject.libraries {
        let name = format!("{} {}", library.name, library.version);
        own.insert(name.clone());
        components.insert(
            name.clone(),
            json!({
                "type": "library", "bom-ref": name, "name": library.name, "version": library.version,
                "licenses": [{ "expression": library.licence }],
            }),
        );
    }
    components.remove(&root);
    let dependencies: Vec<Value> =
        edges.iter().map(|(from, to)| json!({ "ref": from, "dependsOn": to })).collect();
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": subject.time,
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": subject.program.name,
                "version": subject.version,
                "description": format!("{}, for {}", binary.description, subject.triple),
                "licenses": [{ "expression": package.licence }],
                "hashes": [{ "alg": "SHA-256", "content": subject.sha256 }],
            },
        },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies,
    });
    Ok(Bill { document, crates, compiled_with })
}

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

/// The name of a package within a bill.
fn reference(package: &Package) -> String {
    if package.published { package.purl() } else { package.title() }
}

/// The dependencies of a package that run on a node: neither build scripts, nor procedural macros, nor what
/// these need.
#[derive(Debug)]
struct Graph {
    root: String,
    /// The description in the manifest of the root.
    description: String,
    packages: BTreeMap<String, Package>,
    edges: BTreeMap<String, BTreeSet<String>>,
    /// `NAME VERSION` of all others that the build needs.
    compiled_with: BTreeSet<String>,
}

#[derive(Debug)]
struct Package {
    name: String,
    version: String,
    licence: String,
    /// True if it comes from crates.io.
    published: bool,
    /// SHA-256 of the crate's file, from the lock file.
    checksum: Option<String>,
}

impl Graph {
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
        Some(Self { name, version, licence, published: package["source"] == CRATES_IO, checksum })
    }

    fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    fn purl(&self) -> String {
        // Build metadata of a version: `+` is `%2B` in a package URL.
        format!("pkg:cargo/{}@{}", self.name, self.version.replace('+', "%2B"))
    }

    fn component(&self) -> Value {
        let mut component = json!({
            "type": "library",
            "bom-ref": reference(self),
            "name": self.name,
            "version": self.version,
            "scope": "required",
            "licenses": [{ "expression": self.licence }],
        });
        if self.published {
            component["purl"] = json!(self.purl());
        }
        if let Some(checksum) = &self.checksum {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        component
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
    let text = fs::read_to_string(path).map_err(|e| Error::file("read", path, e))?;
    let lock: Lock = toml::from_str(&text).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
    let pairs = lock.package.into_iter();
    Ok(pairs.filter_map(|one| Some((format!("{} {}", one.name, one.version), one.checksum?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;
    use crate::dist::PROGRAMS;

    #[test]
    fn names_and_versions_are_read_from_the_tree() {
        assert_eq!(title_in_tree("serde v1.0.228 (proc-macro)").as_deref(), Some("serde 1.0.228"));
        assert_eq!(title_in_tree("cni-spec v0.1.0 (/a/cni/spec) (*)").as_deref(), Some("cni-spec 0.1.0"));
        assert_eq!(title_in_tree(""), None);
    }

    #[test]
    fn each_program_has_its_own_crates() {
        let has_tokio = |program: Program| {
            let triple = build::static_target();
            let subject = Subject {
                program,
                version: "0.0.0",
                triple: &triple,
                sha256: "00",
                time: "2026-01-01T00:00:00Z",
                libraries: &[],
                has_bpf_programs: false,
            };
            let bill = bill(&subject).unwrap();
            let component = &bill.document["metadata"]["component"];
            assert_eq!(component["name"], program.name);
            let licence = if program.name == "slipwayd" { "GPL-3.0-or-later" } else { "GPL-2.0-or-later" };
            assert_eq!(component["licenses"][0]["expression"], licence);
            let components = bill.document["components"].as_array().unwrap();
            assert!(components.iter().any(|one| one["name"] == "cni-spec"), "{components:#?}");
            let in_document = components.iter().any(|one| one["name"] == "tokio");
            assert_eq!(bill.crates.iter().any(|title| title.starts_with("tokio ")), in_document);
            in_document
        };
        assert_eq!(
            PROGRAMS.map(|program| (program.name, has_tokio(program))),
            [("slipway", false), ("slipwayd", true)]
        );
    }

    #[test]
    fn what_runs_in_the_compiler_is_not_on_the_bill() {
        let package = |id: &str, kind: &str| {
            json!({ "id": id, "name": id, "version": "1.0.0", "license": "MIT/Apache-2.0",
                    "source": CRATES_IO, "targets": [{ "kind": [kind] }] })
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
        assert_eq!(graph.compiled_with.iter().collect::<Vec<_>>(), ["c 1.0.0", "d 1.0.0", "e 1.0.0"]);
        assert_eq!(
            graph.packages["b"].component(),
            json!({ "type": "library", "bom-ref": "pkg:cargo/b@1.0.0", "name": "b", "version": "1.0.0",
                    "scope": "required", "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                    "purl": "pkg:cargo/b@1.0.0", "hashes": [{ "alg": "SHA-256", "content": "00ff" }] })
        );
    }
}
