//! The options of `slipway install` and `slipway uninstall`.

use std::path::PathBuf;

use super::DEFAULT_DIR;

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

/// What to install where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The plugin directory (`--to`).
    pub dir: PathBuf,
    /// Whether plugins of others with our names are replaced (`--replace`).
    pub replace: bool,
    /// Whether anything is changed (`--dry-run`).
    pub mode: Mode,
}

/// An argument that the command does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// `--to` came without a directory.
    #[error("--to needs a directory")]
    NoDirectory,
    /// Neither an option nor the value of one.
    #[error("unknown argument {0:?}; known: --to DIR, --replace (install only), --dry-run")]
    Unknown(String),
}

impl Options {
    /// Reads the arguments after the command's name.
    ///
    /// # Errors
    /// The argument that is not known or not complete.
    pub fn parse(args: &[String], verb: Verb) -> Result<Self, UsageError> {
        let mut options = Self { dir: PathBuf::from(DEFAULT_DIR), replace: false, mode: Mode::Apply };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--to" => options.dir = directory(args.next().map(String::as_str))?,
                "--replace" if verb == Verb::Install => options.replace = true,
                "--dry-run" => options.mode = Mode::DryRun,
                other => match other.strip_prefix("--to=") {
                    Some(dir) => options.dir = directory(Some(dir))?,
                    None => return Err(UsageError::Unknown(other.to_owned())),
                },
            }
        }
        Ok(options)
    }
}

fn directory(value: Option<&str>) -> Result<PathBuf, UsageError> {
    match value {
        Some(dir) if !dir.is_empty() => Ok(PathBuf::from(dir)),
        _ => Err(UsageError::NoDirectory),
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
        assert_eq!(options, Options { dir: "/opt/cni/bin".into(), replace: false, mode: Mode::Apply });
    }

    #[test]
    fn both_forms_of_an_option_with_a_value() {
        assert_eq!(parse(&["--to", "/a", "--replace"], Verb::Install).unwrap().dir, PathBuf::from("/a"));
        let options = parse(&["--to=/b", "--dry-run"], Verb::Install).unwrap();
        assert_eq!((options.dir, options.mode), ("/b".into(), Mode::DryRun));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(parse(&["--to"], Verb::Install), Err(UsageError::NoDirectory));
        assert_eq!(parse(&["--to="], Verb::Install), Err(UsageError::NoDirectory));
        assert_eq!(parse(&["--force"], Verb::Install), Err(UsageError::Unknown("--force".into())));
        assert_eq!(parse(&["--replace"], Verb::Uninstall), Err(UsageError::Unknown("--replace".into())));
    }
}
