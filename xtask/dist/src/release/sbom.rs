// SPDX-License-Identifier: MIT OR Apache-2.0

//! The bill of materials of a binary, in CycloneDX 1.5.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::built::Program;
use crate::crates::{Graph, Package};
use crate::toolchain::Library;
use xtask_base::error::Result;

/// The subject of a bill.
#[derive(Debug)]
pub(super) struct Subject<'a> {
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
pub(super) fn bill(subject: &Subject<'_>) -> Result<Bill> {
    let binary = Graph::of_program(subject.program.package, subject.program.name, subject.triple)?;
    let programs = subject.has_bpf_programs.then(Graph::of_bpf_programs).transpose()?;
    let crates = binary.packages.values().map(Package::title).collect();
    let compiled_with = binary.compiled_with.clone();
    let package = &binary.packages[&binary.root];
    let root = reference(package);
    let mut components = BTreeMap::new();
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for graph in [&binary].into_iter().chain(&programs) {
        for (id, package) in &graph.packages {
            components.insert(reference(package), component(package));
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

/// The name of a package within a bill.
fn reference(package: &Package) -> String {
    if package.published { purl(package) } else { package.title() }
}

/// The package URL of a crate.
fn purl(package: &Package) -> String {
    // Build metadata of a version: `+` is `%2B` in a package URL.
    format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B"))
}

/// A crate as a component of the bill.
fn component(package: &Package) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "scope": "required",
        "licenses": [{ "expression": package.licence }],
    });
    if package.published {
        component["purl"] = json!(purl(package));
    }
    if let Some(checksum) = &package.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::built::PROGRAMS;
    use xtask::build;

    #[test]
    fn each_program_has_its_own_crates() {
        let has_kube = |program: Program| {
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
            let in_document = components.iter().any(|one| one["name"] == "kube");
            assert_eq!(bill.crates.iter().any(|title| title.starts_with("kube ")), in_document);
            in_document
        };
        assert_eq!(
            PROGRAMS.map(|program| (program.name, has_kube(program))),
            [("slipway", false), ("slipwayd", true)]
        );
    }

    #[test]
    fn a_crate_is_a_component_with_its_licence_and_checksum() {
        let package = Package {
            name: "b".to_owned(),
            version: "1.0.0".to_owned(),
            licence: "MIT OR Apache-2.0".to_owned(),
            published: true,
            checksum: Some("00ff".to_owned()),
            authors: Vec::new(),
            folder: PathBuf::new(),
        };
        assert_eq!(
            component(&package),
            json!({ "type": "library", "bom-ref": "pkg:cargo/b@1.0.0", "name": "b", "version": "1.0.0",
                    "scope": "required", "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                    "purl": "pkg:cargo/b@1.0.0", "hashes": [{ "alg": "SHA-256", "content": "00ff" }] })
        );
    }
}
