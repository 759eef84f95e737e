// SPDX-License-Identifier: GPL-2.0-or-later

//! `cnitool`: attaches a network namespace to a network by hand, as a runtime does.
//!
//! Arguments, environment and the container ID are those of the CNI project's tool of that name, so that
//! either tool detaches what the other attached.

mod capability;
mod report;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cni_runtime::config::{self, LoadError};
use cni_runtime::{Container, GcScope, Network, NetworkError, Runtime};
use cni_spec::text::hex;
use cni_spec::{ResultError, text};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha512};

use clap::ValueEnum as _;
use slipway_cli::{Failure, Format, json};

use capability::CapabilityError;
use report::Verdict;

/// The tool's name in a plugin directory.
pub(crate) const NAME: &str = "cnitool";

/// Attach a network namespace to a network by hand, as a runtime does
///
/// The environment is that of the CNI project's tool of this name, and so is the exit code 1 for arguments that cannot be
/// used. `cnitool` is a link to the same command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Environment:
  CNI_PATH     directories of plugins, with colons between them
  NETCONFPATH  directory of networks (/etc/cni/net.d)
  CAP_ARGS     the runtime's configuration by capability, a JSON object
  CNI_ARGS     KEY=VALUE;KEY=VALUE
  CNI_IFNAME   the interface in the namespace (eth0), unless --ifname names it

Exit codes:
  1  failure, or arguments that cannot be used

Examples:
  CNI_PATH=/opt/cni/bin slipway cnitool add pods /run/netns/web
  CNI_PATH=/opt/cni/bin slipway cnitool del pods /run/netns/web --ifname eth1
  CNI_PATH=/opt/cni/bin slipway cnitool add pods /run/netns/web --capability port=8080:80/tcp
  CNI_PATH=/opt/cni/bin slipway cnitool validate pods --output json")]
pub(super) struct Args {
    /// The CNI command; validate asks each plugin for its versions
    #[arg(value_enum, value_name = "COMMAND")]
    verb: Verb,
    /// The network's name
    network: String,
    /// The path of the network namespace, for add, check and del
    #[arg(required_if_eq_any([("verb", "add"), ("verb", "check"), ("verb", "del")]))]
    netns: Option<String>,
    /// The interface in the namespace; overrides CNI_IFNAME
    #[arg(short, long, value_name = "IFNAME")]
    ifname: Option<String>,
    /// port=8080:80/tcp, bandwidth=ingressRate:10M,..., ips=ADDRESS,... or mac=ADDRESS; any number of times
    #[arg(long = "capability", value_name = "NAME=VALUE")]
    capabilities: Vec<String>,
    /// Print a table, or JSON; without it add prints JSON, and check, del, gc and status nothing
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

/// The commands of the specification, and one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Verb {
    Add,
    Check,
    Del,
    Gc,
    Status,
    Validate,
}

// The command when it is called by its own name.
/// Attach a network namespace to a network by hand, as a runtime does
#[derive(Debug, clap::Parser)]
#[command(name = NAME)]
struct Tool {
    #[command(flatten)]
    args: Args,
}

impl Args {
    fn json(&self) -> bool {
        self.output == Some(Format::Json)
    }
}

/// Reads an environment variable; none if it is not set or is not UTF-8.
type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// An operation that failed.
#[derive(Debug, thiserror::Error)]
enum ToolError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Result(#[from] ResultError),
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    #[error("CAP_ARGS: {0}")]
    CapArgs(serde_json::Error),
    #[error("invalid CNI_ARGS pair {}", text::quote(.0))]
    Pair(String),
    #[error("{path}: {error}")]
    Netns { path: String, error: io::Error },
    #[error("write the output: {0}")]
    Output(#[from] io::Error),
}

/// Runs `cnitool ARGS`. As with the CNI project's tool, the exit code for wrong arguments is 1.
pub(crate) fn cnitool_command(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    slipway_cli::run::<Tool>(args, out, err, |tool, out, err| run(&tool.args, out, err)).min(1)
}

/// Runs the command.
pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    match called(args, &|name| std::env::var(name).ok(), out) {
        Ok(is_done) => Ok(u8::from(!is_done)),
        Err(ToolError::Output(error)) => Err(error.into()),
        Err(error) => Ok(writeln!(err, "Error: {error}").map(|()| 1)?),
    }
}

/// Runs the CNI command and prints its output. False if it has printed that the command failed.
fn called(args: &Args, vars: Vars<'_>, out: &mut dyn Write) -> Result<bool, ToolError> {
    let set = |name: &str| vars(name).filter(|value| !value.is_empty());
    let directory = set("NETCONFPATH").unwrap_or_else(|| config::DIRECTORY.to_owned());
    let network = config::load(Path::new(&directory), &args.network)?;
    let path: Vec<PathBuf> = std::env::split_paths(&set("CNI_PATH").unwrap_or_default())
        .filter(|directory| !directory.as_os_str().is_empty())
        .collect();
    let runtime = Runtime::builder().plugin_dirs(path).build();
    let done = match args.verb {
        Verb::Add => {
            let result = runtime.add(&network, &container(args, vars)?)?;
            match args.output {
                Some(Format::Table) => report::table(&result, out)?,
                _ => out.write_all(result.print(network.version())?.as_bytes())?,
            }
            return Ok(true);
        }
        Verb::Validate => return validate(args, &runtime, &network, out),
        Verb::Check => runtime.check(&network, &container(args, vars)?),
        Verb::Del => runtime.del(&network, &container(args, vars)?),
        // The tool does not know which attachments are valid. Therefore GC forgets what is cached, and leaves the rest
        // to the plugins.
        Verb::Gc => runtime.gc(&network, GcScope::Cached),
        Verb::Status => runtime.status(&network),
    };
    if args.json() {
        json::print(report::document(&network, &name(args.verb), done.as_ref().err(), None), out)?;
        return Ok(done.is_ok());
    }
    done?;
    Ok(true)
}

/// The word of the command line.
fn name(verb: Verb) -> String {
    verb.to_possible_value().map(|word| word.get_name().to_owned()).unwrap_or_default()
}

/// Asks each plugin for its versions.
fn validate(
    args: &Args,
    runtime: &Runtime,
    network: &Network,
    out: &mut dyn Write,
) -> Result<bool, ToolError> {
    let verdicts = Verdict::of_plugins(runtime, network);
    if args.json() {
        json::print(report::document(network, "validate", None, Some(&verdicts)), out)?;
    } else {
        Verdict::table(&verdicts, out)?;
    }
    Ok(verdicts.iter().all(Verdict::is_good))
}

fn container(args: &Args, vars: Vars<'_>) -> Result<Container, ToolError> {
    let set = |name: &str| vars(name).filter(|value| !value.is_empty());
    let mut capabilities = match set("CAP_ARGS") {
        Some(text) => {
            let object: Option<Map<String, Value>> =
                serde_json::from_str(&text).map_err(ToolError::CapArgs)?;
            object.unwrap_or_default()
        }
        None => Map::new(),
    };
    args.capabilities.iter().try_for_each(|one| capability::add(&mut capabilities, one))?;
    let pairs = set("CNI_ARGS").map(|text| self::pairs(&text)).transpose()?.unwrap_or_default();
    let netns = args.netns.as_deref().unwrap_or_default();
    let netns =
        std::path::absolute(netns).map_err(|error| ToolError::Netns { path: netns.to_owned(), error })?;
    let netns = netns.to_string_lossy().into_owned();
    let ifname = args.ifname.clone().or_else(|| set("CNI_IFNAME"));
    let ifname = ifname.unwrap_or_else(|| "eth0".to_owned());
    Ok(Container { id: container_id(&netns), netns, ifname, args: pairs, capabilities })
}

/// `cnitool-` and the first ten bytes of the path's SHA-512, in hexadecimal digits.
fn container_id(netns: &str) -> String {
    let hash = Sha512::digest(netns.as_bytes());
    format!("cnitool-{}", hex(&hash[..10]))
}

fn pairs(text: &str) -> Result<Vec<(String, String)>, ToolError> {
    let pair = |pair: &str| match pair.split('=').collect::<Vec<_>>()[..] {
        [key, value] if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ToolError::Pair(pair.to_owned())),
    };
    text.split(';').map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Args {
        slipway_cli::checks::args(line).unwrap()
    }

    #[test]
    fn arguments_in_any_order() {
        for line in [
            "add n /run/netns/a -i eth1",
            "--ifname=eth1 add n /run/netns/a",
            "add --ifname eth1 n /run/netns/a",
        ] {
            let args = parse(line);
            let netns = args.netns.as_deref();
            assert_eq!(
                (args.verb, args.network.as_str(), netns),
                (Verb::Add, "n", Some("/run/netns/a")),
                "{line}"
            );
            assert_eq!(args.ifname.as_deref(), Some("eth1"), "{line}");
        }
        assert_eq!(parse("gc n").netns, None);
    }

    #[test]
    fn wrong_arguments_have_the_exit_code_of_the_other_tool() {
        for (args, text) in [
            (&[][..], "cnitool: COMMAND and NETWORK are missing"),
            (&["add", "n"], "cnitool: NETNS is missing"),
            (&["nonsense", "n", "x"], "cnitool: COMMAND must be add, check, del, gc, status or validate"),
            (&["add", "n", "x", "-z"], "cnitool: unknown option -z"),
        ] {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let (mut out, mut err) = (Vec::new(), Vec::new());
            assert_eq!(cnitool_command(&args, &mut out, &mut err), 1, "{args:?}");
            let err = String::from_utf8(err).unwrap();
            assert!(out.is_empty() && err.starts_with(text) && err.lines().count() == 1, "{err}");
        }
    }

    #[test]
    fn the_container_is_the_reference_tools() {
        // echo -n /run/netns/web | sha512sum
        assert_eq!(container_id("/run/netns/web"), "cnitool-82e215debf7df4651d36");
        let args = parse("add n /run/netns/web");
        let vars = |name: &str| match name {
            "CAP_ARGS" => Some(r#"{"mac":"m"}"#.to_owned()),
            "CNI_ARGS" => Some("A=b;C=d".to_owned()),
            "CNI_IFNAME" => Some("net1".to_owned()),
            _ => None,
        };
        let container = container(&args, &vars).unwrap();
        assert_eq!((container.ifname.as_str(), container.args.len()), ("net1", 2));
        assert_eq!(container.capabilities["mac"], "m");
    }

    #[test]
    fn wrong_pairs_are_quoted() {
        for text in ["A", "A=", "=b", "A=b=c", "A=b;"] {
            assert!(pairs(text).unwrap_err().to_string().starts_with("invalid CNI_ARGS pair \""), "{text}");
        }
    }
}
