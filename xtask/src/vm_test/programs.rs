// SPDX-License-Identifier: MIT OR Apache-2.0

//! The test programs, the plugins and the first process, built for the machines.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{self, Flavour};
use crate::error::{Error, Result};
use crate::progress::Log;
use crate::run::{self, cargo, tool};
use crate::test_programs::{TestProgram, test_programs};
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

/// Builds everything. The plugins are the static release build, as it is shipped; the tests are the debug build, as
/// outside of VMs. `only` names network suites; if it is empty, all programs of [`PACKAGES`] are built.
///
/// # Errors
/// A build that fails.
pub(crate) fn build(log: &Log, peer: Option<&Path>, only: &[String]) -> Result<Programs> {
    let dir = workspace::scratch("vm")?;
    crate::ebpf::ensure(|command| run::log(command, &log.file))?;
    let mut own = build::static_build(&[INIT.0, "slipway"])?;
    run::log(&mut own, &log.file)?;
    let init = Flavour::Static.binary().with_file_name(INIT.1);
    let (tests, plugins) = (tests(&dir, only, log)?, plugin_dir(&dir, log)?);
    let names = tests.iter().map(|test| test.name.clone()).collect();
    Ok(Programs { tests, names, init, plugins, peer: peer.map(Path::to_owned) })
}

fn tests(dir: &Path, only: &[String], log: &Log) -> Result<Vec<TestProgram>> {
    let mut words = vec!["test", "--no-run", "--message-format=json"];
    if only.is_empty() {
        words.extend(PACKAGES.iter().flat_map(|package| ["--package", package]));
    } else {
        words.extend(["--package", PACKAGES[0]]);
        words.extend(only.iter().flat_map(|name| ["--test", name]));
    }
    let copy = log.file.try_clone().map_err(|e| Error::system("duplicate the log's descriptor", e))?;
    // Cargo writes its progress to standard error.
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
