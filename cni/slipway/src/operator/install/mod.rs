// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway install` and `slipway uninstall`: one binary and a link per plugin in a plugin directory.
//!
//! A runtime may start a plugin at any moment of an installation. Hence every name changes by one `rename`,
//! and no plugin is ever missing or incomplete. A plugin of another set is kept in [`BACKUP_DIR`], and
//! `uninstall` puts it back. Runtimes refuse a type with a slash in it, so nothing in that directory is ever
//! executed. `uninstall` also removes what the plugins have left on the node.

mod args;
mod dir;
mod leftovers;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use cni_dataplane::teardown::UsedTable;

use cni_plugins::registry;
use slipway_cli::{Failure, SharePlan, UnlessClosed};

use super::cnitool;
pub(crate) use args::{InstallArgs, UninstallArgs};
use args::{Mode, Options, State};
pub(crate) use dir::InstallError;
use dir::{Entry, PluginDir};
use leftovers::Leftover;

/// The binary's own name in the plugin directory, and the target of every link.
pub(crate) const BINARY: &str = "slipway";
/// The usual plugin directory of runtimes.
pub(crate) const DEFAULT_DIR: &str = "/opt/cni/bin";
/// The directory, inside the plugin directory, of the plugins that `--replace` replaced.
pub(crate) const BACKUP_DIR: &str = ".slipway-replaced";
/// The link, inside the plugin directory, to the share directory of manual pages and completions.
pub(crate) const SHARE_LINK: &str = ".slipway-share";

/// The names that the binary answers to, besides its own, in order: the plugins' and `cnitool`.
pub(super) fn links() -> Vec<&'static str> {
    let mut links = registry::names();
    links.push(cnitool::NAME);
    links.sort_unstable();
    links
}

/// The change of one name in the plugin directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// The binary is written, or replaced by a newer one.
    Copy,
    /// The link is made.
    Link(String),
    /// Another set's plugin goes to [`BACKUP_DIR`], and the link takes its place.
    Replace(String),
    /// The name is up to date.
    Keep(String),
    /// Our link is removed.
    Remove(String),
    /// The plugin that `--replace` had replaced is put back.
    Restore(String),
    /// Another file has replaced our link; it stays, and so does the copy in [`BACKUP_DIR`].
    Leave(String),
    /// The binary is removed.
    RemoveBinary,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy => write!(f, "copy    {BINARY}"),
            Self::Link(name) => write!(f, "link    {name} -> {BINARY}"),
            Self::Replace(name) => {
                write!(f, "replace {name} -> {BINARY} (the present one goes to {BACKUP_DIR}/{name})")
            }
            Self::Keep(name) => write!(f, "keep    {name}"),
            Self::Remove(name) => write!(f, "remove  {name}"),
            Self::Restore(name) => write!(f, "restore {name} from {BACKUP_DIR}/{name}"),
            Self::Leave(name) => write!(f, "leave   {name} (not ours; {BACKUP_DIR}/{name} stays, too)"),
            Self::RemoveBinary => write!(f, "remove  {BINARY}"),
        }
    }
}

/// Installs `binary` and a link for each of `plugins`, and prints each step. The directory is locked.
///
/// Nothing is changed if a step is impossible: every name is checked before the first one is written.
///
/// # Errors
/// [`InstallError::Taken`] if a name belongs to a directory, or to another set's plugin without `--replace`;
/// [`InstallError::Io`] if a system call fails.
pub(crate) fn install(
    binary: &Path,
    plugins: &[&str],
    options: &Options,
    program: &Command,
    out: &mut dyn Write,
) -> Result<Vec<Step>, InstallError> {
    let dry = options.mode == Mode::DryRun;
    let Some(dir) = PluginDir::open_or_create(&options.dir, dry)? else {
        // A dry run on a directory that does not exist: everything would be created.
        let steps: Vec<Step> = [Step::Copy]
            .into_iter()
            .chain(plugins.iter().map(|name| Step::Link((*name).to_owned())))
            .collect();
        return report_steps(steps, &SharePlan::install(program, options.share_dir.as_deref(), None)?, out);
    };
    let steps = plan_install(&dir, binary, plugins, options)?;
    let share = SharePlan::install(program, options.share_dir.as_deref(), dir.share_dir()?)?;
    if !dry {
        if steps.iter().any(|step| !matches!(step, Step::Keep(_))) {
            dir.check_writable()?;
        }
        for step in &steps {
            match step {
                Step::Copy => dir.copy_binary(binary)?,
                Step::Link(name) => dir.put_link(name)?,
                Step::Replace(name) => {
                    dir.back_up(name)?;
                    dir.put_link(name)?;
                }
                _ => {}
            }
        }
        if let Some(directory) = share.directory() {
            dir.put_share_link(directory)?;
        }
        share.apply()?;
        dir.sync()?;
    }
    report_steps(steps, &share, out)
}

/// Removes our links and our binary, and restores the plugins that `install --replace` had replaced. Succeeds
/// if there is nothing to remove.
///
/// # Errors
/// [`InstallError::Io`] if a system call fails.
pub(crate) fn uninstall(
    options: &Options,
    program: &Command,
    out: &mut dyn Write,
) -> Result<Vec<Step>, InstallError> {
    let Some(dir) = PluginDir::open(&options.dir)? else {
        return Ok(Vec::new());
    };
    let steps = plan_uninstall(&dir)?;
    let share = SharePlan::uninstall(program, dir.share_dir()?.as_deref())?;
    if options.mode != Mode::DryRun {
        if !steps.is_empty() {
            dir.check_writable()?;
        }
        for step in &steps {
            match step {
                Step::Remove(name) => dir.remove(name)?,
                Step::Restore(name) => dir.restore(name)?,
                Step::RemoveBinary => dir.remove(BINARY)?,
                _ => {}
            }
        }
        share.apply()?;
        dir.remove(SHARE_LINK)?;
        dir.remove_leftovers()?;
        dir.sync()?;
    }
    report_steps(steps, &share, out)
}

fn plan_install(
    dir: &PluginDir,
    binary: &Path,
    plugins: &[&str],
    options: &Options,
) -> Result<Vec<Step>, InstallError> {
    let mut steps = vec![match dir.entry(BINARY)? {
        Entry::Missing => Step::Copy,
        Entry::File if dir.is_same_file(binary)? => Step::Keep(BINARY.to_owned()),
        Entry::File => Step::Copy,
        Entry::OurLink | Entry::OtherLink | Entry::Directory | Entry::Special => {
            return Err(dir.taken(BINARY, "is not a regular file"));
        }
    }];
    for name in plugins {
        steps.push(match dir.entry(name)? {
            Entry::Missing => Step::Link((*name).to_owned()),
            Entry::OurLink => Step::Keep((*name).to_owned()),
            Entry::File | Entry::OtherLink if options.replace => Step::Replace((*name).to_owned()),
            Entry::File | Entry::OtherLink => {
                return Err(dir.taken(name, "belongs to another plugin set; `--replace` keeps a copy of it"));
            }
            Entry::Directory => return Err(dir.taken(name, "is a directory")),
            Entry::Special => return Err(dir.taken(name, "is neither a file nor a link")),
        });
    }
    Ok(steps)
}

fn plan_uninstall(dir: &PluginDir) -> Result<Vec<Step>, InstallError> {
    let backups = dir.backups()?;
    let mut steps = Vec::new();
    for name in dir.names()? {
        if dir.entry(&name)? == Entry::OurLink && !backups.contains(&name) {
            steps.push(Step::Remove(name));
        }
    }
    for name in backups {
        steps.push(match dir.entry(&name)? {
            Entry::Missing | Entry::OurLink => Step::Restore(name),
            // The call that copied it was killed before it made the link.
            Entry::File if dir.is_backup(&name)? => Step::Restore(name),
            _ => Step::Leave(name),
        });
    }
    if dir.entry(BINARY)? == Entry::File {
        steps.push(Step::RemoveBinary);
    }
    Ok(steps)
}

fn report_steps(steps: Vec<Step>, share: &SharePlan, out: &mut dyn Write) -> Result<Vec<Step>, InstallError> {
    let printed = steps.iter().try_for_each(|step| writeln!(out, "{step}"));
    printed.and_then(|()| share.report(out)).map_err(InstallError::Report)?;
    Ok(steps)
}

/// `slipway install`: installs the running executable with a link for each of `plugins`.
///
/// # Errors
/// The arguments are wrong, or a step fails.
pub(crate) fn install_command(
    args: &InstallArgs,
    plugins: &[&str],
    program: &Command,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let options = args.options()?;
    // The file itself is installed, because argv[0] is chosen by the caller and may be a link.
    let out = &mut UnlessClosed::new(out);
    let steps = install(Path::new("/proc/self/exe"), plugins, &options, program, out)?;
    report_count(&options, &steps, out)?;
    Ok(0)
}

/// `slipway uninstall`: undoes [`install_command`], and removes what the plugins have left.
///
/// # Errors
/// The arguments are wrong, containers use a table, or a step fails.
pub(crate) fn uninstall_command(
    args: &UninstallArgs,
    program: &Command,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<u8, Failure> {
    let options = args.options();
    let out = &mut UnlessClosed::new(out);
    let in_use = match options.state {
        State::Keep => {
            uninstall_plugins(&options, program, out)?;
            return Ok(0);
        }
        State::Remove => UsedTable::Keep,
        State::Force => UsedTable::Remove,
    };
    // The command refuses before the plugins are removed, because running containers need them for their DELs.
    let mut leftovers = leftovers::plan(in_use, &options.data_dir).map_err(Failure::failed)?;
    check_writable(&options).map_err(Failure::failed)?;
    // The tables are removed first. If a container was added since the plan, its elements make this fail, and the
    // plugins stay.
    if options.mode == Mode::Apply {
        leftovers::remove_tables(&mut leftovers, in_use).map_err(Failure::failed)?;
    }
    uninstall_plugins(&options, program, out)?;
    let mut late = Vec::new();
    if options.mode == Mode::Apply {
        late = leftovers::remove_rest(&mut leftovers, in_use).map_err(Failure::failed)?;
    }
    report_leftovers(&leftovers, options.mode, out)?;
    late.iter().try_for_each(|error| writeln!(err, "slipway uninstall: {error}"))?;
    Ok(u8::from(!late.is_empty()))
}

/// Checks that the plugins can be removed, before their tables are.
fn check_writable(options: &Options) -> Result<(), InstallError> {
    match PluginDir::open(&options.dir)? {
        Some(dir) if options.mode == Mode::Apply && !plan_uninstall(&dir)?.is_empty() => dir.check_writable(),
        _ => Ok(()),
    }
}

fn uninstall_plugins(options: &Options, program: &Command, out: &mut dyn Write) -> Result<(), Failure> {
    let steps = uninstall(options, program, out)?;
    Ok(report_count(options, &steps, out)?)
}

fn report_leftovers(leftovers: &[Leftover], mode: Mode, out: &mut dyn Write) -> io::Result<()> {
    leftovers.iter().try_for_each(|leftover| writeln!(out, "{leftover}"))?;
    let kept = leftovers.iter().filter(|leftover| matches!(leftover, Leftover::Keep { .. })).count();
    let verb = if mode == Mode::DryRun { "would be removed" } else { "removed" };
    writeln!(out, "this node: {} of {} things {verb}", leftovers.len() - kept, leftovers.len())
}

fn report_count(options: &Options, steps: &[Step], out: &mut dyn Write) -> io::Result<()> {
    let changed = steps.iter().filter(|step| !matches!(step, Step::Keep(_) | Step::Leave(_))).count();
    let verb = if options.mode == Mode::DryRun { "would be changed" } else { "changed" };
    writeln!(out, "{}: {changed} of {} names {verb}", options.dir.display(), steps.len())
}

#[cfg(test)]
mod tests;
