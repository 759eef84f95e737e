// SPDX-License-Identifier: MIT OR Apache-2.0

//! The provenance of a release's files: from which commit, with which locked dependencies and which compiler they were
//! built. An in-toto statement (<https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md>) with a predicate
//! of SLSA (<https://slsa.dev/spec/v1.0/provenance>). It names no time and no machine, so a rebuild writes the same bytes.

use serde_json::{Value, json};

/// The files that fix what a build takes from outside the repository.
pub(super) const LOCKS: [&str; 3] = ["Cargo.lock", "ebpf/Cargo.lock", "rust-toolchain.toml"];

/// A file with its SHA-256.
#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) sha256: String,
}

/// A build of a release.
#[derive(Debug)]
pub(super) struct Build<'a> {
    pub(super) version: &'a str,
    pub(super) processors: &'a [&'a str],
    /// The hash of the commit.
    pub(super) commit: &'a str,
    /// The address of the repository; none while it has none.
    pub(super) repository: Option<&'a str>,
    /// The first line of `rustc --version`.
    pub(super) compiler: &'a str,
    /// The [`LOCKS`] of the commit.
    pub(super) locks: &'a [File],
    /// The files of the release.
    pub(super) files: &'a [File],
}

/// The statement, signed by the releaser together with the checksums.
pub(super) fn statement(build: &Build<'_>) -> Value {
    let described = |file: &File| json!({ "name": file.name, "digest": { "sha256": file.sha256 } });
    let mut sources = json!({ "name": "slipway", "digest": { "gitCommit": build.commit } });
    if let Some(repository) = build.repository {
        sources["uri"] = format!("git+{repository}@{}", build.commit).into();
    }
    let dependencies: Vec<Value> = [sources].into_iter().chain(build.locks.iter().map(described)).collect();
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": build.files.iter().map(described).collect::<Vec<_>>(),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                // The type is described in docs/releasing.md.
                "buildType": "urn:slipway:release:1",
                "externalParameters": {
                    "command": "cargo xtask release",
                    "version": build.version,
                    "processors": build.processors,
                },
                "internalParameters": { "compiler": build.compiler },
                "resolvedDependencies": dependencies,
            },
            "runDetails": { "builder": { "id": "urn:slipway:releaser" } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_names_each_file_and_where_it_comes_from() {
        let file = |name: &str, digit: &str| File { name: name.to_owned(), sha256: digit.repeat(64) };
        let locks = LOCKS.map(|name| file(name, "b"));
        let files = [file("slipway-0.1.0-x86_64-linux", "a"), file("SHA256", "c")];
        let build = Build {
            version: "0.1.0",
            processors: &["x86_64"],
            commit: "0123",
            repository: None,
            compiler: "rustc 1.95.0",
            locks: &locks,
            files: &files,
        };
        let statement_of = |build: &Build<'_>| statement(build);
        let statement = statement_of(&build);
        assert_eq!(statement["subject"][0]["digest"]["sha256"], "a".repeat(64));
        assert_eq!(statement["subject"].as_array().unwrap().len(), 2);
        let definition = &statement["predicate"]["buildDefinition"];
        assert_eq!(
            definition["resolvedDependencies"][0],
            json!({"name": "slipway", "digest": {"gitCommit": "0123"}})
        );
        assert_eq!(definition["resolvedDependencies"][1]["name"], "Cargo.lock");
        let published = Build { repository: Some("https://example.org/slipway"), ..build };
        let uri = &statement_of(&published)["predicate"]["buildDefinition"]["resolvedDependencies"][0]["uri"];
        assert_eq!(uri, "git+https://example.org/slipway@0123");
    }
}
