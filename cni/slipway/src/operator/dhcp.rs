// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway dhcp daemon`: the command line of the daemon that keeps the leases of containers.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use cni_plugins::ipam::dhcp::daemon::{self, Options, SOCKET, STATE};
use slipway_cli::Failure;

use super::values::ValueError;

/// The command's name.
pub(super) const NAME: &str = "dhcp";

/// Keep the DHCP leases of containers
///
/// Runs until it is killed, normally by systemd. Options have one dash or two, as those of the reference plugin's daemon.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway dhcp daemon
  slipway dhcp daemon --hostprefix /host --broadcast
  slipway dhcp daemon --timeout 5s --resendmax 30s --resendtimeout 2m")]
pub(super) struct Args {
    /// The only task
    #[arg(value_name = "daemon", value_parser = ["daemon"])]
    _task: String,
    /// Write the process ID to this file
    #[arg(long, value_name = "FILE")]
    pidfile: Option<PathBuf>,
    /// The host's root directory, if the daemon is in a container
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    hostprefix: String,
    /// The socket that plugins call
    #[arg(long, value_name = "FILE", default_value = SOCKET)]
    socketpath: PathBuf,
    /// The directory of the leases
    #[arg(long, value_name = "DIR", default_value = STATE)]
    statedir: PathBuf,
    /// The time to wait for a server's reply
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration, allow_hyphen_values = true)]
    timeout: Duration,
    /// The longest time between two requests
    #[arg(long, value_name = "TIME", default_value = "62s", value_parser = duration, allow_hyphen_values = true)]
    resendmax: Duration,
    /// The time after which an ADD fails
    #[arg(long, value_name = "TIME", default_value = "208s", value_parser = duration, allow_hyphen_values = true)]
    resendtimeout: Duration,
    /// Ask servers to reply by broadcast
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false",
          default_missing_value = "true", hide_default_value = true, value_parser = boolean)]
    broadcast: bool,
}

/// Serves until the process is killed.
pub(super) fn run(args: Args) -> Result<u8, Failure> {
    let options = Options {
        pid_file: args.pidfile,
        host_prefix: args.hostprefix,
        socket: args.socketpath,
        state: args.statedir,
        timeout: args.timeout,
        resend_max: args.resendmax,
        resend_timeout: args.resendtimeout,
        broadcast: args.broadcast,
    };
    daemon::run(&options).map(|()| 0).map_err(Failure::failed)
}

/// The arguments with two dashes before each option. The reference reads its arguments with Go's package flag, which
/// accepts one dash.
pub(super) fn with_two_dashes(args: &[String]) -> Vec<String> {
    let is_word =
        |name: &str| name.len() > 1 && name.starts_with(|letter: char| letter.is_ascii_alphabetic());
    let has_one = |arg: &String| arg.strip_prefix('-').is_some_and(is_word);
    args.iter().map(|arg| if has_one(arg) { format!("-{arg}") } else { arg.clone() }).collect()
}

/// Go's package flag accepts numbers as well.
fn boolean(text: &str) -> Result<bool, ValueError> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(ValueError::Boolean),
    }
}

/// Parses a duration of Go: `1m30s`, `500ms`.
fn duration(text: &str) -> Result<Duration, ValueError> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut total, mut rest) = (0.0, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(ValueError::Duration)?;
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
            _ => return Err(ValueError::Duration),
        };
        total += number.parse::<f64>().map_err(|_| ValueError::Duration)? * seconds;
        rest = behind;
    }
    if text.is_empty() {
        return Err(ValueError::Duration);
    }
    Duration::try_from_secs_f64(total).map_err(|_| ValueError::Duration)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use slipway_cli::checks;

    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        checks::args(&with_two_dashes(&words).join(" "))
    }

    #[test]
    fn options_in_gos_spelling() {
        let args = parse("daemon -pidfile /run/p --hostprefix=/host -timeout 1m30s -broadcast").unwrap();
        assert_eq!((args.pidfile.as_deref(), args.broadcast), (Some(Path::new("/run/p")), true));
        assert_eq!((args.timeout, args.resendmax), (Duration::from_secs(90), Duration::from_secs(62)));
        assert_eq!(args.hostprefix, "/host");
        assert!(!parse("daemon -broadcast=false").unwrap().broadcast);
        for line in
            ["x", "daemon -nonsense", "daemon -timeout", "daemon -timeout 10", "daemon -broadcast=x", ""]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        for (line, message) in [
            ("bogus", "the argument must be daemon, not \"bogus\""),
            ("daemon -timeout -1s", "--timeout must be a duration such as 10s or 1m30s, not \"-1s\""),
            ("daemon -broadcast=x", "--broadcast must be true or false, not \"x\""),
        ] {
            assert_eq!(parse(line).unwrap_err(), message, "{line}");
        }
        assert_eq!(duration("1.5h").unwrap(), Duration::from_secs(5400));
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        assert!(duration("").is_err());
    }
}
