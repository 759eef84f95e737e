//! `cnitool`: attaches a network namespace to a network by hand, as a runtime would.
//!
//! Arguments, environment and the container ID are those of the CNI project's tool of that name, so that
//! what one has attached the other detaches.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};

use cni_runtime::cache;
use cni_runtime::config::{self, Loaded};
use cni_runtime::network::{Container, Runtime};
use cni_spec::{Version, text};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha512};

use crate::operator::said;

/// Arguments of `cnitool` and of `slipway cnitool`.
pub const USAGE: &str = "add|check|del|gc|status NETWORK NETNS [-i IFNAME]";

/// The name by which it is found in a plugin directory.
pub const NAME: &str = crate::registry::CNITOOL;

/// Reads an environment variable; none when it is not set or no text.
type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Runs `cnitool ARGS`.
pub fn cnitool_command(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let wanted = match Arguments::parse(args) {
        Ok(wanted) => wanted,
        Err(text) => return said(writeln!(err, "cnitool: {text}\nusage: cnitool {USAGE}\n\n{ABOUT}"), 1),
    };
    match run(&wanted, &|name| std::env::var(name).ok()) {
        Ok(text) => said(out.write_all(text.as_bytes()), 0),
        Err(text) => said(writeln!(err, "Error: {text}"), 1),
    }
}

const ABOUT: &str = "\
CNI_PATH     where plugins are, directories between colons
NETCONFPATH  where networks are (/etc/cni/net.d)
CAP_ARGS     what the runtime has to say, by capability: a JSON object
CNI_ARGS     KEY=VALUE;KEY=VALUE
CNI_IFNAME   the interface in the namespace (eth0), unless -i says it
";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    verb: Verb,
    network: String,
    netns: String,
    ifname: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add,
    Check,
    Del,
    Gc,
    Status,
}

impl Arguments {
    fn parse(args: &[String]) -> Result<Self, String> {
        let (mut words, mut ifname) = (Vec::new(), None);
        let mut rest = args.iter();
        while let Some(word) = rest.next() {
            let value = word.strip_prefix("--ifname=").map(str::to_owned);
            match word.as_str() {
                "-i" | "--ifname" => {
                    let value = rest.next().ok_or_else(|| format!("{word} needs the interface's name"))?;
                    ifname = Some(value.clone());
                }
                _ if value.is_some() => ifname = value,
                word if word.starts_with('-') && word.len() > 1 => {
                    return Err(format!("unknown argument {word:?}"));
                }
                word => words.push(word.to_owned()),
            }
        }
        let [verb, network, netns] = <[String; 3]>::try_from(words)
            .map_err(|_| "a verb, a network and the path of a network namespace are needed".to_owned())?;
        let verb = match verb.as_str() {
            "add" => Verb::Add,
            "check" => Verb::Check,
            "del" => Verb::Del,
            "gc" => Verb::Gc,
            "status" => Verb::Status,
            other => return Err(format!("unknown verb {other:?}")),
        };
        Ok(Self { verb, network, netns, ifname })
    }
}

/// Gives what goes to standard output.
fn run(wanted: &Arguments, vars: Vars<'_>) -> Result<String, String> {
    fn told(error: impl Display) -> String {
        error.to_string()
    }
    let given = |name: &str| vars(name).filter(|value| !value.is_empty());
    let directory = given("NETCONFPATH").unwrap_or_else(|| config::DIRECTORY.to_owned());
    let network = config::load(Path::new(&directory), &wanted.network).map_err(told)?;
    let container = container(wanted, vars)?;
    let path: Vec<PathBuf> = std::env::split_paths(&given("CNI_PATH").unwrap_or_default())
        .filter(|folder| !folder.as_os_str().is_empty())
        .collect();
    let runtime = Runtime { path, cache: PathBuf::from(cache::DIRECTORIES[0]) };
    match wanted.verb {
        Verb::Add => {
            let result = runtime.add(&network, &container).map_err(told)?;
            result.print(known(&network)).map_err(told)
        }
        Verb::Check => runtime.check(&network, &container).map(|()| String::new()).map_err(told),
        Verb::Del => runtime.del(&network, &container).map(|()| String::new()).map_err(told),
        // Of what is valid it knows nothing: what is remembered goes, the plugins keep the rest.
        Verb::Gc => runtime.gc(&network, None).map(|()| String::new()).map_err(told),
        Verb::Status => runtime.status(&network).map(|()| String::new()).map_err(told),
    }
}

fn known(network: &Loaded) -> Version {
    network.list.version.known().unwrap_or(Version::V0_1_0)
}

fn container(wanted: &Arguments, vars: Vars<'_>) -> Result<Container, String> {
    let given = |name: &str| vars(name).filter(|value| !value.is_empty());
    let capabilities = match given("CAP_ARGS") {
        Some(text) => {
            let object: Option<Map<String, Value>> =
                serde_json::from_str(&text).map_err(|e| format!("CAP_ARGS: {e}"))?;
            object.unwrap_or_default()
        }
        None => Map::new(),
    };
    let args = given("CNI_ARGS").map(|text| pairs(&text)).transpose()?.unwrap_or_default();
    let netns = std::path::absolute(&wanted.netns).map_err(|e| format!("{}: {e}", wanted.netns))?;
    let netns = netns.to_string_lossy().into_owned();
    let ifname = wanted.ifname.clone().or_else(|| given("CNI_IFNAME")).unwrap_or_else(|| "eth0".to_owned());
    Ok(Container { id: container_id(&netns), netns, ifname, args, capabilities })
}

/// `cnitool-` and the first ten bytes of the path's SHA-512, in hexadecimal digits.
fn container_id(netns: &str) -> String {
    let hash = Sha512::digest(netns.as_bytes());
    let digits: Vec<String> = hash.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("cnitool-{}", digits.concat())
}

fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let pair = |pair: &str| match pair.split('=').collect::<Vec<_>>()[..] {
        [key, value] if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("invalid CNI_ARGS pair {}", text::quote(pair))),
    };
    text.split(';').map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_in_any_order() {
        let want = Arguments {
            verb: Verb::Add,
            network: "n".into(),
            netns: "/run/netns/a".into(),
            ifname: Some("eth1".into()),
        };
        for args in [
            &["add", "n", "/run/netns/a", "-i", "eth1"][..],
            &["--ifname=eth1", "add", "n", "/run/netns/a"],
            &["add", "--ifname", "eth1", "n", "/run/netns/a"],
        ] {
            assert_eq!(parse(args).as_ref(), Ok(&want));
        }
        assert_eq!(parse(&["add", "n", "x"]).unwrap().ifname, None);
        for args in [
            &[][..],
            &["add", "n"],
            &["add", "n", "x", "y"],
            &["nonsense", "n", "x"],
            &["add", "n", "x", "-z"],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn the_container_is_the_reference_tools() {
        // echo -n /run/netns/web | sha512sum
        assert_eq!(container_id("/run/netns/web"), "cnitool-82e215debf7df4651d36");
        let wanted = parse(&["add", "n", "/run/netns/web"]).unwrap();
        let vars = |name: &str| match name {
            "CAP_ARGS" => Some(r#"{"mac":"m"}"#.to_owned()),
            "CNI_ARGS" => Some("A=b;C=d".to_owned()),
            "CNI_IFNAME" => Some("net1".to_owned()),
            _ => None,
        };
        let container = container(&wanted, &vars).unwrap();
        assert_eq!((container.ifname.as_str(), container.args.len()), ("net1", 2));
        assert_eq!(container.capabilities["mac"], "m");
    }

    #[test]
    fn bad_pairs_are_told() {
        for text in ["A", "A=", "=b", "A=b=c", "A=b;"] {
            assert!(pairs(text).unwrap_err().starts_with("invalid CNI_ARGS pair \""), "{text}");
        }
    }
}
