// SPDX-License-Identifier: GPL-2.0-or-later

//! The commands of `slipway`, for the operator of a node.
//!
//! [`commands::COMMANDS`] describes each of them as data, [`slipway_cli`] reads their arguments. Only this file,
//! above all commands, maps their names to functions.

mod caches;
pub(crate) mod cnitool;
pub(crate) mod commands;
mod filter;
pub(crate) mod install;
mod names;
mod plugins;

mod check_node;
mod connectivity;
mod detach;
mod explain;
mod interrupt;
mod migrate;
mod migration_lock;
mod node;
mod ports;
mod restore;
mod support_bundle;
mod trace;

use std::io::Write;

use slipway_cli::Code;

use cni_plugins::ipam::dhcp::daemon;

/// The code of the command of that name.
fn code(name: &str) -> Option<Code> {
    Some(match name {
        "ports" => ports::run,
        "check-node" => check_node::run,
        "node" => node::run,
        "explain" => explain::run,
        "connectivity-test" => connectivity::run,
        "trace" => trace::run,
        "restore" => restore::run,
        "detach" => detach::run,
        "migrate" => migrate::run,
        "support-bundle" => support_bundle::run,
        "install" => |given, out, _| install::install_command(given, &install::links(), out),
        "uninstall" => install::uninstall_command,
        "dhcp" => |given, out, err| Ok(daemon::dhcp_command(given.raw(), out, err)),
        "cnitool" => |given, out, err| Ok(cnitool::cnitool_command(given.raw(), out, err)),
        "plugins" => plugins::list,
        "plugin" => plugins::serve,
        _ => return None,
    })
}

/// Runs `slipway ARGS` and returns the exit code: 0 for success, 1 for a failure, 2 for wrong arguments,
/// others as in the command's help.
pub(crate) fn run(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    slipway_cli::run(&commands::PROGRAM, code, args, out, err)
}

#[cfg(test)]
mod tests {
    use cni_plugins::registry;
    use expect_test::expect;

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
            let is_of_every_program = ["completions", "manual", "version", "help"].contains(&command.name);
            assert!(code(command.name).is_some() != is_of_every_program, "{}", command.name);
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
        for command in commands::PROGRAM.shown() {
            let (code, help, _) = slipway(&["help", command.name]);
            assert_eq!(code, 0, "{}", command.name);
            assert!(help.starts_with(&format!("slipway {}: {}\n", command.name, command.summary)), "{help}");
            assert_eq!(slipway(&[command.name, "--help"]).1, help);
        }
    }

    #[test]
    fn a_command_is_explained() {
        expect![[r#"
            slipway restore: put back what running containers lost when the ruleset was flushed

            usage: slipway restore [--dry-run] [--cache-dir DIR]... [--output table|json]

            Restores published ports, masquerade and the guard against spoofed addresses of each container that
            is in a runtime's cache and that the kernel shows to be running. Does nothing where nothing is
            missing.

            options:
                  --dry-run            only report what is missing
                  --cache-dir DIR      the cache, if it is neither /var/lib/cni, /var/lib/cni/cache nor
                                       /run/slipway/netavark; its files are in DIR/results; any number of times
              -o, --output table|json  print a table (default), or JSON for programs
              -h, --help               print this

            exit codes:
              0  success
              1  something could not be read or restored; everything else was restored
              2  wrong arguments
              3  with --dry-run: something is missing

            examples:
              slipway restore
                  after `nft flush ruleset`
              slipway restore --dry-run --output json
                  from monitoring
              slipway restore --cache-dir /var/lib/containers/cni
                  with a cache in another place
        "#]].assert_eq(&slipway(&["restore", "--help"]).1);
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
