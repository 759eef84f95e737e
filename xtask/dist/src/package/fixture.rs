// SPDX-License-Identifier: MIT OR Apache-2.0

//! The files for the tests of packages: packages in two versions, systems to install them on, and the reference's package.

use std::path::{Path, PathBuf};

use super::{Build, Format, VERSION, lint};
use crate::built::Built;
use xtask_base::apt_root::AptRoot;
use xtask_base::error::Result;
use xtask_base::files;
use xtask_base::progress::Log;
use xtask_base::workspace;
use xtask_downloads::debian_root;

/// The suites of the systems.
const SUITES: [&str; 2] = ["bookworm", "trixie"];
/// The package of the reference's plugins.
const REFERENCE: &str = "containernetworking-plugins";

/// Prints the folder with the files.
pub(crate) fn run() -> Result<()> {
    let path = workspace::scratch("logs")?.join("test-packages.log");
    let file = files::create(&path)?;
    println!("{}", make(&Log { file, path })?.display());
    Ok(())
}

/// Makes the packages of the static binaries in the target folder, and the files that name the systems' folders. The version
/// before has the same binaries.
fn make(log: &Log) -> Result<PathBuf> {
    let folder = workspace::scratch("test")?.join("packages");
    workspace::remove(&folder)?;
    let built = Built::in_target(workspace::scratch("test")?.join("share"), log)?;
    write(&built, &folder)?;
    let reference = folder.join("reference");
    files::create_dir(&reference)?;
    for suite in SUITES {
        let base = debian_root::minimal(suite, log)?;
        system(&folder.join(suite), &base)?;
        let booted = debian_root::with_programs("systemd", &["systemd"], suite, log)?;
        system(&folder.join(format!("{suite}-systemd")), &booted)?;
        let deb = AptRoot::open(suite)?.fetch_file(REFERENCE)?;
        let copy = reference.join(format!("{suite}.deb"));
        files::copy(&deb, &copy)?;
    }
    system(&folder.join("rpm"), &lint::programs(log)?)?;
    let both = debian_root::with_programs("rpm-systemd", &["rpm", "systemd"], lint::SUITE, log)?;
    system(&folder.join("rpm-systemd"), &both)?;
    Ok(folder)
}

/// Writes the packages of both versions.
fn write(built: &Built, folder: &Path) -> Result<()> {
    let before = format!("{VERSION}~before");
    for (name, version) in [("old", before.as_str()), ("new", VERSION)] {
        let build = Build { built, version, checkout: workspace::root() };
        build.write(&[Format::Deb, Format::Rpm], &folder.join(name))?;
    }
    Ok(())
}

fn system(file: &Path, lower: &Path) -> Result<()> {
    files::write(file, lower.display().to_string())
}
