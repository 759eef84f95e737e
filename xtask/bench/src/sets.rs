// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plugin sets that are compared: their directories and versions.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::build::Flavour;
use xtask::install;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, tool};
use xtask_base::workspace;
use xtask_downloads::reference;

/// The plugin sets to compare.
#[derive(Debug, clap::Args)]
pub(super) struct Plugins {
    /// The directory of the plugins to compare with
    #[arg(long, value_name = "DIR", default_value = "/usr/lib/cni", conflicts_with = "fetch_peer")]
    peer: PathBuf,
    /// Compare with the reference plugins of Debian unstable, fetched and unpacked below target/
    #[arg(long)]
    fetch_peer: bool,
    /// Our plugins' directory, instead of building them
    #[arg(long, value_name = "DIR")]
    slipway: Option<PathBuf>,
    /// Measure the build without shared libraries
    #[arg(long = "static", conflicts_with = "slipway")]
    static_: bool,
}

/// The programs of the runtime's side.
#[derive(Debug)]
pub(super) struct Callers {
    pub(super) agent: PathBuf,
    /// The runtime library's example `calls`.
    pub(super) calls: PathBuf,
}

impl Plugins {
    /// The options, as another benchmark takes them on its command line.
    pub(super) fn options(&self) -> Vec<OsString> {
        let mut options = self.directory_option();
        if self.static_ {
            options.push("--static".into());
        }
        if self.fetch_peer {
            options.push("--fetch-peer".into());
        } else {
            options.extend(["--peer".into(), self.peer.clone().into()]);
        }
        options
    }

    /// The option that names the directory of our plugins, if it was given.
    pub(super) fn directory_option(&self) -> Vec<OsString> {
        self.slipway.iter().flat_map(|dir| ["--slipway".into(), dir.clone().into()]).collect()
    }

    /// Our plugins: built and installed below target/, or those of a directory.
    pub(super) fn own(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.slipway {
            return workspace::absolute(dir);
        }
        let binary = install::built(self.flavour())?.path;
        let dir = workspace::scratch("bench")?.join("bin");
        run::capture(Command::new(binary).args(["install", "--to"]).arg(&dir))?;
        Ok(dir)
    }

    /// Our programs of the runtime's side, built as the plugins are; `slipwayd` may be with them.
    pub(super) fn callers(&self) -> Result<Callers> {
        let installed = self.slipway.as_ref().map(|dir| dir.join("slipwayd")).filter(|file| file.is_file());
        let agent = match installed {
            Some(file) => workspace::absolute(&file)?,
            None => install::built_agent(self.flavour())?,
        };
        Ok(Callers { agent, calls: install::built_calls(self.flavour())? })
    }

    fn flavour(&self) -> Flavour {
        if self.static_ { Flavour::Static } else { Flavour::Release }
    }

    pub(super) fn peer(&self) -> Result<PathBuf> {
        let dir = if self.fetch_peer {
            reference::fetch(reference::NEWEST)?
        } else {
            workspace::absolute(&self.peer)?
        };
        match ["bridge", "host-local", "portmap"].iter().find(|plugin| !dir.join(plugin).is_file()) {
            None => Ok(dir),
            Some(missing) => Err(Error::Failed(format!("{} has no {missing}", dir.display()))),
        }
    }
}

/// The version of a plugin set: `slipway version`, or what a reference plugin prints to standard error
/// without a command, with its package if that is known.
pub(super) fn version(dir: &Path) -> String {
    let own = dir.join("slipway");
    if own.is_file() {
        return run::capture(Command::new(own).arg("version"))
            .map_or_else(|e| e.to_string(), |v| v.trim().to_owned());
    }
    let output = Command::new(dir.join("portmap")).env_remove("CNI_COMMAND").output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stderr).into_owned()).unwrap_or_default();
    let said = text.lines().next().unwrap_or("unknown");
    match package_of(dir) {
        Some(package) => format!("{said} ({package})"),
        None => said.to_owned(),
    }
}

/// The package of a plugin directory: of a fetched one from the file next to it, of an installed one from
/// dpkg.
fn package_of(dir: &Path) -> Option<String> {
    let unpacked = dir.ancestors().nth(3)?;
    if let Ok(name) = fs::read_to_string(unpacked.with_extension("from")) {
        return Some(name);
    }
    let owner = run::capture(tool("dpkg-query", &["--search"]).arg(dir.join("portmap"))).ok()?;
    let package = owner.split(':').next()?.to_owned();
    run::capture(&mut tool("dpkg-query", &["--show", "--showformat=${Package} ${Version}", &package])).ok()
}
