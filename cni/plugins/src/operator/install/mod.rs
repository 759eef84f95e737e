//! `slipway install` and `slipway uninstall`: one binary and a link per plugin in a plugin directory.
//!
//! A runtime may start a plugin at any moment of an installation, so that every name changes by one
//! `rename`: at no time is `bridge` missing or half written. What was there before under a plugin's
//! name is kept in [`BACKUP_DIR`] (a directory: runtimes look for `DIR/<type>` and refuse a type with
//! a slash in it, so that nothing in there is ever executed) and comes back with `uninstall`, which
//! then takes away what the plugins have left on the node ([`traces`]).

mod args;
mod dir;
pub mod traces;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use cni_dataplane::dismantle::InUse;

pub use args::{Mode, Options, State, UsageError, Verb};
pub use dir::InstallError;
use dir::{Entry, PluginDir};
use traces::Trace;

/// The binary's own name in the plugin directory, and the target of every link.
pub const BINARY: &str = "slipway";
/// Where runtimes look for plugins unless they are told otherwise.
pub const DEFAULT_DIR: &str = "/opt/cni/bin";
/// Holds, inside the plugin directory, the plugins of others that `--replace` replaced.
pub const BACKUP_DIR: &str = ".slipway-replaced";

/// What is done about one name in the plugin directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The binary is written, or replaced by a newer one.
    Copy,
    /// The link is made.
    Link(String),
    /// Somebody else's plugin goes to [`BACKUP_DIR`], and the link takes its place.
    Replace(String),
    /// The name is as it should be.
    Keep(String),
    /// Our link is removed.
    Remove(String),
    /// The plugin that was there before us comes back.
    Restore(String),
    /// Somebody put a file in the place of our link; it stays, and so does what is in [`BACKUP_DIR`].
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
                write!(f, "replace {name} -> {BINARY} (the one that is there goes to {BACKUP_DIR}/{name})")
            }
            Self::Keep(name) => write!(f, "keep    {name}"),
            Self::Remove(name) => write!(f, "remove  {name}"),
            Self::Restore(name) => write!(f, "restore {name} from {BACKUP_DIR}/{name}"),
            Self::Leave(name) => write!(f, "leave   {name} (not ours; {BACKUP_DIR}/{name} stays as well)"),
            Self::RemoveBinary => write!(f, "remove  {BINARY}"),
        }
    }
}

/// Installs `binary` and a link for each of `plugins` as the options say, and tells `out` each step.
///
/// Nothing is changed when a step cannot be taken as planned: every name is looked at before the
/// first one is written. The whole runs under a lock on the directory.
///
/// # Errors
/// A name that is taken by a directory, or by somebody else's plugin without `--replace`; any failing
/// system call with the file it was about.
pub fn install(
    binary: &Path,
    plugins: &[&str],
    options: &Options,
    out: &mut dyn Write,
) -> Result<Vec<Step>, InstallError> {
    let dry = options.mode == Mode::DryRun;
    let Some(dir) = PluginDir::open_or_create(&options.dir, dry)? else {
        // A dry run on a directory that is not there: everything would be made.
        let steps: Vec<Step> = [Step::Copy]
            .into_iter()
            .chain(plugins.iter().map(|name| Step::Link((*name).to_owned())))
            .collect();
        return tell(steps, out);
    };
    let steps = plan_install(&dir, binary, plugins, options)?;
    if !dry {
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
        dir.sync()?;
    }
    tell(steps, out)
}

/// Removes our links and our binary, and puts back what `install --replace` had replaced. Files of
/// others are not touched. A directory without anything of ours is a success.
///
/// # Errors
/// The failing system call and the file it was about.
pub fn uninstall(options: &Options, out: &mut dyn Write) -> Result<Vec<Step>, InstallError> {
    let Some(dir) = PluginDir::open(&options.dir)? else {
        return Ok(Vec::new());
    };
    let steps = plan_uninstall(&dir)?;
    if options.mode != Mode::DryRun {
        for step in &steps {
            match step {
                Step::Remove(name) => dir.remove(name)?,
                Step::Restore(name) => dir.restore(name)?,
                Step::RemoveBinary => dir.remove(BINARY)?,
                _ => {}
            }
        }
        dir.remove_leftovers()?;
        dir.sync()?;
    }
    tell(steps, out)
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
            // A call that was to replace it ended before.
            Entry::File if dir.is_backup(&name)? => Step::Restore(name),
            _ => Step::Leave(name),
        });
    }
    if dir.entry(BINARY)? == Entry::File {
        steps.push(Step::RemoveBinary);
    }
    Ok(steps)
}

fn tell(steps: Vec<Step>, out: &mut dyn Write) -> Result<Vec<Step>, InstallError> {
    for step in &steps {
        writeln!(out, "{step}").map_err(InstallError::Report)?;
    }
    Ok(steps)
}

/// `slipway install [--to DIR] [--replace] [--dry-run]`: installs the running executable with a link
/// for each of `plugins`. Returns the exit code: 0, 1 for a failure, 2 for wrong arguments.
pub fn install_command(args: &[String], plugins: &[&str], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match Options::parse(args, Verb::Install) {
        Ok(options) => options,
        Err(e) => return report(err, &e, 2),
    };
    command(&options, out, err, |options, out| {
        // Not the path of argv[0], which a caller may choose, and not a link's name: the file itself.
        install(Path::new("/proc/self/exe"), plugins, options, out)
    })
}

/// `slipway uninstall [--to DIR] [--data-dir DIR] [--keep-state | --force] [--dry-run]`: undoes
/// [`install_command`], and takes away what the plugins have left. Exit codes as there.
pub fn uninstall_command(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match Options::parse(args, Verb::Uninstall) {
        Ok(options) => options,
        Err(e) => return report(err, &e, 2),
    };
    let in_use = match options.state {
        State::Keep => return command(&options, out, err, uninstall),
        State::Remove => InUse::Spare,
        State::Force => InUse::Remove,
    };
    // Before the plugins go: containers that need them may be there.
    let mut traces = match traces::plan(in_use, &options.data_dir) {
        Ok(planned) => planned,
        Err(e) => return report(err, &e, 1),
    };
    // The tables first: that is where containers are that came meanwhile, and it is done with them or not at all.
    if options.mode == Mode::Apply
        && let Err(e) = traces::remove_tables(&mut traces, in_use)
    {
        return report(err, &e, 1);
    }
    let code = command(&options, out, err, uninstall);
    if code != 0 {
        return code;
    }
    let mut late = Vec::new();
    if options.mode == Mode::Apply {
        match traces::remove_rest(&mut traces, in_use) {
            Ok(owners) => late = owners,
            Err(e) => return report(err, &e, 1),
        }
    }
    if let Err(e) = tell_traces(&traces, options.mode, out) {
        return report(err, &e, 1);
    }
    late.into_iter().fold(0, |_, e| report(err, &e, 1))
}

fn tell_traces(traces: &[Trace], mode: Mode, out: &mut dyn Write) -> io::Result<()> {
    for trace in traces {
        writeln!(out, "{trace}")?;
    }
    let left = traces.iter().filter(|trace| matches!(trace, Trace::Leave { .. })).count();
    let verb = if mode == Mode::DryRun { "would be removed" } else { "removed" };
    writeln!(out, "this node: {} of {} things {verb}", traces.len() - left, traces.len())
}

fn command(
    options: &Options,
    out: &mut dyn Write,
    err: &mut dyn Write,
    run: impl FnOnce(&Options, &mut dyn Write) -> Result<Vec<Step>, InstallError>,
) -> u8 {
    match run(options, out) {
        Ok(steps) => {
            let changed = steps.iter().filter(|step| !matches!(step, Step::Keep(_) | Step::Leave(_))).count();
            let done = if options.mode == Mode::DryRun { "would be changed" } else { "changed" };
            match writeln!(out, "{}: {changed} of {} names {done}", options.dir.display(), steps.len()) {
                Ok(()) => 0,
                Err(e) => report(err, &e, 1),
            }
        }
        Err(e) => report(err, &e, 1),
    }
}

/// Nobody is left to tell when standard error fails too; the exit code still says it.
fn report(err: &mut dyn Write, message: &dyn fmt::Display, code: u8) -> u8 {
    let _: io::Result<()> = writeln!(err, "slipway: {message}");
    code
}

#[cfg(test)]
mod tests;
