// SPDX-License-Identifier: GPL-2.0-or-later

//! The commands of `slipway`, for the operator of a node: a file or folder for each, with its arguments on top.
//!
//! The list of commands is in this file. Calls of plugins are answered elsewhere.

mod check_node;
pub(crate) mod cnitool;
mod connectivity;
mod destination;
mod detach;
mod dhcp;
mod directories;
mod explain;
mod filter;
mod install;
mod interrupt;
mod limits;
mod migrate;
mod migration_lock;
mod names;
mod node;
mod plugins;
mod ports;
mod restore;
mod support_bundle;
mod trace;
mod values;

use std::io::Write;

use cni_plugins::registry;
use slipway_cli::{Failure, Own};

/// `slipway`, called by this name.
#[derive(Debug, clap::Parser)]
#[command(
    name = "slipway",
    version,
    about = "CNI plugins for nodes with many containers",
    long_about = description(),
    after_help = "\
Environment:
  SLIPWAY_LOG  the level of the log on standard error: error, warn, info, debug, trace, or levels
               by module
  CNI_PATH     the plugin directories of `cnitool`, and of `connectivity-test`, `detach` and
               `support-bundle` without --plugin-dir, with colons between them

Files:
  /opt/cni/bin           the plugin directory
  /etc/cni/net.d         the networks
  /etc/cni/slipway.json  the node's settings

Exit codes: 0 success, 1 failure, 2 wrong arguments"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Ports(ports::Args),
    CheckNode(check_node::Args),
    Node(node::Args),
    Explain(explain::Args),
    Trace(trace::Args),
    ConnectivityTest(connectivity::Args),
    Restore(restore::Args),
    Detach(detach::Args),
    Migrate(migrate::Args),
    SupportBundle(support_bundle::Args),
    Install(install::InstallArgs),
    Uninstall(install::UninstallArgs),
    Dhcp(dhcp::Args),
    Cnitool(cnitool::Args),
    Plugins(plugins::ListArgs),
    Plugin(plugins::ServeArgs),
    #[command(flatten)]
    Own(Own),
}

fn description() -> String {
    format!(
        "CNI plugins for nodes with many containers\n\nOne program is all CNI plugins of a node. Called by the name of a \
         plugin, it is that plugin: {}. Called as slipway, it runs a command of the node's operator.",
        registry::names().join(", ")
    )
}

/// Runs `slipway ARGS` and returns the exit code: 0 for success, 1 for a failure, 2 for wrong arguments,
/// others as in the command's help.
pub(crate) fn run(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    match args.split_first() {
        // For arguments that cannot be used, this command has the exit code of the CNI project's tool.
        Some((name, _)) if name == cnitool::NAME => {
            return slipway_cli::run::<Cli>(args, out, err, called).min(1);
        }
        Some((name, _)) if name == dhcp::NAME => {
            return slipway_cli::run::<Cli>(&dhcp::with_two_dashes(args), out, err, called);
        }
        _ => {}
    }
    slipway_cli::run::<Cli>(args, out, err, called)
}

fn called(cli: Cli, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    let program = slipway_cli::command::<Cli>;
    match cli.command {
        Command::Ports(args) => ports::run(&args, out, err),
        Command::CheckNode(args) => check_node::run(&args, out),
        Command::Node(args) => node::run(&args, out, err),
        Command::Explain(args) => explain::run(&args, out),
        Command::Trace(args) => trace::run(&args, out, err),
        Command::ConnectivityTest(args) => connectivity::run(&args, out, err),
        Command::Restore(args) => restore::run(&args, out),
        Command::Detach(args) => detach::run(&args, out),
        Command::Migrate(args) => migrate::run(&args, out, err),
        Command::SupportBundle(args) => support_bundle::run(&args, out),
        Command::Install(args) => install::install_command(&args, &install::links(), &program(), out),
        Command::Uninstall(args) => install::uninstall_command(&args, &program(), out, err),
        Command::Dhcp(args) => dhcp::run(args),
        Command::Cnitool(args) => cnitool::run(&args, out, err),
        Command::Plugins(args) => plugins::list(&args, out),
        Command::Plugin(args) => plugins::serve(&args, out, err),
        Command::Own(own) => own.run::<Cli>(out),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use expect_test::expect;

    use super::*;
    use crate::netavark;

    fn slipway(args: &[&str]) -> (u8, String, String) {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&args, &mut out, &mut err);
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn help_manual_and_completions_are_complete() {
        slipway_cli::checks::assert_complete::<Cli>();
    }

    #[test]
    fn no_command_has_the_name_of_one_of_netavarks() {
        for name in netavark::COMMANDS {
            assert!(Cli::command().find_subcommand(name).is_none(), "{name}");
        }
    }

    #[test]
    fn all_that_print_data_print_json() {
        let is_output = |argument: &clap::Arg| argument.get_id() == "output";
        let cli = Cli::command();
        let with = cli.get_subcommands().filter(|command| command.get_arguments().any(is_output));
        let names: Vec<&str> = with.map(clap::Command::get_name).collect();
        assert_eq!(
            names,
            [
                "ports",
                "check-node",
                "node",
                "explain",
                "trace",
                "connectivity-test",
                "restore",
                "detach",
                "migrate",
                "cnitool",
                "plugins",
                "version"
            ]
        );
    }

    #[test]
    fn help_is_the_same_in_each_spelling() {
        let (code, overview, err) = slipway(&["help"]);
        assert_eq!((code, err.as_str()), (0, ""));
        for args in [&[][..], &["-h"], &["--help"]] {
            assert_eq!(slipway(args).1, overview, "{args:?}");
        }
        let words = overview.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("it is that plugin: bandwidth, bridge,") && !overview.contains("\n  top"));
        for command in Cli::command().get_subcommands() {
            let (code, help, _) = slipway(&["help", command.get_name()]);
            assert_eq!(code, 0, "{}", command.get_name());
            assert!(help.contains("\nUsage: "), "{help}");
        }
        assert_eq!(slipway(&["ports", "--help"]).1, slipway(&["help", "ports"]).1);
    }

    #[test]
    fn a_command_is_explained() {
        expect![[r#"
            Put back what running containers need on the node, and other programs changed

            Restores the links, addresses and routes on the node, forwarding, published ports, masquerade and
            all other rules of each container that is in a runtime's cache and that the kernel shows to be
            running. Does nothing where nothing is missing. A setting that is not Slipway's to change is named,
            with its remedy.

            Usage: slipway restore [OPTIONS]

            Options:
                  --dry-run          Only report what is missing
                  --cache-dir <DIR>  The cache, if it is neither /var/lib/cni, /var/lib/cni/cache nor
                                     /run/slipway/netavark; its files are in DIR/results; any number of times
              -o, --output <FORMAT>  Print a table, or JSON for programs [default: table] [possible values:
                                     table, json]
              -h, --help             Print help

            Exit codes:
              1  something could not be read or restored; everything else was restored
              3  with --dry-run: something is missing

            Examples:
              slipway restore
              slipway restore --dry-run --output json
              slipway restore --cache-dir /var/lib/containers/cni
        "#]].assert_eq(&slipway(&["restore", "--help"]).1);
    }

    #[test]
    fn wrong_arguments_are_named_with_exit_code_2() {
        for (args, want) in [
            (
                &["prots"][..],
                "slipway: unknown command \"prots\": did you mean ports? (see `slipway --help`)\n",
            ),
            (&["plugin", "brigde"], "slipway plugin: PLUGIN must be bandwidth, bridge,"),
            (&["ports", "--ouput", "json"], "slipway ports: unknown option --ouput: did you mean --output?"),
            (&["node"], "slipway node: TASK is missing (see `slipway node --help`)\n"),
            (
                &["trace", "tcp", "192.0.2.2:80", "--count", "0"],
                "slipway trace: --count must be a number between 1 and 1000, not \"0\" (see",
            ),
            (
                &["trace", "tcp", "192.0.2.2:80", "--for", "11m"],
                "slipway trace: --for must be a time between 1s and 10m, not \"11m\" (see",
            ),
            (
                &["top", "--once"],
                "slipway: unknown command \"top\": `slipwayd top` is a command of slipwayd (see `slipway --help`)\n",
            ),
            (&["help", "pod"], "slipway: unknown command \"pod\": `slipwayd pod` is a command of slipwayd"),
            (
                &["pod", "up", "--network", "n"],
                "slipway: unknown command \"pod\": `slipwayd pod` is a command of",
            ),
        ] {
            let (code, out, err) = slipway(args);
            assert_eq!((code, out.as_str(), err.lines().count()), (2, "", 1), "{args:?}");
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
