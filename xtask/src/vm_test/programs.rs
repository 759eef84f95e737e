// SPDX-License-Identifier: MIT OR Apache-2.0

//! The test programs, the plugins and the first process, built for the VMs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{self, Flavour};
use crate::error::{Error, Result};
use crate::progress::Log;
use crate::run::{self, tool};
use crate::test_programs::{self, TestProgram};
use crate::workspace;

/// The folders of the packages whose tests depend on the kernel.
const PACKAGES: [&str; 5] = ["tests", "cni/kernel", "cni/nftables", "cni/dataplane", "cni/plugins"];

/// The package and the program of the VMs' first process.
const INIT: (&str, &str) = ("slipway-vm-tests", "vm-init");

/// Everything of ours that goes into a VM.
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
/// outside of VMs. `only` names network suites; if it is empty, all programs of [`PACKAGES`] are built. `agent` adds `slipwayd`.
///
/// # Errors
/// A build that fails.
pub(crate) fn build(log: &Log, peer: Option<&Path>, only: &[String], agent: bool) -> Result<Programs> {
    let dir = workspace::scratch("vm")?;
    crate::ebpf::ensure(|command| run::log(command, &log.file))?;
    // First: `cargo xtask test` has built them, and its lints hold cargo's lock for long.
    let tests = tests(&dir, only, log)?;
    let mut own = build::static_build(&[INIT.0, "slipway"])?;
    run::log(&mut own, &log.file)?;
    let init = Flavour::Static.binary().with_file_name(INIT.1);
    let plugins = plugin_dir(&dir, log)?;
    if agent {
        run::log(&mut Flavour::Static.cargo_build_agent()?, &log.file)?;
        let agent = Flavour::Static.agent();
        fs::copy(&agent, plugins.join("slipwayd")).map_err(|e| Error::file("copy", &agent, e))?;
    }
    let names = tests.iter().map(|test| test.name.clone()).collect();
    Ok(Programs { tests, names, init, plugins, peer: peer.map(Path::to_owned) })
}

fn tests(dir: &Path, only: &[String], log: &Log) -> Result<Vec<TestProgram>> {
    let mut built = test_programs::build(only, &[], log)?;
    built.retain(|test| PACKAGES.iter().any(|folder| test.is_of(folder)));
    let into = dir.join("tests");
    fs::create_dir_all(&into).map_err(|e| Error::file("create the directory", &into, e))?;
    let mut tests = Vec::new();
    for test in built {
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
