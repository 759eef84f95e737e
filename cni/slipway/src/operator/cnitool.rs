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

use slipway_cli::{Given, Stop, by_table, exit_code, json};

use super::commands;
use capability::CapabilityError;
use report::Verdict;

/// Its name in a plugin directory.
pub(crate) const NAME: &str = "cnitool";
/// The option of the output's form. Without it `add` prints its result as JSON, as the CNI project's tool does.
const OUTPUT: &str = slipway_cli::OUTPUT.name;
/// The option of a capability's argument.
pub(super) const CAPABILITY: &str = "--capability";

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
    let Some(command) = commands::find(NAME) else { return 1 };
    let usage = command.usage("slipway").replacen("slipway ", "", 1);
    let given = match by_table(command, args).and_then(with_netns) {
        Ok(given) => given,
        Err(Stop::Help) => return exit_code(writeln!(out, "usage: {usage}\n\n{ENVIRONMENT}"), 0),
        Err(Stop::Usage(text)) => {
            return exit_code(writeln!(err, "cnitool: {text}\nusage: {usage}\n\n{ENVIRONMENT}"), 1);
        }
    };
    match called(&given, &|name| std::env::var(name).ok(), out) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => exit_code(writeln!(err, "Error: {error}"), 1),
    }
}

/// Refuses commands on a container without the namespace's path.
fn with_netns(given: Given) -> Result<Given, Stop> {
    if given.argument(2).is_empty() && ["add", "check", "del"].contains(&given.argument(0)) {
        return Err(Stop::Usage("NETNS is missing: the path of the network namespace".to_owned()));
    }
    Ok(given)
}

const ENVIRONMENT: &str = "\
CNI_PATH     directories of plugins, with colons between them
NETCONFPATH  directory of networks (/etc/cni/net.d)
CAP_ARGS     the runtime's configuration by capability, a JSON object
CNI_ARGS     KEY=VALUE;KEY=VALUE
CNI_IFNAME   the interface in the namespace (eth0), unless -i names it
";

/// Runs the CNI command and prints its output. False if it has printed that the command failed.
fn called(given: &Given, vars: Vars<'_>, out: &mut dyn Write) -> Result<bool, ToolError> {
    let set = |name: &str| vars(name).filter(|value| !value.is_empty());
    let directory = set("NETCONFPATH").unwrap_or_else(|| config::DIRECTORY.to_owned());
    let network = config::load(Path::new(&directory), given.argument(1))?;
    let path: Vec<PathBuf> = std::env::split_paths(&set("CNI_PATH").unwrap_or_default())
        .filter(|directory| !directory.as_os_str().is_empty())
        .collect();
    let runtime = Runtime::builder().plugin_dirs(path).build();
    let done = match given.argument(0) {
        "add" => {
            let result = runtime.add(&network, &container(given, vars)?)?;
            match given.value(OUTPUT) {
                Some("table") => report::table(&result, out)?,
                _ => out.write_all(result.print(network.version())?.as_bytes())?,
            }
            return Ok(true);
        }
        "validate" => return validate(given, &runtime, &network, out),
        "check" => runtime.check(&network, &container(given, vars)?),
        "del" => runtime.del(&network, &container(given, vars)?),
        // The tool knows of no valid attachments: GC forgets what is cached, and leaves the rest to the
        // plugins.
        "gc" => runtime.gc(&network, GcScope::Cached),
        _ => runtime.status(&network),
    };
    if given.json() {
        json::print(report::document(&network, given.argument(0), done.as_ref().err(), None), out)?;
        return Ok(done.is_ok());
    }
    done?;
    Ok(true)
}

/// Asks each plugin for its versions.
fn validate(
    given: &Given,
    runtime: &Runtime,
    network: &Network,
    out: &mut dyn Write,
) -> Result<bool, ToolError> {
    let verdicts = Verdict::of_plugins(runtime, network);
    if given.json() {
        json::print(report::document(network, "validate", None, Some(&verdicts)), out)?;
    } else {
        Verdict::table(&verdicts, out)?;
    }
    Ok(verdicts.iter().all(Verdict::is_good))
}

fn container(given: &Given, vars: Vars<'_>) -> Result<Container, ToolError> {
    let set = |name: &str| vars(name).filter(|value| !value.is_empty());
    let mut capabilities = match set("CAP_ARGS") {
        Some(text) => {
            let object: Option<Map<String, Value>> =
                serde_json::from_str(&text).map_err(ToolError::CapArgs)?;
            object.unwrap_or_default()
        }
        None => Map::new(),
    };
    given.values(CAPABILITY).try_for_each(|one| capability::add(&mut capabilities, one))?;
    let args = set("CNI_ARGS").map(|text| pairs(&text)).transpose()?.unwrap_or_default();
    let netns = given.argument(2);
    let netns =
        std::path::absolute(netns).map_err(|error| ToolError::Netns { path: netns.to_owned(), error })?;
    let netns = netns.to_string_lossy().into_owned();
    let ifname = given.value("--ifname").map(str::to_owned).or_else(|| set("CNI_IFNAME"));
    let ifname = ifname.unwrap_or_else(|| "eth0".to_owned());
    Ok(Container { id: container_id(&netns), netns, ifname, args, capabilities })
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

    fn parse(line: &str) -> Given {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        by_table(commands::find(NAME).unwrap(), &args).unwrap()
    }

    #[test]
    fn arguments_in_any_order() {
        for line in [
            "add n /run/netns/a -i eth1",
            "--ifname=eth1 add n /run/netns/a",
            "add --ifname eth1 n /run/netns/a",
        ] {
            let given = parse(line);
            assert_eq!(given.arguments(), ["add", "n", "/run/netns/a"], "{line}");
            assert_eq!(given.value("--ifname"), Some("eth1"), "{line}");
        }
    }

    #[test]
    fn wrong_arguments_have_the_exit_code_of_the_other_tool() {
        for args in [&["add", "n"][..], &["nonsense", "n", "x"], &["add", "n", "x", "-z"]] {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let (mut out, mut err) = (Vec::new(), Vec::new());
            assert_eq!(cnitool_command(&args, &mut out, &mut err), 1, "{args:?}");
            assert!(
                out.is_empty() && String::from_utf8(err).unwrap().contains("\nusage: cnitool add|check|del")
            );
        }
    }

    #[test]
    fn the_container_is_the_reference_tools() {
        // echo -n /run/netns/web | sha512sum
        assert_eq!(container_id("/run/netns/web"), "cnitool-82e215debf7df4651d36");
        let given = parse("add n /run/netns/web");
        let vars = |name: &str| match name {
            "CAP_ARGS" => Some(r#"{"mac":"m"}"#.to_owned()),
            "CNI_ARGS" => Some("A=b;C=d".to_owned()),
            "CNI_IFNAME" => Some("net1".to_owned()),
            _ => None,
        };
        let container = container(&given, &vars).unwrap();
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
