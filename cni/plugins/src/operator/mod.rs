// SPDX-License-Identifier: GPL-2.0-or-later

//! The commands of `slipway`, for the operator of a node.
//!
//! [`commands::COMMANDS`] describes each of them. [`cli`] reads their arguments.

pub mod cli;
pub mod cnitool;
pub mod commands;
mod completions;
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

use std::io::{self, Write};

use cli::{Command, Failure, Stop, USAGE_ERROR};

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
    match commands::find(name) {
        Some(command) => execute(command, rest, out, err),
        None => {
            let unknown = help::unknown_command(name);
            exit_code(writeln!(err, "slipway: {unknown}\n`slipway help` lists the commands"), USAGE_ERROR)
        }
    }
}

/// Reads the arguments of a command and runs it.
fn execute(command: &Command, args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let done = match cli::parse(command, args) {
        Ok(given) => (command.run)(&given, out, err),
        Err(Stop::Help) => help::of_command(command, out).map(|()| 0).map_err(Failure::from),
        Err(Stop::Usage(text)) => Err(Failure::Usage(text)),
    };
    let name = command.name;
    match done {
        Ok(code) => code,
        Err(Failure::Failed(text)) => exit_code(writeln!(err, "slipway {name}: {text}"), 1),
        Err(Failure::Usage(text)) => {
            let help = format!("`slipway {name} --help` explains the arguments");
            exit_code(writeln!(err, "slipway {name}: {text}\n{help}"), USAGE_ERROR)
        }
        Err(Failure::Report(_)) => 1,
    }
}

/// The exit code after a message; 1 if it could not be written.
fn exit_code(written: io::Result<()>, code: u8) -> u8 {
    written.map_or(1, |()| code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    fn slipway(args: &[&str]) -> (u8, String, String) {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&args, &mut out, &mut err);
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
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
