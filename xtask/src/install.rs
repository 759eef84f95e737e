// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask install` and `cargo xtask uninstall`: build, then let the binary install itself.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::build::{self, Flavour};
use crate::error::{Error, Result};
use crate::progress::Stages;
use crate::{ebpf, run, setup};

/// The node's agent.
const AGENT: &str = "slipwayd";

/// Build for release and install slipway, with a link per plugin, and slipwayd.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The plugin directory
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    to: PathBuf,
    /// Replace other plugins of the same names; `uninstall` restores a copy of each
    #[arg(long)]
    replace: bool,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Without shared libraries, for nodes without libnftnl and libmnl
    #[arg(long = "static")]
    static_: bool,
}

/// Remove the links, the binary and what the plugins left; restore what `install --replace` replaced.
#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArgs {
    /// The plugin directory
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    to: PathBuf,
    /// Keep what the plugins have on the node: tables, bridges, host-local's files
    #[arg(long, conflicts_with = "force")]
    keep_state: bool,
    /// Remove the entries of running containers, too
    #[arg(long)]
    force: bool,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Runs the task.
///
/// # Errors
/// The build or the installation fails.
pub(crate) fn run(args: &Args) -> Result<()> {
    let flavour = if args.static_ { Flavour::Static } else { Flavour::Release };
    let Binary { path, left_out } = built(flavour)?;
    let mut words: Vec<OsString> = vec!["install".into(), "--to".into(), args.to.clone().into()];
    words.extend(args.replace.then(|| "--replace".into()));
    words.extend(args.dry_run.then(|| "--dry-run".into()));
    run::show(Command::new(path).args(words))?;
    install_agent(flavour, args)?;
    if let Some(left_out) = left_out {
        println!("{left_out}");
    }
    Ok(())
}

/// Builds `slipwayd` and copies it next to `slipway`.
fn install_agent(flavour: Flavour, args: &Args) -> Result<()> {
    let target = args.to.join(AGENT);
    if args.dry_run {
        println!("{}: would be installed", target.display());
        return Ok(());
    }
    run::show(&mut flavour.cargo_build_agent()?)?;
    // Not over a program that runs.
    let new = args.to.join(format!(".{AGENT}"));
    fs::copy(flavour.agent(), &new).map_err(|e| Error::file("copy", &flavour.agent(), e))?;
    fs::rename(&new, &target).map_err(|e| Error::file("rename", &new, e))?;
    println!("{}: installed", target.display());
    Ok(())
}

/// Runs the task.
///
/// # Errors
/// The build or the removal fails.
pub(crate) fn run_uninstall(args: &UninstallArgs) -> Result<()> {
    // The installed binary knows what it installed; a new one is built only if it is missing.
    let installed = args.to.join("slipway");
    let binary = if installed.is_file() { installed } else { built(Flavour::Release)?.path };
    let mut words: Vec<OsString> = vec!["uninstall".into(), "--to".into(), args.to.clone().into()];
    words.extend(args.keep_state.then(|| "--keep-state".into()));
    words.extend(args.force.then(|| "--force".into()));
    words.extend(args.dry_run.then(|| "--dry-run".into()));
    run::show(Command::new(binary).args(words))?;
    let agent = args.to.join(AGENT);
    if agent.is_file() && !args.dry_run {
        fs::remove_file(&agent).map_err(|e| Error::file("remove", &agent, e))?;
        println!("{}: removed", agent.display());
    }
    Ok(())
}

/// A binary that was built for use.
#[derive(Debug)]
pub struct Binary {
    /// Its path.
    pub path: PathBuf,
    /// The line to print about parts that this machine could not build.
    pub left_out: Option<String>,
}

/// Installs what a build needs, then builds.
///
/// # Errors
/// Something required cannot be installed, or the build fails.
pub fn built(flavour: Flavour) -> Result<Binary> {
    let name = match flavour {
        Flavour::Debug => "build",
        Flavour::Release => "build release",
        Flavour::Static => "build static",
    };
    let stages = Stages::new("build")?;
    stages.run("setup", |_| setup::ensure())?;
    let mut left_out = None;
    stages.run("BPF programs", |log| {
        let programs = ebpf::if_possible(|command| run::log(command, &log.file))?;
        left_out = programs.left_out();
        Ok(programs.summary())
    })?;
    stages.run(name, |log| {
        run::log(&mut flavour.cargo_build()?, &log.file)?;
        build::size(&flavour.binary())
    })?;
    Ok(Binary { path: flavour.binary(), left_out })
}
