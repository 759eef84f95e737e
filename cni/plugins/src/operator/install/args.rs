//! The options of `slipway install` and `slipway uninstall`.

use std::path::PathBuf;

use super::DEFAULT_DIR;
use crate::ipam::host_local::leftovers::DEFAULT_DATA_DIR;

/// Whether the directory is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Do it.
    Apply,
    /// Say what would be done.
    DryRun,
}

/// Which of the two commands the arguments are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `slipway install`.
    Install,
    /// `slipway uninstall`, which does not know `--replace`.
    Uninstall,
}

/// What becomes of what the plugins have left on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is removed; nothing happens if containers have something in it.
    Remove,
    /// It is removed with what containers have in it (`--force`).
    Force,
    /// It stays (`--keep-state`).
    Keep,
}

/// What to install where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The plugin directory (`--to`).
    pub dir: PathBuf,
    /// Whether plugins of others with our names are replaced (`--replace`).
    pub replace: bool,
    /// Whether anything is changed (`--dry-run`).
    pub mode: Mode,
    /// What becomes of the node's state (`--force`, `--keep-state`; uninstall only).
    pub state: State,
    /// Where host-local's reservations are (`--data-dir`; uninstall only).
    pub data_dir: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: PathBuf::from(DEFAULT_DIR),
            replace: false,
            mode: Mode::Apply,
            state: State::Remove,
            data_dir: PathBuf::from(DEFAULT_DATA_DIR),
        }
    }
}

/// An argument that the command does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// An option came without its directory.
    #[error("{0} needs a directory")]
    NoDirectory(&'static str),
    /// Neither an option nor the value of one.
    #[error(
        "unknown argument {0:?}; known: --to DIR, --dry-run; install: --replace; \
         uninstall: --data-dir DIR, --keep-state, --force"
    )]
    Unknown(String),
    /// Two that contradict each other.
    #[error("--keep-state and --force cannot be given together")]
    KeepAndForce,
}

impl Options {
    /// Reads the arguments after the command's name.
    ///
    /// # Errors
    /// The argument that is not known or not complete.
    pub fn parse(args: &[String], verb: Verb) -> Result<Self, UsageError> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (arg.as_str(), None),
            };
            let mut directory = |option| {
                let value = inline.or_else(|| args.next().map(String::as_str));
                value.filter(|dir| !dir.is_empty()).map(PathBuf::from).ok_or(UsageError::NoDirectory(option))
            };
            match (name, verb) {
                ("--to", _) => options.dir = directory("--to")?,
                ("--data-dir", Verb::Uninstall) => options.data_dir = directory("--data-dir")?,
                _ if inline.is_some() => return Err(UsageError::Unknown(arg.clone())),
                ("--replace", Verb::Install) => options.replace = true,
                ("--dry-run", _) => options.mode = Mode::DryRun,
                ("--force", Verb::Uninstall) => options.state = options.state.and(State::Force)?,
                ("--keep-state", Verb::Uninstall) => options.state = options.state.and(State::Keep)?,
                _ => return Err(UsageError::Unknown(arg.clone())),
            }
        }
        Ok(options)
    }
}

impl State {
    fn and(self, wanted: Self) -> Result<Self, UsageError> {
        if self == Self::Remove || self == wanted { Ok(wanted) } else { Err(UsageError::KeepAndForce) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str], verb: Verb) -> Result<Options, UsageError> {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        Options::parse(&args, verb)
    }

    #[test]
    fn the_default_is_where_runtimes_look() {
        let options = parse(&[], Verb::Install).unwrap();
        assert_eq!(options, Options::default());
        assert_eq!(options.dir, PathBuf::from("/opt/cni/bin"));
        assert_eq!(options.data_dir, PathBuf::from("/var/lib/cni/networks"));
    }

    #[test]
    fn both_forms_of_an_option_with_a_value() {
        assert_eq!(parse(&["--to", "/a", "--replace"], Verb::Install).unwrap().dir, PathBuf::from("/a"));
        let options = parse(&["--to=/b", "--dry-run"], Verb::Install).unwrap();
        assert_eq!((options.dir, options.mode), ("/b".into(), Mode::DryRun));
        let options = parse(&["--data-dir", "/d", "--keep-state"], Verb::Uninstall).unwrap();
        assert_eq!((options.data_dir, options.state), ("/d".into(), State::Keep));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(parse(&["--to"], Verb::Install), Err(UsageError::NoDirectory("--to")));
        assert_eq!(parse(&["--to="], Verb::Install), Err(UsageError::NoDirectory("--to")));
        assert_eq!(parse(&["--data-dir"], Verb::Uninstall), Err(UsageError::NoDirectory("--data-dir")));
        assert_eq!(parse(&["--dry-run=x"], Verb::Install), Err(UsageError::Unknown("--dry-run=x".into())));
        for only in ["--force", "--keep-state", "--data-dir=/a"] {
            assert_eq!(parse(&[only], Verb::Install), Err(UsageError::Unknown(only.into())));
        }
        assert_eq!(parse(&["--force", "--keep-state"], Verb::Uninstall), Err(UsageError::KeepAndForce));
        assert_eq!(parse(&["--replace"], Verb::Uninstall), Err(UsageError::Unknown("--replace".into())));
    }
}
