// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask install` and `cargo xtask uninstall`: build, then let the binary install itself.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{self, Flavour};
use crate::ebpf;
use crate::manual;
use crate::setup;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::Stages;
use xtask_base::run;

/// The node's agent.
const AGENT: &str = "slipwayd";

/// Build for release and install slipway, with a link per plugin, and slipwayd.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plugin directory
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    to: PathBuf,
    /// Replace other plugins of the same names; `uninstall` restores a copy of each
    #[arg(long)]
    replace: bool,
    /// Also write manual pages and completions below this directory, as /usr/local/share
    #[arg(long, value_name = "DIR")]
    share_dir: Option<PathBuf>,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Without shared libraries, for nodes without libnftnl and libmnl
    #[arg(long = "static")]
    static_: bool,
}

/// Remove the links, the binary and what the plugins left; restore what `install --replace` replaced.
#[derive(Debug, clap::Args)]
pub struct UninstallArgs {
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

pub fn run(args: &Args) -> Result<()> {
    let flavour = if args.static_ { Flavour::Static } else { Flavour::Release };
    let Binary { path, left_out } = built(flavour)?;
    let mut words: Vec<OsString> = vec!["install".into(), "--to".into(), args.to.clone().into()];
    words.extend(args.replace.then(|| "--replace".into()));
    words.extend(args.dry_run.then(|| "--dry-run".into()));
    if let Some(share) = &args.share_dir {
        words.extend(["--share-dir".into(), share.clone().into()]);
    }
    // An installation with another directory removes the agent's files from the recorded one.
    let recorded = share_dir(&args.to);
    run::show(Command::new(path).args(words))?;
    install_agent(flavour, args, recorded.as_deref())?;
    if let Some(left_out) = left_out {
        println!("{left_out}");
    }
    Ok(())
}

/// The share directory that `slipway install` has recorded.
fn share_dir(plugins: &Path) -> Option<PathBuf> {
    fs::read_link(plugins.join(".slipway-share")).ok()
}

/// Builds `slipwayd` and copies it next to `slipway`, with its manual pages and completions where those of
/// `slipway` are.
fn install_agent(flavour: Flavour, args: &Args, recorded: Option<&Path>) -> Result<()> {
    let target = args.to.join(AGENT);
    if args.dry_run {
        println!("{}: would be installed", target.display());
        return Ok(());
    }
    run::show(&mut flavour.cargo_build_agent()?)?;
    // The file is renamed into place, because a running program cannot be overwritten.
    let new = args.to.join(format!(".{AGENT}"));
    files::copy(flavour.agent(), &new)?;
    files::rename(&new, &target)?;
    println!("{}: installed", target.display());
    let share = share_dir(&args.to);
    if let Some(old) = recorded.filter(|old| share.as_deref() != Some(old)) {
        run::show(&mut manual::remove(&target, old))?;
    }
    share.map_or(Ok(()), |share| run::show(&mut manual::write(&target, &share)))
}

pub(crate) fn run_uninstall(args: &UninstallArgs) -> Result<()> {
    // The installed binary knows what it installed. A new one is built only if it is missing.
    let installed = args.to.join("slipway");
    let binary = if installed.is_file() { installed } else { built(Flavour::Release)?.path };
    let mut words: Vec<OsString> = vec!["uninstall".into(), "--to".into(), args.to.clone().into()];
    words.extend(args.keep_state.then(|| "--keep-state".into()));
    words.extend(args.force.then(|| "--force".into()));
    words.extend(args.dry_run.then(|| "--dry-run".into()));
    let (agent, share) = (args.to.join(AGENT), share_dir(&args.to));
    run::show(Command::new(binary).args(words))?;
    if agent.is_file() && !args.dry_run {
        if let Some(share) = share {
            run::show(&mut manual::remove(&agent, &share))?;
        }
        fs::remove_file(&agent).map_err(|e| Error::file("remove", &agent, e))?;
        println!("{}: removed", agent.display());
    }
    Ok(())
}

/// A binary that was built for use.
#[derive(Debug)]
pub struct Binary {
    pub path: PathBuf,
    /// The line to print about parts that this machine could not build.
    pub left_out: Option<String>,
}

/// Installs what a build needs, then builds.
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

/// Builds `slipwayd`, after [`built`].
pub fn built_agent(flavour: Flavour) -> Result<PathBuf> {
    Stages::new("build")?.run("build slipwayd", |log| {
        run::log(&mut flavour.cargo_build_agent()?, &log.file)?;
        build::size(&flavour.agent())
    })?;
    Ok(flavour.agent())
}

/// Builds the runtime library's example `calls`.
pub fn built_calls(flavour: Flavour) -> Result<PathBuf> {
    Stages::new("build")?.run("build calls", |log| {
        run::log(&mut flavour.cargo_build_calls()?, &log.file)?;
        build::size(&flavour.calls())
    })?;
    Ok(flavour.calls())
}
