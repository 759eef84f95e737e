// SPDX-License-Identifier: MIT OR Apache-2.0

//! The test programs, the plugins and the first process, built for the VMs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::Arch;
use xtask::build::Profile;
use xtask_base::error::{Error, Result};
use xtask_base::progress::Log;
use xtask_base::run;
use xtask_base::test_programs::{self, TestProgram};
use xtask_base::workspace;
use xtask_dist::Toolchain;

/// The folders of the packages whose tests depend on the kernel.
const PACKAGES: [&str; 7] =
    ["tests", "cni/netlink", "cni/kernel", "cni/nftables", "cni/dataplane", "cni/plugins", "cni/slipway"];

/// The package and the program of the VMs' first process.
const INIT: (&str, &str) = ("slipway-vm-tests", "vm-init");

/// Everything of ours that goes into a VM.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Test programs, by the names of their suites.
    pub(crate) tests: Vec<TestProgram>,
    /// The names of all test programs, including those that are not wanted.
    pub(crate) names: BTreeSet<String>,
    /// The first process.
    pub(crate) init: PathBuf,
    /// The plugin directory.
    pub(crate) plugins: PathBuf,
    /// Another implementation's, to be tested in its place.
    pub(crate) peer: Option<PathBuf>,
}

/// The programs to build.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// Names of programs of [`PACKAGES`]; if there are none, all.
    pub(crate) suites: &'a [String],
    /// True if `slipwayd` is needed.
    pub(crate) agent: bool,
    /// Another implementation, to be tested in place of this one.
    pub(crate) peer: Option<&'a Path>,
    /// The optimization of the plugins.
    pub(crate) profile: Profile,
}

/// Builds everything. The plugins are static, as they are shipped; the tests are the debug build, as outside of VMs.
///
/// # Errors
/// A name that no test program has; a build that fails.
pub(crate) fn build(arch: Arch, toolchain: &Toolchain, wanted: &Wanted<'_>, log: &Log) -> Result<Programs> {
    let dir = arch.cache()?;
    let names = test_programs::names(&PACKAGES)?;
    if let Some(unknown) = wanted.suites.iter().find(|name| !names.contains(*name)) {
        return Err(Error::Failed(format!("no test program is called {unknown}")));
    }
    let single = test_programs::single_names(&PACKAGES)?;
    let to_build = if wanted.suites.iter().all(|name| single.contains(name)) { wanted.suites } else { &[] };
    xtask::ebpf::ensure(|command| run::log(command, &log.file))?;
    // The tests are built first, because `cargo xtask test` has built them and its lints hold cargo's lock for a long
    // time.
    let mut built = test_programs::build_with(|words| toolchain.cargo(words), to_build, &[], log)?;
    built.retain(|test| wanted.suites.is_empty() || wanted.suites.contains(&test.name));
    let tests = stripped(built, toolchain, &dir, log)?;
    run::log(&mut toolchain.static_build(&[INIT.0, "slipway"], wanted.profile)?, &log.file)?;
    let release = workspace::target().join(toolchain.triple()).join(wanted.profile.name());
    let plugins = plugin_dir(toolchain, &release.join("slipway"), &dir, log)?;
    if wanted.agent {
        run::log(&mut toolchain.static_build(&["slipwayd"], wanted.profile)?, &log.file)?;
        let agent = release.join("slipwayd");
        fs::copy(&agent, plugins.join("slipwayd")).map_err(|e| Error::file("copy", &agent, e))?;
    }
    let peer = wanted.peer.map(Path::to_owned);
    Ok(Programs { tests, names, init: release.join(INIT.1), plugins, peer })
}

/// Copies of the test programs of [`PACKAGES`], without line numbers.
fn stripped(
    mut built: Vec<TestProgram>,
    toolchain: &Toolchain,
    dir: &Path,
    log: &Log,
) -> Result<Vec<TestProgram>> {
    built.retain(|test| PACKAGES.iter().any(|folder| test.is_of(folder)));
    let into = dir.join("tests");
    fs::create_dir_all(&into).map_err(|e| Error::file("create the directory", &into, e))?;
    let mut tests = Vec::new();
    for test in built {
        let slim = into.join(&test.name);
        let mut strip = toolchain.strip();
        run::log(strip.args(["--strip-debug", "-o"]).arg(&slim).arg(&test.path), &log.file)?;
        tests.push(TestProgram { path: slim, ..test });
    }
    if tests.is_empty() {
        return Err(Error::Failed("cargo built no test program".to_owned()));
    }
    Ok(tests)
}

/// A plugin directory, made by the binary itself.
fn plugin_dir(toolchain: &Toolchain, binary: &Path, dir: &Path, log: &Log) -> Result<PathBuf> {
    let plugins = dir.join("bin");
    if plugins.exists() {
        fs::remove_dir_all(&plugins).map_err(|e| Error::file("remove", &plugins, e))?;
    }
    let mut install = Command::new(binary);
    install.args(["install", "--to"]).arg(&plugins);
    run::log(&mut toolchain.call(install), &log.file)?;
    Ok(plugins)
}
