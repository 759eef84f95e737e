// SPDX-License-Identifier: GPL-2.0-or-later

//! The options of `slipway install` and `slipway uninstall`.

use std::path::PathBuf;

use super::DEFAULT_DIR;
use cni_plugins::ipam::host_local::leftovers::DEFAULT_DATA_DIR;
use slipway_cli::Failure;

/// Changes, or only their report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The changes are made.
    Apply,
    /// Nothing is changed.
    DryRun,
}

/// What happens to the state that the plugins have left on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The state is removed. The command refuses if containers use it.
    Remove,
    /// The state is removed although containers use it (`--force`).
    Force,
    /// The state stays (`--keep-state`).
    Keep,
}

/// The options of both commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// The plugin directory (`--to`).
    pub(crate) dir: PathBuf,
    /// True if plugins of other sets with our names are replaced (`--replace`).
    pub(crate) replace: bool,
    /// Changes or a dry run (`--dry-run`).
    pub(crate) mode: Mode,
    /// The directory for manual pages and completions (`--share-dir`; install only).
    pub(crate) share_dir: Option<PathBuf>,
    /// What happens to the node's state (`--force`, `--keep-state`; uninstall only).
    pub(crate) state: State,
    /// The directory of host-local's reservations (`--data-dir`; uninstall only).
    pub(crate) data_dir: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: PathBuf::from(DEFAULT_DIR),
            replace: false,
            mode: Mode::Apply,
            share_dir: None,
            state: State::Remove,
            data_dir: PathBuf::from(DEFAULT_DATA_DIR),
        }
    }
}

/// Install this binary and a link per plugin into a plugin directory
///
/// Each name changes by one rename, so that a runtime finds a whole plugin at any moment. Nothing is changed if a name is
/// taken and --replace is not given.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway install --replace --dry-run
  slipway install --to /usr/lib/cni --share-dir /usr/local/share")]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    plugins: PluginDir,
    /// Replace plugins of other sets; `uninstall` brings them back
    #[arg(long)]
    replace: bool,
    /// Also write manual pages and completions below this directory, such as /usr/local/share; `uninstall` removes them
    #[arg(long, value_name = "DIR")]
    share_dir: Option<PathBuf>,
}

/// Remove the plugins and what they left, and bring back what was replaced
///
/// Removes only what Slipway made and no container uses, and what slipwayd has left; what stays is printed with the
/// reason. Refuses while containers use Slipway's tables.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  1  something failed, or a container was added while the plugins were removed

Examples:
  slipway uninstall --dry-run
  slipway uninstall --to /usr/lib/cni --keep-state")]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    plugins: PluginDir,
    /// The directory of host-local's reservations
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Remove the plugins only: tables, bridges and files stay
    #[arg(long)]
    keep_state: bool,
    /// Remove the tables although containers use them: their ports and masquerade end
    #[arg(long, conflicts_with = "keep_state")]
    force: bool,
}

/// The options of both commands.
#[derive(Debug, clap::Args)]
struct PluginDir {
    /// The plugin directory
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    to: PathBuf,
    /// Only report what would be done
    #[arg(long)]
    dry_run: bool,
}

impl PluginDir {
    fn options(&self) -> Options {
        let mode = if self.dry_run { Mode::DryRun } else { Mode::Apply };
        Options { dir: self.to.clone(), mode, ..Options::default() }
    }
}

impl InstallArgs {
    /// # Errors
    /// A `--share-dir` that is relative to no working directory.
    pub(super) fn options(&self) -> Result<Options, Failure> {
        let share_dir =
            self.share_dir.as_ref().map(std::path::absolute).transpose().map_err(Failure::failed)?;
        Ok(Options { replace: self.replace, share_dir, ..self.plugins.options() })
    }
}

impl UninstallArgs {
    pub(super) fn options(&self) -> Options {
        let state = match (self.keep_state, self.force) {
            (true, _) => State::Keep,
            (false, true) => State::Force,
            (false, false) => State::Remove,
        };
        Options { state, data_dir: self.data_dir.clone(), ..self.plugins.options() }
    }
}

#[cfg(test)]
mod tests {
    use slipway_cli::checks;

    use super::*;

    #[test]
    fn the_default_is_the_directory_of_runtimes() {
        let options = checks::args::<InstallArgs>("").unwrap().options().unwrap();
        assert_eq!(options, Options::default());
        assert_eq!(options.dir, PathBuf::from("/opt/cni/bin"));
        assert_eq!(options.data_dir, PathBuf::from("/var/lib/cni/networks"));
    }

    #[test]
    fn options_of_both_commands() {
        let words = "--to=/b --replace --dry-run --share-dir /usr/local/share";
        let install = checks::args::<InstallArgs>(words).unwrap().options().unwrap();
        assert_eq!((install.dir, install.mode, install.replace), ("/b".into(), Mode::DryRun, true));
        assert_eq!(install.share_dir, Some("/usr/local/share".into()));
        let uninstall = |words: &str| checks::args::<UninstallArgs>(words).map(|args| args.options());
        let keep = uninstall("--data-dir /d --keep-state").unwrap();
        assert_eq!((keep.data_dir, keep.state), ("/d".into(), State::Keep));
        assert_eq!(uninstall("--force").unwrap().state, State::Force);
        assert_eq!(
            uninstall("--force --keep-state").unwrap_err(),
            "--force cannot be used with --keep-state"
        );
    }
}
