// SPDX-License-Identifier: GPL-2.0-or-later

//! The commands of `slipway`, for the operator of a node.
//!
//! [`commands::COMMANDS`] describes each of them as data, [`cli`] reads their arguments. Only this file, above
//! all commands, maps their names to functions.

pub mod cli;
pub mod cnitool;
pub mod commands;
mod completions;
mod execute;
mod filter;
mod help;
pub mod install;
mod json;
mod manual;
mod names;
mod plugins;
mod table;

mod check_node;
mod explain;
mod flows;
mod migrate;
mod node;
mod ports;
mod restore;
mod support_bundle;

use std::io::Write;

use cli::USAGE_ERROR;
use execute::{Code, execute, exit_code};

use crate::ipam::dhcp::daemon;
use crate::registry;

/// The code of the command of that name.
fn code(name: &str) -> Option<Code> {
    Some(match name {
        "ports" => ports::run,
        "flows" => flows::run,
        "check-node" => check_node::run,
        "node" => node::run,
        "explain" => explain::run,
        "restore" => restore::run,
        "migrate" => migrate::run,
        "support-bundle" => support_bundle::run,
        "install" => |given, out, _| install::install_command(given, &registry::links(), out),
        "uninstall" => install::uninstall_command,
        "dhcp" => |given, out, err| Ok(daemon::dhcp_command(given.raw(), out, err)),
        "cnitool" => |given, out, err| Ok(cnitool::cnitool_command(given.raw(), out, err)),
        "plugins" => plugins::list,
        "plugin" => plugins::serve,
        "completions" => completions::run,
        "manual" => install::manual_command,
        "version" => plugins::version,
        "help" => help::run,
        _ => return None,
    })
}

/// Runs `slipway ARGS` and returns the exit code: 0 for success, 1 for a failure, 2 for wrong arguments,
/// others as in the command's help.
pub fn run(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let Some((name, rest)) = args.split_first() else {
        return help::overview(out).map_or(1, |()| 0);
    };
    let name = match name.as_str() {
        "-h" | "--help" => "help",
        "-V" | "--version" => "version",
        name => name,
    };
    match commands::find(name).zip(code(name)) {
        Some((command, code)) => execute(command, code, rest, out, err),
        None => {
            let unknown = help::unknown_command(name);
            exit_code(writeln!(err, "slipway: {unknown}\n`slipway help` lists the commands"), USAGE_ERROR)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slipway(args: &[&str]) -> (u8, String, String) {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&args, &mut out, &mut err);
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn each_command_has_code() {
        for command in commands::COMMANDS {
            assert!(code(command.name).is_some(), "{}", command.name);
        }
    }

    /// The daemon reads its options itself.
    #[test]
    fn the_daemons_options_are_in_the_table() {
        let flags: Vec<&str> =
            daemon::USAGE.split(['[', ']', ' ']).filter(|word| word.starts_with('-')).collect();
        let command = commands::find("dhcp").unwrap();
        let table: Vec<&str> = command.options.iter().map(|option| option.name).collect();
        assert_eq!(flags, table);
    }

    #[test]
    fn help_is_the_same_in_each_spelling() {
        let (code, overview, err) = slipway(&["help"]);
        assert_eq!((code, err.as_str()), (0, ""));
        for args in [&[][..], &["-h"], &["--help"]] {
            assert_eq!(slipway(args).1, overview, "{args:?}");
        }
        for command in commands::shown() {
            let (code, help, _) = slipway(&["help", command.name]);
            assert_eq!(code, 0, "{}", command.name);
            assert!(help.starts_with(&format!("slipway {}: {}\n", command.name, command.summary)), "{help}");
            assert_eq!(slipway(&[command.name, "--help"]).1, help);
        }
    }

    #[test]
    fn wrong_arguments_are_named_with_exit_code_2() {
        for (args, want) in [
            (&["prots"][..], "slipway: unknown command \"prots\": did you mean ports?\n`slipway help` lists"),
            (&["help", "prots"], "slipway help: unknown command \"prots\": did you mean ports?\n"),
            (&["plugin", "brigde"], "slipway plugin: no plugin \"brigde\": did you mean bridge?\n"),
            (
                &["ports", "--ouput", "json"],
                "slipway ports: unknown option --ouput: did you mean --output?\n",
            ),
            (&["node"], "slipway node: setup|teardown|status is missing"),
        ] {
            let (code, out, err) = slipway(args);
            assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
            assert!(err.starts_with(want), "{err}");
        }
    }

    #[test]
    fn plugins_and_the_version_are_printed() {
        let (code, out, _) = slipway(&["plugins", "--names"]);
        assert_eq!((code, out.lines().collect::<Vec<_>>()), (0, registry::names()));
        assert!(slipway(&["plugins"]).1.contains("loopback"));
        assert_eq!(slipway(&["--version"]).1, format!("slipway {}\n", env!("CARGO_PKG_VERSION")));
    }
}
