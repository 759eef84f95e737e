//! The test programs, the plugins and the first process, built for the machines.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{self, Flavour};
use crate::error::{Error, Result};
use crate::progress::Log;
use crate::run::{self, cargo, tool};
use crate::workspace;

/// The packages whose tests look at the kernel, and so may come out otherwise on another one.
const PACKAGES: [&str; 5] = ["slipway-tests", "cni-kernel", "cni-nftables", "cni-dataplane", "slipway"];

/// The package and the program of the machines' first process.
const INIT: (&str, &str) = ("slipway-vm-tests", "vm-init");

/// Everything of ours that goes into a machine.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Test programs, by the names of their suites.
    pub(crate) tests: Vec<TestProgram>,
    /// The names of all there are, also of those that are not wanted.
    pub(crate) names: BTreeSet<String>,
    /// The first process.
    pub(crate) init: PathBuf,
    /// The plugin directory.
    pub(crate) plugins: PathBuf,
    /// Another implementation's, to be tested in its place.
    pub(crate) peer: Option<PathBuf>,
}

/// One test program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestProgram {
    /// Cargo's name of it, as a word.
    pub(crate) name: String,
    /// The file, without debugging information.
    pub(crate) path: PathBuf,
    /// Its package's folder, where cargo would start it.
    pub(crate) package: PathBuf,
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
}

#[derive(Debug, serde::Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all of it. The plugins are the static release build, as it is shipped; the tests are the
/// debug build, as on the machine itself.
///
/// # Errors
/// A build that fails.
pub(crate) fn build(log: &Log, peer: Option<&Path>) -> Result<Programs> {
    let dir = workspace::scratch("vm")?;
    crate::ebpf::ensure(|command| run::log(command, &log.file))?;
    let mut own = build::static_build(&[INIT.0, "slipway"])?;
    run::log(&mut own, &log.file)?;
    let init = Flavour::Static.binary().with_file_name(INIT.1);
    let (tests, plugins) = (tests(&dir, log)?, plugin_dir(&dir, log)?);
    let names = tests.iter().map(|test| test.name.clone()).collect();
    Ok(Programs { tests, names, init, plugins, peer: peer.map(Path::to_owned) })
}

fn tests(dir: &Path, log: &Log) -> Result<Vec<TestProgram>> {
    let mut words = vec!["test", "--no-run", "--message-format=json"];
    words.extend(PACKAGES.iter().flat_map(|package| ["--package", package]));
    let copy = log.file.try_clone().map_err(|e| Error::system("duplicate the log's descriptor", e))?;
    // What cargo has to say to people goes to its standard error.
    let printed = run::capture_with(cargo(&words).env("CARGO_TERM_COLOR", "never"), copy)?;
    let into = dir.join("tests");
    fs::create_dir_all(&into).map_err(|e| Error::file("create the directory", &into, e))?;
    let mut tests = Vec::new();
    for test in test_programs(&printed) {
        let slim = into.join(&test.name);
        run::log(tool("strip", &["--strip-debug", "-o"]).arg(&slim).arg(&test.path), &log.file)?;
        tests.push(TestProgram { path: slim, ..test });
    }
    if tests.is_empty() {
        return Err(Error::Failed("cargo built no test program".to_owned()));
    }
    Ok(tests)
}

/// The test programs among cargo's messages, which come in no certain order; a binary's is told from that of a
/// library of the same name.
fn test_programs(printed: &str) -> Vec<TestProgram> {
    let mut found: Vec<TestProgram> = Vec::new();
    for message in printed.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok()) {
        let Message { executable: Some(path), manifest_path, target: Some(target), profile: Some(profile) } =
            message
        else {
            continue;
        };
        if profile.test {
            let mut name = target.name.replace('-', "_");
            if target.kind.iter().any(|kind| kind == "bin") {
                name.push_str("_bin");
            }
            let package = manifest_path.parent().unwrap_or(&manifest_path).to_owned();
            found.push(TestProgram { name, path, package });
        }
    }
    found.sort();
    found
}

/// A plugin directory, made by the binary itself.
fn plugin_dir(dir: &Path, log: &Log) -> Result<PathBuf> {
    let plugins = dir.join("bin");
    if plugins.exists() {
        fs::remove_dir_all(&plugins).map_err(|e| Error::file("remove", &plugins, e))?;
    }
    let mut install = Command::new(Flavour::Static.binary());
    run::log(install.args(["install", "--to"]).arg(&plugins), &log.file)?;
    Ok(plugins)
}

#[cfg(test)]
mod tests {
    use super::*;

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
