// SPDX-License-Identifier: GPL-2.0-or-later

//! The flags of `slipway dhcp daemon`, in the syntax of Go's package flag: one dash or two, `=` or a space.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::config::{SOCKET, STATE, on_host};

/// Why the flags cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FlagError {
    #[error("the only command is `daemon`")]
    NoDaemon,
    #[error("unknown argument {0:?}")]
    Unknown(String),
    #[error("-broadcast: {0:?} is neither true nor false")]
    Broadcast(String),
    #[error("-{0} needs a value")]
    NoValue(String),
    #[error("{0:?} is not a duration like 10s or 1m30s")]
    Duration(String),
}

/// The command's flags, with the reference's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) pid_file: Option<PathBuf>,
    pub(super) host_prefix: String,
    pub(super) socket: PathBuf,
    pub(super) state: PathBuf,
    pub(super) timeout: Duration,
    pub(super) resend_max: Duration,
    pub(super) resend_timeout: Duration,
    pub(super) broadcast: bool,
}

impl Flags {
    /// Parses the arguments after `daemon`.
    pub(super) fn parse(args: &[String]) -> Result<Self, FlagError> {
        let mut flags = Self {
            pid_file: None,
            host_prefix: String::new(),
            socket: PathBuf::from(SOCKET),
            state: PathBuf::from(STATE),
            timeout: Duration::from_secs(10),
            resend_max: Duration::from_secs(62),
            resend_timeout: Duration::from_secs(208),
            broadcast: false,
        };
        let mut rest = args.iter();
        while let Some(word) = rest.next() {
            let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                return Err(FlagError::Unknown(word.clone()));
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            if name == "broadcast" {
                flags.broadcast = match value.as_deref() {
                    None | Some("true" | "1") => true,
                    Some("false" | "0") => false,
                    Some(other) => return Err(FlagError::Broadcast(other.to_owned())),
                };
                continue;
            }
            let mut value = || match value.clone() {
                Some(value) => Ok(value),
                None => rest.next().cloned().ok_or_else(|| FlagError::NoValue(name.to_owned())),
            };
            match name {
                "pidfile" => flags.pid_file = Some(PathBuf::from(value()?)),
                "hostprefix" => flags.host_prefix = value()?,
                "socketpath" => flags.socket = PathBuf::from(value()?),
                "statedir" => flags.state = PathBuf::from(value()?),
                "timeout" => flags.timeout = duration(&value()?)?,
                "resendmax" => flags.resend_max = duration(&value()?)?,
                "resendtimeout" => flags.resend_timeout = duration(&value()?)?,
                _ => return Err(FlagError::Unknown(word.clone())),
            }
        }
        Ok(flags)
    }

    pub(super) fn on_host(&self, path: &Path) -> PathBuf {
        on_host(&self.host_prefix, path)
    }
}

/// Parses a duration of Go: `1m30s`, `500ms`.
fn duration(text: &str) -> Result<Duration, FlagError> {
    let wrong = || FlagError::Duration(text.to_owned());
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut total, mut rest) = (0.0, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, behind) = rest.split_at(digits);
        let units = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(units);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            "us" | "µs" => 0.000_001,
            "ns" => 0.000_000_001,
            _ => return Err(wrong()),
        };
        total += number.parse::<f64>().map_err(|_| wrong())? * seconds;
        rest = behind;
    }
    if text.is_empty() {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(total).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Flags, FlagError> {
        Flags::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn flags_in_gos_spelling() {
        let flags =
            parse(&["-pidfile", "/run/p", "--hostprefix=/host", "-timeout", "1m30s", "-broadcast"]).unwrap();
        assert_eq!((flags.pid_file.as_deref(), flags.broadcast), (Some(Path::new("/run/p")), true));
        assert_eq!((flags.timeout, flags.resend_max), (Duration::from_secs(90), Duration::from_secs(62)));
        assert_eq!(flags.on_host(Path::new("/run/x")), Path::new("/host/run/x"));
        assert!(!parse(&["-broadcast=false"]).unwrap().broadcast);
        for args in [
            &["x"][..],
            &["-nonsense"],
            &["-timeout"],
            &["-timeout", "10"],
            &["-broadcast=x"],
            &["-timeout", ""],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
        assert_eq!(duration("1.5h").unwrap(), Duration::from_secs(5400));
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
    }
}
