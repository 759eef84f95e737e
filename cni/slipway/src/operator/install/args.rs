// SPDX-License-Identifier: GPL-2.0-or-later

//! The options of `slipway install` and `slipway uninstall`.

use std::path::{Path, PathBuf};

use super::DEFAULT_DIR;
use cni_plugins::ipam::host_local::leftovers::DEFAULT_DATA_DIR;
use slipway_cli::{Failure, Given};

/// Changes, or only their report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The changes are made.
    Apply,
    /// Nothing is changed.
    DryRun,
}

/// The fate of what the plugins have left on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It is removed; the command refuses if containers use it.
    Remove,
    /// It is removed although containers use it (`--force`).
    Force,
    /// It stays (`--keep-state`).
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
    /// The fate of the node's state (`--force`, `--keep-state`; uninstall only).
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

impl Options {
    /// Takes the options of either command.
    ///
    /// # Errors
    /// `--keep-state` together with `--force`; a `--share-dir` that is relative to no working directory.
    pub(crate) fn new(given: &Given) -> Result<Self, Failure> {
        let state = match (given.has("--keep-state"), given.has("--force")) {
            (true, true) => {
                return Err(Failure::usage("--keep-state and --force cannot be given together"));
            }
            (true, false) => State::Keep,
            (false, true) => State::Force,
            (false, false) => State::Remove,
        };
        let path = |option, usual: &str| PathBuf::from(given.value(option).unwrap_or(usual));
        let share_dir = given.value("--share-dir").map(Path::new).map(std::path::absolute);
        Ok(Self {
            dir: path("--to", DEFAULT_DIR),
            replace: given.has("--replace"),
            mode: if given.has("--dry-run") { Mode::DryRun } else { Mode::Apply },
            share_dir: share_dir.transpose().map_err(Failure::failed)?,
            state,
            data_dir: path("--data-dir", DEFAULT_DATA_DIR),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipway_cli::parse;

    use crate::operator::commands;

    fn options(line: &str) -> Result<Options, Failure> {
        let (command, args) = line.split_once(' ').unwrap_or((line, ""));
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        Options::new(&parse(commands::find(command).unwrap(), &args).unwrap())
    }

    #[test]
    fn the_default_is_the_directory_of_runtimes() {
        let options = options("install").unwrap();
        assert_eq!(options, Options::default());
        assert_eq!(options.dir, PathBuf::from("/opt/cni/bin"));
        assert_eq!(options.data_dir, PathBuf::from("/var/lib/cni/networks"));
    }

    #[test]
    fn options_of_both_commands() {
        let install = options("install --to=/b --replace --dry-run --share-dir /usr/local/share").unwrap();
        assert_eq!((install.dir, install.mode, install.replace), ("/b".into(), Mode::DryRun, true));
        assert_eq!(install.share_dir, Some("/usr/local/share".into()));
        let uninstall = options("uninstall --data-dir /d --keep-state").unwrap();
        assert_eq!((uninstall.data_dir, uninstall.state), ("/d".into(), State::Keep));
        assert_eq!(options("uninstall --force").unwrap().state, State::Force);
        assert!(matches!(options("uninstall --force --keep-state"), Err(Failure::Usage(_))));
    }
}
