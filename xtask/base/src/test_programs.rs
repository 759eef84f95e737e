// SPDX-License-Identifier: MIT OR Apache-2.0

//! The test programs that cargo builds, with the folder each is started in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize as _;
use serde_json::Value;

use crate::checkout;
use crate::error::{Error, Result};
use crate::progress::Log;
use crate::run::{self, cargo};
use crate::workspace;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TestProgram {
    /// Cargo's name of the test program, as a word.
    pub name: String,
    pub path: PathBuf,
    /// The folder of the program's package, where cargo would start it.
    pub package: PathBuf,
}

/// One line of `cargo build --message-format=json`: what is read of it.
#[derive(Debug, serde::Deserialize)]
struct Message {
    #[serde(default)]
    executable: Option<PathBuf>,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    target: Option<Target>,
    #[serde(default)]
    profile: Option<Profile>,
}

#[derive(Debug, serde::Deserialize)]
struct Target {
    name: String,
    #[serde(default)]
    kind: Vec<String>,
    #[serde(default)]
    test: bool,
}

#[derive(Debug, serde::Deserialize)]
struct Profile {
    test: bool,
}

/// Builds test programs, and these binaries: these suites of the network tests, or all of the workspace if none is
/// named. The features of a dependency are those that the whole workspace needs, so that each is built once.
pub fn build(suites: &[String], binaries: &[&str], log: &Log) -> Result<Vec<TestProgram>> {
    build_with(|words| Ok(cargo(words)), suites, binaries, log)
}

/// Like [`build`], with another cargo command.
pub fn build_with(
    cargo: impl Fn(&[&str]) -> Result<Command>,
    suites: &[String],
    binaries: &[&str],
    log: &Log,
) -> Result<Vec<TestProgram>> {
    let copy = log.file.try_clone().map_err(|e| Error::system("duplicate the log's descriptor", e))?;
    let mut words = vec!["build", "--workspace", "--message-format=json-render-diagnostics"];
    words.extend(binaries.iter().flat_map(|name| ["--bin", name]));
    words.extend(suites.iter().flat_map(|name| ["--test", name]));
    words.extend(suites.is_empty().then_some("--tests"));
    // Cargo writes its progress to standard error.
    run::capture_with(cargo(&words)?.env("CARGO_TERM_COLOR", "never"), copy).map(|text| test_programs(&text))
}

/// The names of all test programs of the packages in these folders, without a build.
pub fn names(folders: &[&str]) -> Result<BTreeSet<String>> {
    Ok(targets(folders)?.iter().map(Target::program).collect())
}

/// The names of those test programs that cargo can build on their own, by `--test`. Unit tests of a library or a binary
/// are left out.
pub fn single_names(folders: &[&str]) -> Result<BTreeSet<String>> {
    let is_single = |target: &&Target| target.kind.iter().any(|kind| kind == "test");
    Ok(targets(folders)?.iter().filter(is_single).map(Target::program).collect())
}

/// The targets with tests of the packages in these folders.
fn targets(folders: &[&str]) -> Result<Vec<Target>> {
    let metadata = checkout::metadata()?;
    let wanted: Vec<PathBuf> =
        folders.iter().map(|folder| workspace::root().join(folder).join("Cargo.toml")).collect();
    let is_wanted = |package: &&Value| {
        package["manifest_path"].as_str().is_some_and(|path| wanted.iter().any(|one| one == Path::new(path)))
    };
    let packages = metadata["packages"].as_array().into_iter().flatten().filter(is_wanted);
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let targets = targets.filter_map(|target| Target::deserialize(target).ok());
    Ok(targets.filter(|target| target.test).collect())
}

impl Target {
    /// The name of its test program. The tests of a binary get another one than those of a library of the same name.
    fn program(&self) -> String {
        let mut name = self.name.replace('-', "_");
        if self.kind.iter().any(|kind| kind == "bin") {
            name.push_str("_bin");
        }
        name
    }
}

impl TestProgram {
    /// True if it is of the package in this folder of the workspace.
    pub fn is_of(&self, folder: &str) -> bool {
        self.package == workspace::root().join(folder)
    }
}

/// The test programs among cargo's messages, sorted: cargo prints them in no fixed order.
fn test_programs(printed: &str) -> Vec<TestProgram> {
    let mut found: Vec<TestProgram> = Vec::new();
    for message in printed.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok()) {
        let Message { executable: Some(path), manifest_path, target: Some(target), profile: Some(profile) } =
            message
        else {
            continue;
        };
        if profile.test {
            let name = target.program();
            let package = manifest_path.parent().unwrap_or(&manifest_path).to_owned();
            found.push(TestProgram { name, path, package });
        }
    }
    found.sort();
    found
}

/// The sum of libtest's `test result: ok. N passed; …` and `test result: FAILED. N passed; …` lines.
pub fn passed(printed: &str) -> usize {
    let results = printed.lines().filter_map(|line| line.strip_prefix("test result: "));
    results.filter_map(|rest| rest.split(' ').nth(1)?.parse::<usize>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names cover a library, a binary next to it, and a file and a folder below `tests`.
    #[test]
    fn names_are_known_without_a_build() {
        let network = names(&["tests", "cni/kernel"]).unwrap();
        for name in ["slipway_tests", "cni_kernel", "carried", "host_local"] {
            assert!(network.contains(name), "{name} is missing: {network:?}");
        }
        assert!(!network.contains("xtask"), "{network:?}");
        let single = single_names(&["tests", "cni/kernel"]).unwrap();
        assert!(single.is_subset(&network) && single.contains("carried"), "{single:?}");
        assert!(!single.contains("slipway_tests") && !single.contains("cni_kernel"), "{single:?}");
        let target = |kind: &str| Target { name: "a-b".to_owned(), kind: vec![kind.to_owned()], test: true };
        assert_eq!(["lib", "bin"].map(|kind| target(kind).program()), ["a_b", "a_b_bin"]);
    }

    #[test]
    fn only_test_programs_are_taken() {
        let line = |name: &str, kind: &str, test: bool, path: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/s/Cargo.toml","target":{{"name":"{name}","kind":["{kind}"]}},"profile":{{"test":{test}}},"executable":{path}}}"#
            )
        };
        let printed = [
            line("cni-kernel", "lib", true, r#""/t/a""#),
            line("slipway", "bin", false, r#""/t/b""#),
            line("slipway", "bin", true, r#""/t/d""#),
            line("slipway", "lib", true, r#""/t/c""#),
            line("serde", "lib", false, "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let expected =
            [("cni_kernel", "/t/a"), ("slipway", "/t/c"), ("slipway_bin", "/t/d")].map(|(name, path)| {
                TestProgram { name: name.to_owned(), path: path.into(), package: "/s".into() }
            });
        assert_eq!(test_programs(&printed.join("\n")), expected);
    }
}
